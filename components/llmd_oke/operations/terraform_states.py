"""Clusters in Terraform states: properties of a cluster created by oci-hpc-oke that a stack needs to serve on it.

oci-hpc-oke (https://github.com/oracle-quickstart/oci-hpc-oke, read at 61d210a) makes its cluster by the module
terraform-oci-oke 5.5, which it names `oke`. Only identifiers, sizes and addresses are taken from a state; nothing of it
is changed, and Terraform goes on to own all that it made.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from llmd_base.errors import KitError

from llmd_oke import catalogue

MAX_BYTES = 256 * 2**20
"""Largest size of a state that is read; that of a cluster of oci-hpc-oke has less than 1 MiB."""

FORMAT = 4
"""Version of the format of `terraform.tfstate` since Terraform 0.12."""

_MODULE = "module.oke"
_CLUSTER, _SUBNET = "oci_containerengine_cluster", "oci_core_subnet"
_NODE_POOL, _CLUSTER_NETWORK = "oci_containerengine_node_pool", "oci_core_cluster_network"
_CONFIGURATION, _ADD_ON = "oci_core_instance_configuration", "oci_containerengine_addon"
_VIRTUAL_FUNCTIONS = "NvidiaNetworkOperator"
"""Add-on by which oci-hpc-oke gives pods virtual functions (terraform/oke-addons.tf)."""

_REMEDY = "`terraform show -json > state.json` in the folder of oci-hpc-oke writes one; so does `terraform state pull`."


@dataclass(frozen=True)
class TerraformResource:
    """Managed resource of a state: the module's address, type, key in `for_each`, and attributes."""

    module: str
    type: str
    key: str
    attributes: Mapping[str, Any] = field(repr=False)

    @property
    def identifier(self) -> str:
        """OCID of the resource."""
        return str(self.attributes.get("id", ""))


@dataclass(frozen=True)
class TerraformPool:
    """Pool of GPU nodes that Terraform created."""

    name: str
    shape: str
    size: int


@dataclass(frozen=True)
class TerraformCluster:
    """Cluster that oci-hpc-oke created with Terraform.

    `control_plane_cidrs` are the addresses of its API endpoint's subnet, empty if the state doesn't have that subnet.
    `has_virtual_functions` tells whether pods get virtual functions of the RDMA network. `pools` have GPUs and a shape
    of the catalogue; `others` are the names of pools without.
    """

    identifier: str
    name: str
    kubernetes_version: str
    control_plane_cidrs: tuple[str, ...]
    has_virtual_functions: bool
    pools: tuple[TerraformPool, ...]
    others: tuple[str, ...] = ()

    def pool(self, name: str | None = None) -> TerraformPool:
        """Return the pool of this name, or, without a name, the one with the most nodes.

        Raises:
            KitError: there is no such pool.
        """
        for pool in self.pools:
            if pool.name == name:
                return pool
        if name is None and self.pools:
            return max(self.pools, key=lambda pool: pool.size)
        known = ", ".join(f"{pool.name} ({pool.size} x {pool.shape})" for pool in self.pools) or "none"
        wanted = f"no pool {name} of GPU nodes" if name else "no pool of GPU nodes whose shape the kit knows"
        raise KitError(
            f"The cluster {self.name} has {wanted}.",
            f"Pools with GPUs here: {known}. Others: {', '.join(self.others) or 'none'}.",
        )


