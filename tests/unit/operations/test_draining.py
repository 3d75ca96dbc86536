import pytest
from cluster_for_tests import ClusterForTests, node, pod
from llmd_base.errors import KitError
from llmd_oke.operations.draining import CORDONED, JOIN_S
from llmd_oke.serving.leader_worker_set import GROUP_LABEL

INSTANCES = {"ocid1.instance.a": "mi300x-0"}


def cluster(*pods: str, kept: set[str] | None = None) -> ClusterForTests:
    """Two nodes; the pods are on the first one, which is the instance."""
    nodes = [node("10.0.0.5", "oci://ocid1.instance.a"), node("10.0.0.6", "ocid1.instance.b")]
    return ClusterForTests(nodes, [pod(name, "10.0.0.5") for name in pods], kept or set())


def test_a_node_is_cordoned_before_its_pods_are_evicted_and_waited_for():
    there = cluster("decode-0", "prefill-0")
    with there.drain().drained(INSTANCES):
        there.history.append("ended")
        assert there.pods == []
    assert there.history == ["cordoned 10.0.0.5", "evicted decode-0", "evicted prefill-0", "ended"]


@pytest.mark.parametrize(
    "stays",
    [
        pod("agent", "10.0.0.5", owner="DaemonSet"),
        pod("proxy", "10.0.0.5", annotations={"kubernetes.io/config.mirror": "x"}),
        pod("smoke", "10.0.0.5", phase="Succeeded"),
    ],
    ids=["of a DaemonSet", "static", "ended"],
)
def test_daemonset_pods_and_ended_pods_are_not_evicted(stays: dict[str, object]):
    there = cluster("decode-0")
    there.pods.append(stays)
    with there.drain().drained(INSTANCES):
        assert there.pods == [stays]
    assert there.evicted == ["decode-0"]


def test_an_eviction_that_a_disruption_budget_refuses_is_repeated():
    there = cluster("decode-0", kept={"decode-0"})
    there.kept_until_s = 30
    with there.drain().drained(INSTANCES):
        assert there.pods == []
    words = "pods left: 1, such as llm-d/decode-0: Cannot evict pod as it would violate the pod's disruption budget."
    assert any(news.startswith(words) and "decode needs 2 healthy pods" in news for news in there.progress.news)


def test_a_node_that_is_not_drained_in_time_is_uncordoned_and_kept():
    there = cluster("decode-0", "prefill-0", kept={"decode-0"})
    words = "Pods of mi300x-0 have not ended in 1 minutes: llm-d/decode-0"
    with pytest.raises(KitError, match=words) as given_up, there.drain().drained(INSTANCES):
        there.history.append("ended")
    assert "ended" not in there.history
    assert "--force" in (given_up.value.remedy or "")
    assert not there.is_cordoned("10.0.0.5")


def test_with_force_a_node_is_terminated_though_pods_remain_on_it():
    there = cluster("decode-0", kept={"decode-0"})
    with there.drain(force=True).drained(INSTANCES):
        there.history.append("ended")
    assert there.history == ["cordoned 10.0.0.5", "ended"]


def test_a_node_whose_termination_fails_is_uncordoned_unless_others_cordoned_it():
    there = cluster()
    with pytest.raises(KeyboardInterrupt), there.drain().drained(INSTANCES):
        raise KeyboardInterrupt
    assert there.history == ["cordoned 10.0.0.5", "uncordoned 10.0.0.5"]
    there.nodes[0]["spec"]["unschedulable"] = True
    with pytest.raises(KitError), there.drain().drained(INSTANCES):
        raise KitError("OCI refuses")
    assert there.is_cordoned("10.0.0.5")


def test_a_node_that_an_earlier_killed_run_of_the_kit_cordoned_is_uncordoned():
    there = cluster()
    there.nodes[0]["spec"]["unschedulable"] = True
    there.nodes[0]["metadata"]["annotations"] = {CORDONED: "true"}
    there.drain().await_ready(INSTANCES)
    assert there.history == ["uncordoned 10.0.0.5"]


def test_a_node_that_is_not_ready_and_an_instance_that_is_no_node_are_not_drained():
    there = ClusterForTests([node("n", "ocid1.instance.a", ready=False)], [pod("decode-0", "n")])
    with there.drain().drained(INSTANCES):
        assert there.evicted == []
    assert any("mi300x-0 is not Ready" in news for news in there.progress.news)
    there = ClusterForTests([])
    with there.drain().drained(INSTANCES):
        pass
    assert there.progress.news == ["mi300x-0 is no node of the cluster: there is nothing to drain"]


def test_nodes_without_a_provider_id_are_found_by_their_instances_names():
    there = ClusterForTests([node("mi300x-0")], [pod("decode-0", "mi300x-0")])
    with there.drain().drained(INSTANCES):
        assert there.evicted == ["decode-0"]


def test_a_new_node_is_waited_for_until_ready_for_at_most_an_hour():
    there = ClusterForTests([node("n", "ocid1.instance.a", ready=False)])
    with pytest.raises(KitError, match="mi300x-0: no node is Ready after 60 minutes"):
        there.drain().await_ready(INSTANCES)
    assert there.clock_s >= JOIN_S
    there.nodes[0] = node("n", "ocid1.instance.a")
    there.drain().await_ready(INSTANCES)


def test_a_new_node_is_waited_for_until_it_has_as_many_devices_as_the_old_node():
    there = ClusterForTests([node("n", "ocid1.instance.a", devices={"amd.com/gpu": "8", "cpu": "112"})])
    with there.drain().drained(INSTANCES) as devices:
        there.nodes[0] = node("n", "ocid1.instance.a", devices={"amd.com/gpu": "7"})
    with pytest.raises(KitError, match=r"mi300x-0: no node is Ready with 8 amd\.com/gpu after 60 minutes"):
        there.drain().await_ready(INSTANCES, devices)
    there.nodes[0] = node("n", "ocid1.instance.a", devices={"amd.com/gpu": "8"})
    there.drain().await_ready(INSTANCES, devices)
    shared = "rdma/shared"
    there = ClusterForTests([node("n", "ocid1.instance.a", devices={shared: "1k", "amd.com/gpu": "0"})])
    with there.drain().drained(INSTANCES) as devices:
        assert devices == {shared: 1000}
    there.drain().await_ready(INSTANCES, devices)


def test_draining_reports_an_unreachable_api_server():
    there = cluster()
    there.drain().require_cluster()
    there.broken = True
    with pytest.raises(KitError, match="can't be reached: connection refused"):
        there.drain().require_cluster()


def test_draining_names_the_other_pods_of_a_server_that_spans_nodes():
    there = cluster()
    labels = {GROUP_LABEL: "1f"}
    there.pods += [pod(f"decode-0{rest}", on, labels=labels) for rest, on in (("", "10.0.0.5"), ("-1", "10.0.0.6"))]
    there.pods += [pod("decode-1", "10.0.0.7", labels={GROUP_LABEL: "2e"})]
    with there.drain().drained(INSTANCES):
        pass
    (told,) = [step for step in there.progress.steps if "spans nodes" in step]
    assert "ends as a whole and comes back as one (llm-d/decode-0, llm-d/decode-0-1)" in told
    assert "it has pods on 10.0.0.6 too" in told
    assert there.evicted == ["decode-0"]
