"""A run seen from outside, by any process that sees its folder: status, wait, cancel, retry, merge."""
