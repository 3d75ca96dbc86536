"""The components as a Pulumi component package, for programs in other languages and for `pulumi package add`.

This is the only module that touches `pulumi.provider.experimental`: what Pulumi calls experimental may move.
"""

import json
import re
import sys
from typing import Any, is_typeddict

import pulumi
from pulumi.provider import main
from pulumi.provider.experimental.component import ComponentProvider

import llmd_oke

NAME = "llmd-oke"


def components() -> list[type[pulumi.ComponentResource]]:
    """All components, by the kit's own registry: left to itself Pulumi would host every component class that it finds
    imported.
    """
    public = [getattr(llmd_oke, name) for names in llmd_oke.REGISTRY.values() for name in names]
    return [entry for entry in public if isinstance(entry, type) and issubclass(entry, pulumi.ComponentResource)]


def serve() -> None:
    """Hosts the components for the Pulumi engine until it ends the process."""
    main(provider(), sys.argv[1:])


def provider() -> ComponentProvider:
    """The package's provider, with a schema that describes inherited arguments too; Pulumi leaves those blank."""
    hosted = ComponentProvider(components(), NAME, None, llmd_oke.__version__)
    described = json.loads(hosted.schema or "{}")
    for component in components():
        bases = _inherited(component.__init__.__annotations__["args"])
        arguments = described["resources"][f"{NAME}:index:{component.__name__}"]["inputProperties"]
        for name, argument in arguments.items():
            if "description" not in argument:
                key = re.sub("[A-Z]", lambda match: f"_{match[0].lower()}", name)
                texts = (hosted.analyzer.get_docstring(base, key) for base in bases)
                argument["description"] = next(filter(None, texts), "")
    hosted.schema = json.dumps(described)
    return hosted


def _inherited(args: type) -> list[type]:
    """The types of arguments that another one extends; before Python 3.12 it doesn't say so itself."""
    return [
        entry
        for entry in vars(sys.modules[args.__module__]).values()
        if is_typeddict(entry) and entry is not args and entry.__annotations__.keys() <= args.__annotations__.keys()
    ]


def schema() -> dict[str, Any]:
    """The package's schema, as the engine gets it: what other languages see of the components."""
    return json.loads(provider().schema or "{}")
