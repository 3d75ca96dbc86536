"""Simulated ROCm tools and libraries, under their real names, for pods with GPUs in a rehearsal.

This folder's files are mounted into such pods, beside the files that `llmd_rehearsal.pods.hardware` writes about the
node. Work takes model time: the clock for durations (`time.perf_counter`) advances only by the time that the work would
take at the simulated rates.
"""
