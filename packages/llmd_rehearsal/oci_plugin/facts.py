"""Fixed data of the simulated region: resource types, shapes, images, limits and durations.

The data are those of `values/rehearsal/oci_plugin/` and of the catalogue's shapes. The list of resource types is
closed; their inputs and outputs are those of the real plug-in.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from llmd_oke import catalogue
from llmd_oke.catalogue.cluster import availability_domains
from llmd_oke.values import Entry, entry_reader, read_yaml, values_folder

from llmd_rehearsal.plugin_values import OperationRefusal

DEFAULT_REGION: Final = "us-ashburn-1"
DEFAULT_TIMEOUT_S: Final = 1200.0
"""Time limit in seconds of terraform-provider-oci's waits for most resources (`tfresource.DefaultTimeout`)."""
_FLAGS: Final = frozenset({"required", "computed", "replaces"})
_SCALARS: Final = frozenset({"string", "integer", "number", "boolean"})
_DOMAINS: Final = 3


@dataclass(frozen=True)
class Property:
    """Schema of one input or output of an OCI resource type. `kind` is `string`, `integer`, `number`, `boolean`, `map`
    (of strings), `object` or `list`.

    `item` is the schema of a list's items, `fields` are those of an object. `computed`: OCI sets a value if the program
    sets none. `replaces`: a change requires the resource's replacement. `whole`: a difference in a part is reported as
    a difference of the whole property. `default` is the value that the OCI plug-in adds to the inputs, `planned` the
    value in a preview.
    """

    kind: str
    required: bool = False
    computed: bool = False
    replaces: bool = False
    whole: bool = False
    default: Any = None
    planned: Any = None
    item: "Property | None" = None
    fields: Mapping[str, "Property"] = field(default_factory=dict[str, "Property"])

    @property
    def is_scalar(self) -> bool:
        """Tell whether the property is neither a list nor a map nor an object."""
        return self.kind in _SCALARS

    def empty(self) -> Any:
        """Return the value that OCI answers for a property of this kind that isn't set."""
        match self.kind:
            case "list":
                return []
            case "map" | "object":
                return {}
            case "boolean":
                return False
            case "integer" | "number":
                return 0
            case _:
                return ""


@dataclass(frozen=True)
class ResourceType:
    """Resource type of the OCI provider.

    `timeout_s` is the provider's time limit in seconds for operations at OCI. `replaced_through_meta` are paths whose
    change requires a replacement that the OCI plug-in reports as a change of `__meta`.
    """

    token: str
    inputs: Mapping[str, Property]
    outputs: Mapping[str, Property]
    timeout_s: float = DEFAULT_TIMEOUT_S
    replaced_through_meta: frozenset[str] = frozenset()

    @property
    def service(self) -> str:
        """OCI service that the resource type belongs to, for example `Core`."""
        return self.token.split(":")[1].partition("/")[0]

    @property
    def name(self) -> str:
        """Name of the resource type within its OCI service, for example `Vcn`."""
        return self.token.rpartition(":")[2]

    @property
    def is_autonamed(self) -> bool:
        """Tell whether the OCI plug-in generates a name for a resource of this type if the program sets none."""
        return "name" in self.inputs


def resource_of(token: str) -> ResourceType:
    """Return the resource type of a token such as `oci:Core/vcn:Vcn`.

    Raises:
        OperationRefusal: the rehearsal doesn't support the type; the message lists the supported types.
    """
    resource = resources().get(token)
    if resource is None:
        names = ", ".join(sorted(resource.name for resource in resources().values()))
        raise OperationRefusal(f"{token} is not in this rehearsal; its stand-in OCI plug-in serves {names}")
    return resource


@cache
def resources() -> Mapping[str, ResourceType]:
    """Return all resource types that the simulated region supports, by Pulumi type token."""
    folder = values_folder() / "rehearsal" / "oci_plugin"
    ways = read_yaml(folder / "ways.yaml")
    all_: dict[str, ResourceType] = {}
    for path in sorted((folder / "resources").glob("*.yaml")):
        for token, row in read_yaml(path).items():
            own = ways.get(token, {})
            all_[token] = ResourceType(
                token=token,
                inputs={name: _property(name, text, own) for name, text in row["inputs"].items()},
                outputs={name: _property(name, f"{text} computed", own) for name, text in row["outputs"].items()},
                timeout_s=row.get("timeout_s", DEFAULT_TIMEOUT_S),
                replaced_through_meta=frozenset(own.get("replaced_through_meta", ())),
            )
    return all_


