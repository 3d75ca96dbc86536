import json
from pathlib import Path
from typing import Any

import pytest
from listening import Listener
from llmd_base.errors import KitError
from llmd_oke.access.oci_client import OciError
from llmd_oke.operations import recovery
from llmd_oke.operations.pulumi_cli import CommandResult, PulumiCli
from llmd_oke.operations.recovery import NONE, Pending, kubernetes_id
from oci_for_tests import EmptyOci, FakeOci, Sequence

TAG = {"llmd-oke/stack": "llmd-oke/prod"}
POOL = {
    "urn": "urn:pulumi:prod::llmd-oke::llmd-oke:index:GpuPool$oci:ContainerEngine/nodePool:NodePool::mi300x",
    "type": "oci:ContainerEngine/nodePool:NodePool",
    "custom": True,
    "inputs": {"compartmentId": "c", "clusterId": "k", "name": "prod-mi300x", "freeformTags": TAG},
}
POOLS = "containerengine /nodePools"
JOB = {
    "urn": "urn:pulumi:prod::llmd-oke::kubernetes:batch/v1:Job::gate",
    "type": "kubernetes:batch/v1:Job",
    "inputs": {"metadata": {"name": "gate", "namespace": "kube-system"}},
}


def pool(identifier: str = "ocid1.nodepool.1", **changes: Any) -> dict[str, Any]:
    listed = {"id": identifier, "name": "prod-mi300x", "lifecycleState": "CREATING", "freeformTags": TAG}
    return {**listed, **changes}


def state(*begun: dict[str, Any], operation: str = "creating", known: tuple[dict[str, Any], ...] = ()) -> Any:
    pending = [{"resource": resource, "type": operation} for resource in begun]
    return {"manifest": {}, "resources": list(known), "pending_operations": pending}


def found(deployment: Any, *pools: dict[str, Any], choices: dict[str, str] | None = None) -> recovery.Recovery:
    return recovery.look(deployment, recovery.in_oci(lambda: FakeOci({POOLS: list(pools)})), choices)


def test_a_pool_in_creation_is_found_by_name_and_tag_and_adopted_into_the_state():
    deployment = state(POOL)
    known = found(deployment, pool(freeformTags={}), pool("ocid1.nodepool.2"), pool("x", name="other"))
    assert recovery.recovered_state(deployment, known) == {
        "manifest": {},
        "resources": [{**POOL, "id": "ocid1.nodepool.2"}],
        "pending_operations": [],
    }
    assert known.urns == [POOL["urn"]]


OLD = {**POOL, "id": "ocid1.nodepool.old", "outputs": {"size": 9}}
VCN = {"urn": "urn:pulumi:prod::llmd-oke::oci:Core/vcn:Vcn::network", "id": "ocid1.vcn.1", "type": "oci:Core/vcn:Vcn"}
USER = {"urn": JOB["urn"], "id": "a/gate", "type": JOB["type"]}


def test_the_new_pool_of_an_interrupted_replacement_is_adopted_beside_the_old_pool():
    deployment = state(POOL, known=(VCN, OLD, USER))
    known = found(deployment, pool("ocid1.nodepool.old"), pool("ocid1.nodepool.new"))
    assert [identifier for _, identifier in known.taken] == ["ocid1.nodepool.new"]
    assert known.known == ()
    assert recovery.recovered_state(deployment, known)["resources"] == [
        VCN,
        {**POOL, "id": "ocid1.nodepool.new"},
        {**OLD, "delete": True},
        USER,
    ]


def test_the_new_pool_of_an_interrupted_replacement_replaces_the_deleted_pool():
    deployment = state(POOL, known=(VCN, {**OLD, "pendingReplacement": True}, USER))
    known = found(deployment, pool("ocid1.nodepool.old", lifecycleState="DELETED"), pool("ocid1.nodepool.new"))
    resources = recovery.recovered_state(deployment, known)["resources"]
    assert resources == [VCN, {**POOL, "id": "ocid1.nodepool.new"}, USER]


@pytest.mark.parametrize("marks", [{}, {"pendingReplacement": True}])
def test_a_pool_whose_interrupted_replacement_created_none_stays_in_the_state(marks: dict[str, Any]):
    deployment = state(POOL, known=({**OLD, **marks},))
    known = found(deployment, pool("ocid1.nodepool.old"))
    assert ([item.name for item in known.absent], known.urns) == (["mi300x"], [])
    assert recovery.recovered_state(deployment, known)["resources"] == [{**OLD, **marks}]


