"""Pulumi component package of the kit's components, for programs in other languages and for `pulumi package add`.

This is the only module that touches `pulumi.provider.experimental`: what Pulumi calls experimental may move.
"""

import json
import re
import sys
from typing import Any, cast, is_typeddict

import pulumi
from pulumi.output import Inputs
from pulumi.provider import main
from pulumi.provider.experimental.analyzer import ComponentDefinition
from pulumi.provider.experimental.component import ComponentProvider
from pulumi.provider.experimental.util import camel_case

import llmd_oke
from llmd_oke.config.deprecated_keys import deprecated_arguments
from llmd_oke.version import __version__

NAME = "llmd-oke"


def components() -> list[type[pulumi.ComponentResource]]:
    """Return the classes of all components in the package, from the kit's public names, since Pulumi would otherwise
    host every component class that it finds imported.
    """
    public = [getattr(llmd_oke, name) for name in llmd_oke.__all__]
    return [entry for entry in public if isinstance(entry, type) and issubclass(entry, pulumi.ComponentResource)]


def serve() -> None:
    """Host the components for the Pulumi engine until it ends the process."""
    main(provider(), sys.argv[1:])


class _Provider(ComponentProvider):
    """Pulumi's provider of components, whose arguments get whole numbers as integers: all numbers arrive as floats, and
    names and command lines would have `1.0` in them.
    """

    def map_inputs(self, inputs: Inputs, component_def: ComponentDefinition) -> Inputs:
        """Return a component's arguments by their Python names."""
        return super().map_inputs(_with_integers(inputs), component_def)


def _with_integers(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case pulumi.Output():
            return cast("pulumi.Output[Any]", value).apply(_with_integers)
        case dict():
            return {key: _with_integers(item) for key, item in cast("dict[str, Any]", value).items()}
        case list():
            return [_with_integers(item) for item in cast("list[Any]", value)]
        case _:
            return value


def provider() -> ComponentProvider:
    """The package's provider, with a schema that describes inherited arguments too, which Pulumi leaves blank, and
    that names deprecated ones.
    """
    hosted = _Provider(components(), NAME, None, __version__)
    described = json.loads(hosted.schema or "{}")
    for component in components():
        bases = _inherited(component.__init__.__annotations__["args"])
        arguments = described["resources"][f"{NAME}:index:{component.__name__}"]["inputProperties"]
        for name, argument in arguments.items():
            if "description" not in argument:
                key = re.sub("[A-Z]", lambda match: f"_{match[0].lower()}", name)
                texts = (hosted.analyzer.get_docstring(base, key) for base in bases)
                argument["description"] = next(filter(None, texts), "")
    for entry in deprecated_arguments():
        message = entry.text(camel_case(entry.replacement) if entry.replacement else entry.by_hand)
        for kind in entry.types:
            of_component = described["resources"].get(f"{NAME}:index:{kind.removesuffix('Args')}")
            owner = (
                of_component["inputProperties"]
                if of_component
                else described["types"][f"{NAME}:index:{kind}"]["properties"]
            )
            owner[camel_case(entry.argument)]["deprecationMessage"] = message
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
    """Return the package's schema as the engine gets it, from which SDKs for other languages are generated."""
    return json.loads(provider().schema or "{}")
