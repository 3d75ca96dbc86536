"""The freeform tags of all that the kit creates in OCI: by them it is found again."""

from collections.abc import Mapping

import pulumi

STACK_TAG = "llmd-oke/stack"
"""Freeform tag with the name of the project and of the stack, as in `llmd-oke/prod`."""


def stack_tags(further: Mapping[str, pulumi.Input[str]] | None = None) -> dict[str, pulumi.Input[str]]:
    """The stack's tag and `further` ones."""
    return {STACK_TAG: f"{pulumi.get_project()}/{pulumi.get_stack()}", **(further or {})}
