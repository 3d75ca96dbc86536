"""Load generator: workloads, schedules, connections, processes, and records of finished requests."""
