"""Mistakes in a cmd.sh or a queue.conf are named with file and line, and nothing is guessed."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from espnet3_parallel.migrate.verb import migrate

SLURM = "command sbatch\noption mem=* --mem $0\noption time=* --time $0\ndefault gpu=0\noption gpu=0 -p cpu\n"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Write files into a folder of the test, and migrate them there."""
    monkeypatch.chdir(tmp_path)

    def migrated(files, *arguments):
        for name, text in files.items():
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_text(text, encoding="utf-8")
        return CliRunner().invoke(migrate, [*files, *arguments])

    return migrated


MISTAKES = [  # what cmd.sh and the file of options say; the place, and a word of the fix
    ('decode_cmd="slrum.pl"', SLURM, "cmd.sh:1", "'slurm.pl'"),
    ('decode_cmd="queue.pl ram_free=4G"', "command qsub", "cmd.sh:1", "ram_free=4G"),
    ('decode_cmd="slurm.pl --mem lots"', SLURM, "conf/slurm.conf:2", "4G"),
    ('decode_cmd="slurm.pl"', "command qsub -V\n", "conf/slurm.conf:1", "sbatch"),
    ('decode_cmd="slurm.pl"', "command sbatch\noption mem=* --mem 4G\n", "conf/slurm.conf:2", "$0"),
    ('decode_cmd="ssh.pl"', SLURM, "cmd.sh:1", ".queue/machines"),
    ('\n\ndecode_cmd="slurm.pl', SLURM, "cmd.sh:3", "never closed"),
    ("mkgraph_cmd=run.pl", SLURM, "decode_cmd, train_cmd, cmd", "mkgraph_cmd"),
    ('case $x in\na) decode_cmd="slurm.pl";;\nesac', SLURM, "cmd.sh:2", "only a shell can decide"),
    ('decode_cmd="slurm.pl"\nnj=many', SLURM, "cmd.sh:2", "positive whole number"),
]


@pytest.mark.parametrize(("cmd", "conf", "place", "said"), MISTAKES)
def test_a_mistake_is_named_with_its_file_and_line(run, cmd, conf, place, said) -> None:
    """A slip in cmd.sh or the file of options is explained with the place and the fix, and exit code 1."""
    done = run({"cmd.sh": cmd, "conf/slurm.conf": conf})
    assert done.exit_code == 1
    assert place in done.stderr and said in done.stderr
    assert "Traceback" not in done.output
    assert done.stdout == ""


GPUS = "command {}\ndefault gpu=0\noption gpu=0\noption gpu=* {}\noption mem=* {}\n"
QUEUE = GPUS.format("qsub -l gpu=0", "-l gpu=$0", "-l mem_free=$0")


@pytest.mark.parametrize(
    ("call", "conf", "holds", "lost"),
    [
        (
            "slurm.pl -p long --gpu 1",
            GPUS.format("sbatch --qos=normal", "-p gpu --qos=high --gres=gpu:$0", "--mem $0"),
            ["queue: gpu", "--gres=gpu:1", "--qos=high"],
            ["queue long (cmd.sh:1", "--qos=normal (conf/slurm.conf:1)"],
        ),
        (
            "queue.pl --num-threads 4",
            "command qsub\noption num_threads=*\n",
            ["cores: 1"],
            ["--num-threads 4 of cmd.sh:1"],
        ),
        ("queue.pl --mem 3G --gpu 2", QUEUE, ["mem_free=3G", "gpu=2"], ["gpu=0 (conf/queue.conf:1)"]),
        (
            "queue.pl --mem 3G -sync y --foo 1",
            QUEUE,
            ["memory: 3GiB"],
            ["-sync y (cmd.sh:1", "--foo 1 of cmd.sh:1"],
        ),
        ("retry.pl --num-tries 4 queue.pl --mem 3G", QUEUE, ["env: sge", "memory: 3GiB"], []),
        ("run.pl --mem 3G -l arch=x", SLURM, ["env: local"], ["--mem 3G (cmd.sh:1)", "-l arch=x (cmd.sh:1)"]),
    ],
)
def test_flags_count_as_in_the_scripts(run, call, conf, holds, lost) -> None:
    """The file of options counts more than flags that cmd.sh hands through, and each flag that is lost is listed."""
    name = "conf/queue.conf" if "queue.pl" in call else "conf/slurm.conf"
    done = run({"cmd.sh": f'decode_cmd="{call}"', name: conf})
    assert done.exit_code == 0, done.output
    block, _, notes = done.stdout.partition("# Notes")
    assert [each for each in holds if each not in block] == []
    words = " ".join(notes.replace("\n#  ", "").split())
    assert [each for each in lost if each not in words] == []


