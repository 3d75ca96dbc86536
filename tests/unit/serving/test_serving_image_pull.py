"""The image of the servers on every node before them."""

import argparse
from types import SimpleNamespace
from typing import Any

import pytest
from llmd_oke.serving import image_pull
from llmd_oke.serving.image_pull import ImagePullArgs, daemon_set, job
from llmd_pods import image_pull_program

OLD: ImagePullArgs = {"namespace": "llm-d", "image": "ghcr.io/llm-d/vllm:1", "shape": "BM.GPU.MI300X.8", "nodes": 2}
NEW: ImagePullArgs = {**OLD, "image": "ghcr.io/llm-d/vllm:2"}


def pod(node: str, state: dict[str, Any] | None = None, *, taken: bool = True) -> dict[str, Any]:
    """A pod of the DaemonSet; one that its node has not taken has no start."""
    statuses = [{"name": "image-pull", "state": state}] if state else []
    started = {"startTime": "2026-01-01T00:00:00Z", "containerStatuses": statuses} if taken else {}
    return {"metadata": {"name": f"pull-{node}"}, "spec": {"nodeName": node}, "status": started}


RUNNING: dict[str, Any] = {"running": {}}
PULLING: dict[str, Any] = {"waiting": {"reason": "ContainerCreating"}}
REFUSED: dict[str, Any] = {"waiting": {"reason": "ErrImagePull", "message": "manifest unknown"}}


def wait(monkeypatch: pytest.MonkeyPatch, *looks: list[dict[str, Any]], nodes: int = 2) -> tuple[int, str, float]:
    """Return what the program says after these looks, the last of them for ever; and after how many seconds."""
    clock = [0.0]
    # The program's own name for it: threads of other tests use the module itself.
    own = SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda s: clock.__setitem__(0, clock[0] + s))
    monkeypatch.setattr(image_pull_program, "time", own)
    answers = list(looks)
    arguments = argparse.Namespace(nodes=nodes, limit_s=600.0, pause_s=2.0)
    node_count, text = image_pull_program.wait(arguments, lambda: answers.pop(0) if len(answers) > 1 else answers[0])
    return node_count, text, clock[0]


def test_image_pulls_use_no_gpu_and_reach_every_node_of_the_shape():
    spec = daemon_set(OLD)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["image"] == OLD["image"]
    assert set(container["resources"]["requests"]) == {"cpu", "memory"}
    assert spec["nodeSelector"] == {"node.kubernetes.io/instance-type": "BM.GPU.MI300X.8"}
    assert spec["tolerations"][0]["key"] == "amd.com/gpu"


def test_a_changed_image_is_pulled_on_all_nodes_at_once_and_no_resource_waits():
    old, new = daemon_set(OLD), daemon_set(NEW)
    assert old["spec"]["selector"] == new["spec"]["selector"]
    assert new["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "100%"}
    label = new["spec"]["template"]["metadata"]["labels"][image_pull.IMAGE]
    assert label != old["spec"]["template"]["metadata"]["labels"][image_pull.IMAGE]
    assert job(NEW)["metadata"]["name"] != job(OLD)["metadata"]["name"]
    (container,) = job(NEW)["spec"]["template"]["spec"]["containers"]
    assert f"--selector={image_pull.IMAGE}={label}" in container["args"]
    assert daemon_set(OLD)["metadata"]["annotations"] == {"pulumi.com/skipAwait": "true"}


def test_an_image_pull_ends_as_soon_as_all_nodes_have_the_image(monkeypatch: pytest.MonkeyPatch):
    pulling = [pod("a", RUNNING), pod("b", PULLING)]
    node_count, text, seconds = wait(monkeypatch, pulling, pulling, [pod("a", RUNNING), pod("b", RUNNING)])
    assert (node_count, text, seconds) == (2, "2 of 2 nodes have the image", 4.0)


@pytest.mark.parametrize(
    ("others", "waited_s", "told"),
    [
        pytest.param([], 30.0, "the others are not there", id="never joins"),
        pytest.param([pod("b", taken=False)], 30.0, "", id="does not respond"),
        pytest.param([pod("b", PULLING)], 600.0, "b pulls it; not waited for after 600 s", id="is slow"),
    ],
)
def test_an_image_pull_waits_to_its_limit_for_slow_nodes_and_shortly_for_dead_ones(
    monkeypatch: pytest.MonkeyPatch, others: list[dict[str, Any]], waited_s: float, told: str
):
    node_count, text, seconds = wait(monkeypatch, [pod("a", RUNNING), *others])
    assert (node_count, seconds) == (1, waited_s)
    assert text.endswith(told)


def test_an_image_pull_that_fails_on_all_nodes_reports_the_kubelets_error(monkeypatch: pytest.MonkeyPatch):
    node_count, text, seconds = wait(monkeypatch, [pod("a", REFUSED), pod("b", REFUSED)])
    assert (node_count, seconds) == (0, 600.0)
    assert "a pulls it (ErrImagePull: manifest unknown)" in text
