"""OCI as render tests have it: it takes every resource, answers the functions that the kit calls, and has schemas.

The schemas are those of both plug-ins that the kit is for: the installed one's classes, and 4.20's, derived from the
published plug-in, where that file is.
"""

import inspect
import json
from collections.abc import Iterable
from functools import cache
from typing import Any

import pulumi_oci
import pytest
from llmd_oke.testing import Declared, Rendered
from llmd_rehearsal.plugin_values import is_list, is_map
from pulumi.runtime import mocks
from render_support import SHARED_DATA

SCHEMA = SHARED_DATA / "oci-provider-schema.json"

ANSWERS: dict[str, dict[str, Any]] = {
    "oci:Core/getServices:getServices": {
        "services": [
            {
                "id": "ocid1.service.oc1.iad.all",
                "cidrBlock": "all-iad-services-in-oracle-services-network",
                "name": "All IAD Services In Oracle Services Network",
                "description": "all",
            }
        ]
    },
    "oci:Identity/getRegionSubscriptions:getRegionSubscriptions": {
        "regionSubscriptions": [
            {
                "isHomeRegion": name == "us-phoenix-1",
                "regionKey": name[3:6].upper(),
                "regionName": name,
                "state": "READY",
                "tenancyId": "ocid1.tenancy.oc1..t",
            }
            for name in ("us-ashburn-1", "us-phoenix-1")
        ]
    },
    "oci:Identity/getDomains:getDomains": {"domains": [{"url": "https://idcs-1.identity.oraclecloud.com:443"}]},
}


class OciMocks(mocks.Mocks):
    """A cloud that takes everything as it is; `calls` are the functions that were called, with their arguments."""

    def __init__(self) -> None:
        self.calls: dict[str, Any] = {}

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        made: dict[str, Any] = (
            {"defaultSecurityListId": f"default-list-of-{args.name}"} if args.typ == "oci:Core/vcn:Vcn" else {}
        )
        kept: dict[str, Any] = {"output": args.inputs["input"]} if args.typ == "pulumi:index:Stash" else {}
        return f"id-of-{args.name}", {**args.inputs, **made, **kept}

    def call(self, args: mocks.MockCallArgs) -> Any:
        self.calls[args.token] = args.args
        return ANSWERS[args.token]


def oci_resources(rendered: Rendered) -> list[Declared]:
    """All resources of OCI."""
    return [resource for resource in rendered.resources if resource.type.startswith("oci:")]


def need_schema() -> dict[str, Any]:
    """The schema of pulumi-oci 4.20; skips where that is not on the machine."""
    if not SCHEMA.is_file():
        pytest.skip(f"there is no {SCHEMA}")
    return _schema()


@cache
def _schema() -> dict[str, Any]:
    return json.loads(SCHEMA.read_text())


def require_known_arguments(resources: Iterable[Declared]) -> None:
    """Fail where a supported plug-in would refuse an input; skip where the schema of 4.20 is not on the machine."""
    own = list(resources)
    assert {item.name: keys for item in own if (keys := unknown_to_installed_plugin(item))} == {}
    assert {item.name: breaches for item in own if (breaches := contract_breaches(item))} == {}


def contract_breaches(resource: Declared) -> list[str]:
    """Return what the schema of 4.20 would refuse: unknown and missing inputs, values of other types, at any depth."""
    schema = need_schema()
    entry = schema["resources"][resource.type]
    required: list[str] = entry["requiredInputs"] or []
    missing = [f"{key} is missing" for key in required if key not in resource.inputs]
    return missing + [
        breach
        for key, value in resource.inputs.items()
        for breach in _breaches(key, value, entry["inputs"].get(key), schema["types"])
    ]


def _breaches(path: str, value: Any, wanted: dict[str, Any] | None, types: dict[str, Any]) -> list[str]:
    if wanted is None:
        return [f"{path} is unknown"]
    return _of_type(path, value, wanted["type"], types)


def _of_type(path: str, value: Any, kind: Any, types: dict[str, Any]) -> list[str]:
    if is_list(kind):
        if not is_list(value):
            return [f"{path} is no list"]
        return [breach for i, item in enumerate(value) for breach in _of_type(f"{path}[{i}]", item, kind[0], types)]
    if is_map(kind):
        plain = is_map(value) and all(isinstance(item, str) for item in value.values())
        return [] if plain else [f"{path} is no map of texts"]
    if kind.startswith("ref:"):
        entry = types[kind.removeprefix("ref:")]
        missing = [f"{path}.{key} is missing" for key in entry["required"] if key not in value]
        inner = (_breaches(f"{path}.{key}", part, entry["properties"].get(key), types) for key, part in value.items())
        return missing + [breach for breaches in inner for breach in breaches]
    python: dict[str, Any] = {"string": str, "boolean": bool, "integer": int, "number": (int, float)}
    return [] if isinstance(value, python[kind]) else [f"{path} is no {kind}"]


def unknown_to_installed_plugin(resource: Declared) -> list[str]:
    """Inputs that the class of the installed pulumi_oci does not have."""
    module, _, name = resource.type.removeprefix("oci:").replace("/", ":").split(":")
    made = getattr(getattr(pulumi_oci, module.lower()), name)
    known = {_camel(parameter) for parameter in inspect.signature(made._internal_init).parameters}
    return [key for key in resource.inputs if key not in known]


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in others)
