"""What Kubernetes is asked for and what it answers, for runs with a driver and for detached ones.

In: the options of `env: kube`, and the credentials that kubectl would use. Out: parts of pods and whole Jobs as plain
data, requests to the API server, and what its pods and events say, in words.
"""
