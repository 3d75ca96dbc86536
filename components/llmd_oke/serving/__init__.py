"""Components that serve a model: routers, model servers, and the units that they make up.

Here belongs everything that runs in the namespace of the models. Manifests are made by plain functions in Kubernetes'
own words (`vllm`, `units`, `router`), components declare them. Nothing here reads the stack file: `llmd_oke.program`
turns it into arguments.
"""
