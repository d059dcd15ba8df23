"""Kaldi's scripts that run or submit jobs: which env each one is here, and what it does without a file of options."""

from __future__ import annotations

from dataclasses import dataclass

from espnet3.cli.migrate.options_file import OptionsFile, read_options
from espnet3.parallel.backends.table import KALDI_SCRIPTS

_QUEUE = """
command qsub -v PATH -cwd -S /bin/bash -j y -l arch=*64*
option mem=* -l mem_free=$0,ram_free=$0
option mem=0
option num_threads=*
option max_jobs_run=* -tc $0
default gpu=0
option gpu=*
"""
_SLURM = """
command sbatch --export=PATH --ntasks-per-node=1
option time=* --time $0
option mem=* --mem-per-cpu $0
option mem=0
option num_threads=* --cpus-per-task $0
default gpu=0
option gpu=0 -p shared
option gpu=* -p gpu --gres=gpu:$0 --time 4:0:0
"""
_PBS = """
command qsub -V -v PATH -S /bin/bash -l mem=4G
option mem=* -l mem=$0
option mem=0
default gpu=0
option gpu=0
option gpu=* -l ncpus=$0
"""


@dataclass(frozen=True, slots=True)
class KaldiScript:
    """One of the scripts.

    Attributes:
        name: Such as "queue.pl".
        env: What it is here.
        file: The file of options that it reads; "": none.
        own: What that file says where there is none.
        strict: Whether it stops at an option that the file does not have; the others ignore it.
    """

    name: str
    env: str
    file: str = ""
    own: str = ""
    strict: bool = False

    def own_options(self) -> OptionsFile:
        """Return what the script does without a file."""
        return read_options(f"{self.name}'s own defaults", self.own.splitlines(), numbered=False)


def _script(name: str, file: str = "", own: str = "", *, strict: bool = False) -> KaldiScript:
    return KaldiScript(name, KALDI_SCRIPTS[name], file, own, strict)


SCRIPTS = {
    script.name: script
    for script in (
        _script("run.pl"),
        _script("stdout.pl"),
        _script("queue.pl", "conf/queue.conf", _QUEUE),
        _script("queue-freegpu.pl", "conf/queue.conf", _QUEUE),
        _script("slurm.pl", "conf/slurm.conf", _SLURM, strict=True),
        _script("pbs.pl", "conf/pbs.conf", _PBS, strict=True),
        _script("ssh.pl", ".queue/machines"),
    )
}
