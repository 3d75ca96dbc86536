from typing import Any

from llmd_oke.planning import plan_object
from llmd_oke.program.acceptance import accepted_pool
from llmd_oke.serving.acceptance import AcceptedPoolArgs, job_spec, request, rights_of, shared_manifests
from stack_files import created_pool, created_stack, model

POLICIES = [manifest["spec"] for manifest in shared_manifests().values() if manifest["kind"] == "NetworkPolicy"]


def accepted(**changes: Any) -> AcceptedPoolArgs:
    """Arguments of the only pool of a created stack with these changes."""
    (planned,) = plan_object(created_stack(**changes)).acceptance
    return accepted_pool(planned, "ocid1.nodepool.oc1..pool")


def of_node() -> dict[str, str]:
    """Labels of a pod that tests a node."""
    return request(accepted(), "vllm:1")["pod"]["metadata"]["labels"]


def of_leader() -> dict[str, str]:
    """Labels of the Job's pod."""
    return job_spec("program", 60, None)["template"]["metadata"]["labels"]


def sources(labels: dict[str, str]) -> list[dict[str, Any]]:
    """Return from where pods with these labels are reached; no rule names a port."""
    rules = [
        rule
        for spec in POLICIES
        if spec["podSelector"].get("matchLabels", {}).items() <= labels.items()
        for rule in spec["ingress"]
    ]
    assert all("ports" not in rule for rule in rules)
    return [peer["podSelector"]["matchLabels"] for rule in rules for peer in rule["from"]]


def test_every_pod_of_a_node_acceptance_has_a_network_policy() -> None:
    for labels in (of_node(), of_leader()):
        selectors = [spec["podSelector"]["matchLabels"] for spec in POLICIES if spec["podSelector"]]
        assert any(selector.items() <= labels.items() for selector in selectors)
    assert all(spec["policyTypes"] == ["Ingress", "Egress"] for spec in POLICIES)


def test_acceptance_pods_on_nodes_admit_only_each_other_and_the_leading_pod_none():
    assert sources(of_node()) == [of_node()]
    assert not of_node().items() <= of_leader().items()
    assert sources(of_leader()) == []


def test_an_acceptance_job_may_change_only_its_own_cluster_role_binding() -> None:
    rights = rights_of("acceptance-mi300x-1a2b")
    (rule,) = [item for item in rights["cluster-role"]["rules"] if "clusterrolebindings" in item["resources"]]
    assert rule["resourceNames"] == [rights["cluster-role-binding"]["metadata"]["name"]]
    assert rule["verbs"] == ["patch", "delete"]


def test_objects_that_acceptance_jobs_share_include_no_cluster_wide_rights() -> None:
    assert not [key for key, item in shared_manifests().items() if item["kind"].startswith("Cluster")]


def test_pods_that_accept_nodes_without_rdma_take_gpus_only():
    alone = request(accepted(rdma="none", models=[model("agg-tp1-8r")]), "vllm:1")
    joined = request(accepted(), "vllm:1")
    assert alone["devices"] == {"amd.com/gpu": 8}
    assert alone["devices"].keys() < joined["devices"].keys()
    assert "annotations" not in alone["pod"]["metadata"]


def test_pods_that_accept_nodes_tolerate_the_taints_of_the_stack_file():
    team = {"key": "team", "value": "search", "effect": "NoSchedule"}
    pod = request(accepted(gpuPools=[created_pool(taints=[team])]), "vllm:1")["pod"]
    assert [item["key"] for item in pod["spec"]["tolerations"]] == ["amd.com/gpu", "team", "llmd-oke/acceptance"]
