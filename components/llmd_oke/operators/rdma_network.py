"""Component for RDMA in pods: virtual functions of the nodes' RDMA ports, made by the SR-IOV
operator of OKE's add-on.
"""

import json
from typing import NotRequired, TypedDict

import pulumi
from llmd_base.errors import KitError
from llmd_base.records import document

from llmd_oke.catalogue import Shape, operators
from llmd_oke.catalogue.operators import RdmaByFunctions
from llmd_oke.catalogue.shapes import INSTANCE_TYPE_LABEL
from llmd_oke.objects import PART_OF, KubernetesObject, Manifest, ShapeRef, inputs, outputs, resolve_shape
from llmd_oke.operators.crds import when_established

TIMEOUT = pulumi.CustomTimeouts(create="300s", update="300s", delete="600s")

_SRIOV = "sriovnetwork.openshift.io/v1"


class RdmaNetworkArgs(TypedDict):
    """Arguments of `RdmaNetwork`: the shapes whose RDMA ports are split into virtual functions, and the kubeconfig."""

    shapes: list[ShapeRef]
    """OCI shapes of the nodes, from the catalogue."""
    kubeconfig: NotRequired[pulumi.Input[str] | None]
    """Text of the kubeconfig for the wait for the operator's definitions; the environment's if left out."""
    kubeconfig_context: NotRequired[str | None]
    """Context of the kubeconfig; the current context if left out."""


class RdmaNetwork(pulumi.ComponentResource):
    """One RDMA virtual function for each GPU, and the networks by which pods attach them.

    Needs the SR-IOV operator (in OKE, the add-on NvidiaNetworkOperator), and waits for its custom resource definitions.
    """

    namespace: pulumi.Output[str]
    """Namespace of the SR-IOV operator and of the declared objects."""
    resources: pulumi.Output[list[str]]
    """Resource names that pods request, one for each shape in the order of `shapes`, such as
    `nvidia.com/sriov-rdma-vf`; known once the network is declared."""
    networks: pulumi.Output[list[str]]
    """Network attachment definitions of pods as `namespace/name`, one for each shape in the order of `shapes`."""

    def __init__(self, name: str, args: RdmaNetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(
            "llmd-oke:index:RdmaNetwork", name, inputs(self, args, "kubeconfig", "kubeconfig_context"), opts
        )
        facts, shapes = operators.rdma(), [resolve_shape(shape) for shape in args["shapes"]]
        kubeconfig, context = args.get("kubeconfig"), args.get("kubeconfig_context")
        served = when_established(facts.definitions, facts.definitions_timeout_s, kubeconfig, context, after=self)
        common = self._declare(name, [pool_config(shapes), ip_pool()], served, [])
        of_shapes = [manifest for shape in shapes for manifest in (policy(shape), network(shape))]
        shared = {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in of_shapes}
        objects = self._declare(name, list(shared.values()), served, common)
        declared = pulumi.Output.all(*(resource.urn for resource in objects))
        attachments = [shape.rdma.network_attachment for shape in shapes]
        self.namespace = served.apply(lambda _: facts.namespace)
        self.resources = declared.apply(lambda _: [shape.rdma.resource for shape in shapes])
        self.networks = declared.apply(lambda _: [f"{item.namespace}/{item.name}" for item in attachments])
        self.register_outputs(outputs(self))

    def _declare(
        self, name: str, manifests: list[Manifest], served: pulumi.Output[bool], needed: list[pulumi.Resource]
    ) -> list[pulumi.Resource]:
        """Declare custom resources whose namespace depends on `served`, so that each waits for the definitions."""
        resources: list[pulumi.Resource] = []
        for manifest in manifests:
            metadata = manifest["metadata"]
            namespace = served.apply(lambda _, metadata=metadata: str(metadata["namespace"]))
            resource = KubernetesObject(
                f"{name}-{manifest['kind'].lower()}-{metadata['name']}",
                {**manifest, "metadata": {**metadata, "namespace": namespace}},
                pulumi.ResourceOptions(parent=self, depends_on=needed, custom_timeouts=TIMEOUT),
            )
            resources.append(resource)
        return resources


def pool_config(shapes: list[Shape]) -> Manifest:
    """Return the SriovNetworkPoolConfig, which limits the number of nodes that the operator drains at a time while it
    creates virtual functions.
    """
    facts = operators.rdma()
    names = {"key": INSTANCE_TYPE_LABEL, "operator": "In", "values": [shape.name for shape in shapes]}
    spec = {"maxUnavailable": facts.pool_config.max_unavailable, "nodeSelector": {"matchExpressions": [names]}}
    return _object(_SRIOV, "SriovNetworkPoolConfig", facts.pool_config.name, spec)


def ip_pool() -> Manifest:
    """Return the IPPool with the addresses of virtual functions."""
    pool = operators.rdma().ip_pool
    spec = document("subnet gateway", pool, perNodeBlockSize=pool.per_node_block_size)
    return _object("nv-ipam.nvidia.com/v1alpha1", "IPPool", pool.name, spec)


def policy(shape: Shape) -> Manifest:
    """Return the SriovNetworkNodePolicy that creates virtual functions on each RDMA port of a shape's nodes.

    Raises:
        KitError: the catalogue has no RDMA ports of the shape.
    """
    facts = operators.rdma()
    if shape.rdma.sriov is None:
        raise KitError(f"The catalogue has no ports of {shape.name} that virtual functions could be made of.")
    spec = document(
        "deviceType externallyManaged isRdma mtu nicSelector nodeSelector numVfs priority resourceName",
        facts.policy,
        deviceType=facts.policy.device_type,
        externallyManaged=True,
        isRdma=True,
        nicSelector=document("rootDevices vendor", shape.rdma.sriov, rootDevices=list(shape.rdma.sriov.ports)),
        nodeSelector={INSTANCE_TYPE_LABEL: shape.name},
        numVfs=facts.policy.functions_per_port,
        resourceName=resource_name(shape, facts),
    )
    return _object(_SRIOV, "SriovNetworkNodePolicy", shape.name.lower().replace(".", "-"), spec)


def network(shape: Shape) -> Manifest:
    """Return the SriovNetwork of a shape, from which the SR-IOV operator makes a NetworkAttachmentDefinition."""
    facts = operators.rdma()
    attachment = shape.rdma.network_attachment
    spec = {
        "ipam": json.dumps({"type": "nv-ipam", "poolName": facts.ip_pool.name}),
        "metaPlugins": ",".join(json.dumps(plugin) for plugin in facts.meta_plugins),
        "networkNamespace": attachment.namespace,
        "resourceName": resource_name(shape, facts),
        "spoofChk": "off",
    }
    return _object(_SRIOV, "SriovNetwork", attachment.name, spec)


def resource_name(shape: Shape, facts: RdmaByFunctions) -> str:
    """Return the resource name of a shape's virtual functions, without the device plug-in's prefix.

    Raises:
        KitError: the shape's resource name has another prefix than the device plug-in's.
    """
    prefix, _, name = shape.rdma.resource.partition("/")
    if prefix != facts.resource_prefix:
        raise KitError(
            f"{shape.name} has functions as {shape.rdma.resource}, but the device plug-in's prefix is "
            f"{facts.resource_prefix}."
        )
    return name


def _object(api_version: str, kind: str, name: str, spec: Manifest) -> Manifest:
    metadata = {"name": name, "namespace": operators.rdma().namespace, "labels": PART_OF}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}
