"""The network of a cluster: VCN, subnets, gateways, and a security group for each role."""

from collections.abc import Mapping
from ipaddress import IPv4Network
from typing import NotRequired, TypedDict

import pulumi

from llmd_oke.catalogue import network as facts
from llmd_oke.catalogue.network import GroupRole, SubnetRole
from llmd_oke.cluster.network_bastion import bastion
from llmd_oke.cluster.network_gateways import vcn
from llmd_oke.cluster.network_groups import groups
from llmd_oke.cluster.network_parts import Existing, NetworkSubject, Services
from llmd_oke.cluster.network_subnets import subnets
from llmd_oke.cluster.questions import ask
from llmd_oke.cluster.tags import stack_tags
from llmd_oke.errors import KitError
from llmd_oke.planning.network import NetworkChoices
from llmd_oke.planning.network_layout import PoolSize, layout
from llmd_oke.planning.network_rules import ANYWHERE

ALL_SERVICES = "All .* Services In Oracle Services Network"
"""Name of the service that stands for all of a region (terraform-oci-oke, modules/network/gateways)."""


class NetworkPoolArgs(TypedDict):
    """A pool whose nodes and pods need addresses."""

    nodes: int
    """Nodes of the pool."""
    max_pods: int
    """Pods of each node."""


class NetworkArgs(TypedDict):
    """What a network needs. OCIDs of what is there already take the place of creating it."""

    compartment_id: pulumi.Input[str]
    """Compartment of the network."""
    pools: list[NetworkPoolArgs]
    """Pools of the cluster, which the subnets of nodes and pods are made large enough for."""
    cidr: NotRequired[str]
    """Range of the VCN, or that of an existing VCN to create subnets in, which must be given; 10.140.0.0/16 if left
    out."""
    cni: NotRequired[str]
    """Pod network: `vcn-native` or `flannel`; `vcn-native` if left out."""
    api_access: NotRequired[str]
    """`private` or `public`; `private` if left out. A public API endpoint needs `api_allowed_cidrs`."""
    api_allowed_cidrs: NotRequired[list[str]]
    """Ranges that may reach the API server, beside what is in the VCN; never 0.0.0.0/0."""
    public_load_balancers: NotRequired[bool]
    """Whether there is a public subnet for load balancers; false if left out."""
    public_load_balancer_cidrs: NotRequired[list[str]]
    """Clients of public load balancers, on ports 80 and 443; 0.0.0.0/0 if left out."""
    bastion: NotRequired[bool]
    """Whether there is a subnet for the endpoint of the OCI Bastion service; true if left out."""
    bastion_client_cidrs: NotRequired[list[str]]
    """Who may open tunnels through a bastion of that service; with none, or with a public API endpoint, no bastion is
    created. Never 0.0.0.0/0."""
    bastion_id: NotRequired[pulumi.Input[str]]
    """A bastion that is there already; none is created then."""
    bastion_subnet_cidr: NotRequired[str]
    """Range of a subnet `bastion` that is there already; that of the network if left out."""
    bastion_host_cidrs: NotRequired[list[str]]
    """Who may sign in to a bastion host by SSH; with none there is no subnet for such a host."""
    operator: NotRequired[bool]
    """Whether there is a private subnet for a host of administrators; false if left out."""
    file_storage: NotRequired[bool]
    """Whether there is a subnet for File Storage mount targets; false if left out."""
    lustre: NotRequired[bool]
    """Whether there is a subnet for Lustre file systems; false if left out."""
    worker_internet: NotRequired[bool]
    """Whether nodes may open connections to the internet; true if left out."""
    pod_internet: NotRequired[bool]
    """Whether pods may open connections to the internet; true if left out."""
    vcn_id: NotRequired[pulumi.Input[str]]
    """A VCN that is there already."""
    subnet_ids: NotRequired[dict[str, pulumi.Input[str]]]
    """Subnets that are there already, by role: `api`, `workers`, `pods`, `load_balancers`, `public_load_balancers`,
    `bastion`, `bastion_host`, `operator`, `storage`, `lustre`."""
    nsg_ids: NotRequired[dict[str, pulumi.Input[str]]]
    """Network security groups that are there already, by role, with rules of their own."""
    route_table_ids: NotRequired[dict[str, pulumi.Input[str]]]
    """Route tables that are there already: `private` (NAT and service gateway) and `public` (internet gateway)."""
    services_gateway_id: NotRequired[pulumi.Input[str]]
    """OCID of the service that stands for all services of the region; asked of OCI if left out."""
    services_gateway_cidr: NotRequired[pulumi.Input[str]]
    """Its CIDR label, such as `all-iad-services-in-oracle-services-network`; asked of OCI if left out."""
    display_name: NotRequired[str]
    """Beginning of the display names of all parts; the component's name if left out."""
    freeform_tags: NotRequired[dict[str, pulumi.Input[str]]]
    """Further freeform tags of all parts."""
    protect: NotRequired[bool]
    """Whether the VCN and its subnets are protected; false if left out."""


