"""Facts of the simulated region: types of resources, shapes, images, limits and durations.

They come from `values/rehearsal/oci_plugin/` and the catalogue of shapes. The list of types is closed; their inputs
and outputs are those of the real plug-in.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from llmd_oke import catalogue
from llmd_oke.values import Entry, read_yaml, required_entry, values_folder

from llmd_rehearsal.plugin_values import OperationRefusal

DEFAULT_REGION: Final = "us-ashburn-1"
DEFAULT_TIMEOUT_S: Final = 1200.0
"""Limit of terraform-provider-oci's waits for most resources (`tfresource.DefaultTimeout`)."""
_FLAGS: Final = frozenset({"required", "computed", "replaces"})
_SCALARS: Final = frozenset({"string", "integer", "number", "boolean"})
_DOMAINS: Final = 3


@dataclass(frozen=True)
class Property:
    """One input or output. `kind` is `string`, `integer`, `number`, `boolean`, `map` (of texts), `object` or `list`.

    `item` is what a list is made of, `fields` what an object is. `computed` says that OCI gives a value where the
    program gives none, `replaces` that a change makes the resource anew, `whole` that a difference inside is one of
    the whole. `default` is what the plug-in puts among the inputs, `planned` what it shows at preview.
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
        """True for a property without parts: no list, map or object."""
        return self.kind in _SCALARS

    def empty(self) -> Any:
        """Return the value with which OCI answers for a property that isn't set."""
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
    """A type of resource.

    `timeout_s` is how long the plug-in waits for OCI. `replaced_through_meta` are paths whose change replaces the
    resource, which the plug-in reports as a change of `__meta`.
    """

    token: str
    inputs: Mapping[str, Property]
    outputs: Mapping[str, Property]
    timeout_s: float = DEFAULT_TIMEOUT_S
    replaced_through_meta: frozenset[str] = frozenset()

    @property
    def service(self) -> str:
        """Service of the type, such as `Core`."""
        return self.token.split(":")[1].partition("/")[0]

    @property
    def name(self) -> str:
        """Name of the type, such as `Vcn`."""
        return self.token.rpartition(":")[2]

    @property
    def is_autonamed(self) -> bool:
        """True where the plug-in generates a name that the program doesn't give."""
        return "name" in self.inputs


def resource_of(token: str) -> ResourceType:
    """Return the type of resource with a token such as `oci:Core/vcn:Vcn`.

    Raises:
        OperationRefusal: the rehearsal doesn't have the type; the message lists those that it has.
    """
    resource = resources().get(token)
    if resource is None:
        names = ", ".join(sorted(resource.name for resource in resources().values()))
        raise OperationRefusal(f"{token} is not in this rehearsal; its stand-in OCI plug-in serves {names}")
    return resource


@cache
def resources() -> Mapping[str, ResourceType]:
    """Return all types of resources by token."""
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
    """Return a property from its line, such as `list object required`; `ways` are the type's own in `ways.yaml`."""
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
    """Return a property's name in terraform-provider-oci, which the plug-in's messages use."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


class RegionTenancy(Entry):
    """The tenancy that the region belongs to."""

    name: str
    home_region: str
    namespace: str


class ShapeFacts(Entry):
    """Size of a shape; of a flexible one, the most that can be asked for."""

    ocpus: int
    memory_gib: int
    flexible: bool = False


class ImageFacts(Entry):
    """A platform image, and the vendor of the GPUs that it has drivers for."""

    name: str
    os: str
    os_version: str
    gpu: str


class Service(Entry):
    """A service behind the service gateway; `{key}` stands for the region's key."""

    label: str
    name: str


class AddOnCheck(Entry):
    """Other add-ons that one needs, and its own setting that skips the look for them."""

    needs: tuple[str, ...]
    skipped_by: str


class OciRegion(Entry):
    """Fixed facts of the simulated region: tenancy, shapes, images, services, add-ons and limits."""

    tenancy: RegionTenancy
    region_keys: Mapping[str, str]
    availability_domain_prefix: str
    domain_names: Mapping[str, str]
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
        """Return the short key of a region, such as `IAD`."""
        return self.region_keys.get(region, region.partition("-")[2][:3].upper())

    def domains(self, region: str) -> list[str]:
        """Return the names of a region's availability domains."""
        return [f"{self.availability_domain_prefix}{name}" for name in self._domain_names(region)]

    def has_domain(self, region: str, name: str) -> bool:
        """Tell whether a region has that availability domain; every tenancy has a prefix of its own before the name."""
        return name.rpartition(":")[2] in self._domain_names(region)

    def _domain_names(self, region: str) -> list[str]:
        name = self.domain_names.get(region, region.upper())
        count = _DOMAINS if region in self.regions_of_three else 1
        return [f"{name}-AD-{number}" for number in range(1, count + 1)]

    def image_name(self, ocid: str | None, region: str) -> str:
        """Return the name of a platform image, or an empty text for any other image."""
        key = self.key(region)
        return next((image.name for image in self.images if image_id(image.name, key) == ocid), "")

    def vendor(self, shape: str) -> str:
        """Return the vendor of a shape's GPUs, or an empty text for a shape without any."""
        record = catalogue.shape(shape)
        if record is not None:
            return record.gpu.vendor
        return "" if ".GPU" not in shape else ("AMD" if ".MI" in shape else "NVIDIA")


@cache
def region_facts() -> OciRegion:
    """Return the facts of `values/rehearsal/oci_plugin/region.yaml`."""
    return required_entry("rehearsal/oci_plugin", "region", OciRegion)


@cache
def lifecycles() -> Any:
    """Return durations of operations, states, and the types that block a deletion, from `lifecycles.yaml`."""
    return read_yaml(values_folder() / "rehearsal" / "oci_plugin" / "lifecycles.yaml")


def image_id(name: str, key: str) -> str:
    """Return the OCID of a platform image."""
    return f"ocid1.image.oc1.{key.lower()}.{re.sub('[^a-z0-9]', '', name.lower())}"
