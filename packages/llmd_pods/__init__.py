"""Programs that run in pods: the gate, acceptance of nodes, image pulls, pre-warming, and caches of compiled code.

They use the standard library, `llmd_base`, and for measurements the packages of vLLM's image (PyTorch, NIXL, pydantic),
but neither Pulumi nor the packages that read stack files.
"""
