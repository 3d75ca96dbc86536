"""Cluster that a stack deploys into, and its Kubernetes provider's way there."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pulumi
import pulumi_kubernetes as k8s
from llmd_base.errors import InvalidStack, KitError, Problem

from llmd_oke.catalogue.registry_mirror import MirrorRegistry
from llmd_oke.catalogue.releases import AwaitedDefinitions
from llmd_oke.config import ExistingCluster
from llmd_oke.config.pools import Taint
from llmd_oke.objects import RegistryMirrorArgs, pulls_from
from llmd_oke.operators.crds import when_established
from llmd_oke.planning import Plan
from llmd_oke.program.arguments import arguments

PoolOutputs = Mapping[str, Mapping[str, Any]]
"""What the stack of the cluster layer says of its GPU pools, by their names."""

REPELLING = frozenset({"NoSchedule", "NoExecute"})
"""Effects that keep pods from a node; `PreferNoSchedule` only ranks it last."""


@dataclass(frozen=True)
class LoadBalancerNetwork:
    """Place of a network's load balancers: a subnet, and a security group."""

    subnet_id: pulumi.Input[str]
    security_group_id: pulumi.Input[str]


@dataclass(frozen=True)
class ClusterIdentity:
    """Identity of a cluster, and a kubeconfig's text or the context of the user's own.

    `created` is the cluster as a resource of this stack, `ready` what has to be there before models are deployed,
    `model_cache_handle` what the storage driver knows the created file system of model caches by, `load_balancers`
    where in the created network `internal` and `public` load balancers go, `mirror` the private registry that pods
    pull from.
    """

    identifier: pulumi.Input[str]
    kubeconfig: pulumi.Input[str] | None = None
    context: str | None = None
    created: pulumi.Resource | None = None
    ready: tuple[pulumi.Resource, ...] = ()
    model_cache_handle: pulumi.Input[str] | None = None
    load_balancers: Mapping[str, LoadBalancerNetwork] = field(default_factory=dict[str, LoadBalancerNetwork])
    mirror: MirrorRegistry | None = None

    def provider(self, name: str, *, upsert: bool = False, mutable: bool = False) -> k8s.Provider:
        """A provider of the cluster.

        Its identity is the cluster's, so that a changed kubeconfig (a tunnel, CI) replaces nothing. Fields that
        somebody has set by hand are taken back where the program says something else, except those that are ignored
        because an autoscaler sets them; without force the API server would refuse the update as a conflict. With
        `mutable` ConfigMaps and Secrets are changed in place; otherwise others come in their stead.
        """
        return k8s.Provider(
            name,
            cluster_identifier=self.identifier,
            kubeconfig=self.kubeconfig,
            context=self.context,
            enable_patch_force=True,
            upsert_existing_objects=upsert or None,
            enable_config_map_mutable=mutable or None,
            enable_secret_mutable=mutable or None,
        )

    def name_once_served(
        self, name: str, definitions: AwaitedDefinitions, after: pulumi.Resource
    ) -> pulumi.Output[str]:
        """The name of a namespace as soon as the cluster serves these definitions, for objects of them that go there.

        Args:
            name: of the namespace.
            definitions: what is waited for, how long, and what makes it.
            after: looks only when this is there.

        Raises:
            KitError: (in the output) they aren't there in time; says the remedy.
        """
        timeout_s, remedy = definitions.established_timeout_s, definitions.remedy
        access = self.kubeconfig, self.context
        served = when_established(definitions.names, timeout_s, *access, after=after, remedy=remedy)
        return served.apply(lambda _: name)

    def options(self, provider: k8s.Provider) -> pulumi.ResourceOptions:
        """The options of what is in the cluster. A cluster of this stack takes it with it when it goes."""
        transformations: list[pulumi.ResourceTransformation] = []
        if self.created is not None:
            transformations.append(_deleted_with(self.created))
        if self.mirror is not None:
            transformations.append(pulls_from(self.mirror))
        return pulumi.ResourceOptions(provider=provider, transformations=transformations or None)


def mirror_args(plan: Plan) -> RegistryMirrorArgs | None:
    """The stack's private registry as an argument of components; None where it has none."""
    return None if plan.registry_mirror is None else arguments(RegistryMirrorArgs, plan.registry_mirror)


