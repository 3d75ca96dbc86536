"""Identities of continuous integration that only look may read all that stacks deploy."""

from typing import Any

import pytest
from created_cluster import created
from llmd_oke.catalogue.operations import pipeline_identities
from llmd_oke.testing import Rendered
from render_support import STACKS
from stack_files import model, stack

SPELLINGS = {"NetworkPolicy": "networkpolicies", "StorageClass": "storageclasses", "PriorityClass": "priorityclasses"}


def plural(kind: str) -> str:
    """The resource that requests name for a kind."""
    return SPELLINGS.get(kind, f"{kind.lower()}s")


OTHERS = {
    "created cluster": created(networkPolicies={"engine": "calico"}),
    "servers over nodes": stack(model("agg-tp1dp16ep-1r")),
    "behind agentgateway": stack(
        model("2p-tp1-1d-tp1", router={"mode": "gateway", "route": {"hosts": ["gpt.example.com"]}}),
        gateway={
            "mode": "create",
            "provider": "agentgateway",
            "host": "gpt.example.com",
            "tls": "certificate",
            "uncheckedRequests": "accepted",
        },
    ),
}


@pytest.mark.parametrize("identity", ["drift", "preview"])
@pytest.mark.parametrize("name", [*STACKS, *OTHERS])
def test_the_read_only_identity_may_read_every_kind_that_a_stack_deploys(rendered: Any, name: str, identity: str):
    known: Rendered = rendered(OTHERS.get(name, name))
    deployed = {(item["apiVersion"].rpartition("/")[0], plural(item["kind"])) for item in known.manifests()}
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
