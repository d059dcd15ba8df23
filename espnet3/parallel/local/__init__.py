"""Worker processes of this machine, forked by a server of ours, and a real `LocalCluster` of them.

In: the options of `env: local`. Out: worker processes that are watched and replaced, and end with their driver.
"""
