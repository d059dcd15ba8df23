"""`ParallelConfig`: what it accepts, what it refuses and with which words, what it costs to load."""

import copy
import pickle
import warnings

import pytest
from omegaconf import OmegaConf

from espnet3.parallel.backends import BACKENDS
from espnet3.parallel.config import ParallelConfig, check_trainer
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import shown
from tests.parallel.contract.helpers import run_script

JOB = {"cores": 4, "memory": "32GB"}  # what dask-jobqueue requires


def refusal(config: object) -> str:
    """Return the message with which a configuration is refused."""
    with pytest.raises(ConfigError) as caught:
        ParallelConfig.parse(config)
    return str(caught.value)


# --- accepted -------------------------------------------------------------------------------------


def test_digits_in_a_string_are_a_number_of_workers(monkeypatch):
    """A number of workers from an environment variable, which is text, counts as the number."""
    monkeypatch.setenv("WORKERS", "4")
    config = ParallelConfig.parse(OmegaConf.create({"n_workers": "${oc.env:WORKERS}"}))
    assert config.n_workers == 4
    assert type(config.n_workers) is int


@pytest.mark.parametrize("hosts", [["a", "b"], ("a", "b"), {"b", "a"}, OmegaConf.create(["a", "b"])])
def test_list_like_values_become_plain_lists(hosts):
    """A list, tuple, set or ListConfig inside a plain dict becomes a plain list."""
    value = ParallelConfig.parse({"env": "ssh", "options": {"hosts": hosts}}).options["hosts"]
    assert type(value) is list
    assert value == ["a", "b"]


# --- copied and frozen ----------------------------------------------------------------------------


def test_it_reads_like_a_mapping():
    """`config["env"]`, `config.get(...)`, `dict(config)` and `**config.options` work as on a dict."""
    config = ParallelConfig.parse({"n_workers": 2, "options": {"threads_per_worker": 1}})
    assert config["env"] == "local"
    assert config.get("n_workers", 1) == 2
    assert config.get("nothing", 7) == 7
    assert "options" in config
    with pytest.raises(KeyError, match="nothing"):
        config["nothing"]
    assert list(config)[:3] == ["env", "n_workers", "options"]
    assert dict(config)["options"] == {"threads_per_worker": 1}
    assert dict(**config.options) == {"threads_per_worker": 1}
    assert ParallelConfig.parse(config) is config
    assert ParallelConfig.parse(dict(config)) == config


def test_it_survives_pickle_and_deepcopy():
    """A configuration can be pickled and copied, and equals its copy."""
    config = ParallelConfig.parse({"env": "slurm", "options": {**JOB, "job_extra_directives": ["-x"]}})
    assert pickle.loads(pickle.dumps(config)) == config
    assert copy.deepcopy(config) == config


def test_the_constructor_checks_too():
    """A wrong configuration cannot be constructed without `parse` either."""
    with pytest.raises(ConfigError, match="n_workers = 0"):
        ParallelConfig(n_workers=0)
    assert ParallelConfig(env="slurm", options=JOB).options["cores"] == 4


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "fix"),
    [
        ("lcoal", "Did you mean 'local'?"),
        ("qsub -V", "write env: sge or env: pbs in place of qsub"),
        ("cpu", "write env: local in place of cpu"),
        ("ddp", "write strategy: ddp in the trainer block"),
        ("gpu", "Did you mean 'local_gpu'?"),
        ("queue.pl --mem 4G", "write env: sge in place of queue.pl"),
        (None, "Unknown env None."),
    ],
)
def test_an_unknown_env_is_refused_with_the_right_one_and_all(env, fix):
    """An unknown env is refused with the value, what was meant (a script of Kaldi's has an env too) and all names."""
    message = refusal({"env": env})
    assert f"Unknown env {env!r}" in message and fix in message
    assert ", ".join(BACKENDS) in message
    assert ("Did you mean" in message) == ("Did you mean" in fix)


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ({"nj": 4}, "it is called n_workers"),
        ({"walltime": "4h"}, "the parallel block, under options"),
        ({"parallel": {"env": "local"}}, "parallel = {'env': 'local'}: belongs to parallel, "),
        (OmegaConf.create({"options": {"queue": "a"}}), "options = {'queue': 'a'}: belongs to parallel"),
    ],
)
def test_a_trainer_block_with_keys_of_parallel_is_refused(block, says):
    """A key of `parallel` in the trainer block is refused with its value and the right block."""
    with pytest.raises(ConfigError, match="The trainer config is wrong: ") as raised:
        check_trainer(block)
    assert says in str(raised.value)


