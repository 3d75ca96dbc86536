"""Nodes that are launched anew or get another number, through a Pulumi CLI and an OCI that are fakes here."""

from typing import Any

import pytest
from cluster_for_tests import ClusterForTests, node, pod
from llmd_base.errors import KitError
from llmd_oke.operations import nodes
from llmd_oke.operations.nodes import ReplaceOptions
from oci_for_tests import FakeOci
from oci_for_tests import Sequence as Answers
from previews_for_tests import PLAN, Cli, document, step, urn

NODE_POOL = "oci:ContainerEngine/nodePool:NodePool"
CLUSTER_NETWORK = "oci:Core/clusterNetwork:ClusterNetwork"
INSTANCE = "oci:Core/instance:Instance"
JOB = "kubernetes:batch/v1:Job"


def launched(index: int, *, current: bool, interrupted: bool = False) -> list[dict[str, Any]]:
    """An instance in a stack's state, and what it is launched with; `interrupted` before the instance went."""
    instance, stash = INSTANCE, "pulumi:index:Stash"
    has = {"metadata": "new" if current and not interrupted else "old"}
    kept = {"inputs": {"input": {"metadata": "new"}}, "outputs": {"output": {"metadata": "new" if current else "old"}}}
    return [
        {"type": instance, "urn": urn(instance, f"mi300x-instance-{index}"), "protect": True, "inputs": has},
        {"type": stash, "urn": urn(stash, f"mi300x-instance-{index}-launch"), **kept},
    ]


def replaced(cli: Cli, *names: str, at_once: int = 1) -> int:
    how = ReplaceOptions(at_once)
    return nodes.replace_nodes(cli.pulumi, cli.progress, lambda _: True, names, how, yes=True)


def anew(*indices: int) -> list[str]:
    """Return what the CLI is asked for nodes that are launched anew together."""
    instances = [urn(INSTANCE, f"mi300x-instance-{index}") for index in indices]
    stashes = [urn("pulumi:index:Stash", f"mi300x-instance-{index}-launch") for index in indices]
    chosen = [f"--replace {item}" for both in zip(stashes, instances, strict=True) for item in both]
    return [*(f"state unprotect {item} --yes" for item in instances), f"up --yes --skip-preview {' '.join(chosen)}"]


def test_a_self_managed_instance_is_drained_before_it_is_replaced():
    there = ClusterForTests([node("n", "ocid1.instance.0")], [pod("decode-0", "n")])
    cli = Cli(document(), launched(0, current=False))
    cli.resources[0]["id"] = "ocid1.instance.0"
    cli.on_update = lambda: there.history.append("launched anew")
    how = ReplaceOptions(1, there.drain())
    assert nodes.replace_nodes(cli.pulumi, cli.progress, lambda _: True, (), how, yes=True) == 0
    assert there.history == ["cordoned n", "evicted decode-0", "launched anew", "uncordoned n"]


def test_a_self_managed_instance_that_could_not_be_replaced_is_uncordoned():
    there = ClusterForTests([node("n", "ocid1.instance.0")])
    cli = Cli(document(), launched(0, current=False))
    cli.resources[0]["id"] = "ocid1.instance.0"
    cli.update_status = 255
    with pytest.raises(KitError, match="Not launched anew: mi300x-0"):
        nodes.replace_nodes(cli.pulumi, cli.progress, lambda _: True, (), ReplaceOptions(1, there.drain()), yes=True)
    assert there.history == ["cordoned n", "uncordoned n"]


NODES = [*launched(10, current=False), *launched(2, current=False), *launched(0, current=True)]


def changing(cli: Cli) -> list[str]:
    return [words for words in cli.asked if words.startswith(("up", "state"))]


def test_outdated_instances_are_replaced_one_by_one_or_named_ones_several_at_a_time():
    cli = Cli(document(), NODES)
    assert replaced(cli) == 0
    assert changing(cli) == [*anew(2), *anew(10)]
    cli = Cli(document(), NODES)
    assert replaced(cli, "mi300x-0", "mi300x-2", "mi300x-10", at_once=2) == 0
    assert changing(cli) == [*anew(0, 2), *anew(10)]


