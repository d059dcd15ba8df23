"""The commands: `python -m tests.standins qsub ...`."""

import sys

from tests.standins import htcondor, lsf, pbs
from tests.standins.jobs import Store

COMMANDS = {**pbs.COMMANDS, **lsf.COMMANDS, **htcondor.COMMANDS}
LOOKS = (*pbs.LOOKS, *lsf.LOOKS, *htcondor.LOOKS)


def main(command: str, words: list[str]) -> int:
    """Run a command; one that looks at jobs may fail in the way of a stand-in with bad habits."""
    if command in LOOKS and Store().habits.fails(command):
        return 0
    return COMMANDS[command](words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
