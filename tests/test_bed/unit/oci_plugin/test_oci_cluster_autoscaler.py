"""The simulated cluster autoscaler: nodes come for pods without room, in their time, and go once they are empty."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import pytest
from llmd_rehearsal.oci_plugin.cluster_autoscaler import (
    ClusterAutoscalerAddOn,
    PodRequest,
    figures,
    pods_of,
    read_settings,
    size_of,
    without_room,
)
from llmd_rehearsal.oci_plugin.nodes import Machines, machine_spec
from oci_region import Region, pool

GPU = "amd.com/gpu"
PROVISION_S = figures().provision_s
TOLERATES_ALL = [{"operator": "Exists"}]


def pod(name: str, gpus: int = 8, node: str = "", **changes: Any) -> PodRequest:
    waits = PodRequest("llm-d", name, f"uid-{name}", node, {GPU: Decimal(gpus)}, {}, TOLERATES_ALL, False, not node)
    return replace(waits, **changes)


@dataclass
class View:
    """A stand-in for the API server."""

    region: Region
    bound: list[PodRequest] = field(default_factory=list[PodRequest])
    tainted: list[str] = field(default_factory=list[str])
    messages: list[str] = field(default_factory=list[str])
    status: str = ""

    def pods(self) -> list[PodRequest]:
        return self.bound

    def nodes(self) -> set[str]:
        return set(self.region.nodes.there)

    def taint(self, node: str, *, tainted: bool) -> None:
        (self.tainted.append if tainted else self.tainted.remove)(node)

    def tell_scale_up(self, pod: PodRequest, message: str) -> None:
        self.messages.append(f"{pod.name}: {message}")

    def tell_status(self, text: str) -> None:
        self.status = text


@dataclass
class Scene:
    """A pool of one node that may have three, and an autoscaler that looks when it is told to."""

    region: Region
    pool_id: str
    view: View
    autoscaler: ClusterAutoscalerAddOn

    @property
    def size(self) -> int:
        record = self.region.records.get(self.pool_id)
        assert record is not None
        return size_of(record)

    @property
    def nodes(self) -> list[str]:
        return sorted(self.region.nodes.there)

    def look(self, *times_s: float, pods: Sequence[PodRequest] | None = None) -> None:
        """Look at these times, and from now on at these pods if there are any."""
        if pods is not None:
            self.view.bound = [*pods]
        for now_s in times_s:
            self.autoscaler.look(now_s)


@pytest.fixture
def scene(region: Region, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(ClusterAutoscalerAddOn, "_run", lambda _: None)
    vcn = region.vcn()
    subnet = region.subnet(vcn, "10.0.0.0/19")
    state = region.create("NodePool", **pool(region.cluster(vcn), subnet, 1))
    view = View(region)
    autoscaler = ClusterAutoscalerAddOn(region.records, Machines(region.records, region.nodes), view)
    autoscaler.configure({"nodes": f"1:3:{state['id']}"})
    return Scene(region, state["id"], view, autoscaler)


def test_the_autoscaler_resizes_a_pool_at_once_and_nodes_join_after_the_boot_time(scene: Scene):
    scene.look(0, pods=[pod("a", node="gpu-0"), pod("b")])
    assert (scene.size, scene.nodes) == (2, ["gpu-0"])
    scene.look(PROVISION_S - 1)
    assert scene.nodes == ["gpu-0"]
    scene.look(PROVISION_S)
    assert (scene.size, scene.nodes) == (2, ["gpu-0", "gpu-1"])
    assert scene.view.messages == [f"b: pod triggered scale-up: [{{{scene.pool_id} 1->2 (max: 3)}}]"]


def test_joining_nodes_count_as_capacity_and_no_pool_exceeds_its_maximum(scene: Scene):
    scene.look(0, 10, pods=[pod("a", node="gpu-0"), *(pod(f"b{i}") for i in range(5))])
    assert scene.size == 3


def test_pending_pods_that_fit_one_node_add_a_single_node(scene: Scene):
    scene.look(0, pods=[pod("a", node="gpu-0"), pod("b", 4), pod("c", 4)])
    assert scene.size == 2


def test_pending_pods_that_no_node_of_the_pool_could_hold_add_no_node(scene: Scene):
    elsewhere = {"selector": {"node.kubernetes.io/instance-type": "VM.Standard.E5.Flex"}}
    scene.look(0, pods=[pod("a", node="gpu-0"), pod("b", 16), pod("c", **elsewhere), pod("d", tolerations=[])])
    assert scene.size == 1


def test_an_empty_node_is_removed_after_a_delay_but_not_below_the_pools_minimum(scene: Scene):
    scene.look(0, PROVISION_S, pods=[pod("a", node="gpu-0"), pod("b")])
    scene.look(PROVISION_S + 1, pods=[pod("a", node="gpu-0"), pod("b", node="gpu-1")])
    scene.view.bound = [pod("a", node="gpu-0"), pod("agent", 0, "gpu-1", of_daemon_set=True)]
    emptied = PROVISION_S + 10
    scene.look(emptied, emptied + 599)
    assert scene.size == 2
    scene.look(emptied + 600)
    assert (scene.size, scene.nodes) == (1, ["gpu-0"])
    scene.look(emptied + 5000, emptied + 9000, pods=[])
    assert scene.size == 1


def test_a_node_that_gets_a_pod_just_before_its_removal_is_kept_and_untainted(scene: Scene):
    scene.look(0, PROVISION_S, pods=[pod("a", node="gpu-0"), pod("b")])
    scene.look(PROVISION_S + 10, pods=[pod("a", node="gpu-0")])

    def pods() -> list[PodRequest]:
        return [pod("late", node="gpu-0"), pod("later", node="gpu-1")] if scene.view.tainted else []

    scene.view.pods = pods
    scene.look(PROVISION_S + 700)
    assert (scene.nodes, scene.view.tainted) == (["gpu-0", "gpu-1"], [])


def test_no_node_is_removed_while_a_pending_pod_could_use_it(scene: Scene):
    """A node that has joined shows its GPUs later: until then its pod waits on."""
    scene.look(0, PROVISION_S, PROVISION_S + 5000, pods=[pod("a", node="gpu-0"), pod("b")])
    assert scene.nodes == ["gpu-0", "gpu-1"]


def test_without_the_autoscaler_add_on_no_pool_is_resized(scene: Scene):
    scene.view.bound = [pod("a", node="gpu-0"), pod("b")]
    scene.autoscaler.remove()
    scene.look(0)
    assert (scene.size, scene.view.status) == (1, "")


def test_the_cluster_autoscalers_status_has_limits_and_target_sizes_of_pools(scene: Scene):
    scene.look(0, pods=[pod("a", node="gpu-0"), pod("b")])
    (group,) = json.loads(scene.view.status)["nodeGroups"]
    health = group["health"]
    assert (health["cloudProviderTarget"], health["minSize"], health["maxSize"]) == (2, 1, 3)
    assert group["scaleUp"] == {"status": "InProgress"}


def test_the_simulated_autoscaler_reads_limits_and_delays_from_its_add_ons_settings():
    settings = read_settings({"nodes": "1:3:ocid1.a, 2:4:ocid1.b", "scaleDownUnneededTime": "1h30m"})
    limits = [(group.pool_id, group.least, group.most) for group in settings.groups]
    assert limits == [("ocid1.a", 1, 3), ("ocid1.b", 2, 4)]
    assert (settings.unneeded_s, settings.delay_after_add_s) == (5400, 600)


def test_a_pods_request_is_the_sum_over_its_containers():
    meta = {"namespace": "n", "name": "p", "uid": "u", "ownerReferences": [{"kind": "DaemonSet"}]}
    container = {"resources": {"limits": {GPU: "4"}, "requests": {"cpu": "500m"}}}
    conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    status = {"phase": "Pending", "conditions": conditions}
    (read,) = pods_of([{"metadata": meta, "spec": {"containers": [container, container]}, "status": status}])
    assert read.requests == {GPU: Decimal(8), "cpu": Decimal(1)}
    assert (read.unschedulable, read.of_daemon_set, read.node) == (True, True, "")


def test_free_capacity_is_used_before_a_node_is_added(scene: Scene):
    record = scene.region.records.get(scene.pool_id)
    assert record is not None
    spec = machine_spec(record, scene.region.records)
    assert spec is not None
    count, served = without_room([pod("a", 2)], spec.node("n", 0, "us-ashburn-1", "i"), [{GPU: Decimal(2)}], 3)
    assert (count, served) == (0, [])
