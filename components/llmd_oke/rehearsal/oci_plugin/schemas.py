"""The closed list of resources: their inputs and outputs as the real plug-in has them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from llmd_oke.catalogue.files import read_yaml, values_folder
from llmd_oke.rehearsal.plugin_protocol.errors import Refusal

DEFAULT_TIMEOUT_S: Final = 1200.0
"""terraform-provider-oci waits so long for most resources (`tfresource.DefaultTimeout`)."""
_FLAGS: Final = frozenset({"required", "computed", "replaces"})
_SCALARS: Final = frozenset({"string", "integer", "number", "boolean"})


@dataclass(frozen=True)
class Property:
    """One input or output. `kind` is `string`, `integer`, `number`, `boolean`, `map` (of texts), `object` or `list`.

    `item` is what a list is made of, `fields` what an object is. `computed` says that OCI gives a value where the
    program gives none, `replaces` that a change makes the resource anew, `whole` that a difference inside is told as
    one of the whole. `default` is what the plug-in puts among the inputs, `planned` what it shows at preview.
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
    def scalar(self) -> bool:
        """Whether it has no parts."""
        return self.kind in _SCALARS

    def empty(self) -> Any:
        """What OCI answers where there is nothing to say."""
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
class Resource:
    """A type of resource.

    `replaced_through_meta` are paths whose change replaces the resource, which the plug-in tells as a change of
    `__meta`.
    """

    token: str
    inputs: Mapping[str, Property]
    outputs: Mapping[str, Property]
    timeout_s: float = DEFAULT_TIMEOUT_S
    replaced_through_meta: frozenset[str] = frozenset()

    @property
    def service(self) -> str:
        """For example `Core`."""
        return self.token.split(":")[1].partition("/")[0]

    @property
    def name(self) -> str:
        """For example `Vcn`."""
        return self.token.rpartition(":")[2]

    @property
    def named(self) -> bool:
        """Whether the plug-in makes up a name where the program gives none."""
        return "name" in self.inputs


def resource_of(token: str) -> Resource:
    """The resource behind a type token such as `oci:Core/vcn:Vcn`.

    Raises:
        Refusal: it isn't on the list, which the message gives.
    """
    found = resources().get(token)
    if found is None:
        names = ", ".join(sorted(resource.name for resource in resources().values()))
        raise Refusal(f"{token} is not in this rehearsal; its stand-in OCI plug-in serves {names}")
    return found


@cache
def resources() -> Mapping[str, Resource]:
    """All resources by token."""
    folder = values_folder() / "rehearsal" / "oci_plugin"
    ways = read_yaml(folder / "ways.yaml")
    found: dict[str, Resource] = {}
    for path in sorted((folder / "resources").glob("*.yaml")):
        for token, described in read_yaml(path).items():
            found[token] = _resource(token, described, ways.get(token, {}))
    return found


def _resource(token: str, described: dict[str, Any], ways: dict[str, Any]) -> Resource:
    return Resource(
        token=token,
        inputs={name: _property(name, text, ways) for name, text in described["inputs"].items()},
        outputs={name: _property(name, f"{text} computed", ways) for name, text in described["outputs"].items()},
        timeout_s=described.get("timeout_s", DEFAULT_TIMEOUT_S),
        replaced_through_meta=frozenset(ways.get("replaced_through_meta", ())),
    )


def _property(path: str, described: str | dict[str, Any], ways: dict[str, Any]) -> Property:
    text: str = described if isinstance(described, str) else described["is"]
    fields: dict[str, Any] = {} if isinstance(described, str) else described["fields"]
    words = text.split()
    parts = {name: _property(f"{path}.{name}", value, ways) for name, value in fields.items()}
    kind, of = words[0], words[1] if len(words) > 1 and words[1] not in _FLAGS else "string"
    listed = kind == "list"
    return Property(
        kind,
        required="required" in words,
        computed="computed" in words,
        replaces="replaces" in words,
        whole=path in ways.get("whole", ()),
        default=ways.get("defaults", {}).get(path),
        planned=ways.get("planned", {}).get(path),
        item=Property(of, fields=parts) if listed else None,
        fields={} if listed else parts,
    )


def snake(name: str) -> str:
    """The property's name in terraform-provider-oci, which the plug-in's messages use."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
