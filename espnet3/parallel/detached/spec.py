"""The spec of one job, a JSON file, and what the job needs around it: folder, sys.path, interpreter, variables."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from espnet3.parallel.backends import Kind, row
from espnet3.parallel.backends.ssh_hosts import ssh_hosts, worker_hosts
from espnet3.parallel.checks import search_path, working_folder
from espnet3.parallel.detached.code import ClassRef
from espnet3.parallel.env_provider import state_now
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.ledger.errors import ValueTypeError, damaged
from espnet3.parallel.ledger.files import read_json
from espnet3.parallel.ledger.values import decode, encode
from espnet3.parallel.records import Policy
from espnet3.parallel.runner.writers.hooks import folder_entries

SCHEMA = 1
CHECKED = "checked: "  # begins the line on standard error that holds, as JSON, why `worker --check` failed


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One shard of a detached run."""

    run: str  # the run's folder
    shard: int
    begin: int  # position of its first item in the run's index list
    items: Sequence[Any]
    indices_sha256: str  # of the run's whole index list
    outcomes: str  # name of the folder in the run's folder that its outcomes are appended in
    runner: ClassRef
    provider: ClassRef
    arguments: dict[str, Any]  # how the provider is made again: `provider_arguments`
    policy: Policy
    surroundings: Surroundings
    # stretches [begin, end) of positions that had an outcome elsewhere when it was submitted
    skip: list[list[int]] = field(default_factory=list)
    max_failures: float | None = None  # failed items of the run after which it stops, or a share of its items
    total: int = 0  # items of the run
    setup_timeout: float | None = None  # seconds the env may take
    walltime: float | None = None  # seconds the job may take; None: no limit is known
    batched: bool = False  # the runner has a `batch_forward` and a batch size
    retry_failed: bool = False  # run items again that failed before
    hooks: bool = False  # the runner writes files of its own, into `split.<shard>` of the run's folder
    keep_values: bool = True  # the results are wanted beside those files
    run_id: str = ""  # the session that submitted it, for people
    entries: dict[str, str] = field(default_factory=dict)  # what the run folder adds to the env

    @property
    def end(self) -> int:
        """The position after its last item's."""
        return self.begin + len(self.items)

    def moved_to(self, run: Path) -> JobSpec:
        """Return the spec for a run folder that was moved or copied: what it names in the folder is named in this."""
        if self.run == str(run):
            return self

        def there(path: str) -> str:
            return (
                str(run / Path(path).relative_to(self.run)) if Path(path).is_relative_to(self.run) else path
            )

        around = self.surroundings
        inside = os.path.relpath(self.run, self.entries.get("output_dir", self.run))
        entries = folder_entries(run, self.entries.get("shard_subdir", inside))
        return replace(
            self,
            run=str(run),
            runner=replace(self.runner, file=there(self.runner.file)),
            provider=replace(self.provider, file=there(self.provider.file)),
            surroundings=replace(around, cwd=there(around.cwd), sys_path=list(map(there, around.sys_path))),
            entries={name: value for name, value in entries.items() if name in self.entries},
        )

    def to_json(self) -> dict[str, Any]:
        """Return the spec as plain JSON data."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return {
            "schema": SCHEMA,
            **plain,
            "items": items_to_json(self.items),
            "runner": asdict(self.runner),
            "provider": asdict(self.provider),
            "policy": asdict(self.policy),
            "surroundings": asdict(self.surroundings),
        }

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> JobSpec:
        """Return the spec that `to_json` was called on."""
        values = dict(plain)
        schema = values.pop("schema", None)
        if schema != SCHEMA:
            raise ConfigError(f"unsupported job spec (schema {schema!r}): `espnet3 retry` writes specs again")
        try:
            values["items"] = items_from_json(values["items"])
            values["runner"] = ClassRef(**values["runner"])
            values["provider"] = ClassRef(**values["provider"])
            values["policy"] = Policy(**values["policy"])
            values["surroundings"] = Surroundings(**values["surroundings"])
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise ConfigError(f"the spec of this job is damaged: {error}") from error


def read_spec(path: Path, own: bool = True) -> JobSpec:
    """Read a spec from its file."""
    try:
        return JobSpec.from_json(read_json(path, JobSpec, own=own))
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path, 0, error) from error
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such spec; `espnet3 retry` writes a run's specs again") from None


def items_to_json(items: Sequence[Any]) -> Any:
    """Return items as JSON: a range as its three numbers, anything else one by one."""
    if isinstance(items, range):
        return {"range": [items.start, items.stop, items.step]}
    return {"list": [encode(item, "index") for item in items]}


def items_from_json(plain: dict[str, Any]) -> Sequence[Any]:
    """Return the items that `items_to_json` was given."""
    if "range" in plain:
        return range(*plain["range"])
    return [decode(item) for item in plain["list"]]


# --- the provider ---


def provider_arguments(provider: Any) -> dict[str, Any]:
    """Describe how a provider is made again: its arguments, and what was changed since, as it is now."""
    made_with = getattr(provider, "_espnet3_made_with", None)
    if made_with is None:
        raise ConfigError(
            f"{type(provider).__qualname__} cannot be made again in a detached job: "
            "let it inherit from EnvironmentProvider"
        )
    args, kwargs = made_with
    was_args, was_kwargs = provider._espnet3_made_from
    now = state_now(provider)
    written = {name: _argument(value, name) for name, value in now.items()}

    def argument(value: Any, was: Any, name: str) -> Any:
        same = next((key for key, other in now.items() if other is value and value is not None), None)
        written_then = _argument(was, name)
        return written_then if same is None or written_then != written[same] else {"now": same}

    return {
        "args": [
            argument(value, was, f"argument {place}")
            for place, (value, was) in enumerate(zip(args, was_args, strict=True))
        ],
        "kwargs": {name: argument(value, was_kwargs[name], name) for name, value in kwargs.items()},
        "now": written,
    }


def make_provider(cls: Any, arguments: dict[str, Any]) -> Any:
    """Make a provider from what `provider_arguments` said."""
    now = {name: _value(plain) for name, plain in arguments["now"].items()}

    def value(plain: dict[str, Any]) -> Any:
        return now[plain["now"]] if "now" in plain else _value(plain)

    kwargs = {name: value(plain) for name, plain in arguments["kwargs"].items()}
    provider = cls(*[value(plain) for plain in arguments["args"]], **kwargs)
    for name, own in now.items():
        object.__setattr__(provider, name, own)
    return provider


def _argument(value: Any, name: str) -> dict[str, Any]:
    omegaconf = sys.modules.get("omegaconf")  # a value can only be OmegaConf's where it is loaded
    try:
        if omegaconf is not None and omegaconf.OmegaConf.is_config(value):
            return {"omegaconf": encode(_container(omegaconf, value, name), name)}
        return {"value": encode(value, name)}
    except ValueTypeError as error:
        raise ConfigError(
            f"the provider's {error.where} {error.problem.partition(':')[0].partition(', which')[0]}, which the "
            "JSON spec of a detached job cannot hold: give the provider plain values (numbers, text, lists, "
            "dicts, a DictConfig), and let it build objects itself"
        ) from error


def _container(omegaconf: Any, config: Any, name: str) -> Any:
    """Return an OmegaConf config as plain data; what comes from the environment stays an interpolation."""
    conf = omegaconf.OmegaConf
    try:
        resolved = conf.to_container(config, resolve=True)
    except omegaconf.errors.OmegaConfBaseException as error:
        raise ConfigError(
            f"the provider's {name} cannot be resolved: {str(error).splitlines()[0]}"
        ) from error
    written = conf.to_container(config, resolve=False)
    if "${oc.env:" not in str(written):
        return resolved
    try:
        again = conf.to_container(conf.create(written), resolve=True)
    except omegaconf.errors.OmegaConfBaseException:
        again = None
    if again != resolved:
        raise ConfigError(
            f"the provider's {name} takes a value from the environment (oc.env) and others from outside of it: "
            "give the provider the whole configuration, so that no secret has to be written to a spec"
        )
    return written


def _value(plain: dict[str, Any]) -> Any:
    if "omegaconf" in plain:
        from omegaconf import OmegaConf

        return OmegaConf.create(decode(plain["omegaconf"]))
    return decode(plain["value"])


# Recorded where they are set: they decide speed, or how text and times are read, and hold no secrets.
VARIABLES = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
    *("TZ", "LANG", "LC_ALL", "LC_CTYPE", "PYTHONUTF8", "PYTHONIOENCODING"),
)
_PACKAGE = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Recorded where a run is submitted, restored in each job before any of the user's code is imported."""

    cwd: str
    sys_path: list[str]
    python: str
    variables: dict[str, str]  # environment variables with their values

    def restore(self) -> None:
        """Make this process's surroundings these."""
        try:
            os.chdir(self.cwd)
        except OSError as error:
            raise ConfigError(
                f"the working directory {self.cwd!r} is not there for this job ({error.strerror}): "
                "submit from a folder that the jobs' hosts share"
            ) from error
        os.environ.update(self.variables)
        own = str(_PACKAGE / "parallel")  # where this file was started by its path: it holds no user's module
        rest = [entry for entry in sys.path if entry not in self.sys_path and os.path.abspath(entry) != own]
        sys.path[:] = [*self.sys_path, *(entry for entry in rest if entry)]


