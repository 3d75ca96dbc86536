"""Rules by which OCI's services refuse requests to create, change or delete a resource.

The rules are those that Oracle documents, which each function cites, and those that follow from other resources:
references, blocked deletions, and unique names. Only requests that the kit makes are covered. The table `_RULES` has
the rule of each type; a request for a type without a rule is never refused.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Any, Final

from llmd_oke import catalogue

from llmd_rehearsal.oci_plugin.facts import OciRegion, ResourceType, lifecycles, region_facts
from llmd_rehearsal.oci_plugin.region import Records, ResourceRecord, ServiceError, invalid, limit_exceeded, not_found
from llmd_rehearsal.plugin_values import JsonObject, dig

LARGEST_PREFIX: Final = 16
SMALLEST_PREFIX: Final = 30
"""Longest permitted prefix of a VCN or subnet; `LARGEST_PREFIX` is the shortest (OCI documentation, VCNs and Subnets).
"""
FLANNEL_PODS: Final = "10.244.0.0/16"
SERVICES: Final = "10.96.0.0/16"
"""OKE's default CIDR block of Services; `FLANNEL_PODS` is that of pods (OCI API, KubernetesNetworkConfig)."""
_GATEWAYS: Final = frozenset({"InternetGateway", "NatGateway", "ServiceGateway"})
_DNS_LABEL: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9]{0,14}")
# Syntax of policy statements (OCI documentation, Policy Syntax).
_STATEMENT: Final = re.compile(
    r"allow\s+(any-user|any-group|(group|dynamic-group|service)\s+.+?)\s+to\s+"
    r"((inspect|read|use|manage)\s+[a-z0-9-]+|\{\s*[A-Z0-9_]+(\s*,\s*[A-Z0-9_]+)*\s*\})\s+"
    r"in\s+(tenancy|compartment\s+(id\s+)?\S+)(\s+where\s+.+)?",
    re.IGNORECASE | re.DOTALL,
)
_OTHER: Final = re.compile(r"(define|endorse|admit|deny)\s+.+", re.IGNORECASE | re.DOTALL)
_MATCHING: Final = re.compile(r"\s*((any|all)\s*\{.+\}|[a-z.]+\s*(=|!=)\s*'.*')\s*", re.IGNORECASE | re.DOTALL)
_TENANCY: Final = "ocid1.tenancy."
_BUDGET_NAME: Final = re.compile(r"[A-Za-z_-][A-Za-z0-9_-]*")
_LARGEST_PERCENTAGE: Final = 10_000
_LONGEST_MESSAGE: Final = 1_000


