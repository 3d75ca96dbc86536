"""What OCI's services refuse: requests to create, change or delete a resource that break a rule of theirs.

One table at the end has the rule of each type; a type without one is never refused.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Any, Final

from llmd_oke import catalogue

from llmd_rehearsal.oci_plugin.facts import Region, Resource, image_id, lifecycles, region_facts
from llmd_rehearsal.oci_plugin.region import Record, Records, ServiceError, invalid, limit_exceeded, not_found
from llmd_rehearsal.plugin_values import JsonObject, dig

LARGEST_PREFIX: Final = 16
SMALLEST_PREFIX: Final = 30
"""A VCN or subnet has from /16 to /30 (OCI documentation, VCNs and Subnets)."""
LUSTRE_LEAST_GB: Final = 31_200
"""OCI documentation, File Storage with Lustre: 31.2 TB."""
FLANNEL_PODS: Final = "10.244.0.0/16"
SERVICES: Final = "10.96.0.0/16"
"""OKE's own choices (OCI API, KubernetesNetworkConfig)."""
POOLS: Final = ("NodePool", "ClusterNetwork", "Instance")
_GATEWAYS: Final = frozenset({"InternetGateway", "NatGateway", "ServiceGateway"})
_DNS_LABEL: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9]{0,14}")
_PORTS: Final = {"tcpOptions": "6", "udpOptions": "17"}
_LAST_PORT: Final = 65535
# OCI documentation, Policy Syntax.
_STATEMENT: Final = re.compile(
    r"allow\s+(any-user|any-group|(group|dynamic-group|service)\s+.+?)\s+to\s+"
    r"((inspect|read|use|manage)\s+[a-z0-9-]+|\{\s*[A-Z0-9_]+(\s*,\s*[A-Z0-9_]+)*\s*\})\s+"
    r"in\s+(tenancy|compartment\s+(id\s+)?\S+)(\s+where\s+.+)?",
    re.IGNORECASE | re.DOTALL,
)
_OTHER: Final = re.compile(r"(define|endorse|admit|deny)\s+.+", re.IGNORECASE | re.DOTALL)
_MATCHING: Final = re.compile(r"\s*((any|all)\s*\{.+\}|[a-z.]+\s*(=|!=)\s*'.*')\s*", re.IGNORECASE | re.DOTALL)
_TENANCY: Final = "ocid1.tenancy."


@dataclass(frozen=True)
class ServiceRequest:
    """A request to create (`before` is None) or to change a resource."""

    resource: Resource
    inputs: JsonObject
    before: Record | None
    records: Records
    region: str

    @property
    def facts(self) -> Region:
        """What is fixed in the region."""
        return region_facts()

    @property
    def id(self) -> str:
        """The id of the resource that is changed, or an empty text."""
        return self.before.id if self.before else ""

    def others(self, name: str | None = None) -> list[Record]:
        """The other resources of a type, by default of the same one."""
        return [record for record in self.records.all_of(name or self.resource.name) if record.id != self.id]

    def require(self, id_: Any, *names: str) -> Record | None:
        """The record that an input names, which must be of one of the types.

        None for what was there before the rehearsal: it is taken to be right.

        Raises:
            ServiceError: it was deleted, isn't an OCID, or is something else.
        """
        if not id_:
            return None
        record = self.records.get(id_)
        if record is None:
            if self.records.is_deleted(id_):
                raise not_found(id_)
            if not str(id_).startswith("ocid1."):
                raise invalid(f"Invalid ocid: {id_}")
        elif names and record.resource.name not in names:
            raise not_found(id_)
        return record

    def require_domain(self, name: str | None) -> None:
        """Raises ServiceError for an availability domain that the region hasn't."""
        if name and not self.facts.has_domain(self.region, name):
            raise invalid(f"Invalid availabilityDomain {name}: {self.region} has {self.facts.domains(self.region)}")

    def require_groups(self, ids: Any, vcn_id: str | None) -> None:
        """Raises ServiceError where network security groups aren't there or are another network's."""
        for id_ in ids or ():
            group = self.require(id_, "NetworkSecurityGroup")
            if group is not None and vcn_id and group.state["vcnId"] != vcn_id:
                raise invalid(f"NetworkSecurityGroup {id_} is not in VCN {vcn_id}")

    def require_subnet(self, id_: str | None, vcn_id: str | None = None) -> Record | None:
        """The subnet, which must be in the VCN."""
        subnet = self.require(id_, "Subnet")
        if subnet is not None and vcn_id and subnet.state["vcnId"] != vcn_id:
            raise invalid(f"Subnet {id_} is not in VCN {vcn_id}")
        return subnet

    def refuse_same_name(self, key: str, code: str = "Conflict") -> None:
        """Raises ServiceError where another resource of the type and compartment has the same name."""
        name, compartment = self.inputs.get(key), self.inputs.get("compartmentId")
        for other in self.others():
            if name and other.state.get(key) == name and other.state.get("compartmentId") == compartment:
                raise ServiceError(409, code, f"{self.resource.name} {name} already exists in the compartment")


