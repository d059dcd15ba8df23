"""The `parallel_*` functions: a function over items, in order or as they are done, or one call of it."""
