"""What a pod with GPUs finds of ROCm's tools and libraries in a rehearsal: simulated, under their real names.

The files of this folder are mounted into such pods, beside what `llmd_rehearsal.pods.hardware` writes of the node. What
works takes model time: the clock that durations are measured by (`time.perf_counter`) goes on by what the work would
take at the rates of the node's ports, and by nothing else.
"""
