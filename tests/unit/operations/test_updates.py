"""An update through the Pulumi CLI, which is a fake here: what it is asked, in which order."""

import json
from dataclasses import replace
from typing import Any

import pytest
from listening import Listener
from llmd_base.errors import KitError
from llmd_oke import planning
from llmd_oke.operations import updates
from llmd_oke.operations.previews import UNKNOWN
from llmd_oke.operations.pulumi_cli import CommandResult
from llmd_oke.operations.updates import is_gone_after_failure, with_refresh
from previews_for_tests import DATA, PLAN, Cli, document, replaced_pool, step, urn
from stack_files import created_pool, created_stack

POOL = replaced_pool()["urn"]
PROTECTED = document(errors=(f'unable to replace resource "{POOL}"\nas it is currently marked for protection',))
SCALED = urn("kubernetes:apps/v1:Deployment", "d")
BOUND_PREVIEW = "preview --json --show-sames --non-interactive --save-plan FILE"
BOUND_UPDATE = "up --yes --skip-preview --plan FILE"


def scaled_by_hand() -> CommandResult:
    """A Deployment that somebody scaled from 2 to 3, and a ConfigMap that is gone, as the engine's events tell it."""
    states = {"old": {"inputs": {"spec": {"replicas": 2}}}, "new": {"inputs": {"spec": {"replicas": 3}}}}
    scaled = {"op": "update", "urn": SCALED, **states, "detailedDiff": {"spec.replicas": {"diffKind": "update"}}}
    gone = {"op": "delete", "urn": urn("kubernetes:core/v1:ConfigMap", "config")}
    return CommandResult(0, "\n".join(json.dumps({"resOutputsEvent": {"metadata": item}}) for item in (scaled, gone)))


def test_an_update_reports_refreshes_and_reverts_manual_changes():
    cli = Cli(document(), seen=scaled_by_hand())
    assert cli.update() == 0
    config = urn("kubernetes:core/v1:ConfigMap", "config")
    refresh = f"refresh --yes --skip-preview --target {SCALED} --target {config}"
    assert cli.asked == [refresh, BOUND_PREVIEW, BOUND_UPDATE]
    assert [news for news in cli.progress.news if "by hand:" in news] == [
        "changed by hand: Deployment d: spec.replicas was 2 and is 3; the update makes it what the stack file says",
        "changed by hand: ConfigMap config is gone; the update makes it anew",
    ]


def test_an_update_of_the_kubernetes_version_changes_one_resource_at_a_time():
    states = {"oldState": "v1.34.2", "newState": "v1.35.2"}
    inputs = {state: {"inputs": {"kubernetesVersion": version}} for state, version in states.items()}
    cli = Cli(document(step("update", "oci:ContainerEngine/nodePool:NodePool", "system-node-pool", **inputs)))
    assert cli.update() == 0
    assert cli.asked[-1] == "up --yes --skip-preview --parallel 1 --plan FILE"
    assert cli.progress.news[-1] == "Kubernetes, one after the other: system-node-pool v1.34.2 -> v1.35.2"


def test_an_update_names_nodes_to_be_cycled_and_refuses_impossible_cycling():
    cycling = {"nodePoolCyclingDetails": {"isNodeCyclingEnabled": True, "cycleModes": ["BOOT_VOLUME_REPLACE"]}}

    def cli(**changes: Any) -> Cli:
        old: dict[str, Any] = {"nodeMetadata": {"user_data": "a"}, "nodeConfigDetails": {"size": 9}, **cycling}
        states = {"oldState": {"inputs": old}, "newState": {"inputs": {**old, **changes}}}
        return Cli(document(step("update", "oci:ContainerEngine/nodePool:NodePool", "gpu-node-pool", **states)))

    rolled = cli(nodeMetadata={"user_data": "b"})
    assert rolled.update() == 0
    words = "gpu-node-pool: each of its 9 nodes gets new boot volumes, because of nodeMetadata.user_data"
    assert any(words in news for news in rolled.progress.news)
    failing = cli(initialNodeLabels=[{"key": "a", "value": "b"}])
    with pytest.raises(KitError, match="would fail half way"):
        failing.update()
    assert not [words for words in failing.asked if words.startswith("up")]


