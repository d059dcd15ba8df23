"""The command line of a recipe: which stages, which configs, and what is said about mistakes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from espnet3.systems.base.system import BaseSystem
from espnet3.systems.stages import StageSpec, chosen, roles_of, stage_names
from tests.components.needed import needed

ROOT = Path(__file__).resolve().parents[2]

RUN = """\
import os
import sys
from pathlib import Path

from espnet3.parallel import get_parallel_config, parallel_map
from espnet3.systems.base.system import BaseSystem
from espnet3.systems.launch import launch
from espnet3.systems.stages import StageSpec

class System(BaseSystem):
    stages = (*BaseSystem.stages, StageSpec("publish", "publication"), StageSpec("count", "training"), "report")

    def __init__(self, publication_config=None, **configs):
        super().__init__(**configs)
        self.publication_config = publication_config

    def publish(self):
        return self.publication_config["where"]

    def count(self):
        return len(set(parallel_map(process, range(20))) - {os.getpid()}), get_parallel_config().n_workers

    def report(self):
        return str(get_parallel_config())

def process(number):
    return os.getpid()

def show(results):
    print(*(f"{name}={result}" for name, result in results.items() if name not in ("infer", "measure")))

sys.exit(launch(System, show=show if "--shown" not in sys.argv else None))
"""

DATASET = """\
from espnet3.components.data.dataset_builder import BuiltFiles, DatasetBuilder, SourceError
from espnet3.components.metrics.abs_metric import AbsMetric
from espnet3.parallel import get_parallel_config

class Words(list):
    def __init__(self, n):
        super().__init__({"utt_id": f"u{k}", "text": f"word {k}"} for k in range(n))

class Upper:
    def __init__(self, end=""):
        self.end = end

    def __call__(self, text):
        return text.upper() + self.end

def row(*, data, model_output, idx):
    return {"utt_id": data["utt_id"], "hyp": model_output, "ref": data["text"]}

class Builder(DatasetBuilder):
    def __init__(self, data_dir, missing=False):
        super().__init__(data_dir)
        self.missing = missing

    def is_source_prepared(self):
        return not self.missing

    def prepare_source(self):
        raise SourceError("the tape is not in the drive")

    def make(self):
        (self.data_dir / "workers").write_text(str(get_parallel_config().n_workers))
        return BuiltFiles(index=[self.data_dir / "workers"])

class Asked(AbsMetric):
    def __call__(self, data, test_name, inference_dir):
        return {"workers": get_parallel_config().n_workers}
"""

CONF = {
    "training": """\
create_dataset: {_target_: dataset.Builder, data_dir: "${data_dir}"}
parallel: {env: local, n_workers: 3}
""",
    "inference": """\
exp_tag: upper
dataset:
  test:
    - {name: few, _target_: dataset.Words, data_src_args: {n: 2}}
    - {name: more, _target_: dataset.Words, data_src_args: {n: 4}}
model: {_target_: dataset.Upper}
input_key: text
output_fn: dataset.row
runner: {progress: false}
""",
    "metrics": """\
metrics: [{_target_: dataset.Asked}]
parallel: {env: local, n_workers: 5}
""",
    "publication": "where: here\n",
    "parallel_two": "parallel: {env: local, n_workers: 2}\n",
}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    folder = tmp_path / "recipe"
    (folder / "conf").mkdir(parents=True)
    (folder / "dataset").mkdir()
    (folder / "run.py").write_text(RUN)
    (folder / "dataset/__init__.py").write_text(DATASET)
    for name, text in CONF.items():
        (folder / f"conf/{name}.yaml").write_text(text)
    return folder


def run(recipe: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(recipe / "run.py"), *words],
        cwd=recipe.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_all_stages_run_each_with_its_own_config(recipe: Path) -> None:
    """Each stage, one of the recipe's own too, works with its own block, and a later one not with it."""
    stages = ["create_dataset", "infer", "measure", "publish", "count", "report"]
    done = run(recipe, "--stages", *stages)
    assert done.returncode == 0, done.stderr
    assert done.stdout in {
        f"create_dataset=True publish=here count=({n}, 3) report=None\n" for n in (1, 2, 3)
    }
    assert (recipe / "data/workers").read_text() == "3"
    assert '"workers": 5' in (recipe / "exp/upper/inference/metrics.json").read_text()
    assert (recipe / "exp/upper/inference/few/hyp.scp").read_text() == "u0 WORD 0\nu1 WORD 1\n"
    every = run(recipe, "--stages", "all", "--dry_run", "+dataset.train=[]")
    assert [line.split(":")[0] for line in every.stdout.splitlines()] == [
        *("create_dataset", "train_tokenizer", "collect_stats", "train", "infer", "measure", "publish"),
        *("count", "report"),
    ]


