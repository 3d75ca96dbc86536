"""The Kubernetes control plane of a world: real etcd, kube-apiserver, kube-controller-manager and kube-scheduler."""
