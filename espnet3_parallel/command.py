"""The names of the command: `espnet3-parallel`, and `espnet3` where ESPnet does not own that one."""

from __future__ import annotations

import sys

from espnet3_parallel.layer import espnets_command
from espnet3_parallel.main import VERBS, main


def second_name() -> None:
    """Run the command line as `espnet3`: words that are not its verbs go to ESPnet's command where there is one."""
    theirs = None if sys.argv[1:2] and sys.argv[1] in VERBS else espnets_command()
    if theirs is None:
        main()
    else:
        sys.exit(theirs.load()())