def check_request(request: ServiceRequest) -> None:
    """Raises ServiceError where OCI would refuse the request."""
    rule = _RULES.get(request.resource.name)
    if rule is not None:
        rule(request)


def require_unused(record: Record, records: Records) -> None:
    """Raises ServiceError, in the words of OCI's services, where something needs the resource still."""
    blockers: Any = lifecycles()["blockers"].get(record.token, ())
    kind = record.resource.name
    for other in records.referring_to(record.id):
        user = other.resource.name
        if user not in blockers or other.state.get("state") in {"DELETED", "TERMINATED"}:
            continue
        if kind == "Vcn" and user in _GATEWAYS:
            raise ServiceError(409, "IncorrectState", f"{record.id} is associated with Gateway that is in use")
        if kind == "NetworkSecurityGroup":
            text = f"Network security group {record.id} cannot be deleted since it still has vnics attached to it."
            raise ServiceError(409, "IncorrectState", text)
        # OCI names the network card in a subnet; whose it is helps more.
        reference = f"VNIC of {other.id}" if kind == "Subnet" else f"{user} {other.id}"
        text = f"The {kind} {record.id} references the {reference}."
        raise ServiceError(409, "Conflict", f"{text} You must remove the reference to proceed with this operation.")


def _network(text: Any) -> IPv4Network:
    """A range in CIDR notation."""
    try:
        return IPv4Network(text)
    except ValueError:
        raise invalid(f"Invalid CIDR block: {text}") from None


def _network_of_size(text: Any) -> IPv4Network:
    network = _network(text)
    if not LARGEST_PREFIX <= network.prefixlen <= SMALLEST_PREFIX:
        raise invalid(f"The requested CIDR {text} is invalid: the size must be between /16 and /30")
    return network


def _ranges_of(vcn: JsonObject) -> list[IPv4Network]:
    """The ranges of a VCN."""
    return [_network(text) for text in vcn.get("cidrBlocks") or filter(None, [vcn.get("cidrBlock")])]


def _in_vcn(request: ServiceRequest) -> None:
    request.require(request.inputs["vcnId"], "Vcn")


def _in_domain(request: ServiceRequest) -> None:
    request.require_domain(request.inputs["availabilityDomain"])


def _in_subnet(request: ServiceRequest) -> None:
    _in_domain(request)
    subnet = request.require_subnet(request.inputs["subnetId"])
    request.require_groups(request.inputs.get("nsgIds"), subnet.state["vcnId"] if subnet else None)


# Networks: ranges that contain each other and do not overlap, and what refers to what.


def _vcn(request: ServiceRequest) -> None:
    _check_dns_label(request)
    ranges = [
        _network_of_size(text)
        for text in request.inputs.get("cidrBlocks") or filter(None, [request.inputs.get("cidrBlock")])
    ]
    if not ranges:
        raise invalid("Either cidrBlock or cidrBlocks must be given")
    for index, cidr in enumerate(ranges):
        if any(cidr.overlaps(other) for other in ranges[:index]):
            raise invalid(f"The requested CIDR {cidr} is invalid: it overlaps with another CIDR of the VCN")
    for subnet in request.records.all_of("Subnet") if request.before else ():
        inside = any(_network(subnet.state["cidrBlock"]).subnet_of(cidr) for cidr in ranges)
        if subnet.state["vcnId"] == request.id and not inside:
            raise ServiceError(409, "Conflict", f"The VCN's CIDRs must contain the Subnet {subnet.id}")
    if request.before is None and len(request.others()) >= request.facts.limits["vcn"]["vcn-count"]:
        raise limit_exceeded("vcn-count")


