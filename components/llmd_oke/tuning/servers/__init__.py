"""One server: how long its work takes, what its hardware can't exceed, and what it does under a workload."""
