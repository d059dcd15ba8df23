"""A node made of processes: what runs pods, forwards services and knows their names where there is no kubelet."""
