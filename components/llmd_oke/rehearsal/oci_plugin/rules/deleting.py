"""What must be gone before a resource can be deleted."""

from collections.abc import Iterator
from typing import Any, Final

from llmd_oke.rehearsal.oci_plugin.errors import ServiceError
from llmd_oke.rehearsal.oci_plugin.records import Record, Records
from llmd_oke.rehearsal.oci_plugin.region import lifecycles

_GATEWAYS: Final = frozenset({"InternetGateway", "NatGateway", "ServiceGateway"})
_IN_SUBNETS: Final = frozenset({"Subnet"})


def need_unused(record: Record, records: Records) -> None:
    """Raises ServiceError, in the words of OCI's services, where something needs the resource still."""
    in_the_way: Any = lifecycles()["blockers"].get(record.token, ())
    for other in _users(record, records):
        if other.resource.name in in_the_way:
            raise _conflict(record, other)


def _users(record: Record, records: Records) -> Iterator[Record]:
    for other in records.naming(record.id):
        if other.state.get("state") not in {"DELETED", "TERMINATED"}:
            yield other


def _conflict(record: Record, other: Record) -> ServiceError:
    kind, user = record.resource.name, other.resource.name
    if kind == "Vcn" and user in _GATEWAYS:
        return ServiceError(409, "IncorrectState", f"{record.id} is associated with Gateway that is in use")
    if kind == "NetworkSecurityGroup":
        text = f"Network security group {record.id} cannot be deleted since it still has vnics attached to it."
        return ServiceError(409, "IncorrectState", text)
    what = "VNIC" if kind in _IN_SUBNETS else user
    text = f"The {kind} {record.id} references the {what} {_named(other, what)}."
    return ServiceError(409, "Conflict", f"{text} You must remove the reference to proceed with this operation.")


def _named(other: Record, what: str) -> str:
    """OCI names the network card; whose it is helps more."""
    return f"of {other.id}" if what == "VNIC" else other.id
