"""`llmd-oke status`: what it says of a cluster in which something is wrong, and how it ends."""

import json
import time

import pytest
import stack_files
from llmd_oke.cli import status as status_command
from llmd_oke.operations.status import reading, status
from stack_cluster import LONG_AGO, NAMESPACE, NOW, Run, StackCluster, kubeconfig, node, small_stack, symptoms, what

DECODE, PREFILL = "-decode-", "-prefill-"


def only_symptom(run: Run) -> dict[str, str]:
    result = run("status", "--json")
    assert result.exit_code == 1
    (symptom,) = json.loads(result.stdout)["symptoms"]
    return symptom


def test_the_status_of_a_healthy_stack_fits_one_screen_without_colours(run):
    result = run("status")
    lines = result.stdout.splitlines()
    assert (result.exit_code, lines[1]) == (0, "healthy")
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in result.output
    for text in ("1 of 1", "2 of 2", "remote prefill", "vllm v0.26.0", "by pulumi-kubernetes", "no Prometheus"):
        assert text in result.stdout


def test_the_status_of_a_rehearsal_names_running_programs_instead_of_images(run):
    ran = ("--ran", "envoy=v1.39.0", "--ran", "epp=v0.10.0")
    screen = " ".join(run("status", *ran).stdout.split())
    assert "envoy v1.39.0 (not distroless-v1.40.0)" in screen
    assert "epp v0.10.0 " in screen.replace(",", " ")
    assert json.loads(run("status", "--json", *ran).stdout)["ran"]["envoy"] == "v1.39.0"


def test_a_node_that_is_not_ready_is_listed_first_with_its_reason(run, cluster):
    told = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting"}
    cluster.nodes[0]["status"]["conditions"] = [{**told, "lastTransitionTime": LONG_AGO}]
    result = run("status")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[3].startswith("degraded  node node-0 is not Ready for")
    assert "NodeStatusUnknown" in result.stdout
    assert "kubectl describe node node-0" in result.stdout


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (node(unschedulable=True), "node-0 takes no pods: cordoned"),
        (node(taints=[{"key": "amd.com/gpu-unhealthy", "effect": "NoSchedule"}]), "taint amd.com/gpu-unhealthy:NoSch"),
        (node(gpus=7), "node-0 offers fewer than 8 GPUs"),
        (node(name="gone") | {"metadata": {"name": "other"}}, "pool mi300x has 0 of 1 nodes"),
    ],
)
def test_the_status_reports_a_node_with_failed_health_checks(run, cluster, change, words):
    cluster.nodes[:] = [change]
    assert words in only_symptom(run)["what"]


def waiting(reason: str, message: str = "", **status: object) -> dict[str, object]:
    return {"state": {"waiting": {"reason": reason, "message": message}}, "ready": False, **status}


def troubled(cluster: StackCluster, part: str, **changes: object) -> None:
    """Have one server not be ready, with a container that is in this state."""
    pod, group = cluster.pod(part), cluster.deployment(part.rstrip("-"))
    pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}, {"type": "PodScheduled", "status": "True"}]
    pod["status"]["containerStatuses"][0] |= changes
    group["status"]["readyReplicas"] -= 1


ENDED = {"terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": NOW}}


@pytest.mark.parametrize(
    ("state", "words", "command"),
    [
        (
            waiting("CrashLoopBackOff", lastState=ENDED, restartCount=5),
            "vllm: CrashLoopBackOff, 5 restarts; ended with OOMKilled, exit code 137",
            "-c vllm --previous",
        ),
        (waiting("ImagePullBackOff", "Back-off pulling image"), "vllm: ImagePullBackOff: Back-off pulling image", ""),
    ],
    ids=["crash loop", "image that cannot be pulled"],
)
def test_a_container_that_does_not_run_is_reported_with_the_reason_and_a_command(run, cluster, state, words, command):
    troubled(cluster, PREFILL, **state)
    told = only_symptom(run)
    assert words in told["what"]
    assert told["remedy"].endswith(command)


def test_unschedulable_pods_are_one_symptom_with_the_schedulers_message(run, cluster):
    message = "0/1 nodes are available: 1 Insufficient amd.com/gpu."
    unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    for pod in (item for item in cluster.pods if PREFILL in item["metadata"]["name"]):
        pod["status"] |= {"phase": "Pending", "conditions": [unplaced], "containerStatuses": [], "podIP": ""}
    cluster.deployment("-prefill")["status"] = {}
    (told,) = (text for text in what(run) if "no node" in text)
    assert told.startswith("2 pods ")
    assert message in told