def test_manual_changes_refreshed_by_a_cancelled_update_are_reported_by_the_next():
    owner = {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    read = {"spec": {"replicas": 3}}
    old = {"inputs": read, "outputs": {**read, "metadata": {"managedFields": [owner]}}}
    undone = {"op": "update", "urn": SCALED, "oldState": old, "newState": {"inputs": {"spec": {"replicas": 2}}}}
    cli = Cli(document({**undone, "detailedDiff": {"spec.replicas": {"kind": "update"}}}))
    assert cli.update() == 0
    words = "Deployment d: spec.replicas is 3, set by kubectl; the update makes it 2"
    assert cli.progress.news[-1] == f"changed by hand: {words}"


def test_an_update_goes_on_if_manual_changes_cannot_be_determined():
    cli = Cli(document(), seen=CommandResult(255, "", "the cluster does not answer"))
    assert cli.update() == 0
    assert "they can't be seen, and so are not taken back: the cluster does not answer" in cli.progress.news
    assert cli.asked == [BOUND_PREVIEW, BOUND_UPDATE]


def test_preview_and_update_refresh_the_state_if_others_change_resources():
    cli = Cli(document())
    cli.pulumi = replace(cli.pulumi, refresh=True)
    assert cli.update() == 0
    assert cli.asked == [
        "preview --json --show-sames --non-interactive --save-plan FILE --refresh",
        "up --yes --skip-preview --refresh",
    ]


def test_failed_resources_are_distinguished_from_those_that_were_not_started():
    pool, stash = urn(NODE_POOL, "gpu"), urn("pulumi:index:Stash", "gpu-image-v1.34.2")
    stack = "urn:pulumi:prod::llmd-oke::pulumi:pulumi:Stack::llmd-oke-prod"
    errors = {pool: "out of capacity", stash: f"expected resource operations for {stash} but none were seen"}
    errors |= {stack: "update failed"}
    events = [{"diagnosticEvent": {"severity": "error", "urn": urn, "message": text}} for urn, text in errors.items()]
    cli = Cli(document())
    cli.update_status = 255
    cli.event_log = "\n".join(map(json.dumps, events))
    assert cli.update() == 255
    (told,) = [news for news in cli.progress.news if news.startswith("what failed")]
    assert told == (
        "what failed: NodePool gpu. Not begun for it, as `expected resource operations for ...` means, and left to the"
        " next update: Stash gpu-image-v1.34.2"
    )


def unknown(op: str, name: str, protect: bool = True, **old: Any) -> dict[str, Any]:
    inputs = {"nodeMetadata": {"apiserver_host": UNKNOWN}, "size": 1}
    state = {"inputs": inputs, "protect": protect}
    return step(op, "oci:ContainerEngine/nodePool:NodePool", name, newState=state, **old)


def test_an_update_with_values_unknown_at_preview_is_not_bound_to_its_plan():
    there = unknown("update", "prod-mi300x", oldState={"inputs": {"size": 1}, "protect": True})
    cli = Cli(document(there, unknown("create", "prod-other")))
    assert cli.update() == 0
    assert cli.asked[-1] == "up --yes --skip-preview"
    reason = "the update is not bound to this preview: 2 resources have inputs that only the update will know"
    assert cli.progress.news[-2:] == [
        reason,
        "not judged: node pool prod-mi300x, whose nodeMetadata only the update will know: protected, it stays",
    ]


@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True), (False, False)])
def test_an_unprotected_pool_with_values_unknown_at_preview_is_not_updated(before: bool, after: bool):
    there = unknown("update", "prod-mi300x", protect=after, oldState={"inputs": {"size": 1}, "protect": before})
    cli = Cli(document(there))
    with pytest.raises(KitError, match="node pool prod-mi300x, whose nodeMetadata only the update will know"):
        cli.update()
    assert not [words for words in cli.asked if words.startswith("up")]
    cli = Cli(document(there))
    assert cli.update(allow_replace=True) == 0
    assert cli.progress.news[-1].endswith("it may be replaced")


