"""`async_mode=True`: write what the jobs need, hand them over, and come back."""

from __future__ import annotations

import datetime
import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from espnet3.parallel.backends import Kind, row
from espnet3.parallel.backends.machine import asks_for_gpus
from espnet3.parallel.checks import own_attribute
from espnet3.parallel.config import DetachedSettings, ParallelConfig
from espnet3.parallel.detached import job_spec
from espnet3.parallel.detached.job_spec import ClassRef, JobSpec
from espnet3.parallel.detached.launch.handover import hand_over, launcher, put_specs
from espnet3.parallel.detached.layout import FOLDER, RUNNER, TEMPLATE, Layout, Plan
from espnet3.parallel.detached.looking.detached_run import DetachedRun, runner_attributes
from espnet3.parallel.detached.looking.status import refuse_living
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.jobs.script import python_words, set_walltime
from espnet3.parallel.ledger.files import make_folder, refuse_others, write_json
from espnet3.parallel.ledger.folder import SHARDS, open_run, resumed, set_aside
from espnet3.parallel.ledger.identity import Identity
from espnet3.parallel.ledger.split import split_folders
from espnet3.parallel.messages import counted, shortened
from espnet3.parallel.provenance.parts import changed_files
from espnet3.parallel.runner.run import Run
from espnet3.parallel.runner.shards import cut, write_manifest

_PER_WORKER = 4  # shards: late ones even out; each builds the env once
_SECONDS = 600.0  # importing a user's code from a busy network disk may take minutes
_MOST_CODE = 64 << 20  # bytes: more than this cannot be code alone
_CODE = (".py", ".pyi", ".json", ".yaml", ".yml", ".toml", ".txt")


def submit_detached(run: Run, config: ParallelConfig) -> DetachedRun:
    """Submit a run's items as detached jobs."""
    runner, identity = run.runner, run.identity()
    if (changed := changed_files(identity.code)) and resumed(runner.resume) != "force":
        raise ConfigError(
            f"edited since this process imported it, so that jobs would compute with other code: "
            f"{'; '.join(shortened(changed))}. Start the program (or the notebook's kernel) again"
        )
    config = replace(config, n_workers=runner.async_num_workers or config.n_workers)
    folder = run.folder
    if folder is None:  # a new one: the runner's name, the time, and four letters
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%d-%H%M%S")
        folder = runner.async_result_dir / f"{type(runner).__name__}-{now}-{secrets.token_hex(2)}"
    folder = Path(os.path.abspath(folder))
    spec = _template(folder, run, config)
    launcher(config.env).check(config)
    refuse_living(folder)
    if folder.exists():
        refuse_others(folder)
    try_as_a_job(spec, config)  # nothing is written for a run that no job could do
    plan, shards = _submit(run, identity, config, spec)
    left = sum(plan.size(shard) for shard in shards)
    if runner.progress:
        print(
            f"submitted {counted(len(shards), 'shard')} ({counted(left, 'item')}) as {plan.env} jobs, "
            f"{plan.n_workers} at a time; the run is in {folder}\n"
            "`espnet3-parallel status`, `wait`, `logs`, `cancel`, `retry` and `merge` take this folder",
            file=sys.stderr,
        )
    if runner.progress and run.policy.on_error == "raise" and left > 1:
        print(
            'on_error is "raise": the first item that fails stops all shards. With on_error="record" its failure is '
            "recorded, and the others go on",
            file=sys.stderr,
        )
    return DetachedRun(Layout(folder), runner)


def _submit(run: Run, identity: Identity, config: ParallelConfig, spec: JobSpec) -> tuple[Plan, list[int]]:
    folder, items, runner = Path(spec.run), run.items, run.runner
    specs = Path(os.path.abspath(runner.async_specs_dir)) / f"{folder.name}-{uuid.uuid4().hex[:8]}"
    settings = DetachedSettings(**config.detached)
    with open_run(folder, identity, items, runner.resume) as opened:
        layout = Layout(folder)
        if run.writes:
            bounds = [*opened.plan[SHARDS], len(items)]
        else:
            align = run.align if run.batched else 1
            n, wanted = len(items), settings.shards or _PER_WORKER * config.n_workers
            bounds = [*cut(n, wanted, run.cost, align), n]
        new = Plan(
            indices_sha256=identity.indices["sha256"],
            bounds=bounds,
            specs=str(specs),
            env=config.env,
            n_workers=config.n_workers,
            options=json.loads(json.dumps(dict(config.options), default=str)),
            settings=json.loads(json.dumps(dict(config.detached), default=str)),
            code=identity.code,
            hooks=run.writes,
            finishes=run.finishes,
        )
        plan = _in_place(layout, new)
        if run.writes:
            write_manifest(folder, runner.shard_subdir, plan.bounds[:-1], items)
        make_folder(layout.folder)
        if settings.snapshot:
            copies = len(list(layout.folder.glob("snapshot.*")))
            spec = snapshot(spec, layout.folder / f"snapshot.{copies}")
            try_as_a_job(spec, config)  # the copy has all that the code needs
        write_json(layout.folder / TEMPLATE, spec.to_json())
        write_json(layout.folder / RUNNER, runner_attributes(runner))
        layout.write_plan(plan, items)  # last: a folder with a plan is that of a detached run
        # jobs read theirs in the run's folder: what is above the link may be others'
        if plan.specs == str(specs):
            make_folder(specs.parent, parents=True)
            specs.symlink_to(layout.spec(0).parent, target_is_directory=True)
        shards = put_specs(layout, plan, items, opened.state, opened.run_id, run.retry_failed)
        opened.event("submitted", env=plan.env, shards=len(shards), workers=plan.n_workers)
        hand_over(layout, plan, shards)
    taken = set(layout.jobs()["last"])  # not all of them, where the site has a limit
    return plan, [shard for shard in shards if shard in taken]


