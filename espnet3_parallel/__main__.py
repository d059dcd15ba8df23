"""`python -m espnet3_parallel`: the command `espnet3-parallel`."""

from espnet3_parallel.main import main

main()