def _subnet(request: ServiceRequest) -> None:
    inputs, vcn = request.inputs, request.require(request.inputs["vcnId"], "Vcn")
    request.require_domain(inputs.get("availabilityDomain"))
    _check_dns_label(request)
    cidr = _network_of_size(inputs.get("cidrBlock"))
    if vcn is not None and not any(cidr.subnet_of(block) for block in _ranges_of(vcn.state)):
        ranges = ", ".join(map(str, _ranges_of(vcn.state)))
        raise invalid(f"The requested CIDR {cidr} is invalid: it is not within the CIDRs of the VCN, {ranges}")
    for other in request.others():
        if other.state["vcnId"] != inputs["vcnId"]:
            continue
        block = _network(other.state["cidrBlock"])
        if cidr.overlaps(block):
            raise invalid(
                f"The requested CIDR {cidr} is invalid: subnet {other.id} with CIDR {block} overlaps with this CIDR."
            )
        if inputs.get("dnsLabel") and other.state.get("dnsLabel") == inputs["dnsLabel"]:
            raise invalid(f"dnsLabel {inputs['dnsLabel']} is used by subnet {other.id} of the VCN")
    _require_same_vcn(request, inputs.get("routeTableId"), "RouteTable", "DefaultRouteTable")
    for id_ in inputs.get("securityListIds") or ():
        _require_same_vcn(request, id_, "SecurityList", "DefaultSecurityList")
    if inputs.get("prohibitInternetIngress") and inputs.get("prohibitPublicIpOnVnic") is False:
        raise invalid("prohibitInternetIngress and prohibitPublicIpOnVnic must have the same value")


def _check_dns_label(request: ServiceRequest) -> None:
    label = request.inputs.get("dnsLabel")
    if label and not _DNS_LABEL.fullmatch(label):
        raise invalid(f"dnsLabel {label} must be at most 15 letters and digits and begin with a letter")


def _require_same_vcn(request: ServiceRequest, id_: str | None, *names: str) -> None:
    record = request.require(id_, *names)
    if record is not None and record.state.get("vcnId", request.inputs["vcnId"]) != request.inputs["vcnId"]:
        raise invalid(f"{id_} is not in VCN {request.inputs['vcnId']}")


def _gateway(request: ServiceRequest) -> None:
    _in_vcn(request)
    if any(other.state["vcnId"] == request.inputs["vcnId"] for other in request.others()):
        names = {"InternetGateway": "internet-gateway-count", "NatGateway": "nat-gateway-count"}
        raise limit_exceeded(names.get(request.resource.name, "service-gateway-count"))


def _service_gateway(request: ServiceRequest) -> None:
    _gateway(request)
    if len(request.inputs["services"]) > 1:
        raise invalid("A service gateway can have one service only: all services, or Object Storage")


def _route_table(request: ServiceRequest) -> None:
    request.require(request.inputs["vcnId"], "Vcn")
    destinations: set[str] = set()
    for rule in request.inputs.get("routeRules") or ():
        _route(request, rule)
        destination = rule.get("destination") or rule.get("cidrBlock") or ""
        if destination in destinations:
            raise invalid(f"Two route rules have the destination {destination}")
        destinations.add(destination)


def _route(request: ServiceRequest, rule: JsonObject) -> None:
    target = request.require(rule["networkEntityId"])
    services = rule.get("destinationType") == "SERVICE_CIDR_BLOCK"
    if not services:
        _network(rule.get("destination") or rule.get("cidrBlock"))
    if target is None:
        return
    if target.state.get("vcnId") != request.inputs["vcnId"]:
        raise invalid(f"Route target {target.id} is not in VCN {request.inputs['vcnId']}")
    if services != (target.resource.name == "ServiceGateway"):
        kind = "a service CIDR block" if target.resource.name == "ServiceGateway" else "a CIDR block"
        raise invalid(f"A route to {target.id} must have {kind} as its destination")


