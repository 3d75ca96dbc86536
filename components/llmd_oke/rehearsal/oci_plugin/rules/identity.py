"""Rights: statements that OCI can read, and groups whose names are theirs alone."""

import re
from collections.abc import Callable, Mapping
from typing import Final

from llmd_oke.rehearsal.oci_plugin.errors import invalid
from llmd_oke.rehearsal.oci_plugin.rules.scenes import Scene

# OCI documentation, Policy Syntax.
_STATEMENT: Final = re.compile(
    r"allow\s+(any-user|any-group|(group|dynamic-group|service)\s+.+?)\s+to\s+"
    r"((inspect|read|use|manage)\s+[a-z0-9-]+|\{\s*[A-Z0-9_]+(\s*,\s*[A-Z0-9_]+)*\s*\})\s+"
    r"in\s+(tenancy|compartment\s+(id\s+)?\S+)(\s+where\s+.+)?",
    re.IGNORECASE | re.DOTALL,
)
_OTHER: Final = re.compile(r"(define|endorse|admit|deny)\s+.+", re.IGNORECASE | re.DOTALL)
_MATCHING: Final = re.compile(r"\s*((any|all)\s*\{.+\}|[a-z.]+\s*(=|!=)\s*'.*')\s*", re.IGNORECASE | re.DOTALL)
_TENANCY: Final = "ocid1.tenancy."


def _policy(scene: Scene) -> None:
    scene.refuse_same_name("name", "PolicyAlreadyExists")
    if not scene.given["statements"]:
        raise invalid("A policy must have at least one statement")
    for statement in scene.given["statements"]:
        if not (_STATEMENT.fullmatch(statement.strip()) or _OTHER.fullmatch(statement.strip())):
            raise invalid(f"Failed to parse the policy statement: {statement}")


def _dynamic_group(scene: Scene) -> None:
    scene.refuse_same_name("name", "DynamicGroupAlreadyExists")
    if not scene.given["compartmentId"].startswith(_TENANCY):
        raise invalid("Dynamic groups must be created in the root compartment of the tenancy")
    _matching(scene)


def _matching(scene: Scene) -> None:
    rule = scene.given["matchingRule"]
    if not _MATCHING.fullmatch(rule):
        raise invalid(f"Failed to parse the matching rule: {rule}")


RULES: Final[Mapping[str, Callable[[Scene], None]]] = {
    "Policy": _policy,
    "DynamicGroup": _dynamic_group,
    "DomainsDynamicResourceGroup": _matching,
}
