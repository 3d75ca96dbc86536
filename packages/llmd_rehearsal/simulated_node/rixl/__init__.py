"""Simulated NIXL, under the package name in vLLM's ROCm images."""