def test_a_trainer_block_of_its_own_keys_passes():
    """What belongs to lightning's Trainer passes, unknown keys too, and so does no block at all."""
    for block in (None, {}, {"accelerator": "gpu", "devices": 2, "num_nodes": 1, "own": 1}, "text"):
        check_trainer(block)
    with pytest.raises(ConfigError, match="The trainer config has 2 problems:"):
        check_trainer({"env": "slurm", "n_workers": 2, "devices": 1})


@pytest.mark.parametrize(
    ("name", "fix", "values"),
    [
        ("n_workers", "a positive integer, such as 4", [0, "4_0", "٤", 2.0, True, None]),
        ("setup_timeout", "a number of seconds above 0, such as 600", [0, "60", True, float("nan"), [1]]),
        ("start_timeout", "1,000,000,000 at most", [1e10, 10**5000]),
        ("frozen_timeout", "a number of seconds above 2", [0, 2, "60"]),
        ("idle_timeout", "a number of seconds, 0 or more", [-1, "soon", None]),
        ("security", "auto, on or off", ["yes", 3]),
        (
            "adapt",
            "{minimum: 0, maximum: 64}",
            [4, {"minimum": 5, "maximum": 4}, {"minimum": 0, "maximum": 10**400}],
        ),
    ],
)
def test_a_field_that_is_wrong_is_refused_with_its_value_and_what_it_must_be(name, fix, values):
    """A number of workers is a whole one, a timeout has seconds within its bounds, a choice is one of a few."""
    for value in values:
        message = refusal({"env": "slurm", "options": JOB, name: value})
        assert f"{name} = {shown(value)}: must be " in message and fix in message


def test_timeouts_that_may_be_left_open():
    """Timeouts are floats; `frozen_timeout: null` turns it off, and worker processes can be told not to stay."""
    assert (ParallelConfig.parse({}).frozen_timeout, ParallelConfig.parse({}).idle_timeout) == (300.0, 5.0)
    parsed = ParallelConfig.parse({"frozen_timeout": None, "idle_timeout": 0})
    assert (parsed.frozen_timeout, parsed.idle_timeout) == (None, 0.0)
    assert type(parsed.idle_timeout) is float


@pytest.mark.parametrize("config", ["conf.yaml", OmegaConf.create([1]), object])
def test_what_is_no_mapping_is_refused_with_its_type(config):
    """A configuration that is no mapping is refused with its type and what is accepted; options are, too."""
    message = refusal(config)
    assert "must be a mapping" in message
    assert "a dict, a DictConfig or a ParallelConfig" in message
    assert f"not {type(config).__name__}" in message
    message = refusal({"options": [1]})
    assert "options = [1]: must be a mapping" in message and "list" in message


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"nworkers": 4}, "nworkers = 4: unknown key. Did you mean 'n_workers'?"),
        ({"nj": 4}, "it is called n_workers here"),
        ({"options": {"nj": 4}}, "options.nj = 4: it is called n_workers here, beside env"),
        ({"batch_size": 4}, "batch_size = 4: there is no such key: it is an argument of a runner"),
        (
            {"options": {"fsdp": True}},
            "belongs to trainer, not to parallel: move it to the trainer block, as str",
        ),
        ({"env": "oar", "options": {**JOB, "account": "a"}}, "not to oar; under oar it is called project"),
        ({"env": "lsf", "account": "a", "options": JOB}, "not of lsf; under lsf it is called project"),
        (
            {"parallel": None, "env": "local", "n_workers": 4},
            "parallel is empty, and what belongs to it stands",
        ),
        (
            {"env": "htcondor", "account": "a", "options": JOB},
            "under options of slurm, pbs, moab, not of htcondor\n",
        ),
        ({"env": "local", "parallel": None}, "parallel is empty, and env stands above it: move env below"),
        ({"gpu_inference": True}, "env: local_gpu"),
        ({"options": {"cuda_cmd": "x"}}, "options.cuda_cmd = 'x': there is no such key: env chooses"),
        ({"thread_per_worker": 1}, "Did you mean 'threads_per_worker', under options?"),
        ({"options": {"cores": 1}}, "belongs to slurm, pbs, sge, lsf, htcondor, moab, oar, not to local"),
        ({7: 1}, "7 = 1: unknown key"),
        ({"env": "slurm", "queue": "gpu", "options": JOB}, "write options: {queue: 'gpu'}"),
        ({"queue": "gpu"}, "under options of slurm, pbs, sge, lsf, moab, oar, not of local"),
        ({"partition": "gpu"}, "it is called queue here, under options"),
        ({"worker_class": "x"}, "worker_class = 'x': unknown key: espnet3.parallel chooses"),
    ],
)
def test_unknown_keys_are_refused_with_the_place_they_belong_to(config, says):
    """A key that does not belong beside env is refused with its value and where it belongs."""
    assert says in refusal(config)


