"""What the simulated operator makes of monitors and rules, and what the simulated exporters say."""

from pathlib import Path

from llmd_oke.objects import Manifest
from llmd_oke.serving.monitoring import ModelMonitoringArgs, monitoring_manifests
from llmd_rehearsal.prometheus_operator import exposition, rule_file, scrape_configs

ARGS: ModelMonitoringArgs = {"namespace": "llm-d", "routers": ["gpt"], "disaggregated": True}
MANIFESTS = list(monitoring_manifests(ARGS))
KUBECONFIG = Path("/kubeconfig.yaml")


def of_kind(kind: str) -> list[Manifest]:
    return [manifest for manifest in MANIFESTS if manifest["kind"] == kind]


def test_each_endpoint_of_a_monitor_is_a_job_in_its_namespaces() -> None:
    """Those of the models, and for exporters of GPUs all."""
    jobs = scrape_configs(of_kind("PodMonitor"), of_kind("ServiceMonitor"), KUBECONFIG)
    names = [job["job_name"] for job in jobs]
    assert names == [
        "podMonitor/llm-d/llmd-oke-model-servers/0",
        "podMonitor/llm-d/llmd-oke-router-envoys/0",
        "podMonitor/llm-d/llmd-oke-front-doors/0",
        "podMonitor/llm-d/llmd-oke-gpus/0",
        "serviceMonitor/llm-d/gpt-epp-monitor/0",
        "simulated-exporters",
        "prometheus",
    ]
    discovered = [row["namespaces"]["names"] for job in jobs for row in job.get("kubernetes_sd_configs", [])]
    assert discovered == [*[["llm-d"]] * 3, [], ["llm-d"]]


def test_pods_are_kept_by_labels_and_port_and_give_their_unit_and_role() -> None:
    (job, *_) = scrape_configs(of_kind("PodMonitor"), [], KUBECONFIG)
    kept = {row["source_labels"][0]: row["regex"] for row in job["relabel_configs"] if row.get("action") == "keep"}
    assert kept["__meta_kubernetes_pod_container_port_name"] == "vllm"
    assert kept["__meta_kubernetes_pod_label_llm_d_ai_inference_serving"] == "true"
    given = {row["target_label"] for row in job["relabel_configs"] if "target_label" in row}
    assert given >= {"namespace", "pod", "llmd_oke_model", "llmd_oke_unit", "llm_d_ai_role"}


def test_all_groups_of_rules_are_in_one_file() -> None:
    groups = rule_file(of_kind("PrometheusRule"))["groups"]
    assert [group["name"] for group in groups] == ["llmd-oke-llm-d-recordings", "llmd-oke-llm-d-alerts"]


def test_exporters_tell_gpus_of_nodes_and_restarts_of_pods() -> None:
    text = exposition({"node": 2}, [("llm-d", "gpt-decode-a", "vllm", 3)])
    assert 'gpu_junction_temperature{hostname="node",gpu_id="1"} 55\n' in text
    assert 'kube_pod_container_status_restarts_total{namespace="llm-d",pod="gpt-decode-a",container="vllm"} 3\n' in text