def _security_rule(request: ServiceRequest) -> None:
    inputs = request.inputs
    group = request.require(inputs["networkSecurityGroupId"], "NetworkSecurityGroup")
    if inputs["direction"] not in {"INGRESS", "EGRESS"}:
        raise invalid(f"Invalid direction: {inputs['direction']}, must be INGRESS or EGRESS")
    side = "source" if inputs["direction"] == "INGRESS" else "destination"
    peer, kind = inputs.get(side), inputs.get(f"{side}Type") or "CIDR_BLOCK"
    if not peer:
        raise invalid(f"{side} must not be null for a security rule of direction {inputs['direction']}")
    if kind == "CIDR_BLOCK":
        _network(peer)
    elif kind == "NETWORK_SECURITY_GROUP":
        request.require_groups([peer], group.state["vcnId"] if group else None)
    elif kind != "SERVICE_CIDR_BLOCK":
        raise invalid(f"Invalid {side}Type: {kind}")
    _ports(inputs)
    group_id = inputs["networkSecurityGroupId"]
    siblings = [other for other in request.others() if other.state["networkSecurityGroupId"] == group_id]
    if len(siblings) >= request.facts.nsg_rules_limit:
        raise limit_exceeded("securityrules-per-networksecuritygroup-count")


def _ports(rule: JsonObject) -> None:
    protocol = rule["protocol"]
    if protocol != "all" and not (protocol.isdigit() and 0 <= int(protocol) <= 255):
        raise invalid(f"Invalid protocol: {protocol}, must be all or a number")
    if rule.get("icmpOptions") and protocol not in {"1", "58"}:
        raise invalid(f"icmpOptions can't be given for protocol {protocol}")
    for key, number in _PORTS.items():
        if rule.get(key) and protocol != number:
            raise invalid(f"{key} can't be given for protocol {protocol}")
        sides: JsonObject = rule.get(key) or {}
        for name, ports in sides.items():
            if ports and not 1 <= ports["min"] <= ports["max"] <= _LAST_PORT:
                raise invalid(f"{name} of {key} must be from 1 to 65535, min not above max")


def _security_list(request: ServiceRequest) -> None:
    for rule in (
        *(request.inputs.get("ingressSecurityRules") or ()),
        *(request.inputs.get("egressSecurityRules") or ()),
    ):
        like_group_rule: JsonObject = {**rule}
        for key in _PORTS:
            ports: JsonObject = rule.get(key) or {}
            like_group_rule[key] = {"destinationPortRange": ports} if ports.get("min") and ports.get("max") else None
        _ports(like_group_rule)


# File systems, what serves them, and the Bastion service.


def _export(request: ServiceRequest) -> None:
    inputs = request.inputs
    request.require(inputs["fileSystemId"], "FileSystem")
    if not inputs["path"].startswith("/"):
        raise invalid(f"Invalid path: {inputs['path']}, must begin with /")
    for other in request.others():
        if (other.state["exportSetId"], other.state["path"]) == (inputs["exportSetId"], inputs["path"]):
            raise ServiceError(409, "Conflict", f"Another export with path {inputs['path']} exists in the export set")


def _lustre(request: ServiceRequest) -> None:
    _in_subnet(request)
    if request.inputs["capacityInGbs"] < LUSTRE_LEAST_GB:
        raise invalid(f"capacityInGbs must be at least {LUSTRE_LEAST_GB}")


def _bastion(request: ServiceRequest) -> None:
    request.require_subnet(request.inputs["targetSubnetId"])
    for text in request.inputs.get("clientCidrBlockAllowLists") or ():
        _network(text)


# Rights: statements that OCI can read, and groups whose names are theirs alone.


def _policy(request: ServiceRequest) -> None:
    request.refuse_same_name("name", "PolicyAlreadyExists")
    if not request.inputs["statements"]:
        raise invalid("A policy must have at least one statement")
    for statement in request.inputs["statements"]:
        if not (_STATEMENT.fullmatch(statement.strip()) or _OTHER.fullmatch(statement.strip())):
            raise invalid(f"Failed to parse the policy statement: {statement}")


