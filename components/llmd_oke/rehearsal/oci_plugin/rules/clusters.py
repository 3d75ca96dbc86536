"""OKE: versions, networks, add-ons and pools of nodes."""

from collections.abc import Callable, Mapping
from ipaddress import IPv4Network
from typing import Any, Final

from llmd_oke.rehearsal.oci_plugin.errors import ServiceError, invalid, limit_exceeded
from llmd_oke.rehearsal.oci_plugin.rules.machines import need_capacity, need_fit, need_metadata, need_size
from llmd_oke.rehearsal.oci_plugin.rules.network import network, ranges_of
from llmd_oke.rehearsal.oci_plugin.rules.scenes import Scene
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject, dig

FLANNEL_PODS: Final = "10.244.0.0/16"
SERVICES: Final = "10.96.0.0/16"
"""OKE's own choices (OCI API, KubernetesNetworkConfig)."""


def version_of(text: str) -> tuple[int, ...]:
    """`v1.34.2` as numbers."""
    try:
        return tuple(int(part) for part in text.removeprefix("v").split("."))
    except ValueError:
        raise invalid(f"Invalid kubernetesVersion: {text}") from None


def _cluster(scene: Scene) -> None:
    given = scene.given
    vcn = scene.need(given["vcnId"], "Vcn")
    _version(scene)
    _endpoint(scene, given.get("endpointConfig") or {})
    for id_ in dig(given, "options", "serviceLbSubnetIds") or ():
        scene.need_subnet(id_, given["vcnId"])
    if given.get("type") not in {None, "BASIC_CLUSTER", "ENHANCED_CLUSTER"}:
        raise invalid(f"Invalid type: {given['type']}, must be BASIC_CLUSTER or ENHANCED_CLUSTER")
    _ranges(given, ranges_of(vcn.state) if vcn else [])
    if scene.before is None and len(scene.others()) >= scene.facts.limits["container-engine"]["cluster-count"]:
        raise limit_exceeded("cluster-count")


def _version(scene: Scene) -> None:
    version = scene.given["kubernetesVersion"]
    known = scene.facts.kubernetes_versions
    if version not in known:
        raise invalid(f"Invalid kubernetesVersion: {version}, supported versions: {', '.join(known)}")
    if scene.before is None:
        return
    old, new = version_of(scene.before.state["kubernetesVersion"]), version_of(version)
    if new < old or new[1] > old[1] + 1:
        was = scene.before.state["kubernetesVersion"]
        raise invalid(f"Cannot change the Kubernetes version from {was} to {version}: only one minor version up")


def _endpoint(scene: Scene, config: JsonObject) -> None:
    subnet = scene.need_subnet(config.get("subnetId"), scene.given["vcnId"])
    scene.need_groups(config.get("nsgIds"), scene.given["vcnId"])
    if subnet is not None and config.get("isPublicIpEnabled") and subnet.state.get("prohibitPublicIpOnVnic"):
        raise invalid("A public IP can't be enabled for an endpoint in a private subnet")


def _ranges(given: JsonObject, vcn: list[IPv4Network]) -> None:
    chosen: JsonObject = dig(given, "options", "kubernetesNetworkConfig") or {}
    services = network(chosen.get("servicesCidr") or SERVICES)
    if any(services.overlaps(each) for each in vcn):
        raise invalid(f"The services CIDR {services} overlaps with the CIDR of the VCN")
    if cni_of(given) != "FLANNEL_OVERLAY":
        return
    pods = network(chosen.get("podsCidr") or FLANNEL_PODS)
    if pods.overlaps(services) or any(pods.overlaps(each) for each in vcn):
        raise invalid(f"The pods CIDR {pods} overlaps with the services CIDR {services} or the CIDR of the VCN")


def cni_of(cluster: JsonObject) -> str:
    """The network plug-in of a cluster."""
    options: list[JsonObject] = cluster.get("clusterPodNetworkOptions") or [{}]
    return options[0].get("cniType") or "FLANNEL_OVERLAY"


def _node_pool(scene: Scene) -> None:
    given = scene.given
    details: JsonObject = given.get("nodeConfigDetails") or {}
    cluster = scene.need(given["clusterId"], "Cluster")
    vcn_id = cluster.state["vcnId"] if cluster else None
    shape = given["nodeShape"]
    need_size(scene, shape, given.get("nodeShapeConfig"))
    need_fit(scene, shape, dig(given, "nodeSourceDetails", "imageId"))
    need_metadata(scene, given.get("nodeMetadata"))
    _node_version(scene, cluster.state["kubernetesVersion"] if cluster else None)
    _image_version(scene, cluster.state["kubernetesVersion"] if cluster else None)
    for placement in details.get("placementConfigs") or ():
        _placement(scene, placement, vcn_id)
    scene.need_groups(details.get("nsgIds"), vcn_id)
    if cluster is not None and details.get("nodePoolPodNetworkOptionDetails"):
        _pod_network(scene, details["nodePoolPodNetworkOptionDetails"], cluster.state)
    _compute_cluster(scene, details, shape)
    need_capacity(scene, shape, details.get("size") or 0)


