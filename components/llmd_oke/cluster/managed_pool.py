"""A node pool of OKE, with or without GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_oci as oci

from llmd_oke.catalogue.cloud_init import cloud_init
from llmd_oke.cluster.instance_metadata import Boot, metadata
from llmd_oke.cluster.pool_parts import cycling_details, label_list
from llmd_oke.cluster.tags import stack_tags


@dataclass(frozen=True)
class PoolParts:
    """What pools with and without GPUs work out in ways of their own; the rest is in their arguments alike."""

    labels: Mapping[str, str]
    boot: Boot
    node_config: Any
    image_id: pulumi.Input[str]
    boot_volume_gib: int
    shape_config: Any = None
    eviction: Any = None


def managed_pool(
    name: str, args: Mapping[str, Any], parts: PoolParts, opts: pulumi.ResourceOptions
) -> oci.containerengine.NodePool:
    """Declares the node pool of `CpuPoolArgs` or `GpuPoolArgs`."""
    cycling: Any = cycling_details(args.get("cycling"))
    labels: Any = label_list(parts.labels)
    return oci.containerengine.NodePool(
        f"{name}-node-pool",
        name=args["pool_name"],
        cluster_id=args["cluster_id"],
        compartment_id=args["compartment_id"],
        kubernetes_version=args["kubernetes_version"],
        node_shape=args["shape"],
        node_shape_config=parts.shape_config,
        initial_node_labels=labels,
        node_config_details=parts.node_config,
        freeform_tags=stack_tags(),
        node_source_details={
            "source_type": "IMAGE",
            "image_id": parts.image_id,
            "boot_volume_size_in_gbs": str(parts.boot_volume_gib),
        },
        node_metadata=pulumi.Output.from_input(args["api_server_host"]).apply(lambda host: _metadata(parts.boot, host)),
        node_eviction_node_pool_settings=parts.eviction,
        node_pool_cycling_details=cycling,
        ssh_public_key=args.get("ssh_public_key"),
        opts=_with_own_size(opts) if args.get("autoscaled", False) else opts,
    )


def _with_own_size(opts: pulumi.ResourceOptions) -> pulumi.ResourceOptions:
    """An autoscaled pool keeps its size: the plug-in sends the number of nodes only where program and state say two
    numbers (seen with pulumi-oci 4.20), and the program says what the engine saw last.
    """
    own = pulumi.ResourceOptions(ignore_changes=["nodeConfigDetails.size"])
    return pulumi.ResourceOptions.merge(opts, own)


def _metadata(boot: Boot, host: str) -> dict[str, str]:
    """With `areLegacyImdsEndpointsDisabled` OKE launches the instances without version 1 of the metadata service, for
    which node pools have no argument (oci-hpc-oke, terraform/oke-workers.tf).
    """
    keys = {
        "apiserver_host": host,
        "areLegacyImdsEndpointsDisabled": "true",
        "oke-kubeproxy-proxy-mode": cloud_init().kube_proxy_mode,
    }
    return metadata(boot, keys)