def test_a_key_without_a_meaning_is_left_out_with_one_warning():
    """A key like none that means anything costs one warning and changes nothing."""
    with pytest.warns(UserWarning, match="The parallel config") as caught:
        parsed = ParallelConfig.parse({"n_workers": 2, "zzz": 1})
    (message,) = [str(one.message) for one in caught]
    assert message.startswith(
        "The parallel config: zzz = 1 is ignored: no such key. Known: env, n_workers, options, setup_timeout"
    )
    assert caught[0].filename == __file__
    assert dict(parsed) == dict(ParallelConfig(n_workers=2))


@pytest.mark.parametrize("value", [True, False])
def test_allow_overwrite_lock_is_nothing_to_speak_of(value):
    """ESPnet3's key about locks asks for what is the case here: it is taken, without effect."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ParallelConfig.parse({"allow_overwrite_lock": value}).n_workers == 1


def test_all_problems_come_in_one_message():
    """One message holds every problem, numbered."""
    message = refusal(
        {
            "env": "slurm",
            "n_workers": 0,
            "devices": 4,
            "start_timeout": -1,
            "options": {"cores": 4, "qeue": "gpu", "walltime": 14400},
        }
    )
    assert message.startswith("The parallel config has 6 problems:\n  1. ")
    for part in ("devices", "n_workers = 0", "start_timeout = -1", "options.qeue", "options.walltime"):
        assert part in message
    assert "options.memory is missing" in message


def test_a_missing_value_is_an_error_with_its_place():
    """`???` is refused with its place wherever it stands, and causes no second message."""
    message = refusal(OmegaConf.create({"env": "slurm", "options": {"cores": 4, "memory": "???"}}))
    assert message == "The parallel config is wrong: options.memory = ???: the value is missing; write one"
    message = refusal(OmegaConf.create({"env": "???", "options": {"hosts": ["a", "???"]}}))
    assert "env = ???" in message
    assert "options.hosts[1] = ???" in message
    assert "Unknown env" not in message
    assert "n_workers = ???" in refusal({"n_workers": "???"})


def test_an_interpolation_that_leads_nowhere_is_an_error_with_its_place():
    """An interpolation that cannot be resolved is refused with its place and what it refers to."""
    message = refusal(OmegaConf.create({"options": {"name": "${nowhere}"}}))
    assert "options.name: Interpolation key 'nowhere' not found" in message


def test_messages_and_repr_hold_no_secret():
    """What looks like a password or token is masked in messages and in `repr`."""
    ssh = {"hosts": ["a", "b"], "connect_options": {"username": "me", "password": "hunter2"}}
    text = repr(ParallelConfig.parse({"env": "ssh", "options": ssh}))
    assert "'username': 'me'" in text
    assert "hunter2" not in text
    message = refusal({"env": "ssh", "options": {"conect_options": {"password": "hunter2"}, **ssh}})
    assert "Did you mean 'connect_options'?" in message
    assert "hunter2" not in message
    prologue = {**JOB, "job_script_prologue": ["export WANDB_API_KEY=hunter2"]}
    assert "hunter2" not in repr(ParallelConfig.parse({"env": "pbs", "options": prologue}))
    variables = [{"name": "API_TOKEN", "value": "hunter2"}]
    assert "hunter2" not in refusal({"env": "local", "options": {"env_vars": variables}})


# --- cost -----------------------------------------------------------------------------------------

LOADED = """
import sys
print(sorted({name.partition(".")[0] for name in sys.modules}
             & {"dask", "distributed", "dask_jobqueue", "asyncssh", "omegaconf", "torch", "lightning"}))
