"""Machines: what this process may use of its own (processors, memory, GPUs), and the hosts of `env: ssh`.

NVML lists the GPUs, and CUDA_VISIBLE_DEVICES chooses among them, without a touch of CUDA. dask-cuda itself counts the
commas of the variable, so that "", "-1" and "none" would all be one GPU.
"""

from __future__ import annotations

import logging
import math
import os
import re
import resource
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from espnet3.parallel.backends import GPU_VARIABLE
from espnet3.parallel.backends.backend import require
from espnet3.parallel.errors import ConfigError

logger = logging.getLogger(__name__)

# control groups: of version 2, and in a folder for each controller those of version 1
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_ASKS = re.compile(r"gres[=\s]\S*gpu|gpus?(_\w+)?\b\s*[=:]|--gpus|^-gpu\b|^-G\b|request_gpus|nvidia\.com/gpu")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or a part of one that NVML lists as a device (MIG)."""

    index: int  # its number among the GPUs of the machine, in the order of their PCI bus; a part has that of its GPU
    uuid: str  # "GPU-..." or "MIG-..."
    name: str  # model, such as "NVIDIA A100-SXM4-40GB"

    @property
    def is_part(self) -> bool:
        """Return whether this is a part of a GPU: only its UUID names it."""
        return self.uuid.startswith("MIG-")

    def __str__(self) -> str:
        return f"{self.index}: {self.name} ({self.uuid})"


def gpus_of_machine() -> list[Gpu]:
    """Return all GPUs of the machine, each followed by its parts; an empty list without an NVIDIA driver."""
    require("pynvml", "gpu", "env 'local_gpu' counts GPUs with nvidia-ml-py")
    import pynvml

    found = []
    try:
        pynvml.nvmlInit()
        try:
            for index in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                found.append(Gpu(index, pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle)))
                found += _parts(pynvml, handle, index)
        finally:
            pynvml.nvmlShutdown()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return []
    except pynvml.NVMLError as error:
        raise ConfigError(
            f"the GPUs of this machine cannot be counted: NVML says {error!s}; see nvidia-smi"
        ) from error
    return found


def _parts(pynvml: Any, handle: Any, index: int) -> list[Gpu]:
    try:
        current, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError_NotSupported:  # a GPU that cannot be cut
        return []
    parts = []
    for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle) if current else 0):
        try:
            part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
        except pynvml.NVMLError_NotFound:  # fewer parts than there could be
            continue
        parts.append(Gpu(index, pynvml.nvmlDeviceGetUUID(part), pynvml.nvmlDeviceGetName(part)))
    return parts


def visible_gpus(gpus: Sequence[Gpu], variable: str | None) -> list[Gpu]:
    """Return those GPUs that CUDA_VISIBLE_DEVICES leaves, in its order."""
    if variable is None:
        return [gpu for gpu in gpus if not gpu.is_part]
    left: list[Gpu] = []
    for word in map(str.strip, variable.split(",")):
        if word.isdigit():
            named = [gpu for gpu in gpus if not gpu.is_part and gpu.index == int(word)]
        else:
            named = [gpu for gpu in gpus if word.startswith(("GPU-", "MIG-")) and gpu.uuid.startswith(word)]
        if len(named) != 1 or named[0] in left:  # nothing, more than one, or the same one again
            break
        left += named
    return left


def chosen_gpus(options: Mapping[str, Any], n_workers: int) -> list[str]:
    """Return the GPUs that workers of this machine share out, as CUDA_VISIBLE_DEVICES names them."""
    given = options.get(GPU_VARIABLE)
    given = ",".join(map(str, given)) if isinstance(given, (list, tuple)) else given
    variable = os.environ.get(GPU_VARIABLE) if given is None else str(given)
    gpus = gpus_of_machine()
    visible = visible_gpus(gpus, variable)
    listed = "; ".join(map(str, visible))
    if n_workers < len(visible):
        logger.warning("n_workers = %d of %d visible GPUs: %s", n_workers, len(visible), listed)
    if n_workers <= len(visible):
        return devices(visible)
    because = "" if variable is None else f" with CUDA_VISIBLE_DEVICES={variable!r}"
    raise ConfigError(
        f"n_workers = {n_workers}: env local_gpu needs as many GPUs, and visible{because} are: {listed or 'none'}. "
        f"NVML (see nvidia-smi) finds: {'; '.join(map(str, gpus)) or 'none'}. Lower n_workers, or use env: local"
    )


def devices(gpus: Sequence[Gpu]) -> list[str]:
    """Return GPUs in one form, all numbers or all names, because dask-cuda sorts them."""
    if any(gpu.is_part for gpu in gpus):
        return [gpu.uuid for gpu in gpus]
    return [str(gpu.index) for gpu in gpus]


def gpu_env(gpus: Sequence[str], worker: int) -> dict[str, str]:
    """Return a worker's CUDA_VISIBLE_DEVICES: its own GPU first, as `cuda:0`; nothing where none are shared.

    As dask-cuda pins its workers: the others stay visible, so that GPUs can copy to each other.
    """
    first = worker % max(1, len(gpus))
    return {GPU_VARIABLE: ",".join([*gpus[first:], *gpus[:first]])} if gpus else {}


def asks_for_gpus(requests: Iterable[Any]) -> bool:
    """Return whether one of a job's requests is for GPUs: `--gres=gpu:2`, `select=1:ngpus=1`, `gpu=1`, `request_gpus`.

    The name of a queue says nothing.
    """
    return any(_ASKS.search(str(request).strip()) for request in requests if request is not None)


def processors() -> int:
    """Return how many processors this process may use: of the machine, by its affinity and its control groups."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in _groups("cpu"):
        quota = _numbers(group / "cpu.max")
        quota = quota or _numbers(group / "cpu.cfs_quota_us") + _numbers(group / "cpu.cfs_period_us")
        if len(quota) == 2:  # microseconds of processors in so many; without a limit there is one number
            here = min(here, math.ceil(quota[0] / quota[1]))
    return here


