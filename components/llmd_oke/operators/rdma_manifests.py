"""The objects of the RDMA network: policies, network, addresses. Pure data."""

import json

from llmd_oke.catalogue import Shape, operators
from llmd_oke.catalogue.operators import RdmaByFunctions
from llmd_oke.catalogue.shapes import INSTANCE_TYPE_LABEL
from llmd_oke.errors import KitError
from llmd_oke.objects import PART_OF, Manifest

_SRIOV = "sriovnetwork.openshift.io/v1"


def label_of(shape: Shape) -> str:
    """A shape's name as an object's name: `bm-gpu-mi300x-8`."""
    return shape.name.lower().replace(".", "-")


def pool_config(shapes: list[Shape]) -> Manifest:
    """How many of the shapes' nodes may be drained at a time while their virtual functions are made."""
    facts = operators.rdma()
    names = {"key": INSTANCE_TYPE_LABEL, "operator": "In", "values": [shape.name for shape in shapes]}
    spec = {"maxUnavailable": facts.pool_config.max_unavailable, "nodeSelector": {"matchExpressions": [names]}}
    return _object(_SRIOV, "SriovNetworkPoolConfig", facts.pool_config.name, spec)


def ip_pool() -> Manifest:
    """The addresses of virtual functions."""
    pool = operators.rdma().ip_pool
    spec = {"subnet": pool.subnet, "gateway": pool.gateway, "perNodeBlockSize": pool.per_node_block_size}
    return _object("nv-ipam.nvidia.com/v1alpha1", "IPPool", pool.name, spec)


def policy(shape: Shape) -> Manifest:
    """Makes each RDMA port of a shape's nodes a virtual function.

    Raises:
        KitError: the catalogue doesn't know the shape's ports.
    """
    facts = operators.rdma()
    if shape.rdma.sriov is None:
        raise KitError(f"The catalogue has no ports of {shape.name} that virtual functions could be made of.")
    spec = {
        "deviceType": facts.policy.device_type,
        "externallyManaged": True,
        "isRdma": True,
        "mtu": facts.policy.mtu,
        "nicSelector": {"rootDevices": list(shape.rdma.sriov.ports), "vendor": shape.rdma.sriov.vendor},
        "nodeSelector": {INSTANCE_TYPE_LABEL: shape.name},
        "numVfs": facts.policy.functions_per_port,
        "priority": facts.policy.priority,
        "resourceName": resource_name(shape, facts),
    }
    return _object(_SRIOV, "SriovNetworkNodePolicy", label_of(shape), spec)


def network(shape: Shape) -> Manifest:
    """The network of a shape's virtual functions; the SR-IOV operator makes a NetworkAttachmentDefinition of it."""
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
    """What the device plug-in calls the functions, without its prefix.

    Raises:
        KitError: pods ask for a resource that the device plug-in doesn't give out.
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
