"""The pod runner: what a kubelet and a container runtime do, with processes of this machine."""
