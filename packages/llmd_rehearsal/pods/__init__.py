"""Pod runner: the work of a kubelet and a container runtime, done with processes of this machine."""
