"""KV cache in files on a node's disks: it outlives a server, and another argument begins anew beside it."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from user_project import Project, model

pytestmark = [pytest.mark.engine, pytest.mark.rehearsal, pytest.mark.nightly]

STACK = "kept"
FILES = "mnt/nvme/models-kv/llm-d/gpt-oss-120b"
ASK_TWICE = """
import json, time, urllib.request, lightkube
from lightkube.config.kubeconfig import KubeConfig
from lightkube.resources.core_v1 import Pod

client = lightkube.Client(KubeConfig.from_env(), namespace="llm-d", trust_env=False)
NAME = "vllm:kv_offload_tiering_read_bytes_total"

def ready(other):
    limit_s = time.monotonic() + 180
    while time.monotonic() < limit_s:
        for pod in client.list(Pod, labels={"llm-d.ai/role": None}):
            states = {item.type: item.status for item in pod.status.conditions or ()}
            if pod.metadata.name != other and states.get("Ready") == "True" and not pod.metadata.deletionTimestamp:
                return pod
        time.sleep(0.5)
    raise TimeoutError("no server is ready")

def read_bytes(pod):
    url = f"http://{pod.status.podIP}:8000"
    asked = {"model": "openai/gpt-oss-120b", "prompt": "All happy families are alike. " * 200, "max_tokens": 1}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(asked).encode(), headers)
    urllib.request.urlopen(request).read()
    lines = urllib.request.urlopen(f"{url}/metrics").read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(NAME + "{"))

first = ready(None)
before = read_bytes(first)
client.delete(Pod, first.metadata.name)
second = ready(first.metadata.name)
sidecars = {item.name: item.ready for item in second.status.initContainerStatuses}
print(json.dumps({"before": before, "after": read_bytes(second), "limited": sidecars.get("kv-cache-limit")}))
"""
"""Has a server compute a prompt, deletes its pod, and asks the next one the same."""


@dataclass(frozen=True)
class Life:
    """Bytes that a server and its successor read from files, whether the container that limits them ran, and the
    directories with files after the stack was deployed, and deployed with another argument.
    """

    before: float
    after: float
    limited: bool
    keys: list[frozenset[str]]


@pytest.fixture(scope="module")
def life(project: Project) -> Life:
    state = project.folder / ".rehearsal" / STACK
    first = _update(project, state, 64)
    done = project.inside(STACK, sys.executable, "-c", ASK_TWICE)
    keys = [first, _update(project, state, 32)]
    return Life(**json.loads(done.output.splitlines()[-1]), keys=keys)


def _update(project: Project, state: Path, sequences: int) -> frozenset[str]:
    engine = {"maxNumSeqs": sequences, "kvCache": {"hostMemoryGib": 8, "diskGib": 100}}
    servers = model(topology="agg-tp8-1r", router={"mode": "none"}, engine=engine)
    storage = {"modelCache": {"kind": "node-disk"}}
    project.write(STACK, release="llm-d-0.10.0", models=[servers], storage=storage)
    ended = project.command("rehearse", "--stack", STACK, "--json")
    assert ended.status == 0, ended.errors[-3000:]
    (root,) = state.rglob(FILES)
    return frozenset(file.relative_to(root).parts[0] for file in root.rglob("*.bin"))


def test_a_new_pod_reads_the_kv_cache_that_a_deleted_pod_left_in_files(life: Life) -> None:
    assert life.before == 0
    assert life.after > 1e6


def test_the_sidecar_that_limits_files_runs_beside_each_server(life: Life) -> None:
    assert life.limited


def test_a_server_with_another_argument_keeps_files_of_its_own(life: Life) -> None:
    first, second = life.keys
    assert (len(first), len(second)) == (1, 2)
    assert first < second
