"""Programs in Python, run in pods by the machine's own interpreter."""

from typing import Any

import pytest
from pod_cluster import Object, PodCluster, container, has_condition, phase_is, pod_manifest

pytestmark = pytest.mark.rehearsal

PROGRAM = r"""
import importlib.util, json, os, pathlib, ssl, subprocess, sys, urllib.request
account = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")
url = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}/version"
context = ssl.create_default_context(cafile=str(account / "ca.crt"))
request = urllib.request.Request(url, headers={"Authorization": "Bearer " + (account / "token").read_text()})
version = json.load(urllib.request.urlopen(request, context=context))["gitVersion"]
nested = subprocess.run(["python", "-c", "print('nested')"], capture_output=True, text=True, check=True).stdout
facts = {
    "index": os.environ.get("JOB_COMPLETION_INDEX"),
    "version": version[:3],
    "nested": nested.strip(),
    "packages": [name for name in ("httpx", "pydantic", "no_such_package") if importlib.util.find_spec(name)],
    "folder": os.getcwd(),
    "arguments": sys.argv[1:],
}
pathlib.Path("/dev/termination-log").write_text(json.dumps(facts))
print("done")
"""

JOB = """
metadata: {{name: {name}}}
spec:
  backoffLimit: 0
  completionMode: Indexed
  completions: 2
  parallelism: 2
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: main
          image: {image}
          command: [/usr/bin/python3, -B, /opt/program/main.py]
          args: [--flag]
          workingDir: /opt/program
          securityContext: {{readOnlyRootFilesystem: true}}
          volumeMounts: [{{name: program, mountPath: /opt/program, readOnly: true}}]
      volumes: [{{name: program, configMap: {{name: program}}}}]
"""


def _run(pod_cluster: PodCluster, namespace: str, image: str) -> list[Object]:
    core = pod_cluster.namespace(namespace)
    body: dict[str, Any] = {"metadata": {"name": "program"}, "data": {"main.py": PROGRAM}}
    assert pod_cluster.api.post(f"{core}/configmaps", json=body).is_success
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    pod_cluster.create(jobs, JOB.format(name="facts", image=image))
    job = pod_cluster.wait(jobs, "facts", has_condition("Complete", "Failed"))
    assert job["status"].get("succeeded") == 2, job["status"]
    return pod_cluster.get(f"{core}/pods")["items"]


def test_a_python_program_in_an_indexed_job_sees_its_packages_files_token_and_index(pod_cluster: PodCluster) -> None:
    pods = _run(pod_cluster, "python", "test/python:1")
    facts = [_last_words(pod) for pod in pods]
    assert all('"version": "v1."' in item and '"nested": "nested"' in item for item in facts)
    assert all('"packages": ["httpx", "pydantic"]' in item for item in facts)
    assert all('"folder": "/opt/program", "arguments": ["--flag"]' in item for item in facts)
    assert {item.partition('"index": ')[2][:3] for item in facts} == {'"0"', '"1"'}
    assert pod_cluster.log("python", pods[0]["metadata"]["name"], "main") == "done\n"


def test_a_rehearsed_python_image_can_import_only_packages_in_the_table_of_programs(pod_cluster: PodCluster) -> None:
    pods = _run(pod_cluster, "bare", "test/bare-python:1")
    assert all('"packages": []' in _last_words(pod) for pod in pods)


def test_a_failing_program_fails_its_pod_with_the_end_of_its_log(pod_cluster: PodCluster) -> None:
    pods = pod_cluster.namespace("failing") + "/pods"
    command = ["python", "-c", "import sys; sys.exit('node-3 never joined')"]
    policy = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    never = {"restartPolicy": "Never"}
    pod_cluster.create(pods, pod_manifest("failing", "test/python:1", spec=never, command=command, **policy))
    ended = container(pod_cluster.wait(pods, "failing", phase_is("Failed")), "main")["state"]["terminated"]
    assert (ended["exitCode"], ended["message"]) == (1, "node-3 never joined\n")


def _last_words(pod: Object) -> str:
    return container(pod, "main")["state"]["terminated"]["message"]