@dataclass(frozen=True)
class ServiceRequest:
    """Request to create a resource (`before` is None) or to change one."""

    resource: ResourceType
    inputs: JsonObject
    before: ResourceRecord | None
    records: Records
    region: str

    @property
    def facts(self) -> OciRegion:
        """Fixed data of the simulated region."""
        return region_facts()

    @property
    def id(self) -> str:
        """OCID of the resource to change; empty for a creation."""
        return self.before.id if self.before else ""

    def others(self, name: str | None = None) -> list[ResourceRecord]:
        """Return the other resources of a type, by default of the request's own type."""
        return [record for record in self.records.all_of(name or self.resource.name) if record.id != self.id]

    def require(self, id_: Any, *names: str) -> ResourceRecord | None:
        """Return the record that an input refers to, which must be of one of the types `names`; None for a resource
        that existed before the rehearsal, which is assumed to be valid, and for an empty input.

        Raises:
            ServiceError: the resource was deleted or has another type, or the input isn't an OCID.
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
        """Check that the region has an availability domain.

        Raises:
            ServiceError: the region has no such availability domain.
        """
        domains = self.facts.domains(self.region)
        # The name's prefix is ignored, as it differs by tenancy.
        if name and name.rpartition(":")[2] not in {domain.rpartition(":")[2] for domain in domains}:
            raise invalid(f"Invalid availabilityDomain {name}: {self.region} has {domains}")

    def require_groups(self, ids: Any, vcn_id: str | None) -> None:
        """Check that network security groups exist and belong to the VCN.

        Raises:
            ServiceError: a group doesn't exist or belongs to another VCN.
        """
        for id_ in ids or ():
            group = self.require(id_, "NetworkSecurityGroup")
            if group is not None and vcn_id and group.state["vcnId"] != vcn_id:
                raise invalid(f"NetworkSecurityGroup {id_} is not in VCN {vcn_id}")

    def require_subnet(self, id_: str | None, vcn_id: str | None = None) -> ResourceRecord | None:
        """Return a subnet's record after checking that the subnet is in the VCN; None for a subnet from before the
        rehearsal.

        Raises:
            ServiceError: the subnet doesn't exist or is in another VCN.
        """
        subnet = self.require(id_, "Subnet")
        if subnet is not None and vcn_id and subnet.state["vcnId"] != vcn_id:
            raise invalid(f"Subnet {id_} is not in VCN {vcn_id}")
        return subnet

    def refuse_same_name(self, key: str, code: str = "Conflict") -> None:
        """Check that no other resource of the same type and compartment has the same name, which is in the input `key`.

        Raises:
            ServiceError: another resource has the name; the error has OCI's error code `code`.
        """
        name, compartment = self.inputs.get(key), self.inputs.get("compartmentId")
        for other in self.others():
            if name and other.state.get(key) == name and other.state.get("compartmentId") == compartment:
                raise ServiceError(409, code, f"{self.resource.name} {name} already exists in the compartment")


def check_request(request: ServiceRequest) -> None:
    """Check a request by the rule of its resource type.

    Raises:
        ServiceError: OCI would refuse the request.
    """
    rule = _RULES.get(request.resource.name)
    if rule is not None:
        rule(request)


def require_unused(record: ResourceRecord, records: Records) -> None:
    """Check that no other resource depends on the resource to delete.

    Raises:
        ServiceError: another resource depends on the resource; the message is the OCI service's.
    """
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
        # OCI's message names the VNIC in a subnet; the VNIC's owner is more helpful.
        reference = f"VNIC of {other.id}" if kind == "Subnet" else f"{user} {other.id}"
        text = f"The {kind} {record.id} references the {reference}."
        raise ServiceError(409, "Conflict", f"{text} You must remove the reference to proceed with this operation.")


def _network(text: Any) -> IPv4Network:
    """Return an IP range from its CIDR notation."""
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
    """Return the IP ranges of a VCN."""
    return [_network(text) for text in vcn.get("cidrBlocks") or filter(None, [vcn.get("cidrBlock")])]


def _in_vcn(request: ServiceRequest) -> None:
    request.require(request.inputs["vcnId"], "Vcn")


def _in_domain(request: ServiceRequest) -> None:
    request.require_domain(request.inputs["availabilityDomain"])


def _in_subnet(request: ServiceRequest) -> None:
    _in_domain(request)
    subnet = request.require_subnet(request.inputs["subnetId"])
    request.require_groups(request.inputs.get("nsgIds"), subnet.state["vcnId"] if subnet else None)


# Networks: IP ranges and references between resources.


def _vcn(request: ServiceRequest) -> None:
    """Require disjoint IP ranges that contain the VCN's subnets (OCI documentation, VCNs and Subnets)."""
    _check_dns_label(request)
    ranges = [_network_of_size(cidr) for cidr in _ranges_of(request.inputs)]
    if not ranges:
        raise invalid("Either cidrBlock or cidrBlocks must be given")
    for index, cidr in enumerate(ranges):
        if any(cidr.overlaps(other) for other in ranges[:index]):
            raise invalid(f"The requested CIDR {cidr} is invalid: it overlaps with another CIDR of the VCN")
    for subnet in request.records.all_of("Subnet") if request.before else ():
        inside = any(_network(subnet.state["cidrBlock"]).subnet_of(cidr) for cidr in ranges)
        if subnet.state["vcnId"] == request.id and not inside:
            raise ServiceError(409, "Conflict", f"The VCN's CIDRs must contain the Subnet {subnet.id}")


def _subnet(request: ServiceRequest) -> None:
    """Require an IP range inside the VCN's that doesn't overlap other subnets, and a DNS label that is unique in the
    VCN (OCI documentation, VCNs and Subnets).
    """
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


def _check_dns_label(request: ServiceRequest) -> None:
    label = request.inputs.get("dnsLabel")
    if label and not _DNS_LABEL.fullmatch(label):
        raise invalid(f"dnsLabel {label} must be at most 15 letters and digits and begin with a letter")


def _require_same_vcn(request: ServiceRequest, id_: str | None, *names: str) -> None:
    record = request.require(id_, *names)
    if record is not None and record.state.get("vcnId", request.inputs["vcnId"]) != request.inputs["vcnId"]:
        raise invalid(f"{id_} is not in VCN {request.inputs['vcnId']}")


