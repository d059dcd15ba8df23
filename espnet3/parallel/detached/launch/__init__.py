"""How a backend starts, queries and cancels detached jobs: by supervisors, as job arrays, or as Jobs of Kubernetes."""
