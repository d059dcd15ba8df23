"""`espnet3-parallel --help`: the list of verbs, without loading them."""

from __future__ import annotations

import subprocess
import sys

from espnet3_parallel import main as command


def test_the_list_of_verbs_loads_none_of_them() -> None:
    """Neither a verb's module nor Dask, asyncio or the package's metadata, which would take ten times as long."""
    program = (
        "import sys; sys.argv = ['espnet3-parallel', '--help']\n"
        "from espnet3_parallel.main import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "heavy = {'asyncio', 'distributed', 'dask', 'importlib.metadata', 'omegaconf', 'espnet3.parallel.config'}\n"
        "heavy |= {name for name in sys.modules if name.startswith('espnet3_parallel.') and "
        "name[17:] not in ('main', 'layer')}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in command._VERBS:
        assert f"\n  {name} " in done.stdout
