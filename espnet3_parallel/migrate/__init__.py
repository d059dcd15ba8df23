"""`espnet3-parallel migrate`: the scheduler settings of Kaldi's and ESPnet2's scripts as a `parallel` block.

    cmd.sh ──kaldi──> queue.pl --mem 4G ──kaldi──> qsub -l mem_free=4G ──block──> options of the block

`kaldi.py` reads the assignments of a script, a queue.conf and the flags that follow from it; `block.py` says how each
flag is called here, keeps the block and prints it; `verb.py` is the command.
"""
