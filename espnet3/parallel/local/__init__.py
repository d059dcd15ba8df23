"""Worker processes of this machine, forked by our own server, and a real `LocalCluster` of them.

In: the options of `env: local`. Out: worker processes that are watched and replaced, and end with their driver.
"""