def test_recover_never_adopts_an_older_pool_of_the_state_as_the_new_one():
    older = {**OLD, "id": "ocid1.nodepool.older", "delete": True}
    deployment = state(POOL, known=(OLD, older))
    known = found(deployment, *(pool(f"ocid1.nodepool.{item}") for item in ("old", "older", "new")))
    resources = recovery.recovered_state(deployment, known)["resources"]
    assert resources == [{**POOL, "id": "ocid1.nodepool.new"}, {**OLD, "delete": True}, older]


def test_a_pending_kubernetes_object_replaces_its_predecessor_or_is_refreshed():
    there = {**JOB, "id": "kube-system/gate"}
    deployment = state(JOB, known=({**there, "pendingReplacement": True},))
    known = recovery.look(deployment, recovery.in_oci(recovery.no_client))
    assert recovery.recovered_state(deployment, known)["resources"] == [there]
    deployment = state(JOB, known=(there,))
    known = recovery.look(deployment, recovery.in_oci(recovery.no_client))
    assert (known.taken, known.urns) == ((), [JOB["urn"]])
    assert recovery.recovered_state(deployment, known)["resources"] == [there]


@pytest.mark.parametrize("listed", [[], [pool(lifecycleState="DELETED")], [pool(freeformTags=None)]])
def test_a_pending_pool_without_a_live_pool_of_the_stack_in_oci_is_created_again(listed: list[dict[str, Any]]):
    known = found(state(POOL), *listed)
    assert [pending.name for pending in known.absent] == ["mi300x"]
    assert recovery.recovered_state(state(POOL), known)["resources"] == []


def test_a_pool_that_the_state_has_under_another_name_is_not_adopted():
    other = {"urn": "urn::other", "id": "ocid1.nodepool.1", "type": POOL["type"]}
    known = found(state(POOL, known=(other,)), pool("ocid1.nodepool.1"))
    assert (known.taken, [item.name for item in known.absent]) == ((), ["mi300x"])


def test_two_pools_of_one_name_are_refused_with_commands_to_inspect_and_choose():
    known = found(state(POOL), pool("ocid1.nodepool.1"), pool("ocid1.nodepool.2"))
    with pytest.raises(KitError) as refusal:
        recovery.refuse_unmatched(known, "prod")
    assert "OCI has 2 of that name (ocid1.nodepool.1, ocid1.nodepool.2)" in str(refusal.value)
    assert "oci ce node-pool list --all --compartment-id c" in str(refusal.value)
    assert "llmd-oke recover --stack prod --yes --take mi300x=<id or none>" in str(refusal.value.remedy)


def test_a_recover_option_chooses_which_oci_pool_a_pending_creation_made_or_none():
    pools = pool("ocid1.nodepool.1"), pool("ocid1.nodepool.2")
    chosen = found(state(POOL), *pools, choices={"mi300x": "ocid1.nodepool.2"})
    assert [identifier for _, identifier in chosen.taken] == ["ocid1.nodepool.2"]
    assert [item.name for item in found(state(POOL), *pools, choices={"mi300x": NONE}).absent] == ["mi300x"]
    with pytest.raises(KitError, match="Nothing of the name m300x is pending"):
        found(state(POOL), *pools, choices={"m300x": NONE})


def test_unknown_types_are_not_matched_and_unfinished_components_registered_again():
    alien = {**POOL, "type": "oci:Database/autonomousDatabase:AutonomousDatabase"}
    assert [item.reason for item in found(state(alien)).unmatched] == ["the kit doesn't know how OCI lists these"]
    urn = "urn:pulumi:prod::llmd-oke::llmd-oke:index:OciMonitoring::oci-monitoring"
    component = {"urn": urn, "type": "llmd-oke:index:OciMonitoring", "custom": False}
    known = recovery.look(state(component), recovery.in_oci(recovery.no_client))
    assert ([pending.name for pending in known.absent], known.unmatched) == (["oci-monitoring"], ())
    assert recovery.recovered_state(state(component), known)["resources"] == []


