"""Status of a deployed stack, read from its cluster and its Prometheus, with the symptoms of faults."""
