"""The commands: `python -m espnet3.parallel.testing.standins qsub ...`."""

from __future__ import annotations

import sys

from espnet3.parallel.testing.standins import lsf, moab, pbs

COMMANDS = {**pbs.COMMANDS, **lsf.COMMANDS, **moab.COMMANDS}

if __name__ == "__main__":
    sys.exit(COMMANDS[sys.argv[1]](sys.argv[2:]))
