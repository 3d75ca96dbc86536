"""Cluster that a stack deploys into: its identity, Kubernetes providers, and the taints of its pools."""

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
"""Outputs of the cluster-layer stack for its GPU pools, by pool name."""

REPELLING = frozenset({"NoSchedule", "NoExecute"})
"""Taint effects that keep pods off a node, unlike `PreferNoSchedule`."""


@dataclass(frozen=True)
class LoadBalancerNetwork:
    """Subnet and network security group of a network's load balancers."""

    subnet_id: pulumi.Input[str]
    security_group_id: pulumi.Input[str]


@dataclass(frozen=True)
class ClusterIdentity:
    """Identity of a cluster, and the text of its kubeconfig or a context of the user's kubeconfig.

    `created` is the cluster as a resource of this stack, None if another made it; `ready` are the resources that models
    depend on; `model_cache_handle` is the CSI volume handle of the created file system for model caches;
    `load_balancers` has subnet and group of `internal` and `public` load balancers in the created network; `mirror` is
    the private registry of the pods' images.
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
        """Declare a Kubernetes provider for the cluster.

        The provider is identified by the cluster's OCID, so that another kubeconfig (of a tunnel, or in CI) replaces no
        objects. Updates overwrite fields that other field managers have set, except those in `ignore_changes`; without
        `enable_patch_force` the API server would refuse the update as a conflict. Secrets are changed in place, so that
        no pod starts while one is away. With `mutable`, ConfigMaps are changed in place too, otherwise replaced; with
        `upsert`, existing objects are adopted.
        """
        return k8s.Provider(
            name,
            cluster_identifier=self.identifier,
            kubeconfig=self.kubeconfig,
            context=self.context,
            enable_patch_force=True,
            upsert_existing_objects=upsert or None,
            enable_config_map_mutable=mutable or None,
            enable_secret_mutable=True,
        )

    def name_once_served(
        self, name: str, definitions: AwaitedDefinitions, after: pulumi.Resource
    ) -> pulumi.Output[str]:
        """Return a namespace's name as an output that resolves once the cluster has established custom resource
        definitions, and their webhooks answer, for objects of the defined kinds in the namespace.

        Args:
            name: name of the namespace.
            definitions: names of the definitions, limits of the waits, and remedies.
            after: resource that must be registered before the wait begins.

        Raises:
            KitError: (when the output resolves) a definition is missing, or webhooks don't answer, after the limit.
        """
        served = when_established(
            definitions.names,
            definitions.established_timeout_s,
            self.kubeconfig,
            self.context,
            after=after,
            remedy=definitions.remedy,
            admission=definitions.admission,
            namespace=name,
        )
        return served.apply(lambda _: name)

    def options(self, provider: k8s.Provider) -> pulumi.ResourceOptions:
        """Return the options of objects in the cluster. Objects in a cluster of this stack are `deleted_with` it."""
        transformations: list[pulumi.ResourceTransformation] = []
        if self.created is not None:
            transformations.append(_deleted_with(self.created))
        if self.mirror is not None:
            transformations.append(pulls_from(self.mirror))
        return pulumi.ResourceOptions(provider=provider, transformations=transformations or None)


def mirror_args(plan: Plan) -> RegistryMirrorArgs | None:
    """Return the stack's private registry as an argument of components; None if the stack has none."""
    return None if plan.registry_mirror is None else arguments(RegistryMirrorArgs, plan.registry_mirror)


def existing_cluster(plan: Plan) -> ClusterIdentity:
    """Return the identity of an existing cluster, from the stack file or from the outputs of its `clusterStack`.

    Raises:
        KitError: the stack file names no cluster.
    """
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
    """Return a transformation that makes Kubernetes objects `deleted_with` their cluster, except those that own
    resources in OCI.

    A Service of type LoadBalancer owns a load balancer, a PersistentVolumeClaim with a storage class a volume: these
    objects must be deleted while the cluster's controllers still run. The claim of a static volume must not be deleted
    by itself: its deletion would wait for its pods (`pvc-protection`), which are deleted with the cluster.
    """

    def transform(args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
        if not args.type_.startswith("kubernetes:") or owns_oci_resources(args.type_, args.props):
            return None
        opts = pulumi.ResourceOptions.merge(args.opts, pulumi.ResourceOptions(deleted_with=cluster))
        return pulumi.ResourceTransformationResult(args.props, opts)

    return transform


def owns_oci_resources(type_: str, props: Mapping[str, Any]) -> bool:
    """Tell whether deleting a Kubernetes object may delete a resource in OCI, such as a load balancer or volume.
    Objects in the charts of the kit's operators never do.
    """
    kind, spec = type_.rpartition(":")[2], props.get("spec")
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
    """Return a text field of a spec, `default` if it is left out, "unknown" if Pulumi doesn't know it yet."""
    if isinstance(spec, Mapping):
        value = cast("Mapping[str, Any]", spec).get(key, default)
        return value if isinstance(value, str) else "unknown"
    return "unknown"


def taint_outputs(taints: Sequence[Taint]) -> list[dict[str, str]]:
    """Return the taints of a pool as plain dictionaries, as the cluster stack's outputs have them."""
    return [taint.model_dump() for taint in taints]


def require_known_taints(plan: Plan, cluster_id: str, pools: PoolOutputs | None) -> str:
    """Return the cluster's OCID, after the check that the serving stack has the taints of the cluster stack's pools.

    Raises:
        RunError: a pool has a taint that keeps pods off and that the serving stack doesn't have.
    """
    if problems := list(unknown_taints(plan, pools or {})):
        raise pulumi.RunError(str(InvalidStack(problems)))
    return cluster_id


def unknown_taints(plan: Plan, pools: PoolOutputs) -> Iterator[Problem]:
    """Yield a problem for each pool of the cluster stack with taints that keep pods off and that no pool of the serving
    stack has: pods tolerate the taints of all pools of the serving stack.
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