def test_a_pool_and_an_add_on_are_searched_in_their_cluster():
    client = FakeOci({POOLS: []})
    recovery.look(state(POOL), recovery.in_oci(lambda: client))
    assert client.asked == [(POOLS, {"compartmentId": "c", "clusterId": "k"})]
    add_on = {
        "urn": "urn:pulumi:prod::llmd-oke::oci:ContainerEngine/addon:Addon::plugin",
        "type": "oci:ContainerEngine/addon:Addon",
        "custom": True,
        "inputs": {"clusterId": "k", "addonName": "AmdGpuPlugin"},
    }
    client = FakeOci({"containerengine /clusters/k/addons": [{"name": "CoreDNS"}, {"name": "AmdGpuPlugin"}]})
    known = recovery.look(state(add_on), recovery.in_oci(lambda: client))
    assert [identifier for _, identifier in known.taken] == ["clusters/k/addons/AmdGpuPlugin"]


def test_recover_refreshes_a_resource_with_a_pending_update_or_deletion():
    stored = {**POOL, "id": "ocid1.nodepool.1"}
    for operation in ("updating", "deleting", "reading"):
        known = found(state(POOL, operation=operation, known=(stored,)))
        assert (known.urns, known.taken) == ([POOL["urn"]], ())


@pytest.mark.parametrize(
    ("inputs", "identifier"),
    [
        ({"metadata": {"name": "a", "namespace": "b"}}, "b/a"),
        ({"metadata": {"name": "a"}}, "a"),
        ({"name": "release", "namespace": "c"}, "c/release"),
        ({"metadata": {}}, None),
    ],
)
def test_the_pulumi_id_of_an_object_is_its_namespace_and_name(inputs: dict[str, Any], identifier: str | None) -> None:
    assert kubernetes_id(Pending("creating", "urn", "kubernetes:core/v1:ConfigMap", inputs)) == identifier


def orphans(
    client: EmptyOci, deployment: Any, foreseen: recovery.Recovery | None = None, progress: Listener | None = None
) -> list[recovery.Orphan]:
    known = foreseen or recovery.Recovery()
    return recovery.orphans(client, "llmd-oke/prod", ["c"], ["AD-1"], deployment, known, progress or Listener())


def test_untracked_resources_with_the_stacks_tag_are_orphans_by_descending_cost():
    answers: dict[str, Any] = {
        POOLS: [pool("ocid1.nodepool.known"), pool("ocid1.nodepool.lost", timeCreated="2026-11-22T00:00:00Z")],
        "compute /vcns": [{"id": "ocid1.vcn.lost", "displayName": "prod", "freeformTags": TAG}],
        "compute /subnets": [{"id": "ocid1.subnet.others", "displayName": "x", "freeformTags": {"a": "b"}}],
    }
    lost = orphans(EmptyOci(answers), state(known=({"urn": "u", "id": "ocid1.nodepool.known"},)))
    assert [(orphan.identifier, orphan.costs) for orphan in lost] == [
        ("ocid1.nodepool.lost", True),
        ("ocid1.vcn.lost", False),
    ]
    assert lost[0].delete == "oci ce node-pool delete --node-pool-id ocid1.nodepool.lost"


@pytest.mark.parametrize("pools", [[pool()], [pool("ocid1.nodepool.1"), pool("ocid1.nodepool.2")]])
def test_a_pool_that_a_pending_creation_may_have_made_is_no_orphan(pools: list[dict[str, Any]]):
    client = EmptyOci({POOLS: [*pools, pool("ocid1.nodepool.lost", name="prod-other")]})
    lost = orphans(client, state(POOL), recovery.look(state(POOL), recovery.in_oci(lambda: client)))
    assert [orphan.identifier for orphan in lost] == ["ocid1.nodepool.lost"]


INSTANCES, NETWORKS, CLUSTERS = "compute /instances", "compute /clusterNetworks", "containerengine /clusters"
BALANCERS = "networkloadbalancer /networkLoadBalancers"
MANAGED: Any = {"id": "ocid1.instance.managed", "metadata": {"oke-pool-id": "ocid1.nodepool.1"}}
POOLED: Any = {"id": "ocid1.instance.pooled", "freeformTags": {"oci:compute:instancepool": "ocid1.instancepool.1"}}
NETWORK = {"id": "ocid1.network.1", "freeformTags": TAG, "instancePools": [{"id": "ocid1.instancepool.1"}]}
CLUSTER = {"id": "ocid1.cluster.1", "freeformTags": TAG}
BALANCER: Any = {"id": "ocid1.nlb.1", "systemTags": {"orcl-containerengine": {"Cluster": "ocid1.cluster.1"}}}
GONE = {"lifecycleState": "DELETED"}