"""


def test_parsing_a_block_of_this_machine_loads_neither_dask_nor_omegaconf(tmp_path):
    """Importing the module, and parsing blocks that need no look at a package, imports no heavy one."""
    code = f"""
from espnet3.parallel.config import ParallelConfig
ParallelConfig.parse(None)
options = {{"threads_per_worker": 1, "memory_limit": "1GB", "processes": True, "env": {{"A": "1"}}}}
ParallelConfig.parse({{"n_workers": 2, "options": options}})
for env in ("slurm", "pbs", "sge", "lsf", "moab", "oar", "htcondor"):
    job = {JOB!r} | ({{"disk": "1GB"}} if env == "htcondor" else {{}})
    ParallelConfig.parse({{"env": env, "options": job}})
ParallelConfig.parse({{"env": "ssh", "options": {{"hosts": ["a", "b"]}}}})
ParallelConfig.parse({{"env": "kube"}})
{LOADED}"""
    assert run_script(tmp_path, code) == "[]\n"


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"memory_limit": "lots"}, "options.memory_limit = 'lots': must be a size with its unit"),
        ({"threads_per_worker": "2"}, "options.threads_per_worker = '2': must be a positive integer"),
        ({"processes": "false"}, "options.processes = 'false': must be true or false"),
        ({"protocol": 3}, "options.protocol = 3: must be text"),
        ({"env": "OMP_NUM_THREADS=1"}, "options.env = 'OMP_NUM_THREADS=1': must be a mapping of variables"),
        ({"env": {"A": "a\0b"}}, "nothing a NUL"),
        ({"local_directory": 3}, "options.local_directory = 3: must be a path"),
    ],
)
def test_values_of_local_options(options, part):
    """A value that Dask would refuse only when workers start, or would take for another, is refused at once."""
    assert part in refusal({"options": options})


@pytest.mark.parametrize(
    "options",
    [
        *(
            {"memory_limit": value}
            for value in ("auto", "4GB", "4 GiB", 0, "0", 0.5, 1 << 30, "1073741824", None)
        ),
        {"threads_per_worker": 2, "processes": False},
        {"threads_per_worker": None, "processes": None, "protocol": "tcp"},
    ],
)
def test_values_of_local_options_that_are_right(options):
    """What Dask takes is taken, null included."""
    assert dict(ParallelConfig.parse({"options": options}).options) == options


class Unshowable:
    def __repr__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("block", "part"),
    [
        ({"n_workers": "9" * 5000}, "n_workers = '999"),
        ({"n_workers": 10**7}, "must be 1,000,000 at most"),
        ({"env": Unshowable()}, "Unknown env <a value of type Unshowable"),
        ({Unshowable(): 1}, "<a value of type Unshowable; showing it raises RuntimeError> = 1: unknown key"),
        ({"options": {10**5000: 1}}, "options.<a value of type int"),
        ({"env": "a line of a file\n" * 50_000}, "Unknown env 'a line of a file"),
        ((circle := {"env": "local"}).setdefault("options", circle), "contains itself"),
    ],
    ids=lambda value: None if isinstance(value, str) else "block",
)
def test_blocks_that_break_what_looks_at_them(block, part):
    """Texts of thousands of digits and values that cannot be shown end in a ConfigError like any mistake."""
    assert part in refusal(block)


def test_pods_have_no_certificate_and_say_so():
    """`security: on` is refused for Kubernetes, where it would be ignored."""
    with pytest.raises(ConfigError, match="security = 'on': pods have no certificate of the run"):
        ParallelConfig.parse({"env": "kube", "security": "on"})
    assert ParallelConfig.parse({"env": "kube"}).security == "auto"
