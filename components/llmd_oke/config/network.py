"""The network that a cluster is created in."""

from typing import Annotated

from pydantic import Field

from llmd_oke.config.base import Items, Part
from llmd_oke.config.oci_names import Cidr, Ocid


class Subnets(Part):
    """Subnets that are there already. One that is left out is created."""

    api: Ocid | None = None
    """The API endpoint's."""

    workers: Ocid | None = None
    """The nodes'."""

    pods: Ocid | None = None
    """The pods', with a VCN-native network only."""

    load_balancers: Ocid | None = None
    """That of internal load balancers."""

    public_load_balancers: Ocid | None = None
    """That of public load balancers."""

    bastion: Ocid | None = None
    """That of the OCI Bastion service's endpoint."""

    bastion_host: Ocid | None = None
    """That of a bastion host."""

    operator: Ocid | None = None
    """That of an operator host."""

    storage: Ocid | None = None
    """That of File Storage mount targets."""

    lustre: Ocid | None = None
    """That of Lustre file systems."""


class SecurityGroups(Part):
    """Network security groups that are there already, with rules of their own. One that is left out is created."""

    api: Ocid | None = None
    """The API endpoint's."""

    workers: Ocid | None = None
    """The nodes'."""

    pods: Ocid | None = None
    """The pods', with a VCN-native network only."""

    load_balancers: Ocid | None = None
    """That of internal load balancers."""

    public_load_balancers: Ocid | None = None
    """That of public load balancers."""

    bastion_host: Ocid | None = None
    """That of a bastion host."""

    operator: Ocid | None = None
    """That of an operator host."""

    storage: Ocid | None = None
    """That of File Storage mount targets."""

    lustre: Ocid | None = None
    """That of Lustre file systems."""


class RouteTables(Part):
    """Route tables that are there already. With one of them no gateway is created for its subnets."""

    private: Ocid | None = None
    """Leads to a NAT gateway and to a service gateway."""

    public: Ocid | None = None
    """Leads to an internet gateway."""


class BastionService(Part):
    """A bastion of the OCI Bastion service, through which `llmd-oke tunnel` reaches a private API endpoint."""

    client_cidrs: Annotated[Items[Cidr], Field(max_length=20)] = ()
    """Who may open tunnels; with none no bastion is created. The service takes 20 ranges at most (OCI's Bastion API,
    CreateBastionDetails)."""

    ocid: Ocid | None = None
    """A bastion that is there already, in an existing VCN; none is created then."""

    subnet_cidr: Cidr | None = None
    """Range of `subnets.bastion`, which then alone may reach the API endpoint from there; if left out, all that is in
    the network's range may."""


class Network(Part):
    """A VCN with subnets, gateways and security groups; any of them may be there already."""

    cidr: Cidr | None = None
    """Range of the VCN, or that range of an existing VCN that the subnets are created in; 10.140.0.0/16 for a VCN that
    is created if left out."""

    vcn_id: Ocid | None = None
    """A VCN that is there already. Its default security list is left as it is."""

    compartment_id: Ocid | None = None
    """Compartment of the network; the cluster's if left out."""

    subnets: Subnets = Subnets()
    """Subnets that are there already; only in an existing VCN."""

    security_groups: SecurityGroups = SecurityGroups()
    """Network security groups that are there already; only in an existing VCN."""

    route_tables: RouteTables = RouteTables()
    """Route tables that are there already; only in an existing VCN."""

    public_load_balancers: bool = False
    """A public subnet for load balancers whose ports 80 and 443 clients may reach."""

    public_load_balancer_cidrs: Annotated[Items[Cidr], Field(min_length=1)] = ("0.0.0.0/0",)
    """Clients of public load balancers."""

    bastion: bool = True
    """A subnet from which the OCI Bastion service (`llmd-oke tunnel`) reaches the API endpoint."""

    bastion_service: BastionService = BastionService()
    """The bastion in that subnet."""

    bastion_host_cidrs: Items[Cidr] = ()
    """Who may sign in to a bastion host by SSH; with none there is no subnet for such a host."""

    operator: bool = False
    """A private subnet for a host that administrators or CI runners work from."""

    worker_internet: bool = True
    """Nodes may open connections to the internet, through a NAT gateway. Without it images come from OCI's own registry
    only."""

    pod_internet: bool = True
    """Pods may open connections to the internet, through a NAT gateway, for example to download weights."""

    protect: bool | None = None
    """Refuse to delete or replace the VCN and its subnets; as the cluster's `protect` if left out."""
