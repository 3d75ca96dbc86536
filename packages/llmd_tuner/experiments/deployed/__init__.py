"""A stack that is deployed: the way to it, Jobs in its cluster, and what is asked of it."""
