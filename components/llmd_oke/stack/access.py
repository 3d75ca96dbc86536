"""Which cluster a stack deploys into, and how its Kubernetes provider gets there."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import pulumi
import pulumi_kubernetes as k8s

from llmd_oke.config import ExistingCluster
from llmd_oke.errors import KitError
from llmd_oke.planning import Plan
from llmd_oke.stack.agreement import agreed


@dataclass(frozen=True)
class ClusterAccess:
    """What identifies a cluster, and a kubeconfig's text or the context of the user's own.

    `created` is the cluster as a resource of this stack, `ready` what has to be there before models are deployed,
    `model_cache_handle` what the storage driver knows the created file system of model caches by.
    """

    identifier: pulumi.Input[str]
    kubeconfig: pulumi.Input[str] | None = None
    context: str | None = None
    created: pulumi.Resource | None = None
    ready: tuple[pulumi.Resource, ...] = ()
    model_cache_handle: pulumi.Input[str] | None = None

    def provider(self, name: str, *, upsert: bool = False) -> k8s.Provider:
        """A provider of the cluster.

        Its identity is the cluster's, so that a changed kubeconfig (a tunnel, CI) replaces nothing. Fields that
        somebody has set by hand are taken back where the program says something else, except those that are ignored
        because an autoscaler sets them; without force the API server would refuse the update as a conflict.
        """
        return k8s.Provider(
            name,
            cluster_identifier=self.identifier,
            kubeconfig=self.kubeconfig,
            context=self.context,
            enable_patch_force=True,
            upsert_existing_objects=upsert or None,
        )

    def options(self, provider: k8s.Provider) -> pulumi.ResourceOptions:
        """The options of what is in the cluster. A cluster of this stack takes it with it when it goes."""
        opts = pulumi.ResourceOptions(provider=provider)
        if self.created is None:
            return opts
        return pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(transformations=[gone_with(self.created)]))


def existing(plan: Plan) -> ClusterAccess:
    """A cluster that is there already: by the stack file, or by the stack that made it."""
    if isinstance(plan.cluster, ExistingCluster):
        return ClusterAccess(plan.cluster.identifier, context=plan.cluster.kubeconfig_context)
    if plan.config.cluster_stack is None:
        raise KitError("The stack names no cluster.")
    made = pulumi.StackReference(plan.config.cluster_stack)
    told = pulumi.Output.all(made.require_output("cluster_id"), made.get_output("gpu_pools"))
    return ClusterAccess(
        identifier=told.apply(lambda both: agreed(plan, *both)),
        kubeconfig=cast("pulumi.Output[str]", made.require_output("kubeconfig")),
        model_cache_handle=cast("pulumi.Output[str]", made.get_output("model_cache_handle")),
    )


def gone_with(cluster: pulumi.Resource) -> pulumi.ResourceTransformation:
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
    """Whether an object stands for something in OCI. The charts of the kit's own operators hold no such object."""
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
        found = cast("Mapping[str, Any]", spec).get(key, default)
        return found if isinstance(found, str) else "unknown"
    return "unknown"
