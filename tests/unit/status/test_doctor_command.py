"""`llmd-oke doctor`: a stack that runs, its archive, and the ways in which nothing can be seen."""

import json

from llmd_oke.cli.main import app
from stack_cluster import NAMESPACE, kubeconfig, pod
from test_support import log
from typer.testing import CliRunner, Result


def doctor(*words: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *words])


def test_doctor_finds_no_fault_in_a_healthy_stack(run, cluster):
    log(cluster, "INFO 11-23 02:00:00 started\n")
    result = run("doctor", "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["findings"], document["healthy"]) == (0, [], True)
    assert document["logs"] == len(cluster.pods)
    assert "no known fault" in run("doctor").output


def test_doctor_finds_faults_in_logs_events_states_and_metrics_of_a_running_stack(run, cluster):
    log(cluster, "fine\n")
    decode = cluster.pod("-decode-")
    name = decode["metadata"]["name"]
    told = "HIP out of memory. HF_TOKEN=hf_a123456789\n"
    cluster.answers[f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/log"] = 200, told
    cluster.counters({"-decode-": 'vllm:nixl_num_failed_transfers_total{engine="0"} 3\n'})
    decode["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    involved = {"kind": "Pod", "name": name, "namespace": NAMESPACE}
    unhealthy = "cannot allocate unhealthy devices amd.com/gpu, which is unexpected"
    cluster.events.append({"metadata": {"name": "e"}, "involvedObject": involved, "reason": "F", "message": unhealthy})
    result = run("doctor", "--json")
    found = {item["name"]: item for item in json.loads(result.stdout)["findings"]}
    assert result.exit_code == 1
    assert found.keys() == {"vllm-gpu-out-of-memory", "nixl-transfers-failed", "gpu-unhealthy"}
    assert {item["evidence"][0]["pod"] for item in found.values()} == {name}
    assert "hf_a" not in result.stdout
    screen = run("doctor").output
    assert "3 known faults" in screen
    assert "https://github.com/lemonade-sdk/vllm-rocm/issues/5" in screen
    assert f"kubectl -n {NAMESPACE} logs {name} -c vllm" in screen


def test_doctor_finds_the_same_faults_in_a_stacks_support_archive(run, cluster, project):
    log(cluster, 'NCCL WARN Missing "iommu=pt"\n')
    cluster.counters('vllm:nixl_num_failed_notifications_total{engine="0",model="a\\"b"} 2\n')
    file = project / "x.tar.gz"
    assert run("support", "--output", str(file)).exit_code == 0
    of_stack, of_archive = (
        json.loads(result.stdout) for result in (run("doctor", "--json"), doctor("--from", str(file), "--json"))
    )
    assert [item["name"] for item in of_stack["findings"]] == ["nixl-notices-failed", "rccl-iommu"]
    assert [item["name"] for item in of_archive["findings"]] == ["nixl-notices-failed", "rccl-iommu"]
    assert of_archive["stack"] == "s"
    assert of_stack["programs"] == of_archive["programs"] > 0


def test_doctor_reads_logs_of_unready_pods_in_other_namespaces(run, cluster):
    log(cluster, "fine\n")
    plugin = pod("plugin-0", {}, {"plugin": ""})
    plugin["metadata"]["namespace"] = "kube-amd-gpu"
    plugin["status"] |= {"phase": "Pending", "conditions": []}
    cluster.pods.append(plugin)
    cluster.answers["/api/v1/namespaces/kube-amd-gpu/pods/plugin-0/log"] = 200, "plugin.go:136] Found 0 AMDGPUs\n"
    (finding,) = json.loads(run("doctor", "--json").stdout)["findings"]
    assert (finding["name"], finding["evidence"][0]["namespace"]) == ("gpu-plugin-finds-no-gpu", "kube-amd-gpu")


def test_without_permission_on_all_events_doctor_reads_those_of_the_stacks_namespace(run, cluster):
    log(cluster, "fine\n")
    cluster.answers["/api/v1/events"] = 403, '{"message": "no"}'
    involved = {"kind": "ReplicaSet", "name": "r", "namespace": NAMESPACE}
    told = {"reason": "FailedCreate", "message": 'violates PodSecurity "x"', "lastTimestamp": "2999-01-01T00:00:00Z"}
    cluster.events.append({"metadata": {"name": "e"}, "involvedObject": involved, **told})
    (finding,) = json.loads(run("doctor", "--json").stdout)["findings"]
    assert finding["name"] == "pod-violates-security"


def test_doctor_exits_with_2_if_no_cluster_answers_or_nothing_is_there_to_examine(run, project, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(project, "http://127.0.0.1:1")))
    unreachable = run("doctor", "--json")
    assert (unreachable.exit_code, "does not answer" in json.loads(unreachable.stdout)["error"]) == (2, True)
    assert doctor().exit_code == doctor("--from", "/nowhere").exit_code == 2
    result = doctor("--from", str(project))
    assert (result.exit_code, "nothing was there to read" in result.output) == (2, True)
