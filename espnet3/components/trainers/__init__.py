"""Training: Lightning behind the block `trainer` of a config, its checkpoints, and how it goes on after a kill.

In: a model, and the block `trainer`. Out: checkpoints in the experiment's folder. `trainer.py` is the trainer,
`options.py` reads the block, `checkpoints.py` says what is kept of each epoch and where a training goes on.
"""
