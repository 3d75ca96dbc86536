"""Identities of continuous integration that only look may read all that stacks deploy."""

from typing import Any

import pytest
from created_cluster import created
from llmd_oke.catalogue.operations import pipeline_identities
from llmd_oke.testing import Rendered
from render_support import STACKS

SPELLINGS = {"NetworkPolicy": "networkpolicies", "StorageClass": "storageclasses", "PriorityClass": "priorityclasses"}


def plural(kind: str) -> str:
    """The resource that requests name for a kind."""
    return SPELLINGS.get(kind, f"{kind.lower()}s")


@pytest.mark.parametrize("identity", ["drift", "preview"])
@pytest.mark.parametrize("name", [*STACKS, "created cluster"])
def test_who_only_looks_may_read_every_kind_that_a_stack_deploys(rendered: Any, name: str, identity: str):
    stack: Rendered = rendered(created(networkPolicies={"engine": "calico"}) if name == "created cluster" else name)
    deployed = {(item["apiVersion"].rpartition("/")[0], plural(item["kind"])) for item in stack.manifests()}
    assert len(deployed) > 10
    if identity == "preview":
        deployed.discard(("", "secrets"))
    allowed = pipeline_identities()[identity].rules
    unread = [
        (group, name)
        for group, name in sorted(deployed)
        if not any(group in rule.api_groups and {"*", name} & set(rule.resources) for rule in allowed)
    ]
    assert unread == []