def _gateway(request: ServiceRequest) -> None:
    """Refuse a second gateway of the same type in a VCN (OCI documentation, Service Limits, VCN)."""
    _in_vcn(request)
    if any(other.state["vcnId"] == request.inputs["vcnId"] for other in request.others()):
        names = {"InternetGateway": "internet-gateway-count", "NatGateway": "nat-gateway-count"}
        raise limit_exceeded(names.get(request.resource.name, "service-gateway-count"))


def _route_table(request: ServiceRequest) -> None:
    _in_vcn(request)
    for rule in request.inputs.get("routeRules") or ():
        _require_same_vcn(request, rule["networkEntityId"])


def _security_rule(request: ServiceRequest) -> None:
    """Require that security groups in a rule belong to the same VCN, and limit the number of rules of a group (OCI
    documentation, Network Security Groups).
    """
    inputs = request.inputs
    group = request.require(inputs["networkSecurityGroupId"], "NetworkSecurityGroup")
    vcn_id = group.state["vcnId"] if group else None
    for side in ("source", "destination"):
        if inputs.get(f"{side}Type") == "NETWORK_SECURITY_GROUP":
            request.require_groups([inputs.get(side)], vcn_id)
    group_id = inputs["networkSecurityGroupId"]
    siblings = [other for other in request.others() if other.state["networkSecurityGroupId"] == group_id]
    if len(siblings) >= request.facts.nsg_rules_limit:
        raise limit_exceeded("securityrules-per-networksecuritygroup-count")


# File systems, mount targets and exports, and the Bastion service.


def _export(request: ServiceRequest) -> None:
    """Refuse a path that the export set already has (OCI API, CreateExportDetails)."""
    inputs = request.inputs
    request.require(inputs["fileSystemId"], "FileSystem")
    for other in request.others():
        if (other.state["exportSetId"], other.state["path"]) == (inputs["exportSetId"], inputs["path"]):
            raise ServiceError(409, "Conflict", f"Another export with path {inputs['path']} exists in the export set")


def _bastion(request: ServiceRequest) -> None:
    request.require_subnet(request.inputs["targetSubnetId"])


# IAM: syntax of policy statements, and unique names.


def _policy(request: ServiceRequest) -> None:
    """Require a unique name (OCI API, CreatePolicyDetails) and statements in the documented syntax (OCI documentation,
    Policy Syntax).
    """
    request.refuse_same_name("name", "PolicyAlreadyExists")
    for statement in request.inputs["statements"]:
        if not (_STATEMENT.fullmatch(statement.strip()) or _OTHER.fullmatch(statement.strip())):
            raise invalid(f"Failed to parse the policy statement: {statement}")


def _dynamic_group(request: ServiceRequest) -> None:
    """Require the tenancy as the compartment, and a unique name (OCI API, CreateDynamicGroupDetails)."""
    request.refuse_same_name("name", "DynamicGroupAlreadyExists")
    if not request.inputs["compartmentId"].startswith(_TENANCY):
        raise invalid("Dynamic groups must be created in the root compartment of the tenancy")
    _matching_rule(request)


def _matching_rule(request: ServiceRequest) -> None:
    """Require the documented syntax of a matching rule (OCI documentation, Writing Matching Rules to Define Dynamic
    Groups).
    """
    rule = request.inputs["matchingRule"]
    if not _MATCHING.fullmatch(rule):
        raise invalid(f"Failed to parse the matching rule: {rule}")


# Budgets and their alerts.


def _budget(request: ServiceRequest) -> None:
    """Require the tenancy as the compartment, the documented form of the name, and a target that has no budget yet (OCI
    documentation, Budgets Overview and Creating a Budget). OCI's own words for the last are not known.
    """
    if not request.inputs["compartmentId"].startswith(_TENANCY):
        raise invalid("Budgets must be created in the root compartment of the tenancy")
    name = request.inputs.get("displayName") or "budget"
    if not _BUDGET_NAME.fullmatch(name):
        raise invalid(f"Invalid name of a budget: {name}")
    for target in request.inputs.get("targets") or ():
        if any(target in (other.state.get("targets") or ()) for other in request.others()):
            raise ServiceError(409, "Conflict", f"{target} has a budget already")