def _dynamic_group(request: ServiceRequest) -> None:
    request.refuse_same_name("name", "DynamicGroupAlreadyExists")
    if not request.inputs["compartmentId"].startswith(_TENANCY):
        raise invalid("Dynamic groups must be created in the root compartment of the tenancy")
    _matching_rule(request)


def _matching_rule(request: ServiceRequest) -> None:
    rule = request.inputs["matchingRule"]
    if not _MATCHING.fullmatch(rule):
        raise invalid(f"Failed to parse the matching rule: {rule}")


# Machines: sizes, images that fit, metadata, capacity, and the networks between them.


def _require_size(request: ServiceRequest, shape: str, config: JsonObject | None) -> None:
    """Raises ServiceError for a shape that there isn't, or sizes that it can't have."""
    facts = request.facts.shapes.get(shape)
    if facts is None and catalogue.shape(shape) is None:
        raise invalid(f"Invalid nodeShape: Node shape {shape} is not available in {request.region}")
    if facts is None or not facts.flexible:
        return
    ocpus, memory_gib = dig(config, "ocpus"), dig(config, "memoryInGbs")
    if ocpus is None:
        raise invalid(f"Shape {shape} is flexible: ocpus must be given in its shape config")
    if not 1 <= ocpus <= facts.ocpus or (memory_gib is not None and not ocpus <= memory_gib <= facts.memory_gib):
        most = f"{facts.ocpus} OCPUs and {facts.memory_gib} GB"
        raise invalid(f"Shape {shape} can have from 1 OCPU and 1 GB for each OCPU to {most}")


def _require_compatible_image(request: ServiceRequest, shape: str, image: str | None) -> None:
    """Raises ServiceError for an image that is known to be made for other shapes."""
    drivers = _drivers(request, image)
    vendor = request.facts.vendor(shape)
    if drivers is not None and drivers != vendor:
        raise invalid(f"Invalid imageId: image {image} is not compatible with shape {shape}")


def _drivers(request: ServiceRequest, id_: str | None) -> str | None:
    """The vendor whose GPUs an image has drivers for, empty for none; None for an image that isn't known."""
    key = request.facts.key(request.region)
    for image in request.facts.images:
        if image_id(image.name, key) == id_:
            return image.gpu
    custom = request.require(id_, "Image")
    source = f"{custom.display_name} {dig(custom.state, 'imageSourceDetails', 'sourceUri')}" if custom else ""
    if "AMD-ROCM" in source:
        return "AMD"
    return "NVIDIA" if "GPU" in source else None


def _require_small_metadata(request: ServiceRequest, *metadata: JsonObject | None) -> None:
    """Raises ServiceError for more metadata than an instance takes."""
    size = sum(len(key) + len(str(value)) for part in metadata for key, value in (part or {}).items())
    if size > request.facts.metadata_limit_bytes:
        limit = request.facts.metadata_limit_bytes
        raise invalid(f"Metadata and extended metadata can have {limit} bytes together, they have {size}")


def _require_capacity(request: ServiceRequest, shape: str, nodes: int) -> None:
    """Raises ServiceError where so many nodes are more than the service limit allows."""
    limit = request.facts.limit_of_shape.get(shape)
    if limit is None:
        return
    others = sum(_nodes(record.state, shape) for name in POOLS for record in request.others(name))
    if (others + nodes) * limit.units > request.facts.limits["compute"][limit.name]:
        raise limit_exceeded(limit.name)


def _nodes(state: JsonObject, shape: str) -> int:
    if state.get("nodeShape") == shape:
        return dig(state, "nodeConfigDetails", "size") or 0
    return 1 if state.get("shape") == shape else 0


def _instance_configuration(request: ServiceRequest) -> None:
    launch: Any = dig(request.inputs, "instanceDetails", "launchDetails")
    if launch:
        _launch(request, launch, launch.get("createVnicDetails"))


def _instance(request: ServiceRequest) -> None:
    _require_boot_metadata_unchanged(request)
    _launch(request, request.inputs, request.inputs.get("createVnicDetails"))
    cluster = request.require(request.inputs.get("computeClusterId"), "ComputeCluster")
    if cluster is not None and cluster.state["availabilityDomain"] != request.inputs["availabilityDomain"]:
        domain = cluster.state["availabilityDomain"]
        raise invalid(f"Compute cluster {cluster.id} is in availability domain {domain}")
    if request.inputs.get("shape"):
        _require_capacity(request, request.inputs["shape"], 1)


