"""Facts of the simulated region, from `values/rehearsal/oci_plugin/region.yaml` and the catalogue of shapes."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from llmd_oke import catalogue
from llmd_oke.catalogue.files import Entry, read_yaml, required_entry, values_folder

DEFAULT_REGION: Final = "us-ashburn-1"
_DOMAINS: Final = 3


class Tenancy(Entry):
    """Whose region it is."""

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


class ShapeLimit(Entry):
    """How much of a service limit one node of a shape takes."""

    name: str
    units: int


class AddOnCheck(Entry):
    """Other add-ons that one needs, and its own setting that skips the look for them."""

    needs: tuple[str, ...]
    skipped_by: str


class Region(Entry):
    """Everything that is fixed."""

    tenancy: Tenancy
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
    limit_of_shape: Mapping[str, ShapeLimit]

    def key(self, region: str) -> str:
        """For example `IAD`."""
        return self.region_keys.get(region, region.partition("-")[2][:3].upper())

    def domains(self, region: str) -> list[str]:
        """The names of a region's availability domains."""
        return [f"{self.availability_domain_prefix}{name}" for name in self._domain_names(region)]

    def has_domain(self, region: str, name: str) -> bool:
        """Whether a region has that availability domain; every tenancy has a prefix of its own before the name."""
        return name.rpartition(":")[2] in self._domain_names(region)

    def _domain_names(self, region: str) -> list[str]:
        name = self.domain_names.get(region, region.upper())
        count = _DOMAINS if region in self.regions_of_three else 1
        return [f"{name}-AD-{number}" for number in range(1, count + 1)]

    def image_name(self, ocid: str | None, region: str) -> str:
        """The name of a platform image, or an empty text for any other."""
        key = self.key(region)
        return next((image.name for image in self.images if image_id(image.name, key) == ocid), "")

    def vendor(self, shape: str) -> str:
        """The vendor of a shape's GPUs, or an empty text."""
        known = catalogue.shape(shape)
        if known is not None:
            return known.gpu.vendor
        return "" if ".GPU" not in shape else ("AMD" if ".MI" in shape else "NVIDIA")


@cache
def region_facts() -> Region:
    """The facts."""
    return required_entry("rehearsal/oci_plugin", "region", Region)


@cache
def lifecycles() -> Any:
    """How long things take, and what stands in the way of deleting them."""
    return read_yaml(values_folder() / "rehearsal" / "oci_plugin" / "lifecycles.yaml")


def image_id(name: str, key: str) -> str:
    """The OCID of a platform image."""
    return f"ocid1.image.oc1.{key.lower()}.{re.sub('[^a-z0-9]', '', name.lower())}"
