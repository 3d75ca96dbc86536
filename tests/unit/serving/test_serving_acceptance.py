from typing import Any

from llmd_oke.planning import plan_object
from llmd_oke.program.acceptance import accepted_pool
from llmd_oke.serving.acceptance import job_spec, node_pod, rights_of, shared_manifests
from stack_files import created_stack

POLICIES = [manifest["spec"] for manifest in shared_manifests().values() if manifest["kind"] == "NetworkPolicy"]


def of_node() -> dict[str, str]:
    """Labels of a pod that tests a node."""
    (accepted,) = plan_object(created_stack()).acceptance
    pool = accepted_pool(accepted, "ocid1.nodepool.oc1..pool")
    return node_pod(pool, accepted.pool.shape, "vllm:1", rdma=True)["metadata"]["labels"]


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


def test_acceptance_pods_on_nodes_admit_only_each_other() -> None:
    assert sources(of_node()) == [of_node()]
    assert not of_node().items() <= of_leader().items()


def test_the_network_policy_of_the_leading_acceptance_pod_admits_no_pod() -> None:
    assert sources(of_leader()) == []


def test_an_acceptance_job_may_change_only_its_own_cluster_role_binding() -> None:
    rights = rights_of("acceptance-mi300x-1a2b")
    (rule,) = [item for item in rights["cluster-role"]["rules"] if "clusterrolebindings" in item["resources"]]
    assert rule["resourceNames"] == [rights["cluster-role-binding"]["metadata"]["name"]]
    assert rule["verbs"] == ["patch", "delete"]


def test_objects_that_acceptance_jobs_share_include_no_cluster_wide_rights() -> None:
    assert not [key for key, item in shared_manifests().items() if item["kind"].startswith("Cluster")]