def _require_boot_metadata_unchanged(request: ServiceRequest) -> None:
    """What an instance boots with stays as it was at launch (OCI API, UpdateInstanceDetails, `metadata`)."""
    if request.before is None:
        return
    before: JsonObject = request.before.state.get("metadata") or {}
    after: JsonObject = request.inputs.get("metadata") or {}
    for key in ("user_data", "ssh_authorized_keys"):
        if after and before.get(key) != after.get(key):
            raise invalid(f"The metadata {key} can't be changed after the instance has been launched")


def _launch(request: ServiceRequest, launch: JsonObject, vnic: JsonObject | None) -> None:
    request.require_domain(launch.get("availabilityDomain"))
    if shape := launch.get("shape"):
        _require_size(request, shape, launch.get("shapeConfig"))
        image = dig(launch, "sourceDetails", "imageId") or dig(launch, "sourceDetails", "sourceId")
        _require_compatible_image(request, shape, image)
    _require_small_metadata(request, launch.get("metadata"), launch.get("extendedMetadata"))
    subnet = request.require_subnet(dig(vnic, "subnetId"))
    request.require_groups(dig(vnic, "nsgIds"), subnet.state["vcnId"] if subnet else None)
    public = str(dig(vnic, "assignPublicIp")).lower() == "true"
    if public and subnet is not None and subnet.state.get("prohibitPublicIpOnVnic"):
        raise invalid("A public IP can't be assigned to a VNIC in a private subnet")


def _cluster_network(request: ServiceRequest) -> None:
    inputs, placement = request.inputs, request.inputs["placementConfiguration"]
    request.require_domain(placement["availabilityDomain"])
    request.require_subnet(placement.get("primarySubnetId") or dig(placement, "primaryVnicSubnets", "subnetId"))
    if len(inputs["instancePools"]) != 1:
        raise invalid("A cluster network must have one instance pool")
    pool: Any = inputs["instancePools"][0]
    configuration = request.require(pool["instanceConfigurationId"], "InstanceConfiguration")
    launch = dig(configuration.state, "instanceDetails", "launchDetails") if configuration else None
    shape = dig(launch, "shape")
    if shape and shape not in request.facts.bare_metal_rdma:
        raise invalid(f"Shape {shape} is not supported in a cluster network")
    if shape:
        _require_capacity(request, shape, pool["size"])


def _image(request: ServiceRequest) -> None:
    source: JsonObject = request.inputs.get("imageSourceDetails") or {}
    uri = source.get("sourceUri")
    if source.get("sourceType") == "objectStorageUri" and not str(uri).startswith("https://"):
        raise invalid(f"Invalid sourceUri: {uri}")


# OKE: versions, networks, add-ons and pools of nodes.


def _version_of(text: str) -> tuple[int, ...]:
    """`v1.34.2` as numbers."""
    try:
        return tuple(int(part) for part in text.removeprefix("v").split("."))
    except ValueError:
        raise invalid(f"Invalid kubernetesVersion: {text}") from None


def _cluster(request: ServiceRequest) -> None:
    inputs = request.inputs
    vcn = request.require(inputs["vcnId"], "Vcn")
    _version(request)
    endpoint: JsonObject = inputs.get("endpointConfig") or {}
    subnet = request.require_subnet(endpoint.get("subnetId"), inputs["vcnId"])
    request.require_groups(endpoint.get("nsgIds"), inputs["vcnId"])
    if subnet is not None and endpoint.get("isPublicIpEnabled") and subnet.state.get("prohibitPublicIpOnVnic"):
        raise invalid("A public IP can't be enabled for an endpoint in a private subnet")
    for id_ in dig(inputs, "options", "serviceLbSubnetIds") or ():
        request.require_subnet(id_, inputs["vcnId"])
    if inputs.get("type") not in {None, "BASIC_CLUSTER", "ENHANCED_CLUSTER"}:
        raise invalid(f"Invalid type: {inputs['type']}, must be BASIC_CLUSTER or ENHANCED_CLUSTER")
    _ranges(inputs, _ranges_of(vcn.state) if vcn else [])
    if request.before is None and len(request.others()) >= request.facts.limits["container-engine"]["cluster-count"]:
        raise limit_exceeded("cluster-count")


