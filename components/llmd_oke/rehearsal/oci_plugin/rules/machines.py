"""Machines: sizes, images that fit, metadata, capacity, and the networks between them."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from llmd_oke import catalogue
from llmd_oke.rehearsal.oci_plugin.errors import invalid, limit_exceeded
from llmd_oke.rehearsal.oci_plugin.region import image_id
from llmd_oke.rehearsal.oci_plugin.rules.scenes import Scene
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject, dig

POOLS: Final = ("NodePool", "ClusterNetwork", "Instance")


def need_size(scene: Scene, shape: str, config: JsonObject | None) -> None:
    """Raises ServiceError for a shape that there isn't, or sizes that it can't have."""
    known = scene.facts.shapes.get(shape)
    if known is None:
        if catalogue.shape(shape) is None:
            raise invalid(f"Invalid nodeShape: Node shape {shape} is not available in {scene.region}")
        return
    if not known.flexible:
        return
    ocpus, memory_gib = dig(config, "ocpus"), dig(config, "memoryInGbs")
    if ocpus is None:
        raise invalid(f"Shape {shape} is flexible: ocpus must be given in its shape config")
    if not 1 <= ocpus <= known.ocpus or (memory_gib is not None and not ocpus <= memory_gib <= known.memory_gib):
        most = f"{known.ocpus} OCPUs and {known.memory_gib} GB"
        raise invalid(f"Shape {shape} can have from 1 OCPU and 1 GB for each OCPU to {most}")


def need_fit(scene: Scene, shape: str, image: str | None) -> None:
    """Raises ServiceError for an image that is known to be made for other shapes."""
    drivers = _drivers(scene, image)
    vendor = scene.facts.vendor(shape)
    if drivers is not None and drivers != vendor:
        raise invalid(f"Invalid imageId: image {image} is not compatible with shape {shape}")


def _drivers(scene: Scene, id_: str | None) -> str | None:
    """The vendor whose GPUs an image has drivers for, empty for none; None for an image that isn't known."""
    key = scene.facts.key(scene.region)
    for image in scene.facts.images:
        if image_id(image.name, key) == id_:
            return image.gpu
    made = scene.need(id_, "Image")
    source = f"{made.display_name} {dig(made.state, 'imageSourceDetails', 'sourceUri')}" if made else ""
    if "AMD-ROCM" in source:
        return "AMD"
    return "NVIDIA" if "GPU" in source else None


def need_metadata(scene: Scene, *metadata: JsonObject | None) -> None:
    """Raises ServiceError for more metadata than an instance takes."""
    size = sum(len(key) + len(str(value)) for each in metadata for key, value in (each or {}).items())
    if size > scene.facts.metadata_limit_bytes:
        limit = scene.facts.metadata_limit_bytes
        raise invalid(f"Metadata and extended metadata can have {limit} bytes together, they have {size}")


def need_capacity(scene: Scene, shape: str, nodes: int) -> None:
    """Raises ServiceError where so many nodes are more than the service limit allows."""
    limit = scene.facts.limit_of_shape.get(shape)
    if limit is None:
        return
    others = sum(_nodes(record.state, shape) for name in POOLS for record in scene.others(name))
    if (others + nodes) * limit.units > scene.facts.limits["compute"][limit.name]:
        raise limit_exceeded(limit.name)


def _nodes(state: JsonObject, shape: str) -> int:
    if state.get("nodeShape") == shape:
        return dig(state, "nodeConfigDetails", "size") or 0
    return 1 if state.get("shape") == shape else 0


def _compute_cluster(scene: Scene) -> None:
    scene.need_domain(scene.given["availabilityDomain"])


def _instance_configuration(scene: Scene) -> None:
    launch: Any = dig(scene.given, "instanceDetails", "launchDetails")
    if launch:
        _launch(scene, launch, launch.get("createVnicDetails"))


def _instance(scene: Scene) -> None:
    _kept(scene)
    _launch(scene, scene.given, scene.given.get("createVnicDetails"))
    cluster = scene.need(scene.given.get("computeClusterId"), "ComputeCluster")
    if cluster is not None and cluster.state["availabilityDomain"] != scene.given["availabilityDomain"]:
        domain = cluster.state["availabilityDomain"]
        raise invalid(f"Compute cluster {cluster.id} is in availability domain {domain}")
    if scene.given.get("shape"):
        need_capacity(scene, scene.given["shape"], 1)


def _kept(scene: Scene) -> None:
    """What an instance boots with stays as it was at launch (OCI API, UpdateInstanceDetails, `metadata`)."""
    if scene.before is None:
        return
    before: JsonObject = scene.before.state.get("metadata") or {}
    after: JsonObject = scene.given.get("metadata") or {}
    for key in ("user_data", "ssh_authorized_keys"):
        if after and before.get(key) != after.get(key):
            raise invalid(f"The metadata {key} can't be changed after the instance has been launched")


def _launch(scene: Scene, launch: JsonObject, vnic: JsonObject | None) -> None:
    scene.need_domain(launch.get("availabilityDomain"))
    if shape := launch.get("shape"):
        need_size(scene, shape, launch.get("shapeConfig"))
        image = dig(launch, "sourceDetails", "imageId") or dig(launch, "sourceDetails", "sourceId")
        need_fit(scene, shape, image)
    need_metadata(scene, launch.get("metadata"), launch.get("extendedMetadata"))
    subnet = scene.need_subnet(dig(vnic, "subnetId"))
    scene.need_groups(dig(vnic, "nsgIds"), subnet.state["vcnId"] if subnet else None)
    if subnet is not None and str(dig(vnic, "assignPublicIp")).lower() == "true":
        _refuse_public(subnet.state)


def _refuse_public(subnet: JsonObject) -> None:
    if subnet.get("prohibitPublicIpOnVnic"):
        raise invalid("A public IP can't be assigned to a VNIC in a private subnet")


def _cluster_network(scene: Scene) -> None:
    given, placement = scene.given, scene.given["placementConfiguration"]
    scene.need_domain(placement["availabilityDomain"])
    scene.need_subnet(placement.get("primarySubnetId") or dig(placement, "primaryVnicSubnets", "subnetId"))
    if len(given["instancePools"]) != 1:
        raise invalid("A cluster network must have one instance pool")
    pool: Any = given["instancePools"][0]
    configuration = scene.need(pool["instanceConfigurationId"], "InstanceConfiguration")
    launch = dig(configuration.state, "instanceDetails", "launchDetails") if configuration else None
    shape = dig(launch, "shape")
    if shape and shape not in scene.facts.bare_metal_rdma:
        raise invalid(f"Shape {shape} is not supported in a cluster network")
    if shape:
        need_capacity(scene, shape, pool["size"])


def _image(scene: Scene) -> None:
    source: JsonObject = scene.given.get("imageSourceDetails") or {}
    uri = source.get("sourceUri")
    if source.get("sourceType") == "objectStorageUri" and not str(uri).startswith("https://"):
        raise invalid(f"Invalid sourceUri: {uri}")


def _reservation(scene: Scene) -> None:
    scene.need_domain(scene.given["availabilityDomain"])


RULES: Final[Mapping[str, Callable[[Scene], None]]] = {
    "ComputeCluster": _compute_cluster,
    "InstanceConfiguration": _instance_configuration,
    "Instance": _instance,
    "ClusterNetwork": _cluster_network,
    "Image": _image,
    "ComputeCapacityReservation": _reservation,
}
