"""The table of backends against the packages that are installed: rows, options, hints, loading."""

import inspect
import subprocess
import sys
from importlib.metadata import requires
from pkgutil import resolve_name

import pytest
from dask import config as dask_config
from packaging.requirements import Requirement

from espnet3.parallel.backends import BACKENDS, load_cluster_class, row
from espnet3.parallel.backends.backend import Backend, Kind, allowed_options, has_option, installed, pip_line
from espnet3.parallel.backends.check import option_problems
from espnet3.parallel.errors import MissingPackageError

JOBQUEUE = [name for name, backend in BACKENDS.items() if backend.scheduler]
GIVEN = {"cores": 4, "memory": "32GB", "disk": "4GB", "hosts": ["a", "b"]}
# A test of a package reads the installed one; where it is absent there is nothing to compare with.
needs_jobqueue = pytest.mark.skipif(not installed("dask_jobqueue"), reason="dask-jobqueue is not installed")


def required(env: str) -> dict[str, object]:
    return {name: GIVEN[name] for name in row(env).required}


# what the documents let users write after `env:`
DOCUMENTED = "local local_gpu slurm pbs sge lsf htcondor moab oar ssh kube"


def test_the_table_has_the_eleven_documented_backends():
    """Each documented env has one row, under its own name."""
    assert list(BACKENDS) == DOCUMENTED.split()
    assert all(backend.name == name for name, backend in BACKENDS.items())


@pytest.mark.parametrize("env", BACKENDS)
def test_an_extra_installs_the_backends_package(env):
    """A row's package is installed by the extra it names, or by `dask` if it names none."""
    chosen = {"extra": row(env).extra or "dask"}
    needed = [Requirement(text) for text in requires("espnet3-parallel") or ()]
    names = [each.name for each in needed if each.marker is None or each.marker.evaluate(chosen)]
    assert row(env).package.replace("_", "-") in names


@needs_jobqueue
@pytest.mark.parametrize("env", JOBQUEUE)
def test_rows_of_schedulers_list_every_constructor_their_options_reach(env):
    """The signatures of a scheduler's row are the `__init__`s of its cluster and job classes."""
    cluster = load_cluster_class(row(env))
    defining = [
        vars(cls)["__init__"]
        for cls in (*cluster.__mro__, *cluster.job_cls.__mro__)
        if cls.__module__.startswith("dask_jobqueue.") and "__init__" in vars(cls)
    ]
    assert [resolve_name(one) for one in row(env).signatures] == defining
    assert cluster.job_cls.config_name == env  # the section of jobqueue.yaml with its defaults


@needs_jobqueue
@pytest.mark.parametrize("env", JOBQUEUE)
def test_the_real_job_takes_every_allowed_option(env):
    """No option that is allowed is unknown to the scheduler's cluster or job class."""
    cluster = load_cluster_class(row(env))
    own = set(inspect.signature(cluster.__init__).parameters)
    for_job = {name: None for name in allowed_options(row(env)) if name not in own}
    real = cluster.job_cls("tcp://127.0.0.1:1", name="worker", **{**for_job, **required(env)})
    assert "distributed.cli.dask_worker" in real.job_script()


@pytest.mark.parametrize("env", BACKENDS)
def test_what_the_layer_controls_is_refused_under_every_env(env):
    """A parameter that the layer itself sets is refused with the reason, whatever is installed."""
    for name in row(env).controlled:
        (problem,) = option_problems(row(env), {**required(env), name: 1})
        assert problem == f"options.{name} = 1: not an option of {env}: {row(env).controlled[name]}"
        assert not has_option(row(env), name)


def test_n_workers_under_options_is_sent_beside_env():
    """`n_workers` under options is refused with the place it belongs to, also where env is wrong."""
    assert "set n_workers beside env" in option_problems(row("local"), {"n_workers": 2})[0]
    assert "set n_workers beside env" in option_problems(None, {"n_workers": 2})[0]


@pytest.mark.parametrize("env", JOBQUEUE)
def test_schedulers_require_cores_and_memory(env):
    """A scheduler's job without its resources is refused, HTCondor's also without disk."""
    wanted = ["cores", "memory", *(["disk"] if env == "htcondor" else [])]
    assert [problem.split()[0] for problem in option_problems(row(env), {})] == [
        f"options.{n}" for n in wanted
    ]
    assert (
        f"options.cores is missing: {env} requires it, such as cores: 4" in option_problems(row(env), {})[0]
    )
    assert option_problems(row(env), {**required(env), "cores": None})[0].startswith(
        "options.cores is missing"
    )
    assert option_problems(row(env), required(env)) == []


@needs_jobqueue
def test_what_the_site_sets_for_dask_jobqueue_is_not_required():
    """cores and memory in the site's dask configuration, also under config_name, count as given."""
    with dask_config.set({"jobqueue.slurm.cores": 2, "jobqueue.big.cores": 2, "jobqueue.big.memory": "1GB"}):
        assert [problem.split()[0] for problem in option_problems(row("slurm"), {})] == ["options.memory"]
        assert option_problems(row("slurm"), {"config_name": "big"}) == []
        assert len(option_problems(row("pbs"), {})) == 2


@pytest.mark.parametrize(
    ("env", "number", "quoted"),
    [("slurm", 14400, '"04:00:00"'), ("oar", 0, '"04:00:00"'), ("lsf", 240, '"04:00"')],
)
def test_a_walltime_that_yaml_made_a_number_is_shown_quoted(env, number, quoted):
    """A numeric walltime is refused with the time it was, in quotes, in the scheduler's own form."""
    (problem,) = option_problems(row(env), {**required(env), "walltime": number})
    assert (
        f"options.walltime = {number}: YAML has read a time as a number, as it does with 4:00:00" in problem
    )
    assert f"write it in quotes: walltime: {quoted}" in problem


