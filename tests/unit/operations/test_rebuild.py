import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from listening import Listener
from llmd_base.errors import KitError
from llmd_oke.operations.pulumi_cli import CommandResult, PulumiCli
from llmd_oke.operations.rebuild import Losses, find_losses, find_lost_objects, forget_losses, without
from oci_for_tests import FakeOci

CLUSTERS = "containerengine /clusters"
PROVIDER = "urn:pulumi:prod::llmd-oke::pulumi:providers:kubernetes::cluster"


def resource(type_: str, name: str, **more: Any) -> dict[str, Any]:
    urn = f"urn:pulumi:prod::llmd-oke::{type_}::{name}"
    return {"urn": urn, "type": type_, "id": f"id-{name}", "custom": True, **more}


VCN = resource("oci:Core/vcn:Vcn", "network")
CLUSTER = resource("oci:ContainerEngine/cluster:Cluster", "oke", dependencies=[VCN["urn"]])
POOL = resource("oci:ContainerEngine/nodePool:NodePool", "mi300x", dependencies=[CLUSTER["urn"]])
KUBERNETES = resource("pulumi:providers:kubernetes", "cluster", dependencies=[CLUSTER["urn"]])
OBJECT = resource("kubernetes:core/v1:Namespace", "llm-d", provider=f"{PROVIDER}::id-cluster")
INSTANCE = resource("oci:Core/instance:Instance", "mi300x-instance-0", protect=True, dependencies=[CLUSTER["urn"]])
LAUNCH = resource("pulumi:index:Stash", "mi300x-instance-0-launch")
POLICY = resource(
    "oci:Identity/policy:Policy",
    "policy",
    dependencies=[CLUSTER["urn"], VCN["urn"]],
    propertyDependencies={"statements": [CLUSTER["urn"]]},
    deletedWith=CLUSTER["urn"],
)
ALL = (VCN, CLUSTER, KUBERNETES, OBJECT, LAUNCH, INSTANCE, POOL, POLICY)


class Backend:
    """A stack's state behind the CLI, and what OCI's plug-in no longer finds of it."""

    def __init__(self, *resources: dict[str, Any], gone: Sequence[dict[str, Any]] = ()) -> None:
        self.resources, self.gone = list(resources), gone
        self.done: list[str] = []
        self.cli = PulumiCli(Path(), "prod", "pulumi", self._run)

    def _run(self, argv: Sequence[str], capture: bool) -> CommandResult:
        words = list(argv[argv.index("pulumi") + 1 :])
        if words[:2] == ["stack", "export"]:
            return CommandResult(0, json.dumps({"version": 3, "deployment": {"resources": self.resources}}))
        if words[0] == "refresh":
            events = [{"resOutputsEvent": {"metadata": {"op": "delete", "urn": item["urn"]}}} for item in self.gone]
            return CommandResult(0, "\n".join(map(json.dumps, events)))
        if words[:2] == ["stack", "import"]:
            state = json.loads(Path(words[words.index("--file") + 1]).read_text())
            self.resources = state["deployment"]["resources"]
        self.done.append(" ".join(words[:2] if words[0] != "destroy" else words[:1]))
        return CommandResult(0)

    def losses(self, client: Any = None) -> Losses:
        return find_losses(self.cli, lambda: client or FakeOci({CLUSTERS: []}), "compartment", Listener())

    def names(self) -> list[str]:
        return [str(item["urn"]).rpartition("::")[2] for item in self.resources]


def test_objects_and_self_managed_nodes_of_a_lost_cluster_count_as_lost():
    losses = Backend(*ALL, gone=[CLUSTER, POOL]).losses()
    assert CLUSTER in losses.gone
    assert losses.objects == (KUBERNETES, OBJECT, LAUNCH)
    assert losses.nodes == (INSTANCE,)
    assert losses.kept == (VCN, POLICY)
    assert list(losses.lines()) == [
        "gone, made anew: Cluster oke, NodePool mi300x",
        "gone with the cluster, made anew: 1 object",
        "deleted and made anew, as they can't join another cluster: Instance mi300x-instance-0",
        "stays: Policy policy, Vcn network",
    ]


def test_rebuild_keeps_the_cluster_and_its_objects_if_only_a_pool_or_nothing_is_lost():
    losses = Backend(*ALL, gone=[POOL]).losses()
    assert (losses.gone, losses.objects, losses.nodes) == ((POOL,), (), ())
    assert CLUSTER in losses.kept
    assert not Backend(*ALL).losses()


def test_rebuild_removes_lost_resources_and_dependencies_on_them_from_the_state():
    backend = Backend(*ALL, gone=[CLUSTER, POOL])
    forget_losses(backend.cli, backend.losses(), Listener())
    assert backend.done == ["stack import", "state unprotect", "destroy", "stack import"]
    assert backend.names() == ["network", "mi300x-instance-0", "policy"]
    (network, policy) = without({"resources": [VCN, CLUSTER, POLICY]}, {CLUSTER["urn"]})["resources"]
    assert network == VCN
    assert policy["dependencies"] == [VCN["urn"]]
    assert policy["propertyDependencies"] == {"statements": []}
    assert "deletedWith" not in policy


def test_rebuild_takes_a_cluster_for_lost_only_if_oci_lists_others_and_not_it():
    backend = Backend(*ALL, gone=[CLUSTER])
    with pytest.raises(KitError, match="doesn't show the clusters of compartment to this identity"):
        backend.losses(FakeOci({}))
    with pytest.raises(KitError, match="OCI lists the cluster id-oke, and its plug-in doesn't find it"):
        backend.losses(FakeOci({CLUSTERS: [{"id": "id-oke", "lifecycleState": "ACTIVE"}]}))
    deleted = FakeOci({CLUSTERS: [{"id": "id-oke", "lifecycleState": "DELETED"}]})
    assert CLUSTER in backend.losses(deleted).gone


SERVING = (resource("pulumi:providers:kubernetes", "cluster", inputs={"clusterIdentifier": "old"}), OBJECT)


def serving(**clusters: str) -> FakeOci:
    """OCI with clusters in these lifecycle states."""
    return FakeOci({f"{CLUSTERS}/{name}": {"id": name, "lifecycleState": state} for name, state in clusters.items()})


@pytest.mark.parametrize("clusters", [{"new": "ACTIVE"}, {"new": "ACTIVE", "old": "DELETED"}])
def test_objects_of_a_serving_stack_are_lost_if_it_has_another_cluster_now(clusters: dict[str, str]):
    backend = Backend(*SERVING)
    losses = find_lost_objects(backend.cli, lambda: serving(**clusters), "new", Listener())
    assert losses.objects == SERVING
    assert list(losses.lines()) == ["gone with the cluster, made anew: 1 object"]
    forget_losses(backend.cli, losses, Listener())
    assert backend.names() == []


@pytest.mark.parametrize(
    ("clusters", "cause"),
    [({}, "doesn't show new to this identity"), ({"new": "ACTIVE", "old": "ACTIVE"}, "The cluster old is there")],
)
def test_objects_are_not_lost_while_their_cluster_exists_is_unknown_or_unchanged(clusters: dict[str, str], cause: str):
    with pytest.raises(KitError, match=cause):
        find_lost_objects(Backend(*SERVING).cli, lambda: serving(**clusters), "new", Listener())
    assert not find_lost_objects(Backend(*SERVING).cli, serving, "old", Listener())
