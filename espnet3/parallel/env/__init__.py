"""The env of items: built once per process by a provider, given by name."""
