"""What each `env` is: one table, and the readers of it.

In: the name of an `env` and its options. Out: its row, and everything that is wrong with the options.

`table.py` holds the rows, `signatures.py` reads the parameters of installed classes without
importing them, `options.py` derives from both what a row accepts, `hints.py` says where another
name belongs, `check.py` gathers all that is wrong, `loading.py` imports a cluster class.
"""

from espnet3.parallel.backends.check import option_problems
from espnet3.parallel.backends.loading import load_cluster_class
from espnet3.parallel.backends.options import allowed_options, has_option
from espnet3.parallel.backends.signatures import installed
from espnet3.parallel.backends.table import BACKENDS, Backend, row

__all__ = [
    "BACKENDS",
    "Backend",
    "allowed_options",
    "has_option",
    "installed",
    "load_cluster_class",
    "option_problems",
    "row",
]
