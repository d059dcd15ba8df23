"""The spec of one job, a JSON file, and what the job needs around it: folder, sys.path, interpreter, variables."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from espnet3.parallel.checks import loaded, own_attribute
from espnet3.parallel.engine.inside import SCRIPTS, RunReachedError
from espnet3.parallel.env_provider import state_now
from espnet3.parallel.errors import ConfigError, is_ours
from espnet3.parallel.jobs.script import import_path
from espnet3.parallel.ledger.errors import ValueTypeError, damaged
from espnet3.parallel.ledger.files import read_json
from espnet3.parallel.ledger.lines import decode, encode
from espnet3.parallel.messages import masked
from espnet3.parallel.provenance import FUNCTION
from espnet3.parallel.records import Policy
from espnet3.parallel.surroundings import PORTABLE, give, search_path, surroundings

SCHEMA = 1
CHECKED = "checked: "  # begins the line on standard error that holds, as JSON, why `worker --check` failed
# Recorded where they are set: they decide speed, or how text and times are read, and hold no secrets.
VARIABLES = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
    *("TZ", "LANG", "LC_ALL", "LC_CTYPE", "PYTHONUTF8", "PYTHONIOENCODING"),
)
# The name multiprocessing gives a parent's main script in a child: its `__main__` guard is false then.
SCRIPT = "__mp_main__"
_FIX = "put it at the top level of a .py file and import it from there"
GUARD = "what is not a definition in it belongs under `if __name__ == '__main__':`"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One shard of a detached run; without items, what all shards share."""

    run: str  # the run's folder
    shard: int = 0
    begin: int = 0  # position of its first item in the run's index list
    items: Sequence[Any] = ()
    runner: ClassRef
    provider: ClassRef
    arguments: dict[str, Any]  # how the provider is made again: `provider_arguments`
    policy: Policy
    surroundings: Surroundings
    # stretches [begin, end) of positions that had a result elsewhere when it was submitted, or a failure that stays
    skip: list[list[int]] = field(default_factory=list)
    failed: list[list[int]] = field(default_factory=list)
    max_failures: float | None = None  # failed items of the run after which it stops, or a share of its items
    setup_timeout: float | None = None  # seconds the env may take
    walltime: float | None = None  # seconds the job may take; None: no limit is known
    batched: bool = False  # the runner has a `batch_forward` and a batch size
    retry_failed: bool = False  # run items again that failed before
    gpus: bool = False  # the job was asked to have some
    run_id: str = ""  # the session that submitted it, for people
    entries: dict[str, str] = field(default_factory=dict)  # entries of the env that come from the run folder
    given: str = ""  # `output_dir` as the user wrote it

    @property
    def guarded(self) -> bool:
        """Whether the shard's process may be killed with an item: the job starts another."""
        return self.gpus or self.policy.item_timeout is not None

    def moved_to(self, run: Path) -> JobSpec:
        """Return the spec for reading a moved or copied run folder: a snapshot of the code is found in there."""

        def there(path: str) -> str:
            inside = Path(path).is_relative_to(self.run)
            return str(run / Path(path).relative_to(self.run)) if inside else path

        around = self.surroundings
        return replace(
            self,
            runner=replace(self.runner, file=there(self.runner.file)),
            provider=replace(self.provider, file=there(self.provider.file)),
            surroundings=replace(around, cwd=there(around.cwd), sys_path=list(map(there, around.sys_path))),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the spec as plain JSON data."""
        return {"schema": SCHEMA, **asdict(self), "items": items_to_json(self.items)}

    @classmethod
    def from_json(cls, plain: dict[str, Any], file: Path | str = "the spec of this job") -> JobSpec:
        """Return the spec from the data of `to_json`, of a file."""
        values = dict(plain)
        schema = values.pop("schema", None)
        if schema != SCHEMA:
            raise ConfigError(f"unsupported job spec (schema {schema!r}): `espnet3-parallel retry` renews it")
        try:
            values["items"] = items_from_json(values["items"])
            inner = {"runner": ClassRef, "provider": ClassRef, "policy": Policy, "surroundings": Surroundings}
            return cls(**{**values, **{name: kind(**values[name]) for name, kind in inner.items()}})
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(file, 0, error) from error


def read_spec(path: Path, own: bool = True) -> JobSpec:
    """Read a spec from its file."""
    try:
        return JobSpec.from_json(read_json(path, JobSpec, own=own), path)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such spec; `espnet3-parallel retry` writes specs again") from None


def items_to_json(items: Sequence[Any]) -> Any:
    """Return items as JSON: a range as its three numbers, anything else one by one."""
    if isinstance(items, range):
        return {"range": [items.start, items.stop, items.step]}
    return {"list": [encode(item, "index") for item in items]}


def items_from_json(plain: dict[str, Any]) -> Sequence[Any]:
    """Return the items from the data of `items_to_json`."""
    if "range" in plain:
        return range(*plain["range"])
    return [decode(item) for item in plain["list"]]


def provider_arguments(provider: Any) -> dict[str, Any]:
    """Describe how to make a provider again: its arguments as given, and its attributes as they are now."""
    if getattr(provider, "_espnet3_made_with", None) is None:
        raise ConfigError(
            f"{type(provider).__qualname__} cannot be made again in a detached job: "
            "let it inherit from EnvironmentProvider"
        )
    args, kwargs = provider._espnet3_made_from
    return {  # attributes first: a person knows a wrong value by their names
        "now": {name: _argument(value, name) for name, value in state_now(provider).items()},
        "args": [_argument(value, f"argument {place}") for place, value in enumerate(args)],
        "kwargs": {name: _argument(value, name) for name, value in kwargs.items()},
    }


def make_provider(cls: Any, arguments: dict[str, Any]) -> Any:
    """Make a provider from the data of `provider_arguments`."""
    now = {name: _value(plain) for name, plain in arguments["now"].items()}

    def given(plain: dict[str, Any]) -> Any:  # an argument that became an attribute is that very object again
        same = next((name for name, other in arguments["now"].items() if other == plain), None)
        return _value(plain) if same is None else now[same]

    kwargs = {name: given(plain) for name, plain in arguments["kwargs"].items()}
    provider = cls(*map(given, arguments["args"]), **kwargs)
    for name, value in now.items():
        object.__setattr__(provider, name, value)
    return provider


def _argument(value: Any, name: str) -> dict[str, Any]:
    omegaconf = loaded("omegaconf")  # a value can only be OmegaConf's where it is loaded
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
    conf = omegaconf.OmegaConf
    try:
        resolved = conf.to_container(config, resolve=True)
    except omegaconf.errors.OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"the provider's {name} cannot be resolved: {reason}") from error
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


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Recorded where a run is submitted, restored in each job before any of the user's code is imported."""

    cwd: str
    sys_path: list[str]
    variables: dict[str, str]  # environment variables with their values
    portable: dict[str, Any] = field(default_factory=dict)  # of `surroundings`

    def restore(self) -> None:
        """Restore them in this process."""
        try:
            os.chdir(self.cwd)
        except OSError as error:
            raise ConfigError(
                f"the working directory {self.cwd!r} is not there for this job ({error.strerror}): "
                "submit from a folder that the jobs' hosts share"
            ) from error
        os.environ.update(self.variables)
        if refusal := give(self.portable):
            raise ConfigError(f"this job cannot start: {refusal}")
        own = str(Path(__file__).resolve().parents[1])  # of `python base_runner.py`: no user's modules
        rest = [entry for entry in sys.path if entry not in self.sys_path and os.path.abspath(entry) != own]
        sys.path[:] = [*self.sys_path, *(entry for entry in rest if entry)]


def record(names: Sequence[str]) -> Surroundings:
    """Describe this process's surroundings, with those of its environment variables."""
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise ConfigError(
            f"detached.variables names {', '.join(missing)}, which is not set here: set it, or leave it out"
        )
    wanted = [name for name in VARIABLES if name in os.environ]
    return Surroundings(
        cwd=os.getcwd(),
        sys_path=search_path(),
        variables={name: os.environ[name] for name in [*wanted, *names]},
        # a spec holds no secrets
        portable={**surroundings(PORTABLE), "arguments": masked(sys.argv)},
    )


def job_environment() -> dict[str, str]:
    """Return the environment for a job's process."""
    path = os.pathsep.join(filter(None, [import_path(), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path} if path else dict(os.environ)


@dataclass(frozen=True, slots=True)
class ClassRef:
    """A class as another process can find it."""

    module: str  # import path of its module; of a script, the file's stem
    name: str  # its qualified name in there
    file: str  # the module's file
    script: bool = False  # the file is a script that was run as `__main__`, and is loaded by its path

    @property
    def root(self) -> Path:
        """The folder that its module is imported from."""
        file = Path(self.file).resolve()
        depth = 0 if self.script else self.module.count(".") + (file.name == "__init__.py")
        return file.parents[depth]


def refer(cls: type, what: str) -> ClassRef:
    """Name a class for another process."""
    begin = f"no job can find the {'function' if hasattr(cls, FUNCTION) else what} {cls.__qualname__}: "
    if "<locals>" in cls.__qualname__:
        raise ConfigError(f"{begin}it is defined inside a function; {_FIX}")
    module = sys.modules.get(cls.__module__)
    file = own_attribute(module, "__file__")
    if module is None or not isinstance(file, str) or not os.path.isfile(file):
        where = "a terminal, a notebook or on standard input" if cls.__module__ == "__main__" else "no file"
        raise ConfigError(f"{begin}it is defined in {where}, which no job can read; {_FIX}")
    if not any(_find(module, cls.__qualname__) is one for one in (cls, getattr(cls, FUNCTION, cls))):
        has = f"{cls.__module__} has another object, or none, under this name"
        raise ConfigError(f"{begin}{has}; {_FIX} under its own name")
    file = os.path.abspath(file)
    name = cls.__module__
    if name in ("__main__", SCRIPT):
        spec = own_attribute(module, "__spec__")
        if spec is None:
            return ClassRef(Path(file).stem, cls.__qualname__, file, script=True)
        name = spec.name  # started with `python -m`: importable by name
    return ClassRef(name, cls.__qualname__, file)


def _find(module: ModuleType, name: str) -> Any:
    return reduce(own_attribute, name.split("."), module)


def load(ref: ClassRef) -> type:
    """Return the class that was named, importing its module or running its script."""
    module = _load_script(ref) if ref.script else _import(ref)
    found = _find(module, ref.name)
    if isinstance(found, FunctionType):  # `functions` has made the two classes of it
        static = staticmethod(found)
        made = type(found.__name__, (), {"forward": static, "build_env_local": static, FUNCTION: static})
        made.__module__, made.__qualname__ = found.__module__, found.__qualname__
        return made
    if not isinstance(found, type):
        end = (
            "; where the script has no `if __name__ == '__main__':` guard, a job runs it only up to the first run or "
            "submission in it: put these under a guard"
        )
        raise ConfigError(f"{ref.file} does not define {ref.name}{end if ref.script else ''}")
    return found


def _import(ref: ClassRef) -> ModuleType:
    try:
        module = importlib.import_module(ref.module)
    except ModuleNotFoundError as error:
        own = f"{ref.module}.".startswith(f"{error.name}.")
        if not own or not os.path.isfile(ref.file):
            raise _cannot(ref, error) from error
        return _execute(ref, ref.module)  # loaded by its path in the first place
    except Exception as error:  # a user's module may raise anything while it is imported
        raise _cannot(ref, error) from error
    file = own_attribute(module, "__file__")
    if not is_ours(ref.module) and not (isinstance(file, str) and same_file(file, ref.file)):
        raise ConfigError(
            f"a detached job that imports {ref.module} gets {file}, and the one meant is {ref.file}: "
            "rename one of them, or change sys.path"
        )
    return module


def same_file(one: str | Path, other: str | Path) -> bool:
    """Return whether two paths lead to one file or folder; where one leads nowhere, whether they are the same."""
    try:
        return os.path.samefile(one, other)
    except OSError:
        return os.path.abspath(one) == os.path.abspath(other)


def _load_script(ref: ClassRef) -> ModuleType:
    known = sys.modules.get(SCRIPT)
    if known is not None and same_file(str(known.__file__), ref.file):
        return known
    if not os.path.isfile(ref.file):
        raise ConfigError(
            f"the script {ref.file} is not there for this job: is its disk shared with this host?"
        )
    importlib.import_module("multiprocessing")  # its first import gives that name to another module
    argv, sys.argv = sys.argv, [ref.file, *sys.argv[1:]]
    SCRIPTS.add(SCRIPT)
    try:
        return _execute(ref, SCRIPT)
    finally:
        SCRIPTS.remove(SCRIPT)
        sys.argv = argv


def _execute(ref: ClassRef, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ref.file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{ref.file} cannot be loaded as a Python file: give it the ending .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except RunReachedError:
        pass  # a script without a guard: it has defined what it runs
    except BaseException as error:  # SystemExit too: argparse of a script without a guard ends so
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        raise _cannot(ref, error) from error
    return module


def _cannot(ref: ClassRef, error: BaseException) -> ConfigError:
    what = f"run {ref.file}" if ref.script else f"import {ref.module} ({ref.file})"
    guard = f"; {GUARD}" if ref.script else ""
    return ConfigError(f"a detached job cannot {what}: {type(error).__name__}: {error}{guard}")
