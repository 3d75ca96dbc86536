"""The wait of an update until OCI acts on policies that it changed."""

from types import SimpleNamespace
from typing import Any

import pulumi
import pytest
from llmd_oke.catalogue.cluster import policies
from llmd_oke.cluster import iam
from llmd_oke.cluster.iam import wait_for_policies

POLICY, CLUSTER, VCN = "oci:Identity/policy:Policy", "oci:ContainerEngine/cluster:Cluster", "oci:Core/vcn:Vcn"
DYNAMIC_GROUPS = (
    "oci:Identity/dynamicGroup:DynamicGroup",
    "oci:Identity/domainsDynamicResourceGroup:DomainsDynamicResourceGroup",
)
NODES = (
    "oci:ContainerEngine/nodePool:NodePool",
    "oci:Core/clusterNetwork:ClusterNetwork",
    "oci:Core/instance:Instance",
)
LUSTRE = "oci:Lustre/fileStorageLustreFileSystem:FileStorageLustreFileSystem"


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The functions behind Pulumi's hooks, by name; outside of an engine, hooks can't be registered."""
    functions: dict[str, Any] = {}

    def register(name: str, function: Any) -> str:
        functions[name] = function
        return name

    monkeypatch.setattr(pulumi, "ResourceHook", register)
    return functions


def asked_of(transform: Any, type_: str) -> Any:
    """The hooks that a resource of this type gets."""
    args = pulumi.ResourceTransformationArgs(None, type_, "name", {}, pulumi.ResourceOptions())  # type: ignore[arg-type]
    changed = transform(args)
    return changed and changed.opts.hooks


def test_resources_that_need_rights_wait_and_policies_say_when_they_were_changed(hooks: dict[str, Any]) -> None:
    transform = wait_for_policies(60)
    for type_ in (POLICY, *DYNAMIC_GROUPS):
        grants = asked_of(transform, type_)
        assert (grants.after_create, grants.after_update) == (["policy-granted"], ["policy-granted"])
    for type_ in (CLUSTER, *NODES, LUSTRE):
        waits = asked_of(transform, type_)
        assert (waits.before_create, waits.before_update) == (["wait-for-policies"], ["wait-for-policies"])
    assert asked_of(transform, VCN) is None


@pytest.mark.parametrize(
    ("delay_s", "passed_s", "slept_s"),
    [(60, 20, [40]), (60, 59.5, [0.5]), (60, 60, []), (60, 70, []), (None, 20, [policies().delay_s - 20])],
)
async def test_a_resource_waits_for_the_rest_of_the_delay_after_the_last_changed_policy(
    hooks: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    delay_s: float | None,
    passed_s: float,
    slept_s: list[float],
) -> None:
    now_s, slept = [1000.0], list[float]()

    async def sleep(rest_s: float) -> None:
        slept.append(rest_s)

    monkeypatch.setattr(iam, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(iam, "asyncio", SimpleNamespace(sleep=sleep))
    wait_for_policies(delay_s)
    monkeypatch.setattr(pulumi.log, "info", lambda _: None)
    args = SimpleNamespace(name="oke")
    await hooks["wait-for-policies"](args)
    assert slept == []
    hooks["policy-granted"](args)
    now_s[0] += passed_s
    await hooks["wait-for-policies"](args)
    assert slept == slept_s
