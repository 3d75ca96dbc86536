"""From a plan to a created cluster, with OCI's resources only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pulumi

from llmd_oke.cluster.add_ons import AddOnArgs, AddOns, AddOnsArgs
from llmd_oke.cluster.cpu_pool import CpuPool
from llmd_oke.cluster.gpu_pool import GpuPool
from llmd_oke.cluster.iam import Iam
from llmd_oke.cluster.network import Network
from llmd_oke.cluster.node_image import NodeImage
from llmd_oke.cluster.oke_cluster import OkeCluster
from llmd_oke.cluster.provider import availability_domains, region_provider
from llmd_oke.cluster.storage import Storage
from llmd_oke.cluster.system_pool import SystemPool
from llmd_oke.config import CreateCluster, Image
from llmd_oke.errors import KitError
from llmd_oke.objects import PART_OF, KubernetesObject, Manifest
from llmd_oke.planning import Plan
from llmd_oke.planning.iam import iam_needs
from llmd_oke.planning.node_scaling import autoscaled_pools
from llmd_oke.planning.pools import SYSTEM_POOL
from llmd_oke.stack.access import ClusterAccess
from llmd_oke.stack.agreement import taint_outputs
from llmd_oke.stack.cluster_args import (
    add_on_args,
    autoscaler_args,
    cluster_args,
    cpu_pool_args,
    gpu_pool_args,
    iam_args,
    network_args,
    storage_args,
)
from llmd_oke.stack.order import after

_ANSWERED: Manifest = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "llmd-oke", "namespace": "kube-system", "labels": PART_OF},
    "data": {"purpose": "GPU nodes are ordered after the API server has taken this object."},
}


@dataclass(frozen=True)
class CreatedCluster:
    """What was declared, by `provider`; `inside` are the options of what is in the cluster. `cpu_pools` have to be
    there before anything runs in it; `add_ons` before operators that rely on OKE's.
    """

    provider: pulumi.ProviderResource
    oke: OkeCluster
    network: Network
    access: ClusterAccess
    inside: pulumi.ResourceOptions
    cpu_pools: dict[str, SystemPool | CpuPool]
    add_ons: list[pulumi.Resource]
    gpu_pools: dict[str, GpuPool] = field(default_factory=dict[str, GpuPool])

    @property
    def nodes(self) -> list[pulumi.Resource]:
        """The pools that have to be there before anything runs in the cluster."""
        return list(self.cpu_pools.values())

    def outputs(self, plan: Plan, region: str) -> dict[str, Any]:
        """What other stacks and commands need to know."""
        taints = {pool.name: taint_outputs(pool.taints) for pool in plan.config.gpu_pools}
        return {
            "cluster_id": self.oke.cluster_id,
            "kubeconfig": self.oke.kubeconfig,
            "endpoint": self.oke.endpoint,
            "region": region,
            "kubernetes_version": self.oke.kubernetes_version,
            "vcn_id": self.network.vcn_id,
            "bastion_subnet_id": self.network.bastion_subnet_id,
            "bastion_id": self.network.bastion_id,
            "gpu_pools": {
                name: {"pool_id": pool.pool_id, "node_label": pool.node_label, "taints": taints[name]}
                for name, pool in self.gpu_pools.items()
            },
            "model_cache_handle": self.access.model_cache_handle,
        }


def create_cluster(
    plan: Plan, cluster: CreateCluster, api_server: str | None, image_links: Mapping[str, str]
) -> CreatedCluster:
    """Declares network, rights, cluster, pools, add-ons and storage, each after what it needs.

    GPU nodes come last: after the first answered call to the API server, because they are of no use where it can't be
    reached, and after the other pools, which are upgraded before them.

    Args:
        plan: what is deployed.
        cluster: the cluster's config.
        api_server: address of the API server at the end of a tunnel.
        image_links: secret links to image files, by the names of pools that import them.

    Raises:
        KitError: a pool's image has no link.
    """
    provider = region_provider("oci", cluster.region)
    opts = pulumi.ResourceOptions(providers=[provider])
    network = Network("network", network_args(plan, cluster), opts)
    needs = iam_needs(plan.config, cluster)
    rights = _rights("cluster-iam", plan, cluster, needs.cluster, None, opts)
    oke = OkeCluster(
        "oke", cluster_args(cluster, network, api_server), after(_renamed(opts, cluster), network, *rights)
    )
    node_rights = _rights("nodes-iam", plan, cluster, needs.nodes, oke, opts)
    ready = after(opts, network, *rights, *node_rights)
    access = ClusterAccess(identifier=oke.cluster_id, kubeconfig=oke.kubeconfig, created=oke.created)
    inside = access.options(access.provider("operators"))
    answered = KubernetesObject("api-server", _ANSWERED, inside)
    cpu_pools = _cpu_pools(plan, cluster, network, oke, image_links, ready)
    add_ons = _add_ons(plan, cluster, oke, after(opts, *cpu_pools.values()))
    gpu_pools = _gpu_pools(plan, cluster, network, oke, image_links, after(ready, answered, *cpu_pools.values()))
    storage = _storage(plan, cluster, network, after(ready, oke))
    if storage is not None:
        access = replace(access, model_cache_handle=storage.volume_handle)
    return CreatedCluster(provider, oke, network, access, inside, cpu_pools, add_ons, gpu_pools)


def _renamed(opts: pulumi.ResourceOptions, cluster: CreateCluster) -> pulumi.ResourceOptions:
    """A cluster's name changes in place, so that its component has a name of its own; states of earlier versions know
    it by the cluster's.
    """
    return pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(aliases=[pulumi.Alias(name=cluster.name)]))


def declare_autoscaler(plan: Plan, made: CreatedCluster, gates: Sequence[pulumi.Resource]) -> None:
    """The cluster autoscaler, where a pool leaves its size to it. It comes after the gates, so that it takes no node
    away that the first servers are waiting for; nodes that no gate waits for may still be joining then.
    """
    scaled = {pool.name for pool in autoscaled_pools(plan.config)}
    if scaled:
        pool_ids = {name: pool.pool_id for name, pool in {**made.cpu_pools, **made.gpu_pools}.items() if name in scaled}
        args: AddOnsArgs = {"cluster_id": made.oke.cluster_id, "add_ons": [autoscaler_args(plan, pool_ids)]}
        opts = pulumi.ResourceOptions(providers=[made.provider])
        AddOns("cluster-autoscaler", args, after(opts, *made.nodes, *made.gpu_pools.values(), *gates))


def _rights(
    name: str,
    plan: Plan,
    cluster: CreateCluster,
    needs: tuple[str, ...],
    oke: OkeCluster | None,
    opts: pulumi.ResourceOptions,
) -> list[pulumi.Resource]:
    if not needs:
        return []
    return [Iam(name, iam_args(plan, cluster, needs, oke), opts)]


def _cpu_pools(
    plan: Plan,
    cluster: CreateCluster,
    network: Network,
    oke: OkeCluster,
    image_links: Mapping[str, str],
    opts: pulumi.ResourceOptions,
) -> dict[str, SystemPool | CpuPool]:
    pools = {SYSTEM_POOL: plan.config.system_pool, **{pool.name: pool for pool in plan.config.cpu_pools}}
    asked = any(not pool.availability_domains for pool in pools.values()) and not cluster.given.availability_domains
    domains = _availability_domains(cluster, oke) if asked else list(cluster.given.availability_domains)
    made: dict[str, SystemPool | CpuPool] = {}
    for name, pool in pools.items():
        behind = after(opts, made[SYSTEM_POOL]) if made else opts
        image_id = _image(name, pool.image, cluster, image_links, opts) or cluster.given.system_image_id
        args = cpu_pool_args(name, pool, cluster, network, oke, domains, image_id)
        made[name] = SystemPool(name, args, behind) if name == SYSTEM_POOL else CpuPool(name, args, behind)
    return made


def _availability_domains(cluster: CreateCluster, oke: OkeCluster) -> pulumi.Output[list[str]]:
    return availability_domains(cluster.compartment_id, pulumi.InvokeOutputOptions(parent=oke))


def _image(
    pool: str,
    image: Image | None,
    cluster: CreateCluster,
    image_links: Mapping[str, str],
    opts: pulumi.ResourceOptions,
) -> pulumi.Input[str] | None:
    if image is None or image.import_ is None:
        return None if image is None else image.ocid
    wanted = image.import_
    link = wanted.uri or image_links.get(pool)
    if link is None:
        remedy = f"Give it: pulumi config set --secret --path llmd-oke:imageLinks.{pool}"
        raise KitError(f"The image of pool {pool} has no link to its file.", remedy)
    made = NodeImage(
        f"{pool}-image",
        {
            "compartment_id": cluster.compartment_id,
            "display_name": wanted.name,
            "uri": link,
            "checksum": wanted.checksum,
        },
        opts,
    )
    return made.image_id


def _add_ons(
    plan: Plan, cluster: CreateCluster, oke: OkeCluster, opts: pulumi.ResourceOptions
) -> list[pulumi.Resource]:
    """The cluster's add-ons, which go with it: their operators would be taken away under objects that stay."""
    wanted: list[AddOnArgs] = add_on_args(plan, cluster)
    if not wanted:
        return []
    with_cluster = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(deleted_with=oke.created))
    return [AddOns("add-ons", {"cluster_id": oke.cluster_id, "add_ons": wanted}, with_cluster)]


def _gpu_pools(
    plan: Plan,
    cluster: CreateCluster,
    network: Network,
    oke: OkeCluster,
    image_links: Mapping[str, str],
    opts: pulumi.ResourceOptions,
) -> dict[str, GpuPool]:
    made: dict[str, GpuPool] = {}
    for pool in plan.config.gpu_pools:
        image = None if pool.pool_id else _image(pool.name, pool.image, cluster, image_links, opts)
        args = gpu_pool_args(plan, pool, cluster, network, oke, image or "")
        made[pool.name] = GpuPool(pool.name, args, opts)
    return made


def _storage(plan: Plan, cluster: CreateCluster, network: Network, opts: pulumi.ResourceOptions) -> Storage | None:
    args = storage_args(plan, cluster, network)
    return None if args is None else Storage("storage", args, opts)
