"""vLLM itself, on a processor: its environment, tiny models, and what differs from the servers that a stack renders.

Nothing that it shows says anything of GPUs, ROCm or RDMA.
"""
