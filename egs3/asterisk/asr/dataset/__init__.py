"""The corpus: how it is built and how it is read."""