def _in_place(layout: Layout, new: Plan) -> Plan:
    # a plan with other shards is moved aside; outcomes stay where they are
    if layout.is_there():
        plan = layout.plan()
        same = (plan.indices_sha256, plan.hooks, plan.bounds) == (new.indices_sha256, new.hooks, new.bounds)
        if same and layout.home() is None:
            return replace(new, specs=plan.specs, first=plan.first)
        set_aside(layout.run, only=(FOLDER,))
    numbers = (int(split.suffix[1:]) for split in split_folders(layout.run, new.kind))
    return replace(new, first=max(numbers, default=-1) + 1)


def _template(folder: Path, run: Run, config: ParallelConfig) -> JobSpec:
    settings, runner = DetachedSettings(**config.detached), run.runner
    timeout = runner.setup_timeout if runner.setup_timeout is not None else config.setup_timeout
    asks = [each if isinstance(each, (list, tuple)) else [each] for each in config.options.values()]
    return JobSpec(
        run=str(folder),
        runner=job_spec.refer(type(runner), "runner"),
        provider=job_spec.refer(type(runner.provider), "provider"),
        arguments=job_spec.provider_arguments(runner.provider),
        policy=run.policy,
        surroundings=job_spec.record(settings.variables or ()),
        max_failures=runner.max_failures,
        setup_timeout=timeout,
        walltime=set_walltime(row(config.env), dict(config.options)),
        batched=run.batched,
        gpus=row(config.env).kind is Kind.GPU or asks_for_gpus(word for words in asks for word in words),
        entries=run.entries(folder),
        given="" if runner.output_dir is None else str(runner.output_dir),
    )


def try_as_a_job(spec: JobSpec, config: ParallelConfig) -> None:
    """Raise unless a process like a job's can import the runner, and make the provider."""
    named = shlex.join(python_words(row(config.env), config.options, spec.surroundings.cwd))
    python = shlex.split(os.path.expandvars(named))
    # that of an image, or a launcher that only the nodes have
    if row(config.env).kind is Kind.KUBERNETES or (len(python) > 1 and shutil.which(python[0]) is None):
        python = [sys.executable]
    with tempfile.TemporaryFile() as printed:  # no pipe: what a user's module starts may hold it open
        try:
            status = subprocess.run(
                [*python, "-m", "espnet3.parallel.worker", "--check"],
                input=json.dumps(spec.to_json()).encode(),
                stdout=subprocess.DEVNULL,
                stderr=printed,
                cwd=spec.run if os.path.isdir(spec.run) else "/",
                env=job_spec.job_environment(),
                timeout=_SECONDS,
                check=False,
            ).returncode
        except OSError as error:
            raise ConfigError(f"the jobs' interpreter {named!r} cannot be started: {error}") from error
        except subprocess.TimeoutExpired as error:
            raise ConfigError(
                f"importing {spec.runner.file} in a detached job took more than {_SECONDS:g} s: {job_spec.GUARD}"
            ) from error
        printed.seek(0)
        said = printed.read().decode(errors="replace").splitlines()
    if status == 0:
        return
    found = next((line for line in reversed(said) if line.startswith(job_spec.CHECKED)), None)
    if found is not None:
        raise ConfigError(json.loads(found.removeprefix(job_spec.CHECKED)))
    tail = "\n".join(said[-15:])
    raise ConfigError(f"a detached job cannot start with {named}:\n{tail}")


def snapshot(spec: JobSpec, folder: Path) -> JobSpec:
    """Copy the code of the runner and the provider, and let a spec's jobs use the copy.

    Copied are the scripts beside them, the modules of their folders that are loaded here, and the whole of
    their packages, without files that are no code. Other entries of `sys.path` are used where they are.
    """
    make_folder(folder)
    installed = [Path(entry).resolve() for entry in sys.path if "site-packages" in entry]
    wanted = sorted({spec.runner.root, spec.provider.root}.difference(installed))
    roots = {root: folder / str(number) for number, root in enumerate(wanted)}
    size = 0
    for root, copy in roots.items():
        for file in _code(root):
            size += file.stat().st_size
            if size > _MOST_CODE:
                raise ConfigError(f"detached.snapshot: the code in {root} is more than {_MOST_CODE >> 20} MB")
            target = copy / file.relative_to(root)
            make_folder(target.parent / "__pycache__", parents=True)  # jobs would make it by the umask
            shutil.copy2(file, target)
            target.chmod(target.stat().st_mode & 0o700)
    # a copy holds nothing but what was loaded from its folder, wherever that stands
    path = [*map(str, roots.values()), *spec.surroundings.sys_path]

    def moved(ref: ClassRef) -> ClassRef:
        if ref.root not in roots:
            return ref
        return replace(ref, file=str(roots[ref.root] / Path(ref.file).resolve().relative_to(ref.root)))

    surroundings = replace(spec.surroundings, sys_path=path)
    return replace(spec, runner=moved(spec.runner), provider=moved(spec.provider), surroundings=surroundings)


def _code(root: Path) -> Iterator[Path]:
    tops = set()
    for module in list(sys.modules.values()):
        file = own_attribute(module, "__file__")
        if isinstance(file, str) and (path := Path(os.path.realpath(file))).is_relative_to(root):
            tops.add(path.relative_to(root).parts[0])
    for top in sorted(tops):
        place = root / top
        if place.is_file():
            yield place
        elif (place / "__init__.py").exists() or any(place.glob("*.py")):
            for file in sorted(place.rglob("*")):
                if file.is_file() and file.suffix in _CODE and "__pycache__" not in file.parts:
                    yield file
