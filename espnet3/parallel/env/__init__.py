"""The env of items: built once per process by a provider, given by name.

In: a function that builds an env, and a user's function. Out: that function with its env entries bound.
"""
