"""Network, IAM, OKE and GPU pools on OCI."""
