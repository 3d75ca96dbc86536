"""Components for network, IAM, OKE clusters, node pools and storage on OCI."""

from llmd_oke.sdk_modules import load_by_module

load_by_module("pulumi_oci")