def lost(state_ids: tuple[str, ...] = (), **answers: Any) -> list[str]:
    keys = {"pools": POOLS, "instances": INSTANCES, "networks": NETWORKS, "clusters": CLUSTERS}
    client = EmptyOci({keys.get(name, name): items for name, items in answers.items()})
    deployment = state(known=tuple({"urn": f"u::{item}", "id": item} for item in state_ids))
    return [orphan.identifier for orphan in orphans(client, deployment)]


@pytest.mark.parametrize("tags", [{}, {"freeformTags": TAG}], ids=["without the stack's tag", "with it"])
def test_nodes_and_load_balancers_are_orphans_only_of_deleted_pools_or_clusters(tags: dict[str, Any]):
    pooled: Any = {**POOLED, "freeformTags": {**POOLED["freeformTags"], **tags.get("freeformTags", {})}}
    of_owners: Any = {"instances": [{**MANAGED, **tags}, pooled], BALANCERS: {"items": [{**BALANCER, **tags}]}}
    there: Any = {"pools": [pool()], "networks": [NETWORK], "clusters": [CLUSTER], **of_owners}
    owners = ("ocid1.nodepool.1", "ocid1.network.1", "ocid1.cluster.1")
    assert lost(owners, **there) == []
    assert lost((), **there) == ["ocid1.cluster.1", "ocid1.nodepool.1", "ocid1.network.1"]
    ended = {"pools": [pool(**GONE)], "networks": [{**NETWORK, "lifecycleState": "TERMINATED"}]}
    gone: Any = {**there, **ended, "clusters": [{**CLUSTER, **GONE}]}
    orphaned = ["ocid1.instance.managed", "ocid1.instance.pooled", "ocid1.nlb.1"]
    assert lost((), **gone) == lost(owners, **gone) == orphaned


def test_a_load_balancer_known_only_by_its_subnet_belongs_to_the_stacks_cluster():
    balancer = {"id": "ocid1.lb.1", "subnetIds": ["ocid1.subnet.1"]}
    answers: Any = {"loadbalancer /loadBalancers": [balancer], "compute /subnets": [{"id": "ocid1.subnet.1"}]}
    assert lost(("ocid1.subnet.1",), clusters=[{**CLUSTER, **GONE}], **answers) == ["ocid1.lb.1"]
    assert lost(("ocid1.subnet.1", "ocid1.cluster.1"), clusters=[CLUSTER], **answers) == []
    others: Any = {"loadbalancer /loadBalancers": [{**balancer, "subnetIds": ["ocid1.subnet.2"]}]}
    assert lost(("ocid1.subnet.1",), **others) == []


def test_the_search_for_orphans_goes_on_if_oci_refuses_to_list_a_type():
    refused = OciError(404, "NotAuthorizedOrNotFound", "no rights")
    client = EmptyOci({POOLS: [pool("ocid1.nodepool.lost")], BALANCERS: refused})
    progress = Listener()
    found_ = orphans(client, state(), progress=progress)
    assert [orphan.identifier for orphan in found_] == ["ocid1.nodepool.lost"]
    assert progress.news == ["not looked for: nlb network-load-balancers of c, which OCI doesn't list: no rights"]


class Cli:
    """A Pulumi CLI with a state that can be exported, imported and refreshed."""

    def __init__(self, deployment: Any, imported: CommandResult | None = None) -> None:
        self.asked: list[str] = []
        self.imported: Any = None
        self._exported = json.dumps({"version": 3, "deployment": deployment})
        self._import = imported or CommandResult(0)
        self.pulumi = PulumiCli(Path("/project"), "prod", "pulumi", self.run)

    def run(self, argv: Any, capture: bool) -> CommandResult:
        words = list(argv)[1:-4]
        self.asked.append(" ".join(words[:2]))
        if words[:2] == ["stack", "export"]:
            return CommandResult(0, self._exported)
        if words[:2] == ["stack", "import"]:
            self.imported = json.loads(Path(words[3]).read_text())
            return self._import
        return CommandResult(0)