def test_a_starting_server_is_reported_with_its_limit_and_last_warning(run, cluster):
    troubled(cluster, PREFILL)
    about = {"kind": "Pod", "name": cluster.pod(PREFILL)["metadata"]["name"]}
    event = {"metadata": {"name": "e"}, "involvedObject": about, "reason": "Unhealthy", "message": "Startup failed"}
    cluster.events.append({**event, "type": "Warning", "lastTimestamp": NOW})
    told = only_symptom(run)["what"]
    assert "a start takes" in told
    assert told.endswith("Unhealthy: Startup failed")


def test_a_model_without_a_ready_decode_server_is_listed_first_as_an_outage(run, cluster):
    troubled(cluster, DECODE)
    cluster.nodes[0]["spec"]["unschedulable"] = True
    told = symptoms(run)
    assert [item["severity"] for item in told] == ["outage", "degraded", "risk"]
    assert told[0]["what"] == "no unit of gpt-oss-120b answers: no decode server is ready"


@pytest.mark.parametrize(
    ("part", "severity", "words"),
    [
        ("-router", "outage", "no router is ready"),
        ("-front-door", "outage", "the front door of gpt-oss-120b has no ready Envoy"),
        ("-prefill", "degraded", "decode servers compute prompts themselves"),
    ],
)
def test_a_part_of_which_nothing_is_ready_is_reported_by_what_it_means_for_requests(
    run, cluster, part, severity, words
):
    cluster.deployment(part)["status"] = {}
    (told,) = [item for item in symptoms(run) if words in item["what"]]
    assert (told["severity"], told["known_fault"]) == (severity, None)


def test_the_status_marks_symptoms_of_known_faults_and_names_the_doctor_command(run, cluster):
    conditions = cluster.pod("-decode-")["status"]["conditions"]
    why = "0/1 nodes are available: 1 Insufficient amd.com/gpu."
    conditions[:] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}]
    told = [item["known_fault"] for item in symptoms(run) if "Insufficient" in item["what"]]
    assert told == ["No node has enough free GPUs for a pod"]
    screen = " ".join(run("status").output.split())
    assert "known fault: No node has enough free GPUs for a pod" in screen
    assert "llmd-oke doctor --stack s" in screen


def test_the_status_reports_deployments_that_were_scaled_manually(run, cluster):
    cluster.deployment("-prefill")["spec"]["replicas"] = 1
    assert only_symptom(run)["remedy"] == "llmd-oke drift --stack s"


def test_deployed_servers_that_the_stack_file_lacks_are_reported(run, cluster):
    for item in cluster.deployments:
        own = item["spec"]["template"]["metadata"]["labels"]
        own |= {key: "old" for key in own if key == "llmd-oke/unit"}
    told = what(run)
    assert "old is not in the stack file: an update goes on, or was not finished" in told
    assert any("of the stack file is not in the cluster" in text for text in told)


def test_a_stack_that_is_not_deployed_is_reported_as_an_outage(run, cluster):
    cluster.deployments.clear()
    cluster.pods.clear()
    assert what(run)[0].endswith("answers: nothing is deployed")


def test_another_image_and_a_failed_smoke_benchmark_job_are_reported(run, cluster):
    cluster.pod(DECODE)["spec"]["containers"][0]["image"] = "docker.io/vllm/vllm-openai-rocm:v0.1.0"
    own = {"name": "smoke-1", "labels": {"llmd-oke/smoke": "gpt-oss-120b"}, "creationTimestamp": NOW}
    failed = {"conditions": [{"type": "Failed", "status": "True"}]}
    cluster.jobs.append({"metadata": own, "spec": {"template": {"spec": {"containers": []}}}, "status": failed})
    job, image = symptoms(run)
    assert image["what"] == "decode/vllm runs v0.1.0, and is v0.26.0 by the stack file"
    assert job["remedy"] == "llmd-oke smoke --stack s --fetch"


REFUSED = 403, json.dumps({"message": 'nodes is forbidden: User "u" cannot list resource'})


DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
OF_ANOTHER = ("<html>a proxy</html>", "{}", '{"items": [{"metadata": 5}]}')


