"""The documents' Python, as printed: as a script without a guard, piped into python, in a notebook."""

import textwrap

import pytest

from tests.parallel.contract.helpers import finish, run_script, start_script
from tests.parallel.contract.notebooks import notebook
from tests.spec import documents

# What the documents leave to their reader.
FILLED_IN = """
from espnet3.parallel import get_client, set_parallel
set_parallel({"env": "local", "n_workers": 4})
"""

MODEL = """
class Model:
    def predict(self, sample):
        return 10 * sample

def load_model():
    return Model()

def load_dataset():
    return list(range(100, 200))

def inference_fn(idx, model, dataset):
    return infer(idx, model, dataset)

inputs = range(30)
"""

GATHER = """
    print([future.result() for future in results])
"""

MY_RUNNER = """
from espnet3.parallel import BaseRunner, InferenceProvider

class MyProvider(InferenceProvider):
    @staticmethod
    def build_dataset(config):
        return list(range(config["size"]))

    @staticmethod
    def build_model(config):
        return lambda sample: sample + 1

class MyRunner(BaseRunner):
    @staticmethod
    def forward(idx, dataset, model):
        return model(dataset[idx])

cfg = {"size": 25}
dataset = MyProvider.build_dataset(cfg)
"""

EXAMPLES = {
    "basic map": (documents.BASIC_MAP, str([x * x for x in range(10)])),
    "setup_fn": (
        FILLED_IN + MODEL + documents.SETUP_FN.rstrip() + GATHER,
        str([10 * x for x in range(100, 130)]),
    ),
    "streaming": (
        FILLED_IN + "def setup_fn():\n    return {'unused': 1}\n" + documents.STREAMING,
        "\n".join(sorted(2 * [f"Got result: {2 * x}" for x in range(100)])),
    ),
    "runner": (
        FILLED_IN
        + MY_RUNNER
        + documents.RUNNER.replace("runner(range", "results = runner(range")
        + "print(results)\n",
        str(list(range(1, 26))),
    ),
}


def ordered(text):
    """Return the lines of a stream's output in some order that is always the same."""
    return "\n".join(sorted(text.strip().splitlines()))


@pytest.mark.parametrize("example", EXAMPLES)
def test_as_a_script(example, tmp_path):
    """Each example runs as a file of its own, without a `__main__` guard, on four workers."""
    code, wanted = EXAMPLES[example]
    assert "__main__" not in code
    assert ordered(run_script(tmp_path, code)) == wanted


def test_piped_into_python(tmp_path):
    """An example runs when it is piped into `python -`."""
    code, wanted = EXAMPLES["basic map"]
    done = finish(start_script(tmp_path, "", python=["-"], stdin=True), code)
    assert (done.returncode, ordered(done.stdout)) == (0, wanted), done.stderr


def test_cells_of_a_notebook_build_on_each_other(tmp_path):
    """An example runs in a cell; a client that one opens serves functions that later ones define, change and import."""
    (tmp_path / "beside.py").write_text("def plus(x):\n    return x + 100\n")
    with notebook(tmp_path) as cells:
        code, wanted = EXAMPLES["runner"]
        assert ordered(cells(code)) == wanted
        cells("from espnet3.parallel import build_client, parallel_map")
        cells("client = build_client({'env': 'local', 'n_workers': 2})")
        for n in (1, 2):
            cells(f"def add(x):\n    return x + {n}\n")
            assert cells("print(parallel_map(add, range(3), client=client))") == f"{[n, n + 1, n + 2]}\n"
        cells(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import beside")
        assert cells("print(parallel_map(beside.plus, range(3), client=client))") == "[100, 101, 102]\n"
        cells("client.close()")


def test_the_runner_lives_in_a_module_beside_a_script_started_from_elsewhere(tmp_path):
    """A provider and runner in an uninstalled module beside the script are found by four workers."""
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "my_recipe.py").write_text(MY_RUNNER)
    code = FILLED_IN + textwrap.dedent(
        """
        from my_recipe import MyProvider, MyRunner, cfg, dataset
        """
    )
    code += documents.RUNNER.replace("runner(range", "print(runner(range").replace("))\n", ")))\n")
    assert run_script(tmp_path / "recipe", code, cwd=tmp_path) == f"{list(range(1, 26))}\n"
