"""A function in the place of a runner and a provider."""