def _version(request: ServiceRequest) -> None:
    version = request.inputs["kubernetesVersion"]
    known = request.facts.kubernetes_versions
    if version not in known:
        raise invalid(f"Invalid kubernetesVersion: {version}, supported versions: {', '.join(known)}")
    if request.before is None:
        return
    old, new = _version_of(request.before.state["kubernetesVersion"]), _version_of(version)
    if new < old or new[1] > old[1] + 1:
        was = request.before.state["kubernetesVersion"]
        raise invalid(f"Cannot change the Kubernetes version from {was} to {version}: only one minor version up")


def _ranges(inputs: JsonObject, vcn: list[IPv4Network]) -> None:
    options: JsonObject = dig(inputs, "options", "kubernetesNetworkConfig") or {}
    services = _network(options.get("servicesCidr") or SERVICES)
    if any(services.overlaps(cidr) for cidr in vcn):
        raise invalid(f"The services CIDR {services} overlaps with the CIDR of the VCN")
    if _cni_of(inputs) != "FLANNEL_OVERLAY":
        return
    pods = _network(options.get("podsCidr") or FLANNEL_PODS)
    if pods.overlaps(services) or any(pods.overlaps(cidr) for cidr in vcn):
        raise invalid(f"The pods CIDR {pods} overlaps with the services CIDR {services} or the CIDR of the VCN")


def _cni_of(cluster: JsonObject) -> str:
    """The network plug-in of a cluster."""
    options: list[JsonObject] = cluster.get("clusterPodNetworkOptions") or [{}]
    return options[0].get("cniType") or "FLANNEL_OVERLAY"


def _node_pool(request: ServiceRequest) -> None:
    inputs = request.inputs
    details: JsonObject = inputs.get("nodeConfigDetails") or {}
    cluster = request.require(inputs["clusterId"], "Cluster")
    vcn_id = cluster.state["vcnId"] if cluster else None
    shape = inputs["nodeShape"]
    _require_size(request, shape, inputs.get("nodeShapeConfig"))
    _require_compatible_image(request, shape, dig(inputs, "nodeSourceDetails", "imageId"))
    _require_small_metadata(request, inputs.get("nodeMetadata"))
    _node_version(request, cluster.state["kubernetesVersion"] if cluster else None)
    _image_version(request, cluster.state["kubernetesVersion"] if cluster else None)
    for placement in details.get("placementConfigs") or ():
        _placement(request, placement, vcn_id)
    request.require_groups(details.get("nsgIds"), vcn_id)
    if cluster is not None and details.get("nodePoolPodNetworkOptionDetails"):
        _pod_network(request, details["nodePoolPodNetworkOptionDetails"], cluster.state)
    _pool_compute_cluster(request, details, shape)
    _require_capacity(request, shape, details.get("size") or 0)


def _node_version(request: ServiceRequest, of_cluster: str | None) -> None:
    version = request.inputs.get("kubernetesVersion")
    if not version or not of_cluster:
        return
    own, control_plane = _version_of(version), _version_of(of_cluster)
    if own > control_plane or control_plane[1] - own[1] > request.facts.version_skew:
        raise invalid(
            f"Invalid nodePool kubernetesVersion {version}: must be at most that of the cluster, {of_cluster}, "
            f"and at least {request.facts.version_skew} minor versions below it"
        )


def _image_version(request: ServiceRequest, of_cluster: str | None) -> None:
    """OKE's own images carry the version that they are for (on creation: oracle-devrel/terraform-oci-arch-ci-cd-devops,
    issue 14; taken to be the same for changes).
    """
    name = request.facts.image_name(dig(request.inputs, "nodeSourceDetails", "imageId"), request.region)
    version = request.inputs.get("kubernetesVersion") or of_cluster
    if "-OKE-" in name and version and f"-OKE-{version.removeprefix('v')}-" not in name:
        text = "Kubernetes version does not match Kubernetes version of OKE worker node image"
        raise ServiceError(409, "Conflict", text)


