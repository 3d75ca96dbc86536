"""Pods of a real control plane, run by the node agent as processes."""

import json
from typing import Any

import pytest
import yaml
from pod_cluster import Object, PodCluster, container, has_condition, is_ready, phase_is, pod_manifest

pytestmark = pytest.mark.rehearsal

NEVER = {"restartPolicy": "Never"}
SETTINGS = {"volumes": [{"name": "s", "configMap": {"name": "settings"}}]}
MOUNTED = [{"name": "s", "mountPath": "/s"}]


def shell_pod(name: str, script: str, spec: dict[str, Any] | None = None, **container: Any) -> str:
    """A pod whose only container runs a script, with these further fields of its spec and of the container."""
    return pod_manifest(name, "test/shell:1", spec=spec, **{"args": [script], **container})


def test_a_simulated_gpu_node_becomes_ready_with_gpus_a_taint_and_a_lease(pod_cluster: PodCluster) -> None:
    node = pod_cluster.wait("/api/v1/nodes", "gpu-0", is_ready)
    assert node["status"]["allocatable"]["amd.com/gpu"] == "8"
    assert [taint["key"] for taint in node["spec"]["taints"]] == ["amd.com/gpu"]
    lease = pod_cluster.get("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/gpu-0")
    assert lease["spec"]["holderIdentity"] == "gpu-0"


def test_a_users_secret_is_created_when_its_namespace_appears_and_in_no_other(pod_cluster: PodCluster) -> None:
    secrets = pod_cluster.namespace("later") + "/secrets"
    made = pod_cluster.wait(secrets, "of-user", lambda _: True)
    assert (made["type"], list(made["data"])) == ("Opaque", ["file"])
    everywhere = pod_cluster.get("/api/v1/secrets?fieldSelector=metadata.name%3Dof-user")["items"]
    assert [item["metadata"]["namespace"] for item in everywhere] == ["later"]


ORDER = """
metadata: {name: order, namespace: order}
spec:
  restartPolicy: Never
  initContainers:
    - name: first
      image: test/shell:1
      args: [echo first >> /scratch/order]
      volumeMounts: [{name: work, mountPath: /scratch}]
    - name: sidecar
      image: test/shell:1
      restartPolicy: Always
      args:
        - |
          trap 'exit 0' TERM
          echo sidecar >> /scratch/order; touch /scratch/up
          while :; do read -t 0.05 <> <(:); done
      startupProbe: {exec: {command: [test, -e, /scratch/up]}, periodSeconds: 1}
      volumeMounts: [{name: work, mountPath: /scratch}]
    - name: second
      image: test/shell:1
      args: [echo second >> /scratch/order]
      volumeMounts: [{name: work, mountPath: /scratch}]
  containers:
    - name: main
      image: test/shell:1
      args: [echo main >> /scratch/order; cat /scratch/order]
      volumeMounts: [{name: work, mountPath: /scratch}]
  volumes: [{name: work, emptyDir: {}}]
"""


def test_init_containers_and_sidecars_start_in_order_and_end_with_their_job(pod_cluster: PodCluster) -> None:
    pods = pod_cluster.namespace("order") + "/pods"
    pod_cluster.create(pods, ORDER)
    pod = pod_cluster.wait(pods, "order", phase_is("Succeeded"))
    assert pod_cluster.log("order", "order", "main").split() == ["first", "sidecar", "second", "main"]
    assert container(pod, "sidecar")["state"]["terminated"]["exitCode"] == 0
    assert [item["state"]["terminated"]["exitCode"] for item in pod["status"]["containerStatuses"]] == [0]


