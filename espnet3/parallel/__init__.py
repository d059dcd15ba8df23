"""One provider, one runner, the same two classes on one core or on a cluster.

The names below are imported on first use: `import espnet3.parallel` itself loads neither dask nor torch nor omegaconf.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from espnet3.parallel.base_runner import BaseRunner as BaseRunner
    from espnet3.parallel.base_runner import concatenate_shard_files as concatenate_shard_files
    from espnet3.parallel.clusters.client import DictReturnWorkerPlugin as DictReturnWorkerPlugin
    from espnet3.parallel.config import ParallelConfig as ParallelConfig
    from espnet3.parallel.detached.looking.detached_run import DetachedRun as DetachedRun
    from espnet3.parallel.detached.looking.detached_run import JobRecord as JobRecord
    from espnet3.parallel.env.calls import wrap_func_with_worker_env as wrap_func_with_worker_env
    from espnet3.parallel.env_provider import EnvironmentProvider as EnvironmentProvider
    from espnet3.parallel.errors import BatchLengthError as BatchLengthError
    from espnet3.parallel.errors import ConfigError as ConfigError
    from espnet3.parallel.errors import EnvConflictError as EnvConflictError
    from espnet3.parallel.errors import EnvTypeError as EnvTypeError
    from espnet3.parallel.errors import ItemError as ItemError
    from espnet3.parallel.errors import MissingPackageError as MissingPackageError
    from espnet3.parallel.errors import NoOutputDirError as NoOutputDirError
    from espnet3.parallel.errors import NoWorkersError as NoWorkersError
    from espnet3.parallel.errors import ParallelError as ParallelError
    from espnet3.parallel.errors import PoisonItemError as PoisonItemError
    from espnet3.parallel.errors import SignatureError as SignatureError
    from espnet3.parallel.errors import SubmissionError as SubmissionError
    from espnet3.parallel.errors import TooManyFailuresError as TooManyFailuresError
    from espnet3.parallel.errors import WorkerSetupError as WorkerSetupError
    from espnet3.parallel.functions.running import run as run
    from espnet3.parallel.inference_provider import InferenceProvider as InferenceProvider
    from espnet3.parallel.ledger.errors import ChangedRunError as ChangedRunError
    from espnet3.parallel.ledger.errors import DamagedFolderError as DamagedFolderError
    from espnet3.parallel.ledger.errors import FolderInUseError as FolderInUseError
    from espnet3.parallel.ledger.errors import FolderWriteError as FolderWriteError
    from espnet3.parallel.ledger.errors import IncompleteRunError as IncompleteRunError
    from espnet3.parallel.ledger.errors import LeaseLostError as LeaseLostError
    from espnet3.parallel.ledger.errors import LedgerError as LedgerError
    from espnet3.parallel.ledger.errors import ValueTypeError as ValueTypeError
    from espnet3.parallel.parallel import build_client as build_client
    from espnet3.parallel.parallel import build_local_gpu_cluster as build_local_gpu_cluster
    from espnet3.parallel.parallel import get_client as get_client
    from espnet3.parallel.parallel import get_parallel_config as get_parallel_config
    from espnet3.parallel.parallel import make_client as make_client
    from espnet3.parallel.parallel import make_local_gpu_cluster as make_local_gpu_cluster
    from espnet3.parallel.parallel import parallel_for as parallel_for
    from espnet3.parallel.parallel import parallel_map as parallel_map
    from espnet3.parallel.parallel import parallel_submit as parallel_submit
    from espnet3.parallel.parallel import set_parallel as set_parallel
    from espnet3.parallel.records import ItemFailure as ItemFailure
    from espnet3.parallel.records import RunSummary as RunSummary

_HOME = {
    "base_runner": "BaseRunner concatenate_shard_files",
    "config": "ParallelConfig",
    "detached.looking.detached_run": "DetachedRun JobRecord",
    "env_provider": "EnvironmentProvider",
    "errors": (
        "BatchLengthError ConfigError EnvConflictError EnvTypeError ItemError MissingPackageError NoOutputDirError "
        "NoWorkersError ParallelError PoisonItemError SignatureError SubmissionError TooManyFailuresError "
        "WorkerSetupError"
    ),
    "functions.running": "run",
    "inference_provider": "InferenceProvider",
    "ledger.errors": (
        "ChangedRunError DamagedFolderError FolderInUseError FolderWriteError IncompleteRunError LeaseLostError "
        "LedgerError ValueTypeError"
    ),
    "parallel": (
        "DictReturnWorkerPlugin build_client build_local_gpu_cluster get_client get_parallel_config make_client "
        "make_local_gpu_cluster parallel_for parallel_map parallel_submit set_parallel wrap_func_with_worker_env"
    ),
    "records": "ItemFailure RunSummary",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}

__all__ = sorted(_MODULE_OF)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name))


def __dir__() -> list[str]:
    return list(__all__)
