"""What Kubernetes is asked for and what it answers, for runs with a driver and for detached ones."""
