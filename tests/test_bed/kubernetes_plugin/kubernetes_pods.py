"""Player of the pods of one node: the label `sim` says how one fares (see the recordings' README)."""

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Generator
from typing import Any

import httpx2
from kubernetes_control_plane import ControlPlane

NODE = "player"
CRASHED = {
    "lastState": {
        "terminated": {"exitCode": 2, "reason": "Error", "startedAt": "{now}", "finishedAt": "{now}"},
    },
    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container={name}"}},
    "ready": False,
    "restartCount": 3,
}
NOT_PULLED = {
    "state": {"waiting": {"reason": "ErrImagePull", "message": "failed to pull"}},
    "ready": False,
    "restartCount": 0,
}
RUNNING = {"state": {"running": {"startedAt": "{now}"}}, "ready": True, "restartCount": 0}


class PodPlayer:
    def __init__(self, plane: ControlPlane) -> None:
        self._client = plane.client()
        self._addresses = (f"10.0.{n // 250}.{n % 250 + 1}" for n in itertools.count())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pod player", daemon=True)

    @classmethod
    @contextlib.contextmanager
    def playing(cls, plane: ControlPlane) -> Generator[None]:
        player = cls(plane)
        make_node(player._client, NODE, {"cpu": "1000", "memory": "1000Gi", "pods": "1000"})
        player._thread.start()
        try:
            yield
        finally:
            player._stop.set()
            player._thread.join(5)
            player._client.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(httpx2.HTTPError):
                self._watch()

    def _watch(self) -> None:
        params = {"watch": "1", "timeoutSeconds": "2", "fieldSelector": f"spec.nodeName={NODE}"}
        with self._client.stream("GET", "/api/v1/pods", params=params) as response:
            for line in response.iter_lines():
                event = json.loads(line)
                if event["type"] in {"ADDED", "MODIFIED"}:
                    self._play(event["object"])

    def _play(self, pod: dict[str, Any]) -> None:
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        if "deletionTimestamp" in pod["metadata"]:
            self._client.request("DELETE", path, json={"gracePeriodSeconds": 0})
        elif pod["status"]["phase"] == "Pending" and "containerStatuses" not in pod["status"]:
            patch = {"Content-Type": "application/strategic-merge-patch+json"}
            self._client.patch(f"{path}/status", content=json.dumps({"status": self._status(pod)}), headers=patch)

    def _status(self, pod: dict[str, Any]) -> dict[str, Any]:
        sim = pod["metadata"].get("labels", {}).get("sim", "")
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        if pod["spec"]["restartPolicy"] != "Always":
            return _ended(pod, 1 if sim == "fail" else 0, now)
        address = None if sim in {"crash", "imagepull"} else next(self._addresses)
        state = {"crash": CRASHED, "notready": CRASHED, "imagepull": NOT_PULLED}.get(sim, RUNNING)
        phase = "Pending" if sim == "imagepull" else "Running"
        return _status(pod, phase, state, address, now)


def make_node(client: httpx2.Client, name: str, room: dict[str, str], **labels: str) -> None:
    """Make a node that is ready and has so much room."""
    metadata = {"name": name, "labels": {"kubernetes.io/os": "linux", **labels}}
    client.post("/api/v1/nodes", json={"metadata": metadata}).raise_for_status()
    status = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
    for path, change in (("", {"spec": {"taints": None}}), ("/status", {"status": status})):
        patch_node(client, f"{name}{path}", change)


def patch_node(client: httpx2.Client, path: str, change: dict[str, Any]) -> None:
    patch = {"Content-Type": "application/merge-patch+json"}
    client.patch(f"/api/v1/nodes/{path}", content=json.dumps(change), headers=patch).raise_for_status()


def _ended(pod: dict[str, Any], code: int, now: str) -> dict[str, Any]:
    reason = "Completed" if code == 0 else "Error"
    ended = {"exitCode": code, "reason": reason, "startedAt": "{now}", "finishedAt": "{now}"}
    state = {"state": {"terminated": ended}, "ready": False, "restartCount": 0}
    return _status(pod, "Failed" if code else "Succeeded", state, None, now)


def _status(pod: dict[str, Any], phase: str, state: dict[str, Any], address: str | None, now: str) -> dict[str, Any]:
    names = [container["name"] for container in pod["spec"]["containers"]]
    ready = (
        {"status": "True"}
        if state["ready"]
        else {
            "status": "False",
            "reason": "ContainersNotReady",
            "message": f"containers with unready status: [{' '.join(names)}]",
        }
    )
    conditions = [
        {"type": "Initialized", "status": "True", "lastTransitionTime": now},
        {"type": "Ready", **ready, "lastTransitionTime": now},
        {"type": "ContainersReady", **ready, "lastTransitionTime": now},
    ]
    text = json.dumps(state)
    statuses = [
        {
            "name": name,
            "image": container["image"],
            "imageID": "",
            **json.loads(text.replace("{now}", now).replace("{name}", name)),
        }
        for name, container in zip(names, pod["spec"]["containers"], strict=True)
    ]
    placed = {"podIP": address, "podIPs": [{"ip": address}], "hostIP": "127.0.0.1"} if address else {}
    return {"phase": phase, "conditions": conditions, "containerStatuses": statuses, "startTime": now, **placed}
