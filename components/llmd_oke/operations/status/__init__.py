"""What a deployed stack is doing now, as its cluster and its Prometheus say, and what of that is wrong."""