def _placement(request: ServiceRequest, placement: JsonObject, vcn_id: str | None) -> None:
    domain = placement["availabilityDomain"]
    request.require_domain(domain)
    subnet = request.require_subnet(placement["subnetId"], vcn_id)
    if subnet is not None and subnet.state.get("availabilityDomain") not in {None, "", domain}:
        raise invalid(f"Subnet {subnet.id} is not in availability domain {domain}")
    for fault_domain in placement.get("faultDomains") or ():
        if fault_domain not in request.facts.fault_domains:
            raise invalid(f"Invalid faultDomain: {fault_domain}")
    reservation = request.require(placement.get("capacityReservationId"), "ComputeCapacityReservation")
    if reservation is not None and reservation.state["availabilityDomain"] != domain:
        raise invalid(f"Capacity reservation {reservation.id} is not in availability domain {domain}")


def _pod_network(request: ServiceRequest, options: JsonObject, cluster: JsonObject) -> None:
    if options["cniType"] != _cni_of(cluster):
        raise invalid(f"cniType {options['cniType']} is not the cluster's, {_cni_of(cluster)}")
    for id_ in options.get("podSubnetIds") or ():
        request.require_subnet(id_, cluster["vcnId"])
    request.require_groups(options.get("podNsgIds"), cluster["vcnId"])
    if options["cniType"] == "OCI_VCN_IP_NATIVE" and not options.get("podSubnetIds"):
        raise invalid("podSubnetIds must be given for OCI_VCN_IP_NATIVE")


def _pool_compute_cluster(request: ServiceRequest, details: JsonObject, shape: str) -> None:
    cluster = request.require(details.get("computeClusterId"), "ComputeCluster")
    if not details.get("computeClusterId"):
        return
    if shape not in request.facts.bare_metal_rdma:
        raise invalid(f"Shape {shape} is not supported in a compute cluster")
    domains = {placement["availabilityDomain"] for placement in details["placementConfigs"]}
    if len(domains) > 1:
        raise invalid("A node pool in a compute cluster must have one availability domain only")
    if cluster is not None and domains != {cluster.state["availabilityDomain"]}:
        raise invalid(f"Compute cluster {cluster.id} is in availability domain {cluster.state['availabilityDomain']}")


def _addon(request: ServiceRequest) -> None:
    inputs, cluster = request.inputs, request.require(request.inputs["clusterId"], "Cluster")
    name: Any = inputs["addonName"]
    if name not in request.facts.add_ons:
        raise ServiceError(404, "NotAuthorizedOrNotFound", f"Addon {name} is not available for the cluster")
    if cluster is None:
        return
    if cluster.state.get("type") != "ENHANCED_CLUSTER":
        raise invalid("Addons can be managed on enhanced clusters only")
    for other in request.others():
        if (other.state["clusterId"], other.state["addonName"]) == (cluster.id, name):
            raise ServiceError(409, "Conflict", f"Addon {name} is installed already")


_RULES: Final[Mapping[str, Callable[[ServiceRequest], None]]] = {
    "Vcn": _vcn,
    "Subnet": _subnet,
    "InternetGateway": _gateway,
    "NatGateway": _gateway,
    "ServiceGateway": _service_gateway,
    "RouteTable": _route_table,
    "NetworkSecurityGroup": _in_vcn,
    "NetworkSecurityGroupSecurityRule": _security_rule,
    "SecurityList": _security_list,
    "DefaultSecurityList": _security_list,
    "FileSystem": _in_domain,
    "MountTarget": _in_subnet,
    "Export": _export,
    "FileStorageLustreFileSystem": _lustre,
    "Bastion": _bastion,
    "Policy": _policy,
    "DynamicGroup": _dynamic_group,
    "DomainsDynamicResourceGroup": _matching_rule,
    "ComputeCluster": _in_domain,
    "InstanceConfiguration": _instance_configuration,
    "Instance": _instance,
    "ClusterNetwork": _cluster_network,
    "Image": _image,
    "ComputeCapacityReservation": _in_domain,
    "Cluster": _cluster,
    "NodePool": _node_pool,
    "Addon": _addon,
}
