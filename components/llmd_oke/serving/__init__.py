"""Components of the models' namespace: routers, model servers, units, front doors, caches, Jobs, monitoring.

Plain functions return Kubernetes manifests (`vllm`, `units`, `router`), and components declare them. No module here
reads the stack file: `llmd_oke.program` converts it into the components' arguments.
"""
