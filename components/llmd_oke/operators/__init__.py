"""Components that are installed into a cluster before models are: custom resource definitions, operators, monitoring.

All models of a cluster share these components, which usually outlive the models. This package doesn't import `serving`.

For a created cluster, `planning.gpu_stack` determines the OKE add-ons, the labels of GPU nodes, and which of these
components are needed. Stacks declare the components in this order, after the system pool, on which the controllers run,
and after the add-ons; GPU nodes may be declared later. Only the node gate depends on all of these components.

1. `CertManager(name, {})`
2. `NodeFeatureDiscovery(name, {"tolerations": [...]})`, unless the cluster has OKE's add-on of that name
3. `AmdGpuOperator(name, {"node_selector": {...}, "tolerations": [...]})`, after 1 and after 2 or the add-on
4. `RdmaNetwork(name, {"shapes": [...], "kubeconfig": ...})`, after the add-on NvidiaNetworkOperator; the component
   waits for the add-on's custom resource definitions

`tolerations` are those of the GPU nodes' taints, `node_selector` is the plan's `gpu_selector`.
"""