def test_nodes_outside_the_stack_or_of_one_with_other_changes_are_not_replaced():
    cli = Cli(document(step("update", "kubernetes:apps/v1:Deployment", "d")), NODES)
    with pytest.raises(KitError, match="not as its file says: Deployment d"):
        replaced(cli)
    assert changing(cli) == []
    with pytest.raises(KitError, match="no GPU node mi300x-7") as refused:
        replaced(Cli(document(), NODES), "mi300x-7")
    assert "mi300x-0, mi300x-2, mi300x-10" in (refused.value.remedy or "")


def test_an_interrupted_replacement_of_nodes_is_continued_by_the_next_run():
    begun = (step("replace", INSTANCE, "mi300x-instance-1"), step("replace", JOB, "mi300x-gate-job"))
    cli = Cli(document(*begun), [*launched(0, current=True), *launched(1, current=True, interrupted=True)])
    assert replaced(cli) == 0
    assert changing(cli) == anew(1)


def held(type_: str, resource: str, **inputs: Any) -> dict[str, Any]:
    return {"urn": urn(type_, resource), "type": type_, "id": f"ocid.{resource}", "inputs": inputs}


MANAGED = held(NODE_POOL, "mi300x-node-pool", name="mi300x")
SYSTEM = held(NODE_POOL, "system-node-pool", name="system")


NETWORK = held(CLUSTER_NETWORK, "mi300x-cluster-network", displayName="mi300x")
DETACH = "POST compute /instancePools/pool/actions/detachInstance"


class NetworkOfOci:
    """A cluster network of three nodes in OCI, with the cluster that they are in. What is detached goes, and another
    instance comes, is on its way for a while, and joins.
    """

    resource = NETWORK

    def __init__(self, *configurations: str) -> None:
        self.cluster = ClusterForTests([])
        self.instances: list[dict[str, Any]] = []
        self.detached: list[str] = []
        self.capacity = 99
        for configuration in configurations:
            self._launch(configuration, "Running")
        self._join()

    def get(self, service: str, path: str, **query: str) -> Any:
        match service, path, query:
            case "compute", "/clusterNetworks/ocid.mi300x-cluster-network", {}:
                return {"instancePools": [{"id": "pool"}]}
            case "compute", "/instancePools/pool", {}:
                pool = {"id": "pool", "compartmentId": "c", "instanceConfigurationId": "new"}
                return {**pool, "size": 3, "displayName": "mi300x"}
            case "compute", "/instancePools/pool/instances", {"compartmentId": "c"}:
                return [dict(item) for item in self.instances]
            case _:
                raise AssertionError((service, path, query))

    def send(self, method: str, service: str, path: str, body: Any = None) -> None:
        assert f"{method} {service} {path}" == DETACH
        assert body == {"instanceId": body["instanceId"], "isDecrementSize": False, "isAutoTerminate": True}
        self.replace_instance(body["instanceId"])

    def replace_instance(self, instance: str) -> None:
        self.detached.append(instance)
        self.cluster.history.append(f"detached {instance}")
        self.instances = [item for item in self.instances if item["id"] != instance]
        self.cluster.nodes = [item for item in self.cluster.nodes if item["spec"]["providerID"] != instance]
        if len(self.instances) < self.capacity:
            self._launch("new", "Provisioning")

    def pause(self, seconds: float) -> None:
        self.cluster.clock_s += seconds
        self._join()

    def replace(self, *names: str, at_once: int = 1, drained: bool = True) -> int:
        cli = Cli(document(), [self.resource])
        drain = self.cluster.drain() if drained else None
        how = ReplaceOptions(at_once, drain, lambda: self, self.pause, lambda: self.cluster.clock_s)
        return nodes.replace_nodes(cli.pulumi, self.cluster.progress, lambda _: True, names, how, yes=True)

    def _launch(self, configuration: str, state: str) -> None:
        number = len(self.instances) + len(self.detached)
        own = {"id": f"ocid1.instance.{number}", "displayName": f"inst-{number}-mi300x", "state": state}
        self.instances.append({**own, "instanceConfigurationId": configuration})

    def _join(self) -> None:
        there = {item["spec"]["providerID"] for item in self.cluster.nodes}
        for item in self.instances:
            item["state"] = "Running"
            if item["id"] not in there:
                self.cluster.nodes.append(node(f"node-{item['id']}", item["id"]))


