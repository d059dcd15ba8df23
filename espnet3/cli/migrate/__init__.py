"""`espnet3 migrate`: what Kaldi's and ESPnet2's scripts ask a scheduler for, as a `parallel` block.

    cmd.sh ──shell──> queue.pl --mem 4G ──kaldi──> qsub -l mem_free=4G ──flags──> options of the block

`shell.py` reads the assignments of a script, `kaldi.py` a queue.conf and the flags that follow from it, `flags.py` says
how each flag is called here, `block.py` keeps the block and prints it, `verb.py` is the command.
"""