ROOT = """
metadata: {name: root, namespace: root, labels: {role: decode}}
spec:
  restartPolicy: Never
  nodeSelector: {node.kubernetes.io/instance-type: BM.GPU.MI300X.8}
  tolerations: [{key: amd.com/gpu, operator: Exists}]
  hostname: decode-0
  containers:
    - name: main
      image: test/shell:1
      workingDir: /scratch
      resources: {limits: {amd.com/gpu: "2", memory: 3Gi}}
      env:
        - {name: GREETING, valueFrom: {configMapKeyRef: {name: settings, key: greeting}}}
        - {name: PASSWORD, valueFrom: {secretKeyRef: {name: secrets, key: password}}}
        - {name: MEMORY, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Gi}}}
        - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
        - {name: ALL, value: "$(GREETING) $(PASSWORD) $(MEMORY)"}
      args:
        - |
          echo "$ALL"; pwd; hostname; cat /etc/settings/greeting /etc/one /etc/secrets/password /etc/info/labels; echo
          echo $BASHPID; ls /home /scratch 2>&1; touch /usr/x 2>&1; : > /dev/shm/x && echo shm
          cat /var/run/secrets/kubernetes.io/serviceaccount/namespace; echo; hostname -I
          cat /var/run/secrets/kubernetes.io/serviceaccount/token > /scratch/token
      volumeMounts:
        - {name: settings, mountPath: /etc/settings}
        - {name: settings, mountPath: /etc/one, subPath: greeting}
        - {name: secrets, mountPath: /etc/secrets}
        - {name: info, mountPath: /etc/info}
        - {name: claim, mountPath: /scratch}
        - {name: shm, mountPath: /dev/shm}
  volumes:
    - {name: settings, configMap: {name: settings}}
    - {name: secrets, secret: {secretName: secrets}}
    - {name: info, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
    - {name: claim, hostPath: {path: /var/data}}
    - {name: shm, emptyDir: {medium: Memory}}
"""


def test_a_container_sees_its_volumes_and_variables_and_nothing_of_the_machine(pod_cluster: PodCluster) -> None:
    core = pod_cluster.namespace("root")
    pod_cluster.create(f"{core}/configmaps", "{metadata: {name: settings}, data: {greeting: hello}}")
    pod_cluster.create(f"{core}/secrets", "{metadata: {name: secrets}, stringData: {password: s3cret}}")
    pod_cluster.create(f"{core}/pods", ROOT)
    pod = pod_cluster.wait(f"{core}/pods", "root", phase_is("Succeeded"))
    lines = pod_cluster.log("root", "root", "main").splitlines()
    assert lines[:3] == ["hello s3cret 3", "/scratch", "decode-0"]
    assert lines[3] == 'hellohellos3cretrole="decode"'
    assert lines[4] == "1"  # it's the first process of its own
    assert "No such file or directory" in lines[5]  # no /home: the root isn't the machine's
    assert any("Read-only file system" in line for line in lines)
    assert lines[-3:-1] == ["shm", "root"]
    assert lines[-1].split() == [pod["status"]["podIP"]]
    assert pod["status"]["hostIP"] == "10.244.0.10"


def test_the_service_account_token_in_a_pod_is_valid_at_the_api_server(pod_cluster: PodCluster) -> None:
    core = pod_cluster.namespace("token")
    script = "cat /var/run/secrets/kubernetes.io/serviceaccount/token"
    pod_cluster.create(f"{core}/pods", shell_pod("token", script, NEVER))
    pod_cluster.wait(f"{core}/pods", "token", phase_is("Succeeded"))
    token = pod_cluster.log("token", "token", "main")
    review = pod_cluster.create("/apis/authentication.k8s.io/v1/tokenreviews", f"spec: {{token: {token}}}")
    assert review["status"]["user"]["username"] == "system:serviceaccount:token:default"
    assert review["status"]["user"]["extra"]["authentication.kubernetes.io/pod-name"] == ["token"]


PROBED = """
metadata: {name: probed, namespace: probed}
spec:
  containers:
    - name: main
      image: test/shell:1
      args:
        - |
          trap : TERM
          [ -e /scratch/first ] && touch /scratch/ready /scratch/alive
          touch /scratch/first
          while :; do read -t 1 <> <(:); done
      readinessProbe: {exec: {command: [test, -e, /scratch/ready]}, periodSeconds: 1}
      livenessProbe:
        exec: {command: [test, -e, /scratch/alive]}
        initialDelaySeconds: 30
        failureThreshold: 1
        terminationGracePeriodSeconds: 1
      volumeMounts: [{name: work, mountPath: /scratch}]
  terminationGracePeriodSeconds: 600
  volumes: [{name: work, emptyDir: {}}]
"""