def _property(path: str, row: str | dict[str, Any], ways: dict[str, Any]) -> Property:
    """Return the schema from a property's line, such as `list object required`; `ways` is the type's entry in
    `ways.yaml`.
    """
    text: str = row if isinstance(row, str) else row["is"]
    fields: dict[str, Any] = {} if isinstance(row, str) else row["fields"]
    words = text.split()
    parts = {name: _property(f"{path}.{name}", value, ways) for name, value in fields.items()}
    kind, item_kind = words[0], words[1] if len(words) > 1 and words[1] not in _FLAGS else "string"
    is_list = kind == "list"
    return Property(
        kind,
        required="required" in words,
        computed="computed" in words,
        replaces="replaces" in words,
        whole=path in ways.get("whole", ()),
        default=ways.get("defaults", {}).get(path),
        planned=ways.get("planned", {}).get(path),
        item=Property(item_kind, fields=parts) if is_list else None,
        fields={} if is_list else parts,
    )


def snake(name: str) -> str:
    """Return a property's name as terraform-provider-oci writes it (`display_name`), for the messages of the OCI
    plug-in.
    """
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


class RegionTenancy(Entry):
    """OCI tenancy that the simulated region belongs to."""

    name: str
    home_region: str
    namespace: str


class ShapeFacts(Entry):
    """OCPUs and memory in GiB of an OCI shape; for a flexible shape, the most that it can have."""

    ocpus: int
    memory_gib: int
    flexible: bool = False


class ImageFacts(Entry):
    """Platform image of OCI; `gpu` is the vendor of the GPUs whose drivers the image contains, empty without
    drivers.
    """

    name: str
    os: str
    os_version: str
    gpu: str


class Service(Entry):
    """OCI service that a VCN reaches through a service gateway; `{key}` and `{KEY}` are placeholders for the region's
    key in lower and in upper case.
    """

    label: str
    name: str


class AddOnCheck(Entry):
    """Add-ons that an OKE add-on depends on (`needs`), and the add-on's setting that skips this check
    (`skipped_by`).
    """

    needs: tuple[str, ...]
    skipped_by: str


class OciRegion(Entry):
    """Content of `values/rehearsal/oci_plugin/region.yaml`: tenancy, shapes, images, services, add-ons and limits of
    the simulated region.
    """

    tenancy: RegionTenancy
    region_keys: Mapping[str, str]
    availability_domain_prefix: str
    regions_of_three: tuple[str, ...]
    fault_domains: tuple[str, ...]
    kubernetes_versions: tuple[str, ...]
    version_skew: int
    metadata_limit_bytes: int
    nsg_rules_limit: int
    bare_metal_rdma: tuple[str, ...]
    shapes: Mapping[str, ShapeFacts]
    images: tuple[ImageFacts, ...]
    services: tuple[Service, ...]
    add_ons: tuple[str, ...]
    add_on_checks: Mapping[str, AddOnCheck]
    limits: Mapping[str, Mapping[str, int]]

    def key(self, region: str) -> str:
        """Return the short key of a region, for example `IAD`."""
        return self.region_keys.get(region, region.partition("-")[2][:3].upper())

    def domains(self, region: str) -> list[str]:
        """Return the names of a region's availability domains."""
        count, prefix = _DOMAINS if region in self.regions_of_three else 1, self.availability_domain_prefix
        return [availability_domains().name(prefix, region, number) for number in range(1, count + 1)]

    def image_name(self, ocid: str | None, region: str) -> str:
        """Return the name of the platform image with this OCID; empty for any other image."""
        key = self.key(region)
        return next((image.name for image in self.images if image_id(image.name, key) == ocid), "")

    def vendor(self, shape: str) -> str:
        """Return the vendor of a shape's GPUs; empty for a shape without GPUs."""
        record = catalogue.shape(shape)
        if record is not None:
            return record.gpu.vendor
        return "" if ".GPU" not in shape else ("AMD" if ".MI" in shape else "NVIDIA")


region_facts = entry_reader("rehearsal/oci_plugin", "region", OciRegion)
"""Return the content of `values/rehearsal/oci_plugin/region.yaml`."""


@cache
def lifecycles() -> Any:
    """Return the content of `values/rehearsal/oci_plugin/lifecycles.yaml`: durations of operations, states, and the
    types that block a deletion.
    """
    return read_yaml(values_folder() / "rehearsal" / "oci_plugin" / "lifecycles.yaml")


def image_id(name: str, key: str) -> str:
    """Return the OCID that the simulated region gives to a platform image; `key` is the region's key, for example
    `IAD`.
    """
    return f"ocid1.image.oc1.{key.lower()}.{re.sub('[^a-z0-9]', '', name.lower())}"