def record(names: Sequence[str] = (), python: str | None = None) -> Surroundings:
    """Describe this process's surroundings."""
    here = working_folder()
    if here is None:
        raise ConfigError(
            "the working directory has been deleted, and jobs start in it: change to one that exists (os.chdir, or cd)"
        )
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise ConfigError(
            f"detached.variables names {', '.join(missing)}, which is not set here: set it, or leave it out"
        )
    wanted = [name for name in VARIABLES if name in os.environ]
    return Surroundings(
        cwd=here,
        sys_path=search_path(),
        python=in_folder(python or sys.executable, here),
        variables={name: os.environ[name] for name in [*wanted, *names]},
    )


def interpreter(env: str, options: Mapping[str, Any], cwd: str) -> str:
    """Return the Python that jobs run: an option of the backend, or this one; never one that a run folder says.

    Over SSH each host may have another one; then it is that of the first host with workers. A relative path is one from
    the submitter's folder: jobs start in another one.
    """
    if row(env).kind is Kind.SSH:
        python = worker_hosts(ssh_hosts(options))[0].python
    elif row(env).kind is Kind.KUBERNETES:  # this one's path means nothing in an image
        return str(options.get("python") or "python")
    else:
        python = options.get("python")
    return in_folder(str(python or sys.executable), cwd)


def in_folder(python: str, cwd: str) -> str:
    """Return an interpreter's path from a folder; a name that is looked for in PATH stays one."""
    return os.path.join(cwd, python) if os.sep in python else python


def import_path() -> str | None:
    """Return the folder that a job's PYTHONPATH must hold to find this package; None where it is installed."""
    root = str(_PACKAGE.parent)
    installed = [*site.getsitepackages(), site.getusersitepackages()]
    return None if root in map(os.path.abspath, installed) else root


def job_environment() -> dict[str, str]:
    """Return the environment of a job's process that this process starts."""
    environment = dict(os.environ)
    root = import_path()
    if root is not None:
        before = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = root if not before else root + os.pathsep + before
    return environment