def read_cluster(file: Path) -> TerraformCluster:
    """Return the cluster in a state of Terraform (`terraform.tfstate`, or the output of `terraform show -json`).

    Raises:
        KitError: the file is no state, or has not one cluster that oci-hpc-oke made.
    """
    resources = list(_resources(_document(file), file))
    clusters = [item for item in resources if item.type == _CLUSTER and item.identifier]
    if not clusters:
        raise KitError(f"{file} has no OKE cluster: it is the state of something else.", _REMEDY)
    own = [item for item in clusters if item.module.split("[")[0].startswith(_MODULE)]
    if len(own) != 1 or len(clusters) != 1:
        names = ", ".join(f"{item.attributes.get('name')} of {item.module or 'the root'}" for item in clusters)
        raise KitError(
            f"{file} has {names}, and not one cluster of the module `oke`, by which oci-hpc-oke makes it.",
            f"Any cluster can be served on: llmd-oke init --cluster existing --cluster-id {clusters[0].identifier}",
        )
    cluster = own[0].attributes
    subnet_id = _first(cluster.get("endpoint_config")).get("subnet_id")
    cidrs = [
        str(item.attributes["cidr_block"])
        for item in resources
        if item.type == _SUBNET and item.identifier == subnet_id and item.attributes.get("cidr_block")
    ]
    add_ons = {item.attributes.get("addon_name") for item in resources if item.type == _ADD_ON}
    found = list(_pools(resources))
    known = {name for name in catalogue.shape_names() if (shape := catalogue.shape(name)) and shape.gpus}
    return TerraformCluster(
        own[0].identifier,
        str(cluster.get("name")),
        str(cluster.get("kubernetes_version")),
        tuple(cidrs),
        _VIRTUAL_FUNCTIONS in add_ons,
        tuple(pool for pool in found if pool.shape in known and pool.size),
        tuple(
            f"{pool.name} ({pool.size} x {pool.shape})" for pool in found if pool.shape not in known or not pool.size
        ),
    )


def _document(file: Path) -> Mapping[str, Any]:
    if file.stat().st_size > MAX_BYTES:
        raise KitError(f"{file} has more than {MAX_BYTES // 2**20} MiB, which no state of Terraform has.")
    try:
        document: Any = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise KitError(f"{file} is no state of Terraform.", _REMEDY)
    return cast("Mapping[str, Any]", document)


def _resources(document: Mapping[str, Any], file: Path) -> Iterator[TerraformResource]:
    """Yield the managed resources of a state of either form.

    Raises:
        KitError: the document has neither form.
    """
    try:
        if "terraform_version" in document and isinstance(document.get("resources"), list):
            if document.get("version") != FORMAT:
                raise KitError(
                    f"{file} has version {document.get('version')} of the format; version {FORMAT} is read.",
                    "`terraform show -json` writes what every version reads.",
                )
            yield from _of_state(document["resources"])
            return
        if "format_version" in document and "values" in document:
            yield from _of_module(document["values"]["root_module"])
            return
    except (KeyError, TypeError, AttributeError) as error:
        raise KitError(f"{file} is no whole state of Terraform.", _REMEDY) from error
    raise KitError(f"{file} is no state of Terraform.", _REMEDY)


def _of_state(resources: Sequence[Mapping[str, Any]]) -> Iterator[TerraformResource]:
    for item in resources:
        if item["mode"] == "managed":
            for instance in item["instances"]:
                key = str(instance.get("index_key", ""))
                yield TerraformResource(str(item.get("module", "")), item["type"], key, instance["attributes"])


def _of_module(module: Mapping[str, Any]) -> Iterator[TerraformResource]:
    for item in module.get("resources", ()):
        if item["mode"] == "managed":
            key = str(item.get("index", ""))
            yield TerraformResource(str(module.get("address", "")), item["type"], key, item["values"])
    for child in module.get("child_modules", ()):
        yield from _of_module(child)


def _pools(resources: Iterable[TerraformResource]) -> Iterator[TerraformPool]:
    """Yield all pools: node pools of OKE, and cluster networks with the shape of their instance configuration."""
    known = list(resources)
    shapes = {
        item.identifier: str(_first(_first(item.attributes.get("instance_details")).get("launch_details")).get("shape"))
        for item in known
        if item.type == _CONFIGURATION
    }
    for item in known:
        if item.type == _NODE_POOL:
            size = _first(item.attributes.get("node_config_details")).get("size") or 0
            yield TerraformPool(_name(item, "name"), str(item.attributes.get("node_shape")), int(size))
        if item.type == _CLUSTER_NETWORK:
            pool = _first(item.attributes.get("instance_pools"))
            shape = shapes.get(str(pool.get("instance_configuration_id")), "unknown")
            yield TerraformPool(_name(item, "display_name"), shape, int(pool.get("size") or 0))


def _name(resource: TerraformResource, attribute: str) -> str:
    return str(resource.attributes.get(attribute) or resource.key)


def _first(blocks: Any) -> Mapping[str, Any]:
    """Return the first block of a nested attribute, which states have as a list; empty if it has none."""
    return cast("Mapping[str, Any]", blocks[0]) if isinstance(blocks, list) and blocks else {}
