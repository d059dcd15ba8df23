"""Worker processes of this machine, forked by our own server, and a real `LocalCluster` of them."""