def test_after_old_servers_are_deleted_the_new_preview_is_judged_again():
    cli = Cli((DATA / "preview-switch.json").read_text(), then=document(replaced_pool()))
    with pytest.raises(KitError, match="would take away"):
        cli.update()
    assert not [words for words in cli.asked if words.startswith("up")]


def test_pulumi_asks_unless_told_yes_and_an_unbound_update_follows_no_saved_plan():
    cli = Cli(document())
    progress = Listener()
    updates.update(cli.pulumi, PLAN, progress, lambda _: True, yes=True, allow_replace=False, bound=False)
    assert cli.asked == ["preview --json --show-sames --non-interactive", "up --yes --skip-preview"]
    cli = Cli(document())
    cli.update(yes=False)
    assert cli.asked[-1] == "up --plan FILE"


@pytest.mark.parametrize(
    ("preview", "allow_replace", "why"),
    [
        (document(replaced_pool()), False, "prod-mi300x"),
        (PROTECTED, False, "marked for protection"),
        (document(errors=("the bucket is gone",)), True, "the bucket is gone"),
    ],
    ids=["a loss", "a protected loss", "a failed preview"],
)
def test_an_update_whose_preview_is_refused_or_fails_changes_nothing(preview: str, allow_replace: bool, why: str):
    cli = Cli(preview, [{"urn": POOL, "protect": True}])
    with pytest.raises(KitError, match=why):
        cli.update(allow_replace=allow_replace)
    assert cli.asked == [BOUND_PREVIEW]


def test_protection_is_removed_only_from_resources_that_an_update_may_replace():
    other = step("same", "oci:ContainerEngine/cluster:Cluster", "prod")["urn"]
    state = [{"urn": POOL, "protect": True}, {"urn": other, "protect": True}]
    cli = Cli(PROTECTED, state, then=document(replaced_pool()))
    assert cli.update(allow_replace=True) == 0
    assert [words for words in cli.asked if words.startswith("state")] == [f"state unprotect {POOL} --yes"]
    assert cli.asked[-1].startswith("up")


def test_on_full_nodes_an_update_first_deletes_old_servers_unless_it_is_declined():
    cli = Cli((DATA / "preview-switch.json").read_text())
    assert cli.update() == 0
    _, early, again, last = cli.asked
    assert again.startswith("preview")
    assert early.startswith("destroy --yes --target urn:pulumi:test::llmd-oke::llmd-oke:index:AggregatedUnit$")
    assert early.endswith("::m-aggregated --target-dependents")
    assert last.startswith("up")
    cli = Cli((DATA / "preview-switch.json").read_text())
    assert cli.update(yes=False, agreed=False) == 1
    assert cli.asked == [BOUND_PREVIEW]


def test_protected_resources_are_destroyed_only_on_request():
    cli = Cli(document(), [{"urn": POOL, "protect": True}])
    with pytest.raises(KitError, match="prod-mi300x") as refused:
        updates.destroy(cli.pulumi, cli.progress, yes=True, unprotect=False)
    assert "--unprotect" in (refused.value.remedy or "")
    assert cli.asked == []
    assert updates.destroy(cli.pulumi, cli.progress, yes=True, unprotect=True) == 0
    assert cli.asked == [f"state unprotect {POOL} --yes", "destroy --yes"]


NODE_POOL = "oci:ContainerEngine/nodePool:NodePool"
ADD_ON = {"type": "oci:ContainerEngine/addon:Addon", "inputs": {"addonName": "ClusterAutoscaler"}}
OTHER = {"type": "oci:ContainerEngine/addon:Addon", "inputs": {"addonName": "NvidiaGpuPlugin"}}
SCALING = {"mode": "cluster-autoscaler", "minSize": 2, "maxSize": 9}
FIXED = planning.plan_object(created_stack(created_pool(size=2)))
AUTOSCALED = planning.plan_object(created_stack(created_pool(size=2, scaling=SCALING)))


def left(state: str, type_: str = NODE_POOL, **changes: Any) -> dict[str, Any]:
    """A resource whose work failed, with the state that OCI's plug-in saw last."""
    return {"type": type_, "inputs": {}, "outputs": {"state": state}, "initErrors": ["out of capacity"], **changes}


def reads(plan: planning.Plan, *resources: dict[str, Any]) -> bool:
    return with_refresh(Cli("", resources).pulumi, plan).refresh