def all_memory() -> int:
    """Return the bytes that processes here may use: of the machine, or of the container or the job around them."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for group in _groups("memory"):
        limits += _numbers(group / "memory.max") or _numbers(group / "memory.limit_in_bytes")
    limits.append(resource.getrlimit(resource.RLIMIT_RSS)[0])
    return min(limit for limit in limits if limit > 0)  # RLIM_INFINITY is -1


def _groups(controller: str) -> Iterator[Path]:
    # a container may see its own group at the root, while the process is said to be in one of the host
    own = ["0::/", f"0:{controller}:/"]
    with suppress(OSError):
        own += _OWN_GROUPS.read_text().splitlines()
    for line in own:
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            group = PurePosixPath(path.lstrip("/"))
            root = _GROUPS / controller if controllers else _GROUPS
            yield from (root / each for each in (group, *group.parents))


def _numbers(path: Path) -> list[int]:
    try:
        return [int(word) for word in path.read_text().split() if word.isdigit() and int(word)]
    except OSError:
        return []


@dataclass(frozen=True, slots=True)
class SshHost:
    """A machine that is reached over SSH."""

    name: str  # its name or address
    connect_options: Mapping[str, Any]  # arguments of `asyncssh.connect` for it
    python: str | None  # the interpreter there; None: the path of this process's interpreter


def ssh_hosts(options: Mapping[str, Any]) -> tuple[SshHost, ...]:
    """Return all hosts of a block's options, in their order; the first one runs the scheduler of a cluster."""
    names = options["hosts"]
    connect = _for_each(options.get("connect_options") or {}, len(names))
    python = _for_each(options.get("remote_python"), len(names))
    return tuple(SshHost(*each) for each in zip(names, map(dict, connect), python, strict=True))


def worker_hosts(hosts: tuple[SshHost, ...]) -> tuple[SshHost, ...]:
    """Return the hosts that get workers.

    The first of several runs the scheduler of a cluster. A detached run has no scheduler of that kind and leaves the
    host out all the same, so that one configuration means the same machines in every mode.
    """
    return hosts[1:] or hosts


def unreachable(error: BaseException, options: Mapping[str, Any]) -> str:
    """Return why a host could not be reached, and what to look at."""
    said = str(error) or f"no answer within {options.get('connect_timeout'):g} s"
    places = (
        "options.hosts, connect_options.port, username and client_keys, and, for its host key, known_hosts"
    )
    return f"no connection to port {options.get('port', 22)}: {said}; see {places}"


def _for_each(value: Any, count: int) -> list[Any]:
    given = value if isinstance(value, list) else [value]
    return given * count if len(given) == 1 else given
