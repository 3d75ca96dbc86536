"""The components as a Pulumi component package, for programs in other languages and for `pulumi package add`.

This is the only module that touches `pulumi.provider.experimental`: what Pulumi calls experimental may move.
"""

import json
import re
import sys
from importlib import metadata
from typing import Any

import pulumi
from pulumi.provider import main
from pulumi.provider.experimental.component import ComponentProvider

from llmd_oke.operators.crds import Crds
from llmd_oke.serving.aggregated import AggregatedUnit
from llmd_oke.serving.args import UnitArgs
from llmd_oke.serving.endpoint import ModelEndpoint
from llmd_oke.serving.namespace import ServingNamespace
from llmd_oke.serving.prefill_decode import PrefillDecodeUnit
from llmd_oke.serving.router import Router

NAME = "llmd-oke"

COMPONENTS: list[type[pulumi.ComponentResource]] = [
    AggregatedUnit,
    Crds,
    ModelEndpoint,
    PrefillDecodeUnit,
    Router,
    ServingNamespace,
]
"""All components, listed one by one: left to itself Pulumi would host every component class that it finds imported."""


def serve() -> None:
    """Hosts the components for the Pulumi engine until it ends the process."""
    main(provider(), sys.argv[1:])


def provider() -> ComponentProvider:
    """The package's provider, with a schema that describes inherited arguments too; Pulumi leaves those blank."""
    made = ComponentProvider(COMPONENTS, NAME, None, metadata.version(NAME))
    described = json.loads(made.schema or "{}")
    for component in described["resources"].values():
        for name, argument in component["inputProperties"].items():
            argument.setdefault("description", made.analyzer.get_docstring(UnitArgs, _snake_case(name)))
    made.schema = json.dumps(described)
    return made


def schema() -> dict[str, Any]:
    """The package's schema, as the engine gets it: what other languages see of the components."""
    return json.loads(provider().schema or "{}")


def _snake_case(name: str) -> str:
    return re.sub("[A-Z]", lambda match: f"_{match[0].lower()}", name)
