"""Components that are installed into a cluster before models are: definitions, operators, monitoring.

Here belongs what all models of a cluster share and what usually outlives them. It knows nothing of `serving`.

For a cluster that is created, `planning.gpu_stack` says what its stack needs: OKE's add-ons, labels of GPU nodes, and
which of these components, in this order. All come after the pool of ordinary nodes, which their controllers run on, and
after the add-ons; GPU nodes may come later. Nothing but the gate that waits for GPUs comes after all of them.

1. `CertManager(name, {})`
2. `NodeFeatureDiscovery(name, {"tolerations": [...]})`, unless OKE's add-on of that name is there
3. `AmdGpuOperator(name, {"node_selector": {...}, "tolerations": [...]})`, after 1 and after 2 or the add-on
4. `RdmaNetwork(name, {"shapes": [...], "kubeconfig": ...})`, after the add-on NvidiaNetworkOperator, whose definitions
   it waits for

`tolerations` are those of the GPU nodes' taints, `node_selector` is the plan's `gpu_selector`.
"""