@pytest.mark.parametrize(
    ("cmd", "env", "left"),
    [
        ("if [ $(hostname) = a ]; then\n  decode_cmd=slurm.pl\nfi\n", "local", "cmd.sh:3"),
        ("c=slurm1\nif [[ $c == slurm* ]]; then\n  decode_cmd=slurm.pl\nfi\n", "local", "cmd.sh:4"),
        ("case $c in\n  a) cmd_backend=slurm;;\nesac\n", "local", "cmd.sh:3"),
        ("decode_cmd='slurm.pl \\\n --mem 4G'\n", "slurm", None),
    ],
)
def test_settings_that_only_a_shell_can_decide_are_listed(run, cmd, env, left) -> None:
    """A branch is taken where texts are compared; a setting that depends on more stands in the notes with its line."""
    done = run({"cmd.sh": f"export decode_cmd=run.pl\n{cmd}"})
    assert done.exit_code == 0, done.output
    assert f"  env: {env} " in done.stdout
    assert ("is left out" in done.stdout) == (left is not None)
    assert left is None or f"# - {left}: " in done.stdout


@pytest.mark.parametrize(
    "script",
    [
        "if [ $# -ne 0 ]; then exit 1; fi\n./asr.sh --nj 7 2>&1 | tee log\n",
        "# don't ask\n[ ${#x} -gt 0 ] && echo 'a # b'\nnj=7 && cd local  # isn't it\n",
        "inference_nj=7; nj=9 # two\n",
    ],
)
def test_numbers_are_found_among_other_lines_of_a_script(run, script) -> None:
    """`$#`, apostrophes in comments, redirections and pipes hide no option or assignment before them."""
    done = run({"cmd.sh": "decode_cmd=run.pl\n", "run.sh": script})
    assert done.exit_code == 0, done.output
    assert "n_workers: 7" in done.stdout


def test_what_the_check_of_the_block_refuses_is_shown_with_the_block(run) -> None:
    """A value that no check of ours lets through is an error that shows the whole text, the place and the reason."""
    done = run({"cmd.sh": 'decode_cmd="slurm.pl --mem 1K"', "conf/slurm.conf": SLURM, "run.sh": "nj=2000000"})
    assert done.exit_code == 1
    assert 'cmd.sh:1, decode_cmd="slurm.pl --mem 1K": a value is refused' in done.stderr
    assert "n_workers: 2000000" in done.stderr and "n_workers = 2000000: must be" in done.stderr


def test_a_file_of_options_alone_is_not_enough(run) -> None:
    """Without a shell script the wanted resources are not known: the error names the missing file."""
    done = run({"conf/slurm.conf": SLURM})
    assert done.exit_code == 1
    assert "none of the files is a shell script: name cmd.sh too" in done.stderr


def test_a_file_is_never_overwritten(run, tmp_path) -> None:
    """--output writes a new file, none where nothing is migrated, and leaves one that is there as it is."""
    assert run({"cmd.sh": "x=1"}, "-o", "parallel.yaml").exit_code == 1
    files = {"cmd.sh": "decode_cmd=run.pl"}
    first = run(files, "-o", "parallel.yaml")
    assert first.exit_code == 0 and first.stdout == "", first.output
    written = (tmp_path / "parallel.yaml").read_text()
    assert "env: local" in written
    again = run(files, "-o", "parallel.yaml", "--nj", "5")
    assert again.exit_code == 1
    assert "parallel.yaml" in again.stderr and "File exists" in again.stderr
    assert (tmp_path / "parallel.yaml").read_text() == written


def test_files_beside_cmd_sh_are_found(run) -> None:
    """A script's own file of options is read from beside cmd.sh, as the script would, and named in the comments."""
    Path("conf").mkdir()
    Path("conf/slurm.conf").write_text(SLURM)
    done = run({"cmd.sh": 'decode_cmd="slurm.pl --mem 4G"'})
    assert done.exit_code == 0, done.output
    assert (
        "queue: cpu" in done.stdout
        and "# conf/slurm.conf:5, the default gpu=0 of conf/slurm.conf:4" in done.stdout
    )


def test_a_variable_of_the_environment_is_no_interpolation(run) -> None:
    """`${USER}` in a flag reaches the job script as it is: it is not looked up in the configuration."""
    from omegaconf import OmegaConf

    from espnet3.parallel.config import ParallelConfig

    conf = "command sbatch --comment=${USER}\n"
    done = run({"cmd.sh": "decode_cmd=slurm.pl", "conf/slurm.conf": conf})
    assert done.exit_code == 0, done.output
    parsed = ParallelConfig.parse(OmegaConf.create(done.stdout).parallel)
    assert parsed.options["job_extra_directives"] == ["--comment=${USER}"]
