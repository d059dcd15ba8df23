"""What no job could do is said before anything is written or queued."""

import re
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from espnet3.parallel import ConfigError, set_parallel
from tests.habits import rows
from tests.parallel.detached.work import Provider, Squares, python, run_of

DEFINED = """
    from espnet3.parallel import BaseRunner, EnvironmentProvider, set_parallel

    class Provider(EnvironmentProvider):
        def build_env_local(self):
            return {"factor": self.config["factor"]}

    class Times(BaseRunner):
        @staticmethod
        def forward(idx, factor):
            return times(idx, factor)

    def times(idx, factor):
        return idx * factor

    set_parallel({"env": "local", "n_workers": 2})
"""
SUBMITTED = """
run = Times(Provider({"factor": 3}), output_dir="run", async_mode=True)(range(4))
assert run.wait(600).done, run.status()
print(list(run.merge()))
"""


def script(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(text)
    return python("script.py", cwd=folder)


def written(folder: Path) -> list[str]:
    """Return what is in a folder; what Python itself keeps beside a module is not ours."""
    return sorted({path.name for path in folder.iterdir()} - {"__pycache__"})


@pytest.mark.parametrize("guard", rows([True, False], (False,)), ids=["guard", "no guard"])
def test_a_runner_of_a_script_works(tmp_path: Path, guard: bool) -> None:
    """Jobs find the classes of a script that was run as `__main__`; none of them submits again."""
    end = f"if __name__ == '__main__':\n{textwrap.indent(SUBMITTED, '    ')}" if guard else SUBMITTED
    done = script(textwrap.dedent(DEFINED) + end, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[0, 3, 6, 9]\n"
    assert done.stderr.count("submitted") == 1
    assert written(tmp_path) == ["_async_specs", "run", "script.py"]


RUN_BEFORE = """
with open("log", "a") as log:
    log.write("started ")
from espnet3.parallel import DetachedRun, parallel_submit
try:
    BEFORE
except Exception:
    pass
with open("log", "a") as log:
    log.write("went on ")
"""


@pytest.mark.parametrize(
    "before",
    [
        'Times(Provider({"factor": 1}), progress=False)(range(2))',
        'DetachedRun.open("run").retry()',
        pytest.param("parallel_submit(abs, 2).result()", marks=pytest.mark.matrix),
    ],
)
def test_what_a_script_runs_before_its_submission_runs_once(tmp_path: Path, before: str) -> None:
    """Jobs load a script without a guard up to the first thing that it runs, submits or retries."""
    if "retry" in before:  # a run that is there
        script(textwrap.dedent(DEFINED) + SUBMITTED, tmp_path)
    done = script(textwrap.dedent(DEFINED) + RUN_BEFORE.replace("BEFORE", before) + SUBMITTED, tmp_path)
    assert done.stdout == "[0, 3, 6, 9]\n", done.stderr
    words = (tmp_path / "log").read_text().split()
    assert words.count("went") == 1 < words.count("started")


def test_a_runner_typed_into_an_interpreter_is_refused(tmp_path: Path) -> None:
    """Classes of a terminal are in no file: the message says what to do, and nothing is written."""
    done = python("-", cwd=tmp_path, typed=textwrap.dedent(DEFINED) + SUBMITTED)
    assert re.search(
        r"ConfigError: no job can find the runner Times: .* terminal, a noteb.*\.py file", done.stderr
    )
    assert not list(tmp_path.iterdir())


def test_a_lambda_of_a_script_is_refused(tmp_path: Path) -> None:
    """A function without a name at the top level is refused before a job is submitted."""
    main = "from espnet3.parallel import run\nif __name__ == '__main__':\n    run(lambda x: x, [1], async_mode=True)"
    assert re.search(
        r"no job can find the function <lambda>: .*put it at the top", script(main, tmp_path).stderr
    )
    assert written(tmp_path) == ["script.py"]


def test_a_class_of_a_function_is_refused(tmp_path: Path) -> None:
    """A class that another process cannot name is refused."""

    class Local(Squares):
        pass

    with pytest.raises(ConfigError, match="no job can find .*Local: .* inside a function; put it at the top"):
        run_of(tmp_path / "a", runner=Local)
    assert not (tmp_path / "a/run").exists()


def test_a_config_that_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    """The place of the value and its type are named."""
    with pytest.raises(
        ConfigError, match=r"config\['model'\] is of type object, .*give the provider plain values"
    ):
        run_of(tmp_path / "a", config={"model": object()})
    assert not (tmp_path / "a/run").exists()


def test_a_module_that_the_job_cannot_import_is_refused(tmp_path: Path) -> None:
    """What only this process has (a module made at runtime) is missed by a trial before submission."""
    (tmp_path / "mine.py").write_text("import ghost\n" + textwrap.dedent(DEFINED))
    text = """
        import sys, types
        sys.modules["ghost"] = types.ModuleType("ghost")
        from mine import Provider, Times
        Times(Provider({"factor": 3}), output_dir="run", async_mode=True)(range(4))
    """
    done = script(textwrap.dedent(text), tmp_path)
    assert re.search(r"ConfigError: a detached job cannot import mine .*No module named 'ghost'", done.stderr)
    assert not (tmp_path / "run").exists()


def test_a_script_without_a_guard_has_its_arguments_in_jobs(tmp_path: Path) -> None:
    """Jobs load it as the caller has started it."""
    text = "import sys\nfactor = sys.argv[3]\n" + textwrap.dedent(DEFINED) + SUBMITTED
    (tmp_path / "script.py").write_text(text)
    done = python("script.py", "1", "2", "3", cwd=tmp_path)
    assert done.stdout == "[0, 3, 6, 9]\n", done.stderr


def test_what_a_script_without_a_guard_sets_is_no_edit(tmp_path: Path) -> None:
    """Its jobs load it, and so set it too."""
    (tmp_path / "flags.py").write_text("BIG = 0\n")
    text = (
        "import flags\nfrom espnet3.parallel import run\nflags.BIG = 3\ndef f(x):\n    return x * flags.BIG\n"
    )
    text += "found = run(f, range(2), output_dir='run', async_mode=True)\nfound.wait()\nprint(list(found.merge()))"
    assert script(text, tmp_path).stdout == "[0, 3]\n"


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ({"shard": 3}, "detached.shard: unknown key. Did you mean 'shards'?"),
        ({"retry_memory_factor": 1}, "detached.retry_memory_factor = 1: must be a number above 1"),
        ("3", "detached = '3': must be a mapping"),
    ],
)
def test_a_wrong_setting_is_said_with_the_configuration(block: Any, problem: str) -> None:
    """The `detached` block is checked when the configuration is set."""
    with pytest.raises(ConfigError, match=re.escape(problem)):
        set_parallel({"env": "local", "detached": block})


def test_a_secret_of_the_environment_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a config takes from `oc.env` stays an interpolation on disk, and is resolved in the job."""
    monkeypatch.setenv("MY_TOKEN", "hush-hush")
    config = OmegaConf.create({"folder": str(tmp_path / "a"), "bad": None, "key": "x-${oc.env:MY_TOKEN}"})

    (tmp_path / "a").mkdir()
    set_parallel({"env": "local", "detached": {"shards": 1}})
    run = Squares(
        Provider(config), output_dir=tmp_path / "a/run", async_specs_dir=tmp_path / "specs", async_mode=True
    )
    detached = run(range(2))
    assert detached.wait(600).done
    texts = [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]
    assert any("${oc.env:MY_TOKEN}" in text for text in texts)
    assert not any("hush-hush" in text for text in texts)
