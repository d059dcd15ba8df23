"""`espnet3 migrate`: what Kaldi's and ESPnet2's scripts ask a scheduler for, as a `parallel` block.

In: cmd.sh, the files of conf/ that its scripts read, and the numbers of run.sh. Out: a YAML text whose lines say
where they came from, and what has no equivalent.

    cmd.sh ──shell──> queue.pl --mem 4G ──calls──> qsub -l mem_free=4G ──qsub, sbatch──> options of the block

`shell.py` reads the assignments of a script, `options_file.py` a queue.conf, `calls.py` puts the two together into
the flags that the submit command was given, `sbatch.py` and `qsub.py` say what each flag is called here, `block.py`
completes the block, `writing.py` prints it, `inputs.py` finds the files, `verb.py` is the command.
"""
