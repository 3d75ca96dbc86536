"""A simulated NIXL, under the name that vLLM's ROCm images install it by."""
