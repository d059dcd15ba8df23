"""From a call to a launcher: the items of a runner, or of `parallel_map`, become chunks of work somewhere."""
