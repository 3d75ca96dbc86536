"""Network, IAM, OKE and GPU pools on OCI."""

from llmd_oke.sdk_modules import load_by_module

load_by_module("pulumi_oci")