@pytest.mark.parametrize("hosts", ["node1,node2", []])
def test_ssh_takes_a_list_of_hosts(hosts):
    """hosts as text, empty or no list is refused with its value; without hosts ssh is refused too."""
    (problem,) = option_problems(row("ssh"), {"hosts": hosts})
    assert problem.startswith(f"options.hosts = {hosts!r}: must be a list of host names")
    assert option_problems(row("ssh"), {})[0].startswith("options.hosts is missing: ssh requires it")


def test_a_name_that_is_no_text_is_refused():
    """An option named by a number or a boolean, which YAML makes of `on`, is refused."""
    (problem,) = option_problems(row("local"), {True: 1})
    assert problem == "options.True = 1: the name of an option is text, not bool: put it in quotes"


def test_without_its_package_a_rows_options_are_left_open(monkeypatch):
    """Where dask_jobqueue is absent any option passes, but trainer keys, walltime and required ones."""
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)  # the import system's own "not installed"
    assert not installed("dask_jobqueue")
    assert option_problems(row("slurm"), {**required("slurm"), "anything": 1}) == []
    problems = option_problems(
        row("slurm"), {"strategy": "ddp", "walltime": 14400, "loop": 1, "memory": "1GB"}
    )
    places = [problem.split()[0] for problem in problems]
    assert places == ["options.strategy", "options.walltime", "options.loop", "options.cores"]
    assert "belongs to trainer" in problems[0]


@needs_jobqueue
@pytest.mark.parametrize(
    ("env", "name", "value", "said"),
    [
        ("slurm", "partition", "gpu", ["it is called queue here"]),
        ("slurm", "gres", "gpu:1", ['job_extra_directives: ["--gres=gpu:1"]']),
        ("slurm", "ntasks", 8, ["n_workers here, beside env"]),
        ("slurm", "exclusive", True, ["dask_jobqueue.slurm.SLURMCluster; job_extra_directives has other"]),
        ("slurm", "shebang", ["gpu"], ["must be text or a number"]),
        ("slurm", "job_extra_directives", [{"gres": "gpu:1"}], ["YAML reads `- a: b` as a mapping"]),
        ("slurm", "queu", "a", ["Did you mean 'queue'?"]),
        ("local", "thread_per_worker", 2, ["Did you mean 'threads_per_worker'?"]),
        ("local", "cores", 1, ["belongs to slurm", "not to local"]),
        ("slurm", "threads_per_worker", 1, ["belongs to local, local_gpu, not to slurm"]),
        ("ssh", "memory_limit", 1, ["belongs to local, local_gpu, not to ssh"]),
        ("pbs", "job_mem", "1GB", ["belongs to slurm", "not to pbs"]),
        ("local_gpu", "queue", "a", ["belongs to slurm, pbs, sge, lsf, moab, oar"]),
    ],
)
def test_a_wrong_option_is_refused_with_the_right_one(env, name, value, said):
    """What job scripts call it, a slip and another backend's option are each answered with what to write."""
    (problem,) = option_problems(row(env), {**required(env), name: value})
    assert problem.startswith(f"options.{name} = {value!r}: ")
    assert all(part in problem for part in said)


def test_an_account_and_lsf_own_words_stay():
    """What a scheduler's jobs do have is no word to translate."""
    for env, given in [
        ("slurm", {"account": "lab"}),
        ("lsf", {"mem": 4000, "ncpus": 2}),
        ("slurm", {"job_cpu": 2}),
    ]:
        assert option_problems(row(env), {**required(env), **given}) == []


@pytest.mark.parametrize("env", [env for env in BACKENDS if row(env).extra])
def test_a_missing_package_is_named_with_its_pip_line(env, monkeypatch):
    """A missing package is an ImportError and a RuntimeError that says what to type."""
    package = row(env).package
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError) as caught:
        load_cluster_class(row(env))
    pip = pip_line(row(env).extra)
    assert f"Please install {package}: {pip}" in str(caught.value)
    assert f"env {env!r}" in str(caught.value)
    assert caught.value.name == package
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("from os import no_such_name\n", "cannot be imported: cannot import name 'no_such_name'"),
        ("", "cannot be imported: module 'broken_cluster' has no attribute 'Cluster'"),
    ],
)
def test_a_package_that_is_there_but_broken_says_why(tmp_path, monkeypatch, source, says):
    """An installed package that fails on import, or lacks the class, is refused with the cause."""
    (tmp_path / "broken_cluster.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "broken_cluster", raising=False)
    backend = Backend("x", "", Kind.LOCAL, "broken_cluster", "gpu", "broken_cluster:Cluster", ())
    with pytest.raises(MissingPackageError) as caught:
        load_cluster_class(backend)
    assert says in str(caught.value)
    assert f"Please install broken_cluster: {pip_line('gpu')}" in str(caught.value)
    assert caught.value.__cause__ is not None


def test_loading_a_cluster_class_leaves_ctrl_c_alone():
    """dask-jobqueue sets a handler of SIGINT when it is imported; the one that was there is put back."""
    code = (
        "import signal\n"
        "from espnet3.parallel.backends import BACKENDS, load_cluster_class\n"
        "before = signal.getsignal(signal.SIGINT)\n"
        "load_cluster_class(BACKENDS['slurm'])\n"
        "assert signal.getsignal(signal.SIGINT) is before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
