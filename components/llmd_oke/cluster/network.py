"""Component for a cluster's network: VCN, subnets, gateways, and a network security group for each role."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Any, NotRequired, TypedDict

import pulumi
import pulumi_oci as oci
from llmd_base.errors import KitError
from llmd_base.records import record

from llmd_oke.catalogue import cluster as facts
from llmd_oke.catalogue.cluster import GroupRole, SubnetRole
from llmd_oke.cluster.provider import TagArgs, foreign_tags, invoke, tag_args
from llmd_oke.objects import inputs, outputs, present
from llmd_oke.planning.network import (
    ANYWHERE,
    PATH_DISCOVERY,
    PROTOCOL_NUMBERS,
    NetworkChoices,
    PoolSize,
    SecurityRule,
    layout,
    security_rules,
)

ALL_SERVICES = "All .* Services In Oracle Services Network"
"""Pattern of the name of a region's service for all Oracle services (terraform-oci-oke, modules/network/gateways)."""

API_SERVER_PORT = 6443

LONGEST_SESSION_S = 10_800
"""Longest session of the Bastion service in seconds: three hours (OCI documentation, Bastion)."""

SUBNETS_OF_SERVICES: frozenset[SubnetRole] = frozenset({"load_balancers", "public_load_balancers", "workers"})
"""Subnets whose security lists OKE's cloud controller manages, for Services of type LoadBalancer without another
`oci.oraclecloud.com/security-rule-management-mode`. The kit creates these lists without rules."""

_TCP = "6"


class NetworkPoolArgs(TypedDict):
    """A pool whose nodes and pods need addresses."""

    nodes: int
    """Number of nodes of the pool."""
    max_pods: int
    """Maximum number of pods on each node."""


class NetworkChoiceArgs(TypedDict):
    """Optional parts of a network."""

    cni: NotRequired[str | None]
    """Pod network: `vcn-native` or `flannel`; `vcn-native` if left out."""
    public_load_balancers: NotRequired[bool | None]
    """Whether there is a public subnet for load balancers; false if left out."""
    bastion: NotRequired[bool | None]
    """Whether there is a subnet for the endpoint of the OCI Bastion service; true if left out."""
    operator: NotRequired[bool | None]
    """Whether there is a private subnet for an operator host, where administrators use kubectl; false if left out."""
    file_storage: NotRequired[bool | None]
    """Whether there is a subnet for File Storage mount targets; false if left out."""
    lustre: NotRequired[bool | None]
    """Whether there is a subnet for Lustre file systems; false if left out."""
    worker_internet: NotRequired[bool | None]
    """Whether nodes may open connections to the internet; true if left out."""
    pod_internet: NotRequired[bool | None]
    """Whether pods may open connections to the internet; true if left out."""


class NetworkArgs(NetworkChoiceArgs, TagArgs):
    """Arguments of a network. Parts whose OCIDs are given aren't created."""

    compartment_id: pulumi.Input[str]
    """Compartment of the network."""
    pools: list[NetworkPoolArgs]
    """Pools of the cluster, by which the subnets of nodes and pods are sized."""
    cidr: NotRequired[str | None]
    """CIDR of the VCN; required for an existing VCN; 10.140.0.0/16 if left out."""
    api_access: NotRequired[str | None]
    """Access to the API endpoint: `private` or `public`, which needs `api_allowed_cidrs`; `private` if left out."""
    api_allowed_cidrs: NotRequired[list[str] | None]
    """CIDRs outside the VCN that may reach the API server; never 0.0.0.0/0."""
    public_load_balancer_cidrs: NotRequired[list[str] | None]
    """CIDRs of clients that may reach public load balancers on ports 80 and 443; 0.0.0.0/0 if left out."""
    bastion_client_cidrs: NotRequired[list[str] | None]
    """CIDRs of clients that may open tunnels through the OCI Bastion service; never 0.0.0.0/0. If empty, or with a
    public API endpoint, no bastion is created."""
    bastion_id: NotRequired[pulumi.Input[str] | None]
    """OCID of an existing bastion; if given, none is created."""
    bastion_subnet_cidr: NotRequired[str | None]
    """CIDR of the existing subnet `bastion`; the VCN's if left out."""
    bastion_host_cidrs: NotRequired[list[str] | None]
    """CIDRs of clients that may connect to a bastion host by SSH; if empty, no subnet for such a host is created."""
    vcn_id: NotRequired[pulumi.Input[str] | None]
    """OCID of an existing VCN."""
    subnet_ids: NotRequired[dict[str, pulumi.Input[str]] | None]
    """OCIDs of existing subnets, by role: `api`, `workers`, `pods`, `load_balancers`, `public_load_balancers`,
    `bastion`, `bastion_host`, `operator`, `storage`, `lustre`."""
    nsg_ids: NotRequired[dict[str, pulumi.Input[str]] | None]
    """OCIDs of existing network security groups, by role; their rules aren't changed."""
    route_table_ids: NotRequired[dict[str, pulumi.Input[str]] | None]
    """OCIDs of existing route tables: `private` (NAT and service gateway) and `public` (internet gateway)."""
    services_gateway_id: NotRequired[pulumi.Input[str] | None]
    """OCID of the OCI service that comprises all Oracle services of the region; looked up in OCI if left out."""
    services_gateway_cidr: NotRequired[pulumi.Input[str] | None]
    """CIDR label of that OCI service, such as `all-iad-services-in-oracle-services-network`; looked up if left out."""
    display_name: NotRequired[str | None]
    """Prefix of the display names of all resources; the component's name if left out."""
    protect: NotRequired[bool | None]
    """Refuse to delete or replace the VCN and its subnets; false if left out."""


