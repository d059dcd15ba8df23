"""ESPnet3: the import root of `espnet3.parallel` and of the recipes built on it."""
