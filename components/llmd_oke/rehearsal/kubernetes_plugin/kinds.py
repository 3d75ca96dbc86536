"""The closed list of kinds, and what the plug-in must know of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from llmd_oke.catalogue.files import read_yaml, values_folder
from llmd_oke.rehearsal.plugin_protocol.errors import Refusal
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject


@dataclass(frozen=True)
class Kind:
    """A kind of object: how the API server names it and which changes replace an object of it.

    `replaced_by` are paths in dots, `[*]` for any element of a list. `plural` is empty where the API server has to be
    asked, which is so for custom resources.
    """

    api_version: str
    kind: str
    plural: str = ""
    namespaced: bool = True
    replaced_by: tuple[str, ...] = ()
    mutable: tuple[str, ...] = ()
    mutable_by: str = ""

    @property
    def id(self) -> str:
        """For example `apps/v1/Deployment`, the key of the table of waits."""
        return f"{self.api_version}/{self.kind}"

    @property
    def built_in(self) -> bool:
        """Whether the kind is one of Kubernetes itself."""
        return bool(self.plural)


def kind_of(token: str) -> Kind:
    """The kind behind a type token such as `kubernetes:apps/v1:Deployment`.

    Raises Refusal for a built-in kind that isn't on the list.
    """
    _, group_version, name = token.split(":", 2)
    api_version = group_version.removeprefix("core/")
    known, groups = _table()
    kind = known.get((api_version, name))
    if kind is not None:
        return kind
    group = api_version.rpartition("/")[0]
    if group in groups:
        raise Refusal(_unserved(token, known))
    return Kind(api_version, name)


def _unserved(token: str, known: Mapping[tuple[str, str], Kind]) -> str:
    kinds = ", ".join(sorted(name for _, name in known))
    served = f"{kinds}, Helm's Release and custom resources"
    return f"{token} is not in this rehearsal; its stand-in Kubernetes plug-in serves {served}"


def kind_of_object(obj: JsonObject) -> Kind:
    """The kind that an object says it is; not held to the closed list."""
    api_version, name = obj.get("apiVersion") or "", obj.get("kind") or ""
    return _table()[0].get((api_version, name)) or Kind(api_version, name)


@cache
def _table() -> tuple[Mapping[tuple[str, str], Kind], frozenset[str]]:
    data = read_yaml(values_folder() / "rehearsal" / "kubernetes_plugin" / "kinds.yaml")
    kinds = map(_kind, data["kinds"])
    return {(kind.api_version, kind.kind): kind for kind in kinds}, frozenset(data["builtInGroups"])


def _kind(row: dict[str, Any]) -> Kind:
    containers = [
        f"spec.{containers}[*].{field}"
        for containers in ("containers", "initContainers")
        for field in row.get("containerReplacedBy", ())
    ]
    return Kind(
        api_version=row["apiVersion"],
        kind=row["kind"],
        plural=row["plural"],
        namespaced=row.get("namespaced", True),
        replaced_by=(*row.get("replacedBy", ()), *containers),
        mutable=tuple(row.get("mutable", ())),
        mutable_by=row.get("mutableBy", ""),
    )
