"""Simulated ROCm tools and libraries for pods with GPUs in a rehearsal, under their real names.

The files of this folder are mounted into such pods, beside what `llmd_rehearsal.pods.hardware` writes of the node. What
works takes model time: the clock that durations are measured by (`time.perf_counter`) goes on by what the work would
take at the rates of the node's ports, and by nothing else.
"""
