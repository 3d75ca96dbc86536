"""Status of a deployed stack, as its cluster and its Prometheus tell it, and what of that is wrong."""
