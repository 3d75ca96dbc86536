"""`llmd-oke recover`: what it shows before it settles anything. The Pulumi CLI is a script here, OCI a table."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llmd_oke.cli import recover
from oci_for_tests import EmptyOci
from stack_files import created_pool, created_stack, write

TAG = {"llmd-oke/stack": "llmd-oke/prod"}
POOL = {
    "urn": "urn:pulumi:prod::llmd-oke::llmd-oke:index:GpuPool$oci:ContainerEngine/nodePool:NodePool::mi300x",
    "type": "oci:ContainerEngine/nodePool:NodePool",
    "custom": True,
    "inputs": {"compartmentId": "c", "clusterId": "k", "name": "prod-mi300x", "freeformTags": TAG},
}
LISTED = {"id": "ocid1.nodepool.new", "name": "prod-mi300x", "lifecycleState": "CREATING", "freeformTags": TAG}
CLI = """#!/bin/sh
case "$1 $2" in
  "stack export") cat "$(dirname "$0")/state" ;;
  *) exit 9 ;;
esac
"""


def test_a_pool_that_recover_will_adopt_is_not_listed_as_an_orphan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kit: Callable[..., Any], put_pulumi: Callable[[str], None]
):
    write(tmp_path, "prod", created_stack(created_pool(size=9)))
    put_pulumi(CLI)
    state: Any = {"resources": [], "pending_operations": [{"resource": POOL, "type": "creating"}]}
    (tmp_path / "state").write_text(json.dumps({"deployment": state}))
    client = EmptyOci({"containerengine /nodePools": [LISTED]})
    (tmp_path / "Pulumi.yaml").write_text("name: llmd-oke\nruntime: python\n")
    monkeypatch.setattr(recover, "client_for", lambda *_: lambda: client)
    code, shown, errors = kit("recover", "--stack", "prod", "--project", str(tmp_path))
    assert code == 1, errors
    assert "it is there, and is taken into the state (ocid1.nodepool.new)" in shown
    assert "orphan" not in shown
    assert "delete" not in shown