class Steps:
    """A clock that moves with each pause."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def pause(self, seconds: float) -> None:
        self.now_s += seconds

    def clock(self) -> float:
        return self.now_s


@pytest.mark.parametrize("ends", ["ACTIVE", "NEEDS_ATTENTION", "FAILED", "DELETED"])
def test_recover_waits_for_an_adopted_pool_before_anything_else(ends: str):
    cli, progress, steps = Cli(state(POOL)), Listener(), Steps()
    answers = Sequence([[pool()], [pool()], [pool(lifecycleState="UPDATING")], [pool(lifecycleState=ends)]])
    client = FakeOci({POOLS: answers})
    recovery.recover(cli.pulumi, progress, lambda: client, pause=steps.pause, clock=steps.clock)
    assert (steps.now_s, cli.asked) == (2 * recovery.POLL_S, ["stack export", "stack import", "refresh --yes"])
    assert "OCI is not done with mi300x (CREATING)" in progress.news


def test_recover_waits_for_an_adopted_pool_for_at_most_two_hours():
    cli, steps = Cli(state(POOL)), Steps()
    client = FakeOci({POOLS: [pool()]})
    with pytest.raises(KitError, match=r"OCI is not done with mi300x \(CREATING\) after 120 minutes") as late:
        recovery.recover(cli.pulumi, Listener(), lambda: client, pause=steps.pause, clock=steps.clock)
    assert (late.value.remedy or "").endswith("The same command goes on from there.")
    assert cli.imported["deployment"]["resources"][0]["id"] == "ocid1.nodepool.1"


def test_recover_adopts_and_refreshes_pending_resources_and_changes_nothing_else():
    cli, progress = Cli(state(JOB)), Listener()
    recovery.recover(cli.pulumi, progress)
    assert cli.imported["deployment"]["resources"] == [{**JOB, "id": "kube-system/gate"}]
    assert cli.asked == ["stack export", "stack import", "refresh --yes"]
    assert progress.news[0] == "settling what an engine had begun and did not end"
    cli, progress = Cli(state()), Listener()
    recovery.recover(cli.pulumi, progress)
    assert (cli.asked, progress.news) == (["stack export"], [])


def test_recover_reports_a_locked_stack_with_the_command_to_unlock_it():
    cli = Cli(state(JOB), CommandResult(255, "", "error: the stack is currently locked by 1 lock(s)"))
    with pytest.raises(KitError, match="currently locked") as refusal:
        recovery.recover(cli.pulumi, Listener())
    assert refusal.value.remedy.endswith("llmd-oke recover --stack prod --yes --unlock")


LOST = 'can not create ContainerEngine NodePool: Post "https://x": net/http: request canceled (Client.Timeout exceeded)'
REFUSED = "500-InternalError, Out of host capacity."


def failed(resource: dict[str, Any], message: str) -> list[dict[str, Any]]:
    """Return what an engine says of a resource that it could not create."""
    metadata = {"op": "create", "urn": resource["urn"], "old": None, "new": resource}
    told = {"urn": resource["urn"], "message": message, "severity": "error"}
    return [{"resOpFailedEvent": {"metadata": metadata}}, {"diagnosticEvent": told}]


def test_only_failed_creations_whose_outcome_is_unknown_count_as_pending():
    begun = recovery.unanswered_creations([*failed(POOL, LOST), *failed(JOB, REFUSED), {"summaryEvent": {}}])
    assert begun == [POOL]
    known = found(recovery.with_pending({"resources": []}, begun), pool())
    assert known.taken == ((recovery.pending_operations(state(POOL))[0], "ocid1.nodepool.1"),)


def test_a_pool_whose_creation_got_no_answer_is_adopted_into_the_state(tmp_path: Path):
    cli, progress, log = Cli(state()), Listener(), tmp_path / "events.jsonl"
    client = FakeOci({POOLS: [pool(lifecycleState="ACTIVE")]})
    recovery.recover_unanswered(cli.pulumi, log, progress, lambda: client)
    assert cli.asked == []
    log.write_text("\n".join(json.dumps(event) for event in failed(POOL, LOST)))
    recovery.recover_unanswered(cli.pulumi, log, progress, lambda: client)
    assert progress.news[0] == "no answer came to the request to create mi300x: looking whether it is there"
    assert cli.imported["deployment"]["resources"] == [{**POOL, "id": "ocid1.nodepool.1"}]