def test_cluster_network_nodes_can_be_replaced_by_name_or_ocid_and_several_at_once():
    oci = NetworkOfOci("new", "new", "new")
    assert oci.replace("inst-0-mi300x", "ocid1.instance.2", at_once=2) == 0
    assert oci.detached == ["ocid1.instance.0", "ocid1.instance.2"]
    assert [news.split()[0] for news in oci.cluster.history] == ["cordoned", "cordoned", "detached", "detached"]


def test_continued_replacement_first_waits_for_the_last_detached_nodes_successor():
    oci = NetworkOfOci("old", "new")
    oci._launch("new", "Provisioning")
    assert oci.replace() == 0
    assert oci.cluster.progress.news[0] == "OCI has 2 of 3 instances of mi300x"
    assert oci.detached == ["ocid1.instance.0"]
    assert oci.cluster.clock_s >= nodes.POLL_S


def test_replacement_ends_if_oci_launches_no_successor_of_a_node():
    oci = NetworkOfOci("old", "old", "old")
    oci.capacity = 0
    with pytest.raises(KitError, match="OCI has 2 of 3 instances of mi300x after 120 minutes"):
        oci.replace()
    assert len(oci.detached) == 1


def test_without_draining_outdated_cluster_network_nodes_are_detached_too():
    oci = NetworkOfOci("old", "new", "new")
    assert oci.replace(drained=False) == 0
    assert oci.cluster.history == ["detached ocid1.instance.0"]


GPU_POOL = {**MANAGED, "urn": f"urn:pulumi:prod::llmd-oke::llmd-oke:index:GpuPool${NODE_POOL}::mi300x-node-pool"}


class PoolOfOke(NetworkOfOci):
    """A node pool of OKE in the place of a cluster network. Each node says the image that it was launched with."""

    def get(self, service: str, path: str, **query: str) -> Any:
        name = path.rpartition("/")[2]
        match service, path:
            case "containerengine", "/nodePools/ocid.mi300x-node-pool":
                nodes = [
                    {"id": item["id"], "name": item["displayName"], "kubernetesVersion": "v1.35.2"}
                    | {"lifecycleState": "ACTIVE" if item["state"] == "Running" else "CREATING"}
                    for item in self.instances
                ]
                gone = {"id": "gone", "lifecycleState": "DELETED"}
                pool = {"name": "mi300x", "kubernetesVersion": "v1.35.2", "nodeConfigDetails": {"size": 3}}
                return {**pool, "nodeSourceDetails": {"imageId": "new"}, "nodes": [*nodes, gone]}
            case "compute", _ if path.startswith("/instances/"):
                return {
                    "imageId": next(item["instanceConfigurationId"] for item in self.instances if item["id"] == name)
                }
            case _:
                raise AssertionError((service, path, query))

    def send(self, method: str, service: str, path: str, body: Any = None) -> None:
        assert (method, service, body) == ("DELETE", "containerengine", None)
        node, _, how = path.removeprefix("/nodePools/ocid.mi300x-node-pool/node/").partition("?")
        assert how == (
            "isDecrementSize=false&overrideEvictionGraceDuration=PT0M&isForceDeletionAfterOverrideGraceDuration=true"
        )
        self.replace_instance(node)

    resource = GPU_POOL


OF_OCI = pytest.mark.parametrize("of_oci", [NetworkOfOci, PoolOfOke], ids=["cluster network", "managed pool"])


@OF_OCI
def test_outdated_nodes_of_a_pool_are_drained_and_replaced_one_by_one(of_oci: type[NetworkOfOci]):
    oci = of_oci("old", "new", "old")
    assert oci.replace() == 0
    assert oci.cluster.history == [
        "cordoned node-ocid1.instance.0",
        "detached ocid1.instance.0",
        "cordoned node-ocid1.instance.2",
        "detached ocid1.instance.2",
    ]
    assert {item["instanceConfigurationId"] for item in oci.instances} == {"new"}
    assert oci.replace() == 0
    assert oci.cluster.progress.news[-1] == "all nodes were launched as the stack file says"


@OF_OCI
def test_a_pools_node_that_cannot_be_drained_is_kept(of_oci: type[NetworkOfOci]):
    oci = of_oci("old", "new", "new")
    oci.cluster.pods, oci.cluster.kept = [pod("decode-0", "node-ocid1.instance.0")], {"decode-0"}
    with pytest.raises(KitError, match="Pods of inst-0-mi300x have not ended"):
        oci.replace()
    assert (oci.detached, oci.cluster.is_cordoned("node-ocid1.instance.0")) == ([], False)