def test_a_pod_gets_ready_after_a_failed_liveness_probe_restarted_its_container(pod_cluster: PodCluster) -> None:
    pods = pod_cluster.namespace("probed") + "/pods"
    pod_cluster.create(pods, PROBED)
    status = container(pod_cluster.wait(pods, "probed", is_ready), "main")
    assert status["restartCount"] == 1
    assert status["lastState"]["terminated"]["exitCode"] == 137  # by the probe's grace: the pod's own is longer
    events = pod_cluster.get("/api/v1/namespaces/probed/events")["items"]
    assert any(event["message"] == "Container main failed liveness probe, will be restarted" for event in events)


@pytest.mark.parametrize(("name", "code", "condition"), [("good", 0, "Complete"), ("bad", 3, "Failed")])
def test_jobs_succeed_or_fail_by_their_exit_codes(
    pod_cluster: PodCluster, name: str, code: int, condition: str
) -> None:
    core = pod_cluster.namespace(name)
    jobs = f"/apis/batch/v1/namespaces/{name}/jobs"
    template = json.loads(shell_pod("pod", f"exit {code}", NEVER))
    job = {"metadata": {"name": "job"}, "spec": {"backoffLimit": 0, "template": {"spec": template["spec"]}}}
    pod_cluster.create(jobs, json.dumps(job))
    pod_cluster.wait(jobs, "job", has_condition(condition))
    pods = pod_cluster.get(f"{core}/pods")["items"]
    assert [container(pod, "main")["state"]["terminated"]["exitCode"] for pod in pods] == [code]


