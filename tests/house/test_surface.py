"""The names users may rely on: a change of this list is a change for them, and belongs in the changelog."""

import inspect
import re
from importlib import import_module
from importlib.metadata import version

import pytest

import espnet3.parallel

FUNCTIONS = [
    "build_client",
    "build_local_gpu_cluster",
    "get_client",
    "get_parallel_config",
    "make_client",
    "make_local_gpu_cluster",
    "parallel_for",
    "parallel_map",
    "parallel_submit",
    "set_parallel",
    "wrap_func_with_worker_env",
]
SURFACE = sorted([
    *FUNCTIONS,
    "BaseRunner",
    "BatchLengthError",
    "ChangedRunError",
    "ConfigError",
    "DamagedFolderError",
    "DetachedRun",
    "DictReturnWorkerPlugin",
    "EnvConflictError",
    "EnvTypeError",
    "EnvironmentProvider",
    "FolderInUseError",
    "FolderWriteError",
    "IncompleteRunError",
    "InferenceProvider",
    "ItemError",
    "ItemFailure",
    "JobRecord",
    "LeaseLostError",
    "LedgerError",
    "MissingPackageError",
    "NoOutputDirError",
    "NoWorkersError",
    "ParallelConfig",
    "ParallelError",
    "PoisonItemError",
    "RunSummary",
    "SignatureError",
    "SubmissionError",
    "TooManyFailuresError",
    "ValueTypeError",
    "WorkerSetupError",
    "concatenate_shard_files",
    "run",
])  # fmt: skip

# Modules that the documentation names beside the package, with what it imports from them.
DOCUMENTED = {
    "espnet3.parallel.base_runner": ["BaseRunner", "concatenate_shard_files"],
    "espnet3.parallel.env_provider": ["EnvironmentProvider"],
    "espnet3.parallel.inference_provider": ["InferenceProvider"],
    "espnet3.parallel.parallel": ["DictReturnWorkerPlugin", *FUNCTIONS],
}


def test_the_public_names_are_these() -> None:
    """`espnet3.parallel.__all__` is this list, sorted."""
    assert espnet3.parallel.__all__ == SURFACE


def test_every_public_name_is_there_and_documented() -> None:
    """`dir` lists the public names and nothing else; each has a docstring of its own, and the package a version."""
    assert dir(espnet3.parallel) == SURFACE and espnet3.parallel.__version__ == version("espnet3-parallel")
    for name in SURFACE:
        value = getattr(espnet3.parallel, name)
        assert value.__doc__ and value.__module__.startswith("espnet3.parallel"), name


@pytest.mark.parametrize("module", DOCUMENTED)
def test_documented_modules_export_the_same_objects(module: str) -> None:
    """What the documentation imports from a module is the object that the package exports."""
    for name in DOCUMENTED[module]:
        assert getattr(import_module(module), name) is getattr(espnet3.parallel, name)


def test_the_provider_of_systems_is_one_of_ours() -> None:
    """The second documented home of InferenceProvider holds a subclass of the first."""
    systems = import_module("espnet3.systems.base.inference_provider")
    assert issubclass(systems.InferenceProvider, espnet3.parallel.InferenceProvider)


# Classes that users subclass: what they call their own methods and attributes is none of our business.
SUBCLASSED = [
    "espnet3.parallel.base_runner:BaseRunner",
    "espnet3.parallel.env_provider:EnvironmentProvider",
    "espnet3.parallel.inference_provider:InferenceProvider",
    "espnet3.components.data.collect_stats:CollectStatsProvider",
    "espnet3.components.data.collect_stats:CollectStatsRunner",
    "espnet3.components.data.dataset_builder:DatasetBuilder",
    "espnet3.components.metrics.abs_metric:AbsMetric",
    "espnet3.components.metrics.error_rate:ErrorRate",
    "espnet3.parallel.testing.contract:BackendContract",
    "espnet3.systems.base.inference_provider:InferenceProvider",
    "espnet3.systems.base.inference_runner:InferenceRunner",
    "espnet3.systems.base.system:BaseSystem",
]


@pytest.mark.parametrize("path", SUBCLASSED)
def test_a_class_made_to_be_subclassed_has_no_private_names(path: str) -> None:
    """A class that users subclass has none of our own private names, which one of theirs could take by chance."""
    module, _, name = path.partition(":")
    cls = getattr(import_module(module), name)
    private = {
        each
        for each in vars(cls)
        if each.startswith("_") and not each.startswith(("__", "_abc_", "_espnet3_"))
    }
    assert private == set()
    source = inspect.getsource(cls)
    assert not re.search(r"\b(?:self|cls)\._(?!_|espnet3_)", source), "it keeps private attributes"
