"""What items get: the env that a provider builds once per process, by name.

In: a function that builds an env, and a user's function. Out: that function with its env entries bound.
"""
