"""vLLM itself on a processor: its environment, tiny models, and the differences to the servers that a stack renders.

Results say nothing about GPUs, ROCm or RDMA.
"""
