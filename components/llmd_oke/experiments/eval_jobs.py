"""Published evaluations, each by its own package in a Job of the cluster."""