def test_a_node_of_a_managed_pool_is_replaced_if_its_name_is_given():
    oci = PoolOfOke("new", "new", "new")
    assert oci.replace("inst-1-mi300x") == 0
    assert oci.detached == ["ocid1.instance.1"]


def test_replacing_outdated_nodes_leaves_nodes_without_gpus_alone():
    assert replaced(Cli(document(), [SYSTEM])) == 0


@pytest.mark.parametrize(
    ("resources", "names"),
    [
        ([MANAGED], ["mi300x"]),
        ([MANAGED, {**held(JOB, "mi300x-gate-job"), "initErrors": ["8 of 9 nodes have joined"]}], ["mi300x"]),
        ([MANAGED, held(JOB, "mi300x-gate-job")], []),
        ([], []),
    ],
    ids=["no gate yet", "failed gate", "passed gate", "pool of others"],
)
def test_pools_whose_nodes_never_passed_the_node_gate_are_reported(resources: list[dict[str, Any]], names: list[str]):
    unready = nodes.unready_pools([SYSTEM, *resources], PLAN)
    assert [pool.name for pool in unready] == names


def scaled(resources: list[dict[str, Any]], answers: dict[str, Any], size: int = 0) -> tuple[FakeOci, list[str]]:
    cli, oci = Cli("{}", resources), FakeOci(answers)
    (pool,) = PLAN.pools
    nodes.scale_pool(cli.pulumi, cli.progress, oci, pool, size, pause=lambda _: None)
    return oci, [words for words in cli.asked if words.startswith("refresh")]


def test_a_node_pool_is_resized_in_oci_and_refreshed_in_the_state():
    nodes = [{"lifecycleState": "DELETING"}, {"lifecycleState": "DELETED"}]
    gone = [{"lifecycleState": "DELETED"}] * 2
    path = "containerengine /nodePools/ocid.mi300x-node-pool"
    oci, read = scaled([MANAGED, SYSTEM], {f"PUT {path}": None, path: Answers([{"nodes": nodes}, {"nodes": gone}])})
    assert oci.sent == [("PUT", path, {"nodeConfigDetails": {"size": 0}})]
    assert read == [f"refresh --yes --skip-preview --target {MANAGED['urn']}"]


def test_a_cluster_network_is_resized_through_its_instance_pools():
    path = "compute /clusterNetworks/ocid.mi300x-cluster-network"
    scaling = {"lifecycleState": "SCALING", "instancePools": [{"id": "p", "size": 0}]}
    answers = {f"PUT {path}": None, path: Answers([scaling, scaling, {**scaling, "lifecycleState": "RUNNING"}])}
    oci, read = scaled([NETWORK], answers)
    assert oci.sent == [("PUT", path, {"instancePools": [{"id": "p", "size": 0}]})]
    assert len(read) == 1


def test_scaling_to_zero_terminates_existing_instances_and_skips_deleted_ones():
    instances = [held(INSTANCE, f"mi300x-instance-{i}") for i in range(2)]
    first, second = (f"compute /instances/ocid.mi300x-instance-{i}" for i in range(2))
    ended = {"lifecycleState": "TERMINATED"}
    running = Answers([{"lifecycleState": "RUNNING"}, {"lifecycleState": "TERMINATING"}, ended])
    oci, read = scaled(instances, {first: running, second: ended, f"DELETE {first}": None})
    assert oci.sent == [("DELETE", first, None)]
    assert all(item["urn"] in read[0] for item in instances)


@pytest.mark.parametrize(
    ("resources", "size", "words"),
    [
        ([SYSTEM], 0, "has no nodes of mi300x"),
        ([MANAGED], 3, "can't have 3 nodes"),
        ([held(INSTANCE, "mi300x-instance-0")], 1, "instance by instance"),
    ],
)
def test_scaling_to_a_size_that_the_pool_cannot_have_is_refused(resources: list[dict[str, Any]], size: int, words: str):
    with pytest.raises(KitError, match=words):
        scaled(resources, {}, size)


def test_a_pool_that_oci_does_not_resize_in_time_is_reported():
    path = "containerengine /nodePools/ocid.mi300x-node-pool"
    with pytest.raises(KitError, match="in 45 minutes"):
        scaled([MANAGED], {f"PUT {path}": None, path: {"nodes": [{"lifecycleState": "DELETING"}]}})