@pytest.mark.parametrize(
    ("plan", "resources", "refreshes"),
    [
        (AUTOSCALED, [], True),
        (FIXED, [ADD_ON], True),
        (FIXED, [OTHER, left("CREATING")], True),
        (FIXED, [OTHER], False),
        (FIXED, [], False),
    ],
    ids=["autoscaled", "autoscaled before", "failed creation", "another add-on", "no add-on"],
)
def test_an_update_refreshes_the_state_only_if_others_may_have_changed_resources(
    plan: planning.Plan, resources: list[dict[str, Any]], refreshes: bool
):
    assert reads(plan, *resources) is refreshes


def test_an_update_of_a_stack_that_creates_no_cluster_does_not_refresh_the_state():
    cli = Cli("", [ADD_ON])
    assert not with_refresh(cli.pulumi, PLAN).refresh
    assert cli.asked == []


CLUSTER = "oci:ContainerEngine/cluster:Cluster"
STATES = {
    CLUSTER: "CREATING ACTIVE FAILED DELETING DELETED UPDATING",
    NODE_POOL: "CREATING ACTIVE UPDATING DELETING DELETED FAILED INACTIVE NEEDS_ATTENTION",
    "oci:ContainerEngine/addon:Addon": "CREATING ACTIVE DELETING DELETED UPDATING NEEDS_ATTENTION FAILED",
    "oci:Core/clusterNetwork:ClusterNetwork": (
        "PROVISIONING SCALING STARTING STOPPING TERMINATING STOPPED RUNNING TERMINATED"
    ),
    "oci:Core/instance:Instance": (
        "MOVING PROVISIONING RUNNING STARTING STOPPING STOPPED CREATING_IMAGE TERMINATING TERMINATED"
    ),
    "oci:Core/computeCluster:ComputeCluster": "ACTIVE DELETED",
}
"""All lifecycle states of what holds nodes, or is needed for them (OCI API reference, `lifecycleState`)."""

RECORDED = [(type_, {"state": state}) for type_, states in STATES.items() for state in states.split()]
RECORDED += [(type_, outputs) for type_ in STATES for outputs in ({}, None)]
FAILED = "urn:pulumi:prod::llmd-oke::x::gpu: 1 error occurred:\n\t*"
FAILED_CREATION = f"creating {FAILED} Out of host capacity"
NOTHING_THERE = f"updating {FAILED} 404-NotAuthorizedOrNotFound, no pool"
FAILED_UPDATE = f"updating {FAILED} Out of host capacity"


@pytest.mark.parametrize(("type_", "outputs"), RECORDED)
def test_a_resource_that_failed_counts_as_gone_unless_oci_reports_it_after_an_update(
    type_: str, outputs: dict[str, Any] | None
):
    created = {"ACTIVE", "CREATING_IMAGE", "INACTIVE", "MOVING", "NEEDS_ATTENTION", "RUNNING", "STOPPED", "STOPPING"}
    there = (outputs or {}).get("state") in {*created, "UPDATING"}
    for error, gone in ((FAILED_CREATION, True), (NOTHING_THERE, True), (FAILED_UPDATE, not there)):
        assert is_gone_after_failure(left("", type_, outputs=outputs, initErrors=[error])) is gone, error


def test_after_a_failed_acceptance_job_the_next_update_refreshes_the_pulumi_state():
    metadata = {"name": "acceptance-mi300x-1a2b", "namespace": "llmd-oke-acceptance"}
    job = left("", "kubernetes:batch/v1:Job", inputs={"metadata": metadata})
    assert reads(FIXED, job)
    assert not reads(FIXED, {**job, "inputs": {"metadata": {**metadata, "namespace": "llm-d"}}})
    assert not reads(FIXED, {**job, "initErrors": None})


@pytest.mark.parametrize(
    "resource",
    [left("ACTIVE"), left("CREATING", initErrors=None), left("CREATING", "kubernetes:apps/v1:Deployment")],
    ids=["failed later", "well", "of another kind"],
)
def test_resources_that_still_exist_after_a_failed_update_do_not_count_as_gone(resource: dict[str, Any]):
    assert not is_gone_after_failure(resource)