def _alert_rule(request: ServiceRequest) -> None:
    """Require a threshold of at most 10,000 percent with at most two decimal places (OCI API, CreateAlertRuleDetails),
    and a message of at most 1,000 characters (OCI documentation, Creating a Budget Alert Rule).
    """
    request.require(request.inputs["budgetId"], "Budget")
    threshold = float(request.inputs["threshold"])
    if request.inputs["thresholdType"] == "PERCENTAGE" and not (
        0 < threshold <= _LARGEST_PERCENTAGE and round(threshold, 2) == threshold
    ):
        raise invalid(f"Invalid threshold: {threshold:g}")
    if len(request.inputs.get("message") or "") > _LONGEST_MESSAGE:
        raise invalid(f"The message is longer than {_LONGEST_MESSAGE} characters")


# Instances: shapes, images, metadata, capacity, and cluster networks.


def _require_shape(request: ServiceRequest, shape: str) -> None:
    """Refuse an unknown shape."""
    if shape not in request.facts.shapes and catalogue.shape(shape) is None:
        raise invalid(f"Invalid nodeShape: Node shape {shape} is not available in {request.region}")


def _require_small_metadata(request: ServiceRequest, *metadata: JsonObject | None) -> None:
    """Refuse metadata above an instance's size limit (OCI API, LaunchInstanceDetails)."""
    size = sum(len(key) + len(str(value)) for part in metadata for key, value in (part or {}).items())
    if size > request.facts.metadata_limit_bytes:
        limit = request.facts.metadata_limit_bytes
        raise invalid(f"Metadata and extended metadata can have {limit} bytes together, they have {size}")


def _instance_configuration(request: ServiceRequest) -> None:
    if launch := dig(request.inputs, "instanceDetails", "launchDetails"):
        _launch(request, launch)


def _instance(request: ServiceRequest) -> None:
    _require_boot_metadata_unchanged(request)
    _launch(request, request.inputs)
    cluster = request.require(request.inputs.get("computeClusterId"), "ComputeCluster")
    if cluster is not None and cluster.state["availabilityDomain"] != request.inputs["availabilityDomain"]:
        domain = cluster.state["availabilityDomain"]
        raise invalid(f"Compute cluster {cluster.id} is in availability domain {domain}")


def _require_boot_metadata_unchanged(request: ServiceRequest) -> None:
    """Refuse changes of metadata that are only read at an instance's first boot (OCI API, UpdateInstanceDetails,
    `metadata`).
    """
    if request.before is None:
        return
    before: JsonObject = request.before.state.get("metadata") or {}
    after: JsonObject = request.inputs.get("metadata") or {}
    for key in ("user_data", "ssh_authorized_keys"):
        if after and before.get(key) != after.get(key):
            raise invalid(f"The metadata {key} can't be changed after the instance has been launched")


def _launch(request: ServiceRequest, launch: JsonObject) -> None:
    request.require_domain(launch.get("availabilityDomain"))
    if shape := launch.get("shape"):
        _require_shape(request, shape)
    _require_small_metadata(request, launch.get("metadata"), launch.get("extendedMetadata"))
    subnet = request.require_subnet(dig(launch, "createVnicDetails", "subnetId"))
    request.require_groups(dig(launch, "createVnicDetails", "nsgIds"), subnet.state["vcnId"] if subnet else None)


def _cluster_network(request: ServiceRequest) -> None:
    """Require a shape with an RDMA network (OCI documentation, Cluster Networks)."""
    inputs, placement = request.inputs, request.inputs["placementConfiguration"]
    request.require_domain(placement["availabilityDomain"])
    request.require_subnet(placement.get("primarySubnetId") or dig(placement, "primaryVnicSubnets", "subnetId"))
    pool: Any = inputs["instancePools"][0]
    configuration = request.require(pool["instanceConfigurationId"], "InstanceConfiguration")
    launch = dig(configuration.state, "instanceDetails", "launchDetails") if configuration else None
    shape = dig(launch, "shape")
    if shape and shape not in request.facts.bare_metal_rdma:
        raise invalid(f"Shape {shape} is not supported in a cluster network")


# OKE: Kubernetes versions, networks, add-ons and node pools.


def _version_of(text: str) -> tuple[int, ...]:
    """Return a Kubernetes version such as `v1.34.2` as a tuple of numbers."""
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
    _ranges(inputs, _ranges_of(vcn.state) if vcn else [])