class Network(pulumi.ComponentResource):
    """A VCN with subnets sized for the cluster's pools, gateways, and a network security group for each role.

    Nothing is let through but what the groups' rules say: the default security list has no rules. What depends on a
    choice that was not made (pods' subnet with flannel, for example) is not there, and neither is its output.
    """

    vcn_id: pulumi.Output[str]
    """OCID of the VCN."""
    cidr: pulumi.Output[str]
    """Range of the VCN."""
    api_subnet_id: pulumi.Output[str]
    """Subnet of the API endpoint."""
    worker_subnet_id: pulumi.Output[str]
    """Subnet of the nodes."""
    worker_cidr: pulumi.Output[str]
    """Range that nodes have addresses of: their subnet's, or the VCN's where that one is there already."""
    pod_subnet_id: pulumi.Output[str] | None
    """Subnet of the pods, with a VCN-native network."""
    load_balancer_subnet_id: pulumi.Output[str]
    """Subnet of internal load balancers."""
    public_load_balancer_subnet_id: pulumi.Output[str] | None
    """Subnet of public load balancers."""
    bastion_subnet_id: pulumi.Output[str] | None
    """Subnet of the OCI Bastion service's endpoint."""
    bastion_id: pulumi.Output[str] | None
    """The bastion of that service."""
    bastion_host_subnet_id: pulumi.Output[str] | None
    """Subnet of a bastion host."""
    operator_subnet_id: pulumi.Output[str] | None
    """Subnet of a host of administrators."""
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
    """Security group of a host of administrators."""
    storage_nsg_id: pulumi.Output[str] | None
    """Security group of File Storage mount targets."""
    lustre_nsg_id: pulumi.Output[str] | None
    """Security group of Lustre file systems."""

    def __init__(self, name: str, args: NetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:Network", name, None, opts)
        subject = _subject(self, name, args)
        place = vcn(subject)
        self.vcn_id = place.vcn_id
        self.cidr = pulumi.Output.from_input(str(subject.vcn))
        self.worker_cidr = pulumi.Output.from_input(str(subject.created.get("workers", subject.vcn)))
        ids = subnets(subject, place)
        self._take_subnets(ids)
        self.bastion_id = _bastion(subject, args, ids)
        self._take_groups(groups(subject, place.vcn_id))
        outputs = {key: value for key, value in vars(self).items() if key in Network.__annotations__}
        self.register_outputs({key: value for key, value in outputs.items() if value is not None})

    def _take_subnets(self, ids: Mapping[SubnetRole, pulumi.Output[str]]) -> None:
        self.api_subnet_id = ids["api"]
        self.worker_subnet_id = ids["workers"]
        self.pod_subnet_id = ids.get("pods")
        self.load_balancer_subnet_id = ids["load_balancers"]
        self.public_load_balancer_subnet_id = ids.get("public_load_balancers")
        self.bastion_subnet_id = ids.get("bastion")
        self.bastion_host_subnet_id = ids.get("bastion_host")
        self.operator_subnet_id = ids.get("operator")
        self.storage_subnet_id = ids.get("storage")
        self.lustre_subnet_id = ids.get("lustre")

    def _take_groups(self, ids: Mapping[GroupRole, pulumi.Output[str]]) -> None:
        self.api_nsg_id = ids["api"]
        self.workers_nsg_id = ids["workers"]
        self.pods_nsg_id = ids.get("pods")
        self.load_balancers_nsg_id = ids["load_balancers"]
        self.public_load_balancers_nsg_id = ids.get("public_load_balancers")
        self.bastion_host_nsg_id = ids.get("bastion_host")
        self.operator_nsg_id = ids.get("operator")
        self.storage_nsg_id = ids.get("storage")
        self.lustre_nsg_id = ids.get("lustre")


def _subject(component: pulumi.Resource, name: str, args: NetworkArgs) -> NetworkSubject:
    choices = _choices(args)
    existing = _existing(args, choices)
    network = IPv4Network(args.get("cidr", facts.subnets().vcn_cidr))
    created = _created(network, choices, existing, args)
    bastion_cidr = args.get("bastion_subnet_cidr", str(created.get("bastion", network)))
    return NetworkSubject(
        component=component,
        name=name,
        display_name=args.get("display_name", name),
        compartment_id=args["compartment_id"],
        tags=stack_tags(args.get("freeform_tags")),
        protect=args.get("protect", False),
        choices=choices,
        vcn=network,
        created=created,
        existing=existing,
        cidrs={
            "vcn": [str(network)],
            "api-allowed-cidrs": args.get("api_allowed_cidrs", []),
            "bastion-host-cidrs": args.get("bastion_host_cidrs", []),
            "public-load-balancer-cidrs": args.get("public_load_balancer_cidrs", [ANYWHERE]),
            "bastion-subnet": [bastion_cidr] if choices.bastion else [],
        },
        services=_services(component, args),
    )


def _choices(args: NetworkArgs) -> NetworkChoices:
    access, allowed = args.get("api_access", "private"), args.get("api_allowed_cidrs", [])
    if access == "public" and not allowed:
        raise KitError("A public API endpoint needs an allow list.", "Give api_allowed_cidrs, or api_access private.")
    named = [*allowed, *args.get("bastion_client_cidrs", []), *args.get("bastion_host_cidrs", [])]
    for cidr in named:
        if IPv4Network(cidr).prefixlen == 0:
            raise KitError(f"{cidr} would open the cluster to the whole internet.", "Name smaller ranges.")
    given = {*args.get("subnet_ids", {}), *args.get("nsg_ids", {})}
    return NetworkChoices(
        cni=args.get("cni", "vcn-native"),
        public_endpoint=access == "public",
        public_load_balancers=args.get("public_load_balancers", False) or "public_load_balancers" in given,
        bastion=args.get("bastion", True) or "bastion" in given,
        bastion_host=bool(args.get("bastion_host_cidrs")) or "bastion_host" in given,
        operator=args.get("operator", False) or "operator" in given,
        file_storage=args.get("file_storage", False) or "storage" in given,
        lustre=args.get("lustre", False) or "lustre" in given,
        worker_internet=args.get("worker_internet", True),
        pod_internet=args.get("pod_internet", True),
    )


def _bastion(
    subject: NetworkSubject, args: NetworkArgs, ids: Mapping[SubnetRole, pulumi.Output[str]]
) -> pulumi.Output[str] | None:
    if "bastion_id" in args:
        return pulumi.Output.from_input(args["bastion_id"])
    clients = args.get("bastion_client_cidrs", [])
    if not clients or subject.choices.public_endpoint:
        return None
    if "bastion" not in ids:
        raise KitError("A bastion needs a subnet.", "Leave out bastion_client_cidrs, or give bastion True.")
    return bastion(subject, ids["bastion"], clients)


def _existing(args: NetworkArgs, choices: NetworkChoices) -> Existing:
    given = [key for key in ("subnet_ids", "nsg_ids", "route_table_ids") if args.get(key)]
    if given and "vcn_id" not in args:
        raise KitError(f"{given[0]} is for a VCN that is there already.", "Give vcn_id beside it.")
    if "vcn_id" in args and "cidr" not in args:
        raise KitError("The range of a VCN that is there already must be known.", "Give cidr beside vcn_id.")
    unknown = [role for role in args.get("subnet_ids", {}) if role not in choices.subnet_roles]
    unknown += [role for role in args.get("nsg_ids", {}) if role not in choices.group_roles]
    if unknown:
        raise KitError(f"This network has no part {unknown[0]!r}.", f"It has: {', '.join(choices.subnet_roles)}.")
    return Existing(
        vcn_id=args.get("vcn_id"),
        subnets=args.get("subnet_ids", {}),
        groups=args.get("nsg_ids", {}),
        route_tables=args.get("route_table_ids", {}),
    )


def _created(
    network: IPv4Network, choices: NetworkChoices, existing: Existing, args: NetworkArgs
) -> dict[SubnetRole, IPv4Network]:
    pools = [PoolSize(pool["nodes"], pool["max_pods"]) for pool in args["pools"]]
    found = layout(network, choices.created(existing.subnets), pools)
    if found.too_small:
        reasons = [f"{part.role}: {part.needed} addresses of {part.room} ({part.reason})" for part in found.too_small]
        raise KitError(f"{network} has no room for all subnets. {'; '.join(reasons)}.", "Give a larger range.")
    return dict(found.subnets)


def _services(component: pulumi.Resource, args: NetworkArgs) -> Services:
    """All services of the region, as given or as OCI says. Without either nothing could be previewed offline."""
    if "services_gateway_id" in args and "services_gateway_cidr" in args:
        return Services(args["services_gateway_id"], args["services_gateway_cidr"])
    found = ask(
        "oci:Core/getServices:getServices",
        {"filters": [{"name": "name", "values": [ALL_SERVICES], "regex": True}]},
        pulumi.InvokeOutputOptions(parent=component),
    )
    return Services(
        found.apply(lambda answer: answer["services"][0]["id"]),
        found.apply(lambda answer: answer["services"][0]["cidrBlock"]),
    )