def test_a_container_that_keeps_failing_is_restarted_with_back_off(pod_cluster: PodCluster) -> None:
    pods = pod_cluster.namespace("crash") + "/pods"
    pod_cluster.create(pods, shell_pod("crash", "echo run; exit 7"))

    def backs_off(pod: Object) -> bool:
        return container(pod, "main")["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff"

    status = container(pod_cluster.wait(pods, "crash", backs_off), "main")
    assert status["restartCount"] == 1
    assert status["lastState"]["terminated"]["exitCode"] == 7
    assert pod_cluster.log("crash", "crash", "main") == "run\n"
    assert pod_cluster.log("crash", "crash", "main.previous") == "run\n"


SERVER = """
metadata: {name: web, namespace: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
    - name: main
      image: test/shell:1
      command: [/usr/bin/perl, -MIO::Socket::INET, -e]
      args:
        - >-
          $s = IO::Socket::INET->new(LocalPort => 8080, Listen => 5, ReuseAddr => 1) or die;
          while ($c = $s->accept) { <$c>; print $c "served by $ENV{HOSTNAME}\\n"; close $c }
      ports: [{name: http, containerPort: 8080}]
      readinessProbe: {tcpSocket: {port: http}, periodSeconds: 1}
"""
CLIENT = """
metadata: {name: client, namespace: web}
spec:
  restartPolicy: Never
  containers:
    - name: main
      image: test/shell:1
      args:
        - |
          for name in web web.web.svc.cluster.local web-headless; do getent ahostsv4 $name | head -1; done
          getent hosts absent || echo absent: no such name
          exec 3<>/dev/tcp/web/80 && echo GET >&3 && cat <&3
          exec 3<>/dev/tcp/$KUBERNETES_SERVICE_HOST/$KUBERNETES_SERVICE_PORT && echo API server answers
"""


def test_services_resolve_by_name_inside_pods(pod_cluster: PodCluster) -> None:
    core = pod_cluster.namespace("web")
    pod_cluster.create(f"{core}/pods", SERVER)
    ports = "ports: [{port: 80, targetPort: http}]"
    service = pod_cluster.create(
        f"{core}/services", f"{{metadata: {{name: web}}, spec: {{selector: {{app: web}}, {ports}}}}}"
    )
    headless = f"{{metadata: {{name: web-headless}}, spec: {{clusterIP: None, selector: {{app: web}}, {ports}}}}}"
    pod_cluster.create(f"{core}/services", headless)
    server = pod_cluster.wait(f"{core}/pods", "web", is_ready)

    def has_endpoint(endpoints: Object) -> bool:
        return any(point["conditions"].get("ready") for point in endpoints.get("endpoints") or [])

    slices = "/apis/discovery.k8s.io/v1/namespaces/web/endpointslices"
    for item in pod_cluster.get(slices)["items"]:
        pod_cluster.wait(slices, item["metadata"]["name"], has_endpoint)
    pod_cluster.create(f"{core}/pods", CLIENT)
    pod_cluster.wait(f"{core}/pods", "client", phase_is("Succeeded"))
    lines = [line.split() for line in pod_cluster.log("web", "client", "main").splitlines()]
    address = service["spec"]["clusterIP"]
    assert [line[0] for line in lines[:3]] == [address, address, server["status"]["podIP"]]
    assert [" ".join(line) for line in lines[3:]] == ["absent: no such name", "served by web", "API server answers"]


def test_traffic_between_pods_does_not_fill_the_kernels_neighbour_table(pod_cluster: PodCluster) -> None:
    """Room for 1,024 neighbours of all namespaces, not counting permanent ones, is all that the table has."""
    core = pod_cluster.namespace("near")
    pod_cluster.create(f"{core}/pods", SERVER.replace("namespace: web", "namespace: near"))
    address = pod_cluster.wait(f"{core}/pods", "web", is_ready)["status"]["podIP"]
    namespaces = [line.split()[0] for line in pod_cluster.inside("ip", "netns", "list").splitlines()]
    neighbours = [pod_cluster.inside("ip", "neighbour")]
    neighbours += [pod_cluster.inside("ip", "-n", name, "neighbour") for name in namespaces]
    lines = [line for text in neighbours for line in text.splitlines()]
    assert any(line.startswith(f"{address} ") for line in lines)
    assert {line.split()[-1] for line in lines if not line.startswith("f")} == {"PERMANENT"}


def test_a_changed_configmap_reaches_the_file_mounted_in_a_running_pod(pod_cluster: PodCluster) -> None:
    core = pod_cluster.namespace("change")
    pod_cluster.create(f"{core}/configmaps", "{metadata: {name: settings}, data: {value: old}}")
    script = "touch /etc/x; until [ $(cat /s/value) = new ]; do read -t 0.05 <> <(:); done; cat /s/value"
    pod_cluster.create(f"{core}/pods", shell_pod("reader", script, {**NEVER, **SETTINGS}, volumeMounts=MOUNTED))
    pod_cluster.wait(f"{core}/pods", "reader", phase_is("Running"))
    pod_cluster.api.patch(
        f"{core}/configmaps/settings",
        content=b'{"data": {"value": "new"}}',
        headers={"Content-Type": "application/merge-patch+json"},
    )
    pod_cluster.wait(f"{core}/pods", "reader", phase_is("Succeeded"))
    assert pod_cluster.log("change", "reader", "main") == "new"


def test_a_pod_waits_until_its_configmap_exists(pod_cluster: PodCluster) -> None:
    core = pod_cluster.namespace("late")
    pod = shell_pod("late", "cat /s/value", {**NEVER, **SETTINGS}, volumeMounts=MOUNTED)
    pod_cluster.create(f"{core}/pods", pod)
    event = pod_cluster.wait_event(core, "FailedMount")
    assert '"settings" not found' in event["message"]
    pod_cluster.create(f"{core}/configmaps", "{metadata: {name: settings}, data: {value: here}}")
    pod_cluster.wait(f"{core}/pods", "late", phase_is("Succeeded"))


def test_a_deleted_pod_gets_sigterm_first_and_leaves_only_its_logs(pod_cluster: PodCluster) -> None:
    core = pod_cluster.namespace("leave")
    pod = shell_pod(
        "leaver",
        "trap 'echo told; exit 0' TERM; touch /tmp/up; while :; do read -t 0.05 <> <(:); done",
        {"terminationGracePeriodSeconds": 20},
        lifecycle={"preStop": {"exec": {"command": ["touch", "/dev/shm/hook"]}}},
        readinessProbe={"exec": {"command": ["test", "-e", "/tmp/up"]}, "periodSeconds": 1},
    )
    uid = pod_cluster.create(f"{core}/pods", pod)["metadata"]["uid"]
    pod_cluster.wait(f"{core}/pods", "leaver", is_ready)
    assert "pod-leaver-" in pod_cluster.inside("ip", "netns", "list")
    assert (pod_cluster.state / "pods" / uid).is_dir()
    pod_cluster.api.delete(f"{core}/pods/leaver")
    pod_cluster.wait_gone(f"{core}/pods", "leaver")
    assert "pod-leaver-" not in pod_cluster.inside("ip", "netns", "list")
    assert f"veth{uid.replace('-', '')[:11]}" not in pod_cluster.inside("ip", "-o", "link", "show")
    assert not (pod_cluster.state / "pods" / uid).exists()
    assert pod_cluster.log("leave", "leaver", "main") == "told\n"


def test_a_node_without_power_ends_its_pods_and_runs_them_again_once_it_is_back(pod_cluster: PodCluster) -> None:
    core = pod_cluster.namespace("power")
    endless = "trap : TERM; while :; do read -t 9 <> <(:); done"
    on_node = {"nodeName": "gpu-0", "terminationGracePeriodSeconds": 20}
    for name in ("stays", "deleted"):
        pod_cluster.create(f"{core}/pods", shell_pod(name, endless, on_node))
        pod_cluster.wait(f"{core}/pods", name, is_ready)
    pod_cluster.change_node("gpu-0", "stop")
    networks = pod_cluster.inside("ip", "netns", "list")
    assert "pod-stays-" not in networks
    assert "pod-deleted-" not in networks
    assert is_ready(pod_cluster.get(f"{core}/pods/stays"))  # until the control plane misses the node's heartbeat
    pod_cluster.api.delete(f"{core}/pods/deleted")
    assert pod_cluster.get(f"{core}/pods/deleted")["metadata"]["deletionTimestamp"]  # nobody is there to confirm it
    pod_cluster.create(f"{core}/pods", shell_pod("bound", endless, on_node))
    pod_cluster.change_node("gpu-0", "start")
    pod_cluster.wait_gone(f"{core}/pods", "deleted")
    pod_cluster.wait(f"{core}/pods", "stays", lambda pod: is_ready(pod) and container(pod, "main")["restartCount"] == 1)
    pod_cluster.wait(f"{core}/pods", "bound", is_ready)


def test_a_pod_annotation_names_containers_whose_images_have_no_rehearsed_program(pod_cluster: PodCluster) -> None:
    pods = pod_cluster.namespace("simulated") + "/pods"
    manifest = """
    metadata: {name: unknown, namespace: simulated}
    spec:
      containers:
        - {name: known, image: "test/shell:1", args: ["while :; do read -t 1 <> <(:); done"]}
        - {name: operator, image: "example.com/operator:1", readinessProbe: {httpGet: {port: 80}}}
      terminationGracePeriodSeconds: 0
    """
    pod_cluster.create(pods, manifest)
    pod = pod_cluster.wait(pods, "unknown", is_ready)
    assert pod["metadata"]["annotations"]["rehearsal.llmd-oke/simulated"] == "operator"


def test_a_container_whose_program_is_missing_on_this_machine_waits_with_that_reason(pod_cluster: PodCluster) -> None:
    pods = pod_cluster.namespace("absent") + "/pods"
    pod_cluster.create(
        pods,
        '{metadata: {name: absent, namespace: absent}, spec: {containers: [{name: main, image: "test/absent:2"}]}}',
    )

    def says_so(pod: Object) -> bool:
        return container(pod, "main")["state"].get("waiting", {}).get("reason") == "ErrImageNeverPull"

    pod = pod_cluster.wait(pods, "absent", says_so)
    assert (
        container(pod, "main")["state"]["waiting"]["message"]
        == 'the rehearsal has no program "absent" for test/absent:2'
    )


AUTOGROUP = (
    "while [ -e /proc/self/autogroup ] && ! grep -q 'nice 10$' /proc/self/autogroup; do read -t 0.05 <> <(:); done"
)


def test_programs_in_pods_get_less_cpu_priority_than_simulated_model_servers(pod_cluster: PodCluster) -> None:
    pods = pod_cluster.namespace("modest") + "/pods"
    pod_cluster.create(pods, pod_manifest("modest", "test/modest:1", spec=NEVER, args=[f"{AUTOGROUP}; nice"]))
    pod_cluster.wait(pods, "modest", phase_is("Succeeded"))
    assert pod_cluster.log("modest", "modest", "main") == "10\n"


SLOW_TO_ANSWER = """
import http.server, time
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print("asked", flush=True)
        time.sleep(3)
        self.send_response(200)
        self.end_headers()
http.server.ThreadingHTTPServer(("", {port}), Health).serve_forever()
"""
"""Takes most of the five seconds that an answer may take, so that a question is nearly always on its way."""

SLOW = """
metadata: {name: slow, namespace: standstill}
spec:
  containers: []
  terminationGracePeriodSeconds: 0
"""
STANDSTILL = "kill -STOP {agent}; sleep {seconds}; kill -CONT {agent}"
ASKED = "until [ $(wc -l < {log}) -ge {times} ]; do sleep 0.1; done"
STANDSTILL_S = 8


def test_a_node_agent_paused_beyond_a_probes_timeout_restarts_no_container(pod_cluster: PodCluster) -> None:
    """Each failed question would end its container; SIGSTOP and SIGCONT are the standstill."""
    pods = pod_cluster.namespace("standstill") + "/pods"
    pod = yaml.safe_load(SLOW)
    for index in range(3):
        probe = {"httpGet": {"port": 8100 + index}, "periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 1}
        program = ["python", "-c", SLOW_TO_ANSWER.format(port=8100 + index)]
        name = f"health-{index}"
        probes = {"startupProbe": {**probe, "failureThreshold": 60}, "livenessProbe": probe}
        pod["spec"]["containers"].append({"name": name, "image": "test/bare-python:1", "command": program, **probes})
    pod_cluster.create(pods, yaml.safe_dump(pod))
    pod_cluster.wait(pods, "slow", is_ready)
    record = pod_cluster.cluster.folder.read_record()
    assert record is not None
    stop = STANDSTILL.format(agent=record.processes["agent"].pid, seconds=STANDSTILL_S)
    pod_cluster.inside("sh", "-c", stop)
    log = pod_cluster.state / "logs" / "pods" / "standstill" / "slow" / "health-0.log"
    asked = pod_cluster.log("standstill", "slow", "health-0").count("asked")
    pod_cluster.inside("sh", "-c", ASKED.format(log=log, times=asked + 3))
    after = pod_cluster.get(f"{pods}/slow")
    assert [item["restartCount"] for item in after["status"]["containerStatuses"]] == [0, 0, 0]
    assert is_ready(after)


SAYING = "echo one; echo two; read -t {pause_s} <> <(:); echo three"


def test_the_api_server_has_a_containers_log_and_its_last_lines(pod_cluster: PodCluster) -> None:
    pods = pod_cluster.namespace("logs") + "/pods"
    pod_cluster.create(pods, shell_pod("saying", SAYING.format(pause_s=0.01), NEVER))
    pod_cluster.wait(pods, "saying", phase_is("Succeeded"))
    assert pod_cluster.api.get(f"{pods}/saying/log").text == "one\ntwo\nthree\n"
    assert pod_cluster.api.get(f"{pods}/saying/log", params={"tailLines": "2"}).text == "two\nthree\n"
    assert pod_cluster.api.get(f"{pods}/saying/log", params={"previous": "true"}).status_code == 404
    refused = pod_cluster.api.get(f"{pods}/saying/log", params={"timestamps": "true"})
    assert (refused.status_code, "logs of a rehearsal have no times" in refused.text) == (400, True)


def test_a_containers_log_can_be_followed_until_the_container_ends(pod_cluster: PodCluster) -> None:
    pods = pod_cluster.namespace("followed") + "/pods"
    pod_cluster.create(pods, shell_pod("saying", SAYING.format(pause_s=2), NEVER))
    pod_cluster.wait(pods, "saying", phase_is("Running"))
    assert pod_cluster.api.get(f"{pods}/saying/log", params={"follow": "true"}).text == "one\ntwo\nthree\n"
