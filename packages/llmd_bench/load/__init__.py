"""The load generator: workloads, schedules, connections, processes, and the records of requests that have ended."""