def _version(request: ServiceRequest) -> None:
    """Require a supported Kubernetes version, and an upgrade by at most one minor version (OCI documentation, Upgrading
    Clusters to Newer Kubernetes Versions).
    """
    version = request.inputs["kubernetesVersion"]
    known = request.facts.kubernetes_versions
    if version not in known:
        raise invalid(f"Invalid kubernetesVersion: {version}, supported versions: {', '.join(known)}")
    if request.before is None:
        return
    was: str = request.before.state["kubernetesVersion"]
    old, new = _version_of(was), _version_of(version)
    if new < old or new[1] > old[1] + 1:
        raise invalid(f"Cannot change the Kubernetes version from {was} to {version}: only one minor version up")


def _ranges(inputs: JsonObject, vcn: list[IPv4Network]) -> None:
    """Require disjoint IP ranges of VCN, Services and pods (OCI documentation, CIDR Blocks and Kubernetes)."""
    options: JsonObject = dig(inputs, "options", "kubernetesNetworkConfig") or {}
    services = _network(options.get("servicesCidr") or SERVICES)
    if any(services.overlaps(cidr) for cidr in vcn):
        raise invalid(f"The services CIDR {services} overlaps with the CIDR of the VCN")
    networks: list[JsonObject] = inputs.get("clusterPodNetworkOptions") or [{}]
    if networks[0].get("cniType") not in {None, "", "FLANNEL_OVERLAY"}:
        return
    pods = _network(options.get("podsCidr") or FLANNEL_PODS)
    if pods.overlaps(services) or any(pods.overlaps(cidr) for cidr in vcn):
        raise invalid(f"The pods CIDR {pods} overlaps with the services CIDR {services} or the CIDR of the VCN")


def _node_pool(request: ServiceRequest) -> None:
    inputs = request.inputs
    details: JsonObject = inputs.get("nodeConfigDetails") or {}
    cluster = request.require(inputs["clusterId"], "Cluster")
    vcn_id = cluster.state["vcnId"] if cluster else None
    shape = inputs["nodeShape"]
    _require_shape(request, shape)
    _require_small_metadata(request, inputs.get("nodeMetadata"))
    _node_version(request, cluster.state["kubernetesVersion"] if cluster else None)
    _image_version(request, cluster.state["kubernetesVersion"] if cluster else None)
    for placement in details.get("placementConfigs") or ():
        _placement(request, placement, vcn_id)
    request.require_groups(details.get("nsgIds"), vcn_id)
    pod_network: JsonObject = details.get("nodePoolPodNetworkOptionDetails") or {}
    if cluster is not None:
        for id_ in pod_network.get("podSubnetIds") or ():
            request.require_subnet(id_, vcn_id)
        request.require_groups(pod_network.get("podNsgIds"), vcn_id)
    _pool_compute_cluster(request, details, shape)


def _node_version(request: ServiceRequest, of_cluster: str | None) -> None:
    """Require a node version that isn't newer than the cluster's nor too many minor versions older (Kubernetes, Version
    Skew Policy).
    """
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
    """Require the Kubernetes version of OKE's own image (on creation: oracle-devrel/terraform-oci-arch-ci-cd-devops,
    issue 14; assumed to hold for changes too).
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
    reservation = request.require(placement.get("capacityReservationId"), "ComputeCapacityReservation")
    if reservation is not None and reservation.state["availabilityDomain"] != domain:
        raise invalid(f"Capacity reservation {reservation.id} is not in availability domain {domain}")


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
    """Require one of OKE's add-ons, and an enhanced cluster that doesn't have the add-on yet (OCI documentation,
    Comparing Enhanced and Basic Clusters).
    """
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
    "ServiceGateway": _gateway,
    "RouteTable": _route_table,
    "NetworkSecurityGroup": _in_vcn,
    "NetworkSecurityGroupSecurityRule": _security_rule,
    "FileSystem": _in_domain,
    "MountTarget": _in_subnet,
    "Export": _export,
    "FileStorageLustreFileSystem": _in_subnet,
    "Bastion": _bastion,
    "Budget": _budget,
    "Rule": _alert_rule,
    "Policy": _policy,
    "DynamicGroup": _dynamic_group,
    "DomainsDynamicResourceGroup": _matching_rule,
    "ComputeCluster": _in_domain,
    "InstanceConfiguration": _instance_configuration,
    "Instance": _instance,
    "ClusterNetwork": _cluster_network,
    "ComputeCapacityReservation": _in_domain,
    "Cluster": _cluster,
    "NodePool": _node_pool,
    "Addon": _addon,
}
