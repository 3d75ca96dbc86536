"""Programs of the Kubernetes Jobs that benchmark inside a cluster, one module each."""
