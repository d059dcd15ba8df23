"""The origin of a run: its code, config and start, as plain data with secrets masked, and as hashes to compare."""

FUNCTION = "_espnet3_function"  # of a class that stands for a function, under its name: the function
NAMESPACES = {("SimpleNamespace", "types"), ("Namespace", "argparse")}
# values that say how a run is executed
EXECUTION = ("num_workers", "n_workers", "nj", "n_jobs", "ngpu", "prefetch", "prefetch_factor", "pin_memory",
    "persistent_workers", "accelerator", "devices", "device")  # fmt: skip
