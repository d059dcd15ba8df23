"""Start, query and cancel detached jobs: by supervisors, as job arrays, or as Jobs of Kubernetes."""
