from pathlib import Path

import pytest
from llmd_oke.objects import Manifest
from llmd_oke.serving.monitoring import ModelMonitoringArgs, monitoring_manifests
from llmd_rehearsal.oci_plugin.faults import Fault
from llmd_rehearsal.prometheus_operator import NodeState, exposition, rule_file, scrape_configs

ARGS: ModelMonitoringArgs = {"namespace": "llm-d", "routers": ["gpt"], "disaggregated": True}
MANIFESTS = list(monitoring_manifests(ARGS))
KUBECONFIG = Path("/kubeconfig.yaml")


def of_kind(kind: str) -> list[Manifest]:
    return [manifest for manifest in MANIFESTS if manifest["kind"] == kind]


def test_each_endpoint_of_a_pod_monitor_becomes_a_scrape_job_for_its_namespaces() -> None:
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


def test_a_podmonitor_becomes_a_scrape_job_for_labelled_vllm_pods_with_role_labels() -> None:
    (job, *_) = scrape_configs(of_kind("PodMonitor"), [], KUBECONFIG)
    kept = {row["source_labels"][0]: row["regex"] for row in job["relabel_configs"] if row.get("action") == "keep"}
    assert kept["__meta_kubernetes_pod_container_port_name"] == "vllm"
    assert kept["__meta_kubernetes_pod_label_llm_d_ai_inference_serving"] == "true"
    given = {row["target_label"] for row in job["relabel_configs"] if "target_label" in row}
    assert given >= {"namespace", "pod", "llmd_oke_model", "llmd_oke_unit", "llm_d_ai_role"}


def test_prometheusrule_groups_become_one_rule_file_with_minutes_cut_to_seconds() -> None:
    recordings, alerts = rule_file(of_kind("PrometheusRule"))["groups"]
    assert (recordings["name"], alerts["name"]) == ("llmd-oke-llm-d-recordings", "llmd-oke-llm-d-alerts")
    assert all("[5000ms]" in rule["expr"] for rule in recordings["rules"])
    fallback = next(rule for rule in alerts["rules"] if rule["alert"] == "PrefillFallbackToDecodeOnly")
    assert fallback["for"] == "10000ms"


def test_simulated_exporters_report_gpus_node_taints_and_pod_restarts() -> None:
    text = exposition({"node": NodeState(2, ("amd.com/gpu",))}, [("llm-d", "gpt-decode-a", "vllm", 3)], 0)
    assert 'gpu_junction_temperature{hostname="node",gpu_id="1"} 55\n' in text
    assert 'kube_node_spec_taint{node="node",key="amd.com/gpu"} 1\n' in text
    assert 'kube_pod_container_status_restarts_total{namespace="llm-d",pod="gpt-decode-a",container="vllm"} 3\n' in text


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        (Fault.DEAD_GPU, 'oke_npd_check_status_code{instance="node",check="gpu-count"} 1'),
        (Fault.MEMORY_ERRORS, 'gpu_ecc_uncorrect_total{hostname="node",gpu_id="2"} 1'),
        (Fault.XGMI_ERRORS, 'gpu_ecc_uncorrect_xgmi_wafl{hostname="node",gpu_id="2"} 1'),
        (Fault.HOT_GPU, 'gpu_junction_temperature{hostname="node",gpu_id="2"} 105'),
        (Fault.LINK_DOWN, 'node_infiniband_physical_state_id{instance="node",device="mlx5_2",port="1"} 2'),
    ],
)
def test_an_injected_fault_of_a_node_changes_the_metrics_of_one_of_its_devices(fault: Fault, line: str) -> None:
    sound, faulty = (exposition({"node": NodeState(8, (), now)}, [], 0).splitlines() for now in (None, fault))
    assert [row for row in faulty if row not in sound] == [line]


def test_the_wait_counter_of_a_congested_rdma_port_keeps_growing() -> None:
    congested = {"node": NodeState(8, (), Fault.CONGESTION)}
    first, second = (exposition(congested, [], now_s).splitlines() for now_s in (1, 2))
    changed = [row for row in second if row not in first and "last_run" not in row]
    assert [row.split("{")[0] for row in changed] == ["node_infiniband_port_transmit_wait_total"]