def test_each_stage_has_a_log(recipe: Path) -> None:
    """It has the command line, the config without secrets, what was said and the traceback, and grows with each run."""
    training = recipe / "conf/training.yaml"
    training.write_text(f"{training.read_text()}hub_token: hunter2345\n")
    assert run(recipe, "--stages", "create_dataset").returncode == 0
    log = (recipe / "data/create_dataset.log").read_text()
    assert "run.py --stages create_dataset" in log and '"n_workers": 3' in log and "hunter2345" not in log
    assert "INFO Builder: building" in log and "INFO stage create_dataset: " in log
    done = run(recipe, "--stages", "infer", "+log_dir=${recipe_dir}/logs", "model._target_=dataset.Nothing")
    assert done.returncode != 0
    assert "Nothing" in (recipe / "logs/infer.log").read_text().partition("Traceback")[2]
    assert run(recipe, "--stages", "create_dataset").returncode == 0
    again = (recipe / "data/create_dataset.log").read_text()
    assert again.startswith(log) and "already built" in again


def test_a_dry_run_says_what_would_run_and_runs_nothing(recipe: Path) -> None:
    """Each stage is listed with its config and where it would run; nothing is written."""
    stages = ["measure", "create_dataset", "report", "infer"]
    done = run(recipe, "--dry_run", "--stages", *stages, "parallel.n_workers=7")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"create_dataset: {recipe}/conf/training.yaml; parallel: local, 7 workers",
        f"infer: {recipe}/conf/inference.yaml; parallel: none, so this process",
        f"measure: {recipe}/conf/metrics.yaml; parallel: local, 7 workers",
        "report: reads no config of its own",
    ]
    assert not (recipe / "data").exists() and not (recipe / "exp").exists()


def test_what_no_wanted_stage_reads_stops_nothing(recipe: Path) -> None:
    """A config may hold any mistake, in whatever shape, until a stage that reads it is asked for."""
    for text in (
        "parallel: {env: locl}",
        "parallel: 3",
        "paralel: {env: local}",
        "parallel:\nenv: local",
        "trainer: {n_workers: 2}",
        "model: [1",
        "- model",
        "model: ${nope}",
    ):
        (recipe / "conf/demo.yaml").write_text(text + "\n")
        done = run(recipe, "--dry_run", "--stages", "infer", "--parallel_config", "parallel_two")
        assert done.returncode == 0, (text, done.stderr)
    (recipe / "conf/inference.yaml").write_text(CONF["inference"] + "parallel: {env: locl}\n")
    assert run(recipe, "--dry_run", "--stages", "create_dataset").returncode == 0
    done = run(recipe, "--dry_run", "--stages", "demo")
    assert done.returncode == 2 and "conf/demo.yaml, line 1: model: " in done.stderr