class NodeNetworkArgs(TypedDict):
    """Subnets and security groups of nodes and their pods."""

    worker_subnet_id: pulumi.Input[str]
    """Subnet of the nodes."""
    worker_nsg_ids: NotRequired[pulumi.Input[list[pulumi.Input[str]]] | None]
    """Network security groups of the nodes."""
    pod_subnet_id: NotRequired[pulumi.Input[str] | None]
    """Subnet of the pods, with a VCN-native network; left out with flannel."""
    pod_nsg_ids: NotRequired[pulumi.Input[list[pulumi.Input[str]]] | None]
    """Network security groups of the pods, with a VCN-native network."""


class ClusterNetworkArgs(TypedDict):
    """Subnets and security groups of a cluster's API endpoint and load balancers."""

    vcn_id: pulumi.Input[str]
    """VCN of the cluster."""
    api_subnet_id: pulumi.Input[str]
    """Subnet of the API endpoint."""
    api_nsg_ids: NotRequired[pulumi.Input[list[pulumi.Input[str]]] | None]
    """Network security groups of the API endpoint."""
    load_balancer_subnet_ids: NotRequired[pulumi.Input[list[pulumi.Input[str]]] | None]
    """Default subnets of load balancers, for Services without a subnet annotation."""


class Network(pulumi.ComponentResource):
    """A VCN with subnets sized for the cluster's pools, gateways, and a network security group for each role.

    Only the rules of these groups allow traffic: the default security list has no rules. Parts that the arguments don't
    choose (the subnet of pods with flannel, for example) aren't created, and their outputs are None.
    """

    vcn_id: pulumi.Output[str]
    """OCID of the VCN."""
    cidr: pulumi.Output[str]
    """CIDR of the VCN."""
    api_subnet_id: pulumi.Output[str]
    """Subnet of the API endpoint."""
    worker_subnet_id: pulumi.Output[str]
    """Subnet of the nodes."""
    worker_cidr: pulumi.Output[str]
    """CIDR that contains the nodes' addresses: that of their subnet, or of the VCN if the subnet existed already."""
    pod_subnet_id: pulumi.Output[str] | None
    """Subnet of the pods, with a VCN-native network."""
    load_balancer_subnet_id: pulumi.Output[str]
    """Subnet of internal load balancers."""
    public_load_balancer_subnet_id: pulumi.Output[str] | None
    """Subnet of public load balancers."""
    bastion_subnet_id: pulumi.Output[str] | None
    """Subnet of the OCI Bastion service's endpoint."""
    bastion_id: pulumi.Output[str] | None
    """OCID of the OCI Bastion service's bastion."""
    bastion_host_subnet_id: pulumi.Output[str] | None
    """Subnet of a bastion host."""
    operator_subnet_id: pulumi.Output[str] | None
    """Subnet of an operator host."""
    storage_subnet_id: pulumi.Output[str] | None
    """Subnet of File Storage mount targets."""
    lustre_subnet_id: pulumi.Output[str] | None
    """Subnet of Lustre file systems."""
    api_nsg_id: pulumi.Output[str]
    """Security group of the API endpoint."""
    workers_nsg_id: pulumi.Output[str]
    """Security group of the nodes."""
    pods_nsg_id: pulumi.Output[str] | None
    """Security group of the pods, with a VCN-native network."""
    load_balancers_nsg_id: pulumi.Output[str]
    """Security group of internal load balancers."""
    public_load_balancers_nsg_id: pulumi.Output[str] | None
    """Security group of public load balancers."""
    bastion_host_nsg_id: pulumi.Output[str] | None
    """Security group of a bastion host."""
    operator_nsg_id: pulumi.Output[str] | None
    """Security group of an operator host."""
    storage_nsg_id: pulumi.Output[str] | None
    """Security group of File Storage mount targets."""
    lustre_nsg_id: pulumi.Output[str] | None
    """Security group of Lustre file systems."""

    def __init__(self, name: str, args: NetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:Network", name, inputs(self, args), opts)
        spec = _network_spec(self, name, args)
        self.vcn_id, security_list_id = _vcn(spec)
        self.cidr = pulumi.Output.from_input(str(spec.cidr))
        self.worker_cidr = pulumi.Output.from_input(str(spec.created.get("workers", spec.cidr)))
        subnets = _subnets(spec, self.vcn_id, security_list_id)
        self.api_subnet_id = subnets["api"]
        self.worker_subnet_id = subnets["workers"]
        self.pod_subnet_id = subnets.get("pods")
        self.load_balancer_subnet_id = subnets["load_balancers"]
        self.public_load_balancer_subnet_id = subnets.get("public_load_balancers")
        self.bastion_subnet_id = subnets.get("bastion")
        self.bastion_host_subnet_id = subnets.get("bastion_host")
        self.operator_subnet_id = subnets.get("operator")
        self.storage_subnet_id = subnets.get("storage")
        self.lustre_subnet_id = subnets.get("lustre")
        self.bastion_id = _bastion(spec, args, self.bastion_subnet_id)
        groups = _groups(spec, self.vcn_id)
        self.api_nsg_id = groups["api"]
        self.workers_nsg_id = groups["workers"]
        self.pods_nsg_id = groups.get("pods")
        self.load_balancers_nsg_id = groups["load_balancers"]
        self.public_load_balancers_nsg_id = groups.get("public_load_balancers")
        self.bastion_host_nsg_id = groups.get("bastion_host")
        self.operator_nsg_id = groups.get("operator")
        self.storage_nsg_id = groups.get("storage")
        self.lustre_nsg_id = groups.get("lustre")
        self.register_outputs(outputs(self))

    @property
    def for_nodes(self) -> NodeNetworkArgs:
        """The subnets and security groups of nodes and their pods: the argument `network` of pools."""
        return {
            "worker_subnet_id": self.worker_subnet_id,
            "worker_nsg_ids": [self.workers_nsg_id],
            "pod_subnet_id": self.pod_subnet_id,
            "pod_nsg_ids": None if self.pods_nsg_id is None else [self.pods_nsg_id],
        }

    @property
    def for_cluster(self) -> ClusterNetworkArgs:
        """The subnets and security groups of the cluster: the argument `network` of `OkeCluster`."""
        return {
            "vcn_id": self.vcn_id,
            "api_subnet_id": self.api_subnet_id,
            "api_nsg_ids": [self.api_nsg_id],
            "load_balancer_subnet_ids": [self.load_balancer_subnet_id],
        }


@dataclass(frozen=True)
class _NetworkSpec:
    """Specification of a network: VCN's CIDR, chosen parts, CIDRs of subnets to create (`created`), CIDRs of the peers
    in `values/network/security-rules.yaml` (`peers`), and OCIDs of existing resources.
    """

    component: pulumi.Resource
    name: str
    display_name: str
    compartment_id: pulumi.Input[str]
    tags: Mapping[str, Any]
    foreign_tags: Sequence[str]
    protect: bool
    choices: NetworkChoices
    cidr: IPv4Network
    created: Mapping[SubnetRole, IPv4Network]
    peers: Mapping[str, Sequence[str]]
    vcn_id: pulumi.Input[str] | None
    subnet_ids: Mapping[str, pulumi.Input[str]]
    nsg_ids: Mapping[str, pulumi.Input[str]]
    route_table_ids: Mapping[str, pulumi.Input[str]]
    services_gateway_id: pulumi.Input[str]
    services_gateway_cidr: pulumi.Input[str]

    def options(
        self,
        *,
        protect: bool = False,
        deleted_with: pulumi.Resource | None = None,
        delete_before_replace: bool | None = None,
        ignore: Sequence[str] = (),
    ) -> pulumi.ResourceOptions:
        """Return the options of a resource, which ignore tags that OCI adds by a tenancy's tag defaults."""
        return pulumi.ResourceOptions(
            parent=self.component,
            protect=protect and self.protect,
            deleted_with=deleted_with,
            delete_before_replace=delete_before_replace,
            ignore_changes=[*self.foreign_tags, *ignore],
        )

    def of_vcn(self, vcn_id: pulumi.Output[str], part: str, ignore: Sequence[str] = ()) -> dict[str, Any]:
        """Return the arguments that all resources of the VCN share: VCN, compartment, name, tags and options."""
        return {"vcn_id": vcn_id, **self.named(part), "opts": self.options(ignore=ignore)}

    def named(self, part: str) -> dict[str, Any]:
        """Return the arguments that all resources share: compartment, display name and tags."""
        label = f"{self.display_name}-{part}"
        return {"compartment_id": self.compartment_id, "display_name": label, **self.tags}


def _network_spec(component: pulumi.Resource, name: str, args: NetworkArgs) -> _NetworkSpec:
    choices = _choices(args)
    vcn_id, subnet_ids, nsg_ids = args.get("vcn_id"), args.get("subnet_ids") or {}, args.get("nsg_ids") or {}
    existing = [key for key in ("subnet_ids", "nsg_ids", "route_table_ids") if args.get(key)]
    if existing and vcn_id is None:
        raise KitError(f"{existing[0]} is for a VCN that is there already.", "Give vcn_id beside it.")
    if vcn_id is not None and args.get("cidr") is None:
        raise KitError("The range of a VCN that is there already must be known.", "Give cidr beside vcn_id.")
    unknown = [role for role in subnet_ids if role not in choices.subnet_roles]
    unknown += [role for role in nsg_ids if role not in choices.group_roles]
    if unknown:
        raise KitError(f"This network has no part {unknown[0]!r}.", f"It has: {', '.join(choices.subnet_roles)}.")
    cidr = IPv4Network(args.get("cidr") or facts.subnets().vcn_cidr)
    sizes = [PoolSize(pool["nodes"], pool["max_pods"]) for pool in args["pools"]]
    subnets = layout(cidr, choices.created(subnet_ids), sizes)
    if subnets.too_small:
        reasons = [f"The {part.role} subnet {part.reason}." for part in subnets.too_small]
        raise KitError(f"{cidr} has no room for all subnets. {' '.join(reasons)}", "Give a larger range.")
    created = dict(subnets.subnets)
    public_clients = args.get("public_load_balancer_cidrs")
    bastion_cidr = args.get("bastion_subnet_cidr") or str(created.get("bastion", cidr))
    services_gateway_id, services_gateway_cidr = _all_services(component, args)
    return record(
        _NetworkSpec,
        present(args),
        {"display_name": name, "protect": False, "vcn_id": None, "route_table_ids": {}},
        component=component,
        name=name,
        tags=tag_args(args),
        foreign_tags=foreign_tags(args),
        choices=choices,
        cidr=cidr,
        created=created,
        peers={
            "vcn": [str(cidr)],
            "api-allowed-cidrs": args.get("api_allowed_cidrs") or [],
            "bastion-host-cidrs": args.get("bastion_host_cidrs") or [],
            "public-load-balancer-cidrs": [ANYWHERE] if public_clients is None else public_clients,
            "bastion-subnet": [bastion_cidr] if choices.bastion else [],
        },
        subnet_ids=subnet_ids,
        nsg_ids=nsg_ids,
        services_gateway_id=services_gateway_id,
        services_gateway_cidr=services_gateway_cidr,
    )


def _choices(args: NetworkArgs) -> NetworkChoices:
    public, allowed = args.get("api_access") == "public", args.get("api_allowed_cidrs") or []
    if public and not allowed:
        raise KitError("A public API endpoint needs an allow list.", "Give api_allowed_cidrs, or api_access private.")
    bastion_hosts = args.get("bastion_host_cidrs") or []
    for cidr in [*allowed, *(args.get("bastion_client_cidrs") or []), *bastion_hosts]:
        if IPv4Network(cidr).prefixlen == 0:
            raise KitError(f"{cidr} would open the cluster to the whole internet.", "Name smaller ranges.")
    chosen = record(NetworkChoices, present(args), public_endpoint=public, bastion_host=bool(bastion_hosts))
    return chosen.with_existing({*(args.get("subnet_ids") or {}), *(args.get("nsg_ids") or {})})


def _all_services(component: pulumi.Resource, args: NetworkArgs) -> tuple[pulumi.Input[str], pulumi.Input[str]]:
    """Return OCID and CIDR label of the OCI service that comprises all Oracle services of the region: the arguments if
    both are given, which makes previews possible offline, or OCI's answer.
    """
    ocid, label = args.get("services_gateway_id"), args.get("services_gateway_cidr")
    if ocid is not None and label is not None:
        return ocid, label
    services = invoke(
        "oci:Core/getServices:getServices",
        {"filters": [{"name": "name", "values": [ALL_SERVICES], "regex": True}]},
        pulumi.InvokeOutputOptions(parent=component),
    )
    return (
        services.apply(lambda answer: answer["services"][0]["id"]),
        services.apply(lambda answer: answer["services"][0]["cidrBlock"]),
    )


def _vcn(spec: _NetworkSpec) -> tuple[pulumi.Output[str], pulumi.Output[str]]:
    """Return the OCIDs of the VCN and of a security list without rules, so that only network security groups allow
    traffic. In a created VCN that is the default list, in an existing VCN a list of this component, or "" if no subnet
    is created.

    Changes of the VCN's DNS label are ignored, because they would replace the VCN: a renamed cluster keeps the label.
    """
    if spec.vcn_id is not None:
        vcn_id = pulumi.Output.from_input(spec.vcn_id)
        if not spec.created:
            return vcn_id, pulumi.Output.from_input("")
        return vcn_id, oci.core.SecurityList(f"{spec.name}-locked-security-list", **spec.of_vcn(vcn_id, "locked")).id
    # A DNS label has at most 15 letters and digits, the first a letter (OCI documentation, DNS in VCNs).
    letters = "".join(letter for letter in spec.display_name.lower() if letter.isascii() and letter.isalnum())
    vcn = oci.core.Vcn(
        f"{spec.name}-vcn",
        cidr_blocks=[str(spec.cidr)],
        dns_label=letters.lstrip("0123456789")[:15] or "vcn",
        **spec.named("vcn"),
        opts=spec.options(protect=True, ignore=["dnsLabel"]),
    )
    security_list = oci.core.DefaultSecurityList(
        f"{spec.name}-default-security-list",
        manage_default_resource_id=vcn.default_security_list_id,
        display_name=f"{spec.display_name}-locked",
        **spec.tags,
        opts=spec.options(deleted_with=vcn),
    )
    return vcn.id, security_list.id


def _private_routes(spec: _NetworkSpec, vcn_id: pulumi.Output[str]) -> pulumi.Input[str]:
    """Return the OCID of the private subnets' route table, with routes to Oracle services and, if needed, to a NAT."""
    if "private" in spec.route_table_ids:
        return spec.route_table_ids["private"]
    services = oci.core.ServiceGateway(
        f"{spec.name}-service-gateway",
        services=[{"service_id": spec.services_gateway_id}],
        **spec.of_vcn(vcn_id, "service-gateway"),
    )
    rules = [_route(spec.services_gateway_cidr, "SERVICE_CIDR_BLOCK", services.id)]
    if spec.choices.nat:
        nat = oci.core.NatGateway(f"{spec.name}-nat-gateway", **spec.of_vcn(vcn_id, "nat-gateway"))
        rules.append(_route(ANYWHERE, "CIDR_BLOCK", nat.id))
    common = spec.of_vcn(vcn_id, "private-routes")
    return oci.core.RouteTable(f"{spec.name}-private-routes", route_rules=rules, **common).id


def _public_routes(spec: _NetworkSpec, vcn_id: pulumi.Output[str]) -> pulumi.Input[str]:
    """Return the OCID of the public subnets' route table, with a route to an internet gateway."""
    if "public" in spec.route_table_ids:
        return spec.route_table_ids["public"]
    internet = oci.core.InternetGateway(
        f"{spec.name}-internet-gateway", enabled=True, **spec.of_vcn(vcn_id, "internet-gateway")
    )
    rules = [_route(ANYWHERE, "CIDR_BLOCK", internet.id)]
    common = spec.of_vcn(vcn_id, "public-routes")
    return oci.core.RouteTable(f"{spec.name}-public-routes", route_rules=rules, **common).id


def _route(
    destination: pulumi.Input[str], kind: str, gateway_id: pulumi.Output[str]
) -> "oci.core.RouteTableRouteRuleArgsDict":
    return {"destination": destination, "destination_type": kind, "network_entity_id": gateway_id}


def _subnets(
    spec: _NetworkSpec, vcn_id: pulumi.Output[str], locked_list_id: pulumi.Output[str]
) -> dict[SubnetRole, pulumi.Output[str]]:
    """Return the OCIDs of all subnets, created or existing, by role. Gateways are created only for created subnets."""
    public = [role for role in spec.created if role in spec.choices.public_roles]
    routes = {
        True: _public_routes(spec, vcn_id) if public else "",
        False: _private_routes(spec, vcn_id) if len(public) < len(spec.created) else "",
    }
    ids: dict[SubnetRole, pulumi.Output[str]] = {}
    for role in spec.choices.subnet_roles:
        if role not in spec.created:
            ids[role] = pulumi.Output.from_input(spec.subnet_ids[role])
    for role, cidr in spec.created.items():
        label, is_public = role.replace("_", "-"), role in public
        ids[role] = oci.core.Subnet(
            f"{spec.name}-{label}-subnet",
            vcn_id=vcn_id,
            cidr_block=str(cidr),
            dns_label=facts.subnets().dns_label(role) if spec.vcn_id is None else None,
            prohibit_public_ip_on_vnic=not is_public,
            route_table_id=routes[is_public],
            security_list_ids=[_security_list(spec, vcn_id, role, locked_list_id)],
            **spec.named(label),
            # The old subnet occupies the CIDR and the DNS label until it is deleted.
            opts=spec.options(protect=True, delete_before_replace=True),
        ).id
    return ids


def _security_list(
    spec: _NetworkSpec, vcn_id: pulumi.Output[str], role: SubnetRole, locked_list_id: pulumi.Output[str]
) -> pulumi.Output[str]:
    """Return the OCID of a subnet's security list: its own if groups don't suffice, otherwise the one without rules."""
    label = role.replace("_", "-")
    if role == "bastion":
        common = spec.of_vcn(vcn_id, label)
        return oci.core.SecurityList(f"{spec.name}-{label}-security-list", **_bastion_rules(spec), **common).id
    if role in SUBNETS_OF_SERVICES:
        common = spec.of_vcn(vcn_id, label, ignore=["ingressSecurityRules", "egressSecurityRules"])
        return oci.core.SecurityList(f"{spec.name}-{label}-security-list", **common).id
    return locked_list_id


def _bastion_rules(spec: _NetworkSpec) -> dict[str, Any]:
    """Return the rules of the OCI Bastion endpoint, which can't be in a group (oci-hpc-oke, bastion-service.tf)."""
    ingress = {
        "source": str(spec.created["bastion"]),
        "source_type": "CIDR_BLOCK",
        "description": "the OCI Bastion service reaches its endpoint",
    }
    egress = {
        "destination": str(spec.created.get("api", spec.cidr)),
        "destination_type": "CIDR_BLOCK",
        "description": "tunnels reach the API server",
    }
    port = {"min": API_SERVER_PORT, "max": API_SERVER_PORT}
    common = {"protocol": _TCP, "stateless": False, "tcp_options": port}
    return {"ingress_security_rules": [{**common, **ingress}], "egress_security_rules": [{**common, **egress}]}


def _bastion(spec: _NetworkSpec, args: NetworkArgs, subnet_id: pulumi.Output[str] | None) -> pulumi.Output[str] | None:
    """Return the OCID of the OCI Bastion service's bastion, existing or created; None if the API endpoint is public or
    no client may use a bastion.

    A subnet can't have two bastions, so that a replaced bastion is deleted first. The service accepts only letters and
    digits in names.

    Raises:
        KitError: a bastion is to be created, and the network has no subnet `bastion`.
    """
    bastion_id, clients = args.get("bastion_id"), args.get("bastion_client_cidrs")
    if bastion_id is not None:
        return pulumi.Output.from_input(bastion_id)
    if not clients or spec.choices.public_endpoint:
        return None
    if subnet_id is None:
        raise KitError("A bastion needs a subnet.", "Leave out bastion_client_cidrs, or give bastion True.")
    return oci.bastion.Bastion(
        f"{spec.name}-bastion",
        bastion_type="STANDARD",
        compartment_id=spec.compartment_id,
        target_subnet_id=subnet_id,
        name="".join(letter for letter in spec.display_name if letter.isascii() and letter.isalnum()) + "Bastion",
        client_cidr_block_allow_lists=list(clients),
        max_session_ttl_in_seconds=LONGEST_SESSION_S,
        **spec.tags,
        opts=spec.options(delete_before_replace=True),
    ).id


def _groups(spec: _NetworkSpec, vcn_id: pulumi.Output[str]) -> dict[GroupRole, pulumi.Output[str]]:
    """Return the OCIDs of all network security groups, by role. Rules are declared for created groups only."""
    created: dict[GroupRole, oci.core.NetworkSecurityGroup] = {}
    ids: dict[GroupRole, pulumi.Output[str]] = {}
    for role in spec.choices.group_roles:
        if role in spec.nsg_ids:
            ids[role] = pulumi.Output.from_input(spec.nsg_ids[role])
            continue
        label = role.replace("_", "-")
        group = oci.core.NetworkSecurityGroup(f"{spec.name}-{label}-nsg", **spec.of_vcn(vcn_id, label))
        created[role], ids[role] = group, group.id
    for rule in security_rules(spec.choices, spec.peers):
        if rule.group in created:
            _rule(spec, rule, created[rule.group], ids)
    return ids


def _rule(
    spec: _NetworkSpec,
    rule: SecurityRule,
    group: oci.core.NetworkSecurityGroup,
    ids: Mapping[GroupRole, pulumi.Output[str]],
) -> None:
    """Declare a rule of a network security group; `deleted_with` the group, so that its deletion needs no request."""
    peer: pulumi.Input[str]
    if rule.peer.group is not None:
        peer, kind = ids[rule.peer.group], "NETWORK_SECURITY_GROUP"
    elif rule.peer.cidr is not None:
        peer, kind = rule.peer.cidr, "CIDR_BLOCK"
    else:
        peer, kind = spec.services_gateway_cidr, "SERVICE_CIDR_BLOCK"
    side = "source" if rule.direction == "ingress" else "destination"
    arguments: dict[str, Any] = {side: peer, f"{side}_type": kind}
    if rule.protocol == "icmp":
        icmp_type, code = PATH_DISCOVERY
        arguments["icmp_options"] = {"type": icmp_type, "code": code}
    elif ranges := present({"destination_port_range": rule.ports, "source_port_range": rule.source_ports}):
        options = {name: {"min": ports.first, "max": ports.last} for name, ports in ranges.items()}
        arguments[f"{rule.protocol}_options"] = options
    oci.core.NetworkSecurityGroupSecurityRule(
        f"{spec.name}-{rule.group.replace('_', '-')}-{rule.key}",
        network_security_group_id=group.id,
        direction=rule.direction.upper(),
        protocol=PROTOCOL_NUMBERS[rule.protocol],
        stateless=False,
        description=rule.description,
        **arguments,
        opts=pulumi.ResourceOptions(parent=spec.component, deleted_with=group),
    )