def existing_cluster(plan: Plan) -> ClusterIdentity:
    """A cluster that is there already: by the stack file, or by the stack that made it."""
    if isinstance(plan.cluster, ExistingCluster):
        context = plan.cluster.kubeconfig_context
        return ClusterIdentity(plan.cluster.identifier, context=context, mirror=plan.registry_mirror)
    if plan.cluster_stack is None:
        raise KitError("The stack names no cluster.")
    stack = pulumi.StackReference(plan.cluster_stack)
    outputs = pulumi.Output.all(stack.require_output("cluster_id"), stack.get_output("gpu_pools"))
    return ClusterIdentity(
        identifier=outputs.apply(lambda values: require_known_taints(plan, *values)),
        kubeconfig=cast("pulumi.Output[str]", stack.require_output("kubeconfig")),
        model_cache_handle=cast("pulumi.Output[str]", stack.get_output("model_cache_handle")),
        mirror=plan.registry_mirror,
    )


def _deleted_with(cluster: pulumi.Resource) -> pulumi.ResourceTransformation:
    """Objects that a cluster takes with it when it goes, except those that own something in OCI.

    A Service of type LoadBalancer owns a load balancer, a PersistentVolumeClaim with a storage class a volume: they
    have to be deleted one by one while the cluster still can. A claim of a static volume must not: it waits for its
    pods (`pvc-protection`), which go with the cluster.
    """

    def transform(args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
        if not args.type_.startswith("kubernetes:") or owns_oci_resources(args.type_, args.props):
            return None
        opts = pulumi.ResourceOptions.merge(args.opts, pulumi.ResourceOptions(deleted_with=cluster))
        return pulumi.ResourceTransformationResult(args.props, opts)

    return transform


def owns_oci_resources(type_: str, props: Mapping[str, Any]) -> bool:
    """Tell whether an object stands for something in OCI. The charts of the kit's own operators hold no such object."""
    kind, spec = type_.rsplit(":", 1)[-1], props.get("spec")
    match kind:
        case "StatefulSet" | "Ingress" | "Gateway":
            return True
        case "PersistentVolume":
            return _text(spec, "persistentVolumeReclaimPolicy", "Retain") != "Retain"
        case "PersistentVolumeClaim":
            return _text(spec, "storageClassName", "the cluster's default") != ""
        case "Service":
            return _text(spec, "type", "ClusterIP") != "ClusterIP"
        case _:
            return False


def _text(spec: Any, key: str, default: str) -> str:
    """A text of a spec; one that isn't known yet could be any."""
    if isinstance(spec, Mapping):
        value = cast("Mapping[str, Any]", spec).get(key, default)
        return value if isinstance(value, str) else "unknown"
    return "unknown"


def taint_outputs(taints: Sequence[Taint]) -> list[dict[str, str]]:
    """The taints of a pool as the stack's outputs have them."""
    return [taint.model_dump() for taint in taints]


def require_known_taints(plan: Plan, cluster_id: str, pools: PoolOutputs | None) -> str:
    """The cluster's OCID, once the serving stack agrees with the stack that made the cluster.

    Raises:
        RunError: pods would be kept from nodes by taints that the serving stack doesn't know.
    """
    if problems := list(unknown_taints(plan, pools or {})):
        raise pulumi.RunError(str(InvalidStack(problems)))
    return cluster_id


def unknown_taints(plan: Plan, pools: PoolOutputs) -> Iterator[Problem]:
    """Taints of pools of the same name that keep pods away and that the serving stack doesn't say; its pods tolerate
    those of all its pools.
    """
    known = taint_outputs(plan.taints)
    for i, pool in enumerate(plan.pools):
        repelling = [taint for taint in pools.get(pool.name, {}).get("taints", ()) if taint["effect"] in REPELLING]
        missing = [taint for taint in repelling if dict(taint) not in known]
        if missing:
            texts, own = _texts(missing), _texts(taint_outputs(pool.taints)) or None
            why = f"{plan.cluster_stack} gives the nodes {texts}, and pods that don't tolerate it find no node"
            yield Problem(f"gpuPools[{i}].taints", own, f"also {texts}, as the stack of the cluster has it", why)


def _texts(taints: Iterable[Mapping[str, Any]]) -> str:
    return ", ".join(f"{taint['key']}={taint['value']}:{taint['effect']}" for taint in taints)