MISTAKES: list[tuple[dict[str, str | None], list[str], str]] = [
    (
        {},
        ["--stages", "trian"],
        "no stage 'trian'; System has create_dataset, train_tokenizer, collect_stats",
    ),
    (
        {"inference": CONF["inference"] + "parallel:\nenv: local\noptions:\nthreads_per_worker: 1\n"},
        ["--stages", "infer"],
        "Indent env, options by 2 spaces and threads_per_worker by 4 spaces",
    ),
    (
        {"training": "trainer:\ndevices: 4\nnum_nodes: 2\nstrategy: ddp\n"},
        ["--stages", "train"],
        "Indent devices, num_nodes, strategy by 2 spaces",
    ),
    (
        {"inference": CONF["inference"] + "test_sets: [fewer]\n"},
        ["--stages", "infer"],
        "conf/inference.yaml, line 10: test_sets names 'fewer', which is not in dataset.test; that has few, more",
    ),
    (
        {"inference": CONF["inference"].replace("input_key: text\n", "")},
        ["--stages", "infer", "--dry_run"],
        "the inference config has no 'input_key' (it has",
    ),
    ({}, ["--stages", "measure"], "run the infer stage first"),
    ({"publication": None}, ["--stages", "publish"], "stage publish reads publication.yaml"),
    ({"training": "exp_tag: [1\n"}, ["--stages", "infer"], "conf/training.yaml, line 2: this is not YAML"),
    (
        {"parallel_two": "parallel:\nenv: local\n"},
        ["--stages", "infer", "--parallel_config", "parallel_two"],
        "conf/parallel_two.yaml, line 1: parallel is empty, and what belongs to it stands beside it",
    ),
    (
        {"training": "optimizer:\n  groups:\n  - _target_: torch.optim.Adm\n"},
        ["--stages", "collect_stats", "train"],
        "conf/training.yaml, line 3: optimizer.groups[0]._target_ = 'torch.optim.Adm': cannot be imported",
    ),
]


@pytest.mark.parametrize(("conf", "words", "said"), MISTAKES)
def test_a_mistake_ends_with_one_message(
    recipe: Path, conf: dict[str, str | None], words: list[str], said: str
) -> None:
    """Whatever is wrong on the command line or in a config ends with status 2, the place, and no traceback."""
    if "torch." in said:
        needed("lightning")
    for name, text in conf.items():
        path = recipe / f"conf/{name}.yaml"
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
    done = run(recipe, *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_source_that_cannot_be_had_ends_without_a_traceback(recipe: Path) -> None:
    """A builder's SourceError is status 1 and its message."""
    done = run(recipe, "--stages", "create_dataset", "+create_dataset.missing=true")
    assert done.returncode == 1, done.stderr
    assert "create_dataset: the tape is not in the drive" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_of_another_run_ends_without_a_traceback_and_with_the_words_to_type(recipe: Path) -> None:
    """Where the model has changed since, the message says how, and what it names does it."""
    assert run(recipe, "--stages", "infer").returncode == 0
    changed = ["--stages", "infer", "+model.end=s"]
    done = run(recipe, *changed)
    assert done.returncode == 1
    assert "holds another run" in done.stderr and "Traceback" not in done.stderr
    assert "runner.resume=false or runner.resume=force" in done.stderr
    done = run(recipe, *changed, "+runner.resume=false")
    assert done.returncode == 0, done.stderr
    assert (recipe / "exp/upper/inference/few/hyp.scp").read_text() == "u0 WORD 0s\nu1 WORD 1s\n"


def test_a_system_says_which_config_each_stage_reads() -> None:
    """Names, roles and the order of stages come from the one list; a bare name reads no config."""

    class System(BaseSystem):
        stages = (StageSpec("train", ("training", "demo")), "report", *BaseSystem.stages)

    assert stage_names(System)[:3] == ("train", "report", "create_dataset")
    assert roles_of(System) == ("training", "demo", "inference", "metrics")
    assert [each.name for each in chosen(System, ["infer", "train"])] == ["train", "infer"]
    assert len(chosen(System, ["all"])) == 7
    with pytest.raises(ValueError, match="no stage 'infre'; System has train, .* Did you mean 'infer'"):
        chosen(System, ["infre"])