def _node_version(scene: Scene, of_cluster: str | None) -> None:
    version = scene.given.get("kubernetesVersion")
    if not version or not of_cluster:
        return
    own, control_plane = version_of(version), version_of(of_cluster)
    if own > control_plane or control_plane[1] - own[1] > scene.facts.version_skew:
        raise invalid(
            f"Invalid nodePool kubernetesVersion {version}: must be at most that of the cluster, {of_cluster}, "
            f"and at least {scene.facts.version_skew} minor versions below it"
        )


def _image_version(scene: Scene, of_cluster: str | None) -> None:
    """OKE's own images carry the version that they are for (on creation: oracle-devrel/terraform-oci-arch-ci-cd-devops,
    issue 14; taken to be the same for changes).
    """
    name = scene.facts.image_name(dig(scene.given, "nodeSourceDetails", "imageId"), scene.region)
    version = scene.given.get("kubernetesVersion") or of_cluster
    if "-OKE-" in name and version and f"-OKE-{version.removeprefix('v')}-" not in name:
        text = "Kubernetes version does not match Kubernetes version of OKE worker node image"
        raise ServiceError(409, "Conflict", text)


def _placement(scene: Scene, placement: JsonObject, vcn_id: str | None) -> None:
    domain = placement["availabilityDomain"]
    scene.need_domain(domain)
    subnet = scene.need_subnet(placement["subnetId"], vcn_id)
    if subnet is not None and subnet.state.get("availabilityDomain") not in {None, "", domain}:
        raise invalid(f"Subnet {subnet.id} is not in availability domain {domain}")
    for fault_domain in placement.get("faultDomains") or ():
        if fault_domain not in scene.facts.fault_domains:
            raise invalid(f"Invalid faultDomain: {fault_domain}")
    reservation = scene.need(placement.get("capacityReservationId"), "ComputeCapacityReservation")
    if reservation is not None and reservation.state["availabilityDomain"] != domain:
        raise invalid(f"Capacity reservation {reservation.id} is not in availability domain {domain}")


def _pod_network(scene: Scene, options: JsonObject, cluster: JsonObject) -> None:
    if options["cniType"] != cni_of(cluster):
        raise invalid(f"cniType {options['cniType']} is not the cluster's, {cni_of(cluster)}")
    for id_ in options.get("podSubnetIds") or ():
        scene.need_subnet(id_, cluster["vcnId"])
    scene.need_groups(options.get("podNsgIds"), cluster["vcnId"])
    if options["cniType"] == "OCI_VCN_IP_NATIVE" and not options.get("podSubnetIds"):
        raise invalid("podSubnetIds must be given for OCI_VCN_IP_NATIVE")


def _compute_cluster(scene: Scene, details: JsonObject, shape: str) -> None:
    found = scene.need(details.get("computeClusterId"), "ComputeCluster")
    if not details.get("computeClusterId"):
        return
    if shape not in scene.facts.bare_metal_rdma:
        raise invalid(f"Shape {shape} is not supported in a compute cluster")
    domains = {placement["availabilityDomain"] for placement in details["placementConfigs"]}
    if len(domains) > 1:
        raise invalid("A node pool in a compute cluster must have one availability domain only")
    if found is not None and domains != {found.state["availabilityDomain"]}:
        raise invalid(f"Compute cluster {found.id} is in availability domain {found.state['availabilityDomain']}")


def _addon(scene: Scene) -> None:
    given, cluster = scene.given, scene.need(scene.given["clusterId"], "Cluster")
    name: Any = given["addonName"]
    if name not in scene.facts.add_ons:
        raise ServiceError(404, "NotAuthorizedOrNotFound", f"Addon {name} is not available for the cluster")
    if cluster is None:
        return
    if cluster.state.get("type") != "ENHANCED_CLUSTER":
        raise invalid("Addons can be managed on enhanced clusters only")
    for other in scene.others():
        if (other.state["clusterId"], other.state["addonName"]) == (cluster.id, name):
            raise ServiceError(409, "Conflict", f"Addon {name} is installed already")


RULES: Final[Mapping[str, Callable[[Scene], None]]] = {"Cluster": _cluster, "NodePool": _node_pool, "Addon": _addon}
