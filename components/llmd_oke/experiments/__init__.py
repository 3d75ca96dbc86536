"""What needs a running stack: benchmarks after an update, and whole lists of topologies."""