@pytest.mark.parametrize(
    ("path", "answer", "unknown", "rest"),
    [
        ("/api/v1/nodes", REFUSED, "nodes  not known: HTTP 403: nodes is forbidden", "by pulumi-kubernetes"),
        (DEPLOYMENTS, REFUSED, "servers  not known: HTTP 403: nodes is forbidden", "node-0 joined"),
        *(("/api/v1/nodes", (200, text), "nodes  not known: what answers is no API server", "") for text in OF_ANOTHER),
    ],
)
def test_the_status_says_what_cannot_be_read_and_shows_the_rest(run, cluster, path, answer, unknown, rest):
    cluster.answers[path] = answer
    result = run("status")
    assert (result.exit_code, isinstance(result.exception, SystemExit)) == (2, True)
    assert unknown in result.stdout
    assert rest in result.stdout


def test_without_permission_on_all_pods_the_stacks_own_pods_are_counted(run, cluster):
    cluster.answers["/api/v1/pods"] = REFUSED
    result = run("status")
    assert result.exit_code == 0
    assert "GPUs of this stack's pods alone" in result.stdout


def test_status_exits_with_2_without_a_cluster_a_kubeconfig_or_a_valid_stack_file(run, project, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(project, "http://127.0.0.1:1")))
    unreachable = run("status")
    assert (unreachable.exit_code, "the cluster does not answer: ConnectError" in unreachable.stdout) == (2, True)
    monkeypatch.setenv("KUBECONFIG", str(project / "none"))
    unknown = run("status", "--json")
    assert (unknown.exit_code, "No cluster can be reached" in json.loads(unknown.stdout)["error"]) == (2, True)
    stack_files.write(project, "s", {**small_stack(), "release": "llm-d-9"})
    invalid = run("status")
    assert (invalid.exit_code, "release" in invalid.stderr) == (2, True)


def test_an_api_server_that_hangs_is_given_up_after_a_time_limit(run, cluster, monkeypatch):
    cluster.answers["/api/v1/nodes"] = lambda: time.sleep(5) or (200, "{}")
    monkeypatch.setattr(reading, "REQUEST_TIMEOUT_S", 0.2)
    result = run("status")
    assert result.exit_code == 2
    assert "nodes  not known: ReadTimeout" in result.stdout


def test_a_credential_program_that_hangs_is_given_up_after_a_time_limit(run, project, monkeypatch):
    file = kubeconfig(project, "http://127.0.0.1:1")
    program = "{exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: sh, args: ['-c', 'sleep 3']}}"
    file.write_text(file.read_text().replace("token: t", f"exec: {program[7:-1]}"))
    monkeypatch.setenv("KUBECONFIG", str(file))
    monkeypatch.setattr(reading.read_cluster, "__defaults__", (0.2,))
    result = run("status")
    assert (result.exit_code, "no answer in time" in result.stdout) == (2, True)


def test_the_status_writes_no_control_characters_of_names_to_the_terminal(run, cluster):
    cluster.nodes[0]["metadata"]["name"] = "node\x1b[2J"
    cluster.nodes[0]["spec"]["unschedulable"] = True
    result = run("status")
    assert "node␛[2J" in result.stdout
    assert "\x1b" not in result.stdout


def test_status_json_has_nodes_servers_models_versions_and_alerts(run):
    document = json.loads(run("status", "--json").stdout)
    assert document["healthy"] is True
    assert [pool["used_gpus"] for pool in document["nodes"]] == [4]
    assert {group["role"] for group in document["servers"]} == {"prefill", "decode", "router", "front door"}
    assert document["kubernetes"] == "v1.34.2"
    assert document["alerts"] == {"unread": "no Prometheus; `--prometheus URL` names one"}
    assert document["models"][0]["limits"][0]["name"] == "ttft_ms"


def test_status_with_the_option_watch_and_not_once_repeats_until_ctrl_c(run, monkeypatch):
    looks: list[float] = []

    def pause(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(status_command, "sleep", pause)
    result = run("status", "--watch")
    assert (result.stdout.count("\nhealthy\n"), result.exit_code) == (2, 130)
    assert run("status", "--once", "--watch").exit_code == 2


def test_the_status_names_an_existing_cluster_by_the_stack_files_identifier():
    assert status.cluster_name(stack_files.plan(cluster=stack_files.existing_cluster(identifier="x"))) == "x"
