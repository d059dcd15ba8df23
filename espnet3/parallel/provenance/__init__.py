"""Identity of a run: its code, its config, and where it was started.

In: a provider's config, and the code loaded here. Out: plain data with secrets masked, and hashes to compare.
"""

FUNCTION = "_espnet3_function"  # of a class that stands for a function, under its name: the function
