"""What a rule gets to judge by."""

from dataclasses import dataclass
from typing import Any, Final

from llmd_oke.rehearsal.oci_plugin.errors import ServiceError, invalid, not_found
from llmd_oke.rehearsal.oci_plugin.records import Record, Records
from llmd_oke.rehearsal.oci_plugin.region import Region, region_facts
from llmd_oke.rehearsal.oci_plugin.schemas import Resource
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject

PREFIX: Final = "ocid1."


@dataclass(frozen=True)
class Scene:
    """A request to create (`before` is None) or to change a resource. `given` are the inputs."""

    resource: Resource
    given: JsonObject
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

    def need(self, id_: Any, *names: str) -> Record | None:
        """The record that an input names, which must be of one of the types.

        None for what was there before the rehearsal: it is taken to be right.

        Raises:
            ServiceError: it was deleted, isn't an OCID, or is something else.
        """
        if not id_:
            return None
        found = self.records.get(id_)
        if found is None:
            if self.records.is_gone(id_):
                raise not_found(id_)
            if not str(id_).startswith(PREFIX):
                raise invalid(f"Invalid ocid: {id_}")
            return None
        if names and found.resource.name not in names:
            raise not_found(id_)
        return found

    def need_domain(self, name: str | None) -> None:
        """Raises ServiceError for an availability domain that the region hasn't."""
        if name and not self.facts.has_domain(self.region, name):
            raise invalid(f"Invalid availabilityDomain {name}: {self.region} has {self.facts.domains(self.region)}")

    def need_groups(self, ids: Any, vcn_id: str | None) -> None:
        """Raises ServiceError where network security groups aren't there or are another network's."""
        for id_ in ids or ():
            group = self.need(id_, "NetworkSecurityGroup")
            if group is not None and vcn_id and group.state["vcnId"] != vcn_id:
                raise invalid(f"NetworkSecurityGroup {id_} is not in VCN {vcn_id}")

    def need_subnet(self, id_: str | None, vcn_id: str | None = None) -> Record | None:
        """The subnet, which must be in the VCN."""
        subnet = self.need(id_, "Subnet")
        if subnet is not None and vcn_id and subnet.state["vcnId"] != vcn_id:
            raise invalid(f"Subnet {id_} is not in VCN {vcn_id}")
        return subnet

    def refuse_same_name(self, key: str, code: str = "Conflict") -> None:
        """Raises ServiceError where another resource of the type and compartment has the same name."""
        name, place = self.given.get(key), self.given.get("compartmentId")
        for other in self.others():
            if name and other.state.get(key) == name and other.state.get("compartmentId") == place:
                raise ServiceError(409, code, f"{self.resource.name} {name} already exists in the compartment")
