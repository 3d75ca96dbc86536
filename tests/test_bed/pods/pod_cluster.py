"""A local cluster with two nodes, and what the tests ask of its API server."""

import json
import os
import ssl
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import yaml
from llmd_rehearsal import control_plane
from llmd_rehearsal.agent_config import AgentConfig, BackOffConfig, NodeConfig, NodeTaint, UserSecret
from llmd_rehearsal.cluster_plan import NODE_CONTROL_PORT, SIMULATOR_PORT, SIMULATOR_URL
from llmd_rehearsal.cluster_spec import ClusterSpec, FileReady, HttpReady, ProcessSpec, TcpReady
from llmd_rehearsal.local_cluster import LocalCluster
from llmd_rehearsal.programs import locate

HERE = Path(__file__).parent
LIMIT_S = 60
GPU_NODE = NodeConfig(
    name="gpu-0",
    capacity={"cpu": "112", "memory": "2048Gi", "pods": "110", "amd.com/gpu": "8", "nvidia.com/sriov-rdma-vf": "8"},
    labels={"node.kubernetes.io/instance-type": "BM.GPU.MI300X.8"},
    taints=(NodeTaint(key="amd.com/gpu", value="present", effect="NoSchedule"),),
)
SYSTEM_NODE = NodeConfig(name="system-0", capacity={"cpu": "64", "memory": "256Gi", "pods": "110"})
Object = dict[str, Any]


def programs() -> dict[str, Path]:
    folder = Path(os.environ.get("LLMD_OKE_PROGRAMS", "/nowhere"))
    return {name: folder / name for name in control_plane.PROGRAMS}


def program_of(name: str, version: str | None = None) -> Path | None:
    """Return the path of a program that pods run, or None; LLMD_OKE_PROGRAMS names the version of one that has none."""
    named = Path(os.environ.get("LLMD_OKE_PROGRAMS", "/nowhere")) / f"{name}-{version}"
    if named.is_file():
        return named
    result = locate(name, version)
    return result.path if result else None


def router_programs() -> dict[str, Path]:
    """Envoy, endpoint pickers and routing sidecars that are on this machine, each version by a name of its own."""
    versions = [(program, version) for program in ("epp", "pd-sidecar") for version in ("v0.7.1", "v0.10.0")]
    request = {
        "envoy": ("envoy", None),
        **{f"{program}-{version}": (program, version) for program, version in versions},
    }
    return {name: path for name, (program, version) in request.items() if (path := program_of(program, version))}


def cluster_spec(state: Path) -> ClusterSpec:
    control = control_plane.prepare(state, programs())
    config = AgentConfig(
        kubeconfig=control.kubeconfig,
        state_folder=state,
        images=HERE / "images.yaml",
        programs={"shell": Path("/bin/bash"), "absent": Path("/nowhere/absent"), **router_programs()},
        nodes=(GPU_NODE, SYSTEM_NODE),
        probe_time_scale=0.1,
        control_port=NODE_CONTROL_PORT,
        back_off=BackOffConfig(first_s=30, longest_s=30),
        simulator_url=SIMULATOR_URL,
        certificate=(control.pki.in_pods.certificate, control.pki.in_pods.key),
        user_secrets=(
            UserSecret(name="of-user", namespaces=("later",), type="Opaque", files={"file": HERE / "images.yaml"}),
        ),
    )
    (state / "agent.json").write_text(config.model_dump_json())
    agent = (sys.executable, "-m", "llmd_rehearsal.agent", "--config", str(state / "agent.json"))
    times = ("--time-scale", "0.1", "--startup-seconds", "0")
    simulator = (sys.executable, "-m", "llmd_rehearsal.vllm", "--listen", f"127.0.0.1:{SIMULATOR_PORT}", *times)
    socket = str(state / "api.sock")
    gateway = (
        sys.executable,
        str(HERE / "api_gateway.py"),
        socket,
        control_plane.NODE_ADDRESS,
        str(control_plane.API_SERVER_PORT),
    )
    return ClusterSpec(
        processes=(
            *control.processes,
            ProcessSpec("vllm", simulator, readiness=HttpReady(f"{SIMULATOR_URL}/healthz")),
            ProcessSpec(
                "agent", agent, after=("kube-apiserver", "vllm"), readiness=TcpReady(53, control_plane.DNS_SERVICE)
            ),
            ProcessSpec("gateway", gateway, readiness=FileReady(socket)),
        )
    )


@dataclass(frozen=True)
class PodCluster:
    cluster: LocalCluster
    state: Path
    api: httpx2.Client
    namespaces: list[str] = field(default_factory=list)
    """Paths of the namespaces that tests made and that were not ended yet."""

    @classmethod
    def started(cls, state: Path) -> "PodCluster":
        cluster = LocalCluster(state)
        cluster.start(cluster_spec(state))
        keys = control_plane.prepare(state, programs()).pki
        context = ssl.create_default_context(cafile=str(keys.authority.certificate))
        context.load_cert_chain(keys.admin.certificate, keys.admin.key)
        transport = httpx2.HTTPTransport(verify=context, uds=str(state / "api.sock"))
        url = f"https://localhost:{control_plane.API_SERVER_PORT}"
        return cls(cluster, state, httpx2.Client(base_url=url, transport=transport, timeout=LIMIT_S + 10))

    def create(self, path: str, manifest: str) -> Object:
        """Create what the manifest (YAML) describes in the collection `path`."""
        response = self.api.post(path, json=yaml.safe_load(manifest))
        assert response.is_success, response.text
        return response.json()

    def namespace(self, name: str) -> str:
        """Make a namespace and wait for what a pod needs of it; give the path of its core objects."""
        self.create("/api/v1/namespaces", f"metadata: {{name: {name}}}")
        path = f"/api/v1/namespaces/{name}"
        self.namespaces.append(path)
        self.wait(f"{path}/serviceaccounts", "default", lambda _: True)
        return path

    @contextmanager
    def ending_namespaces(self) -> Generator[None]:
        """End namespaces that are made meanwhile: probed servers and endpoint pickers take processor time."""
        before = len(self.namespaces)
        try:
            yield
        finally:
            while len(self.namespaces) > before:
                path = self.namespaces.pop()
                self.api.delete(path)
                self.api.delete(f"{path}/pods", params={"gracePeriodSeconds": "0"})

    def define(self, definition: Object) -> None:
        """Have the API server know a custom resource definition, where it doesn't yet, and wait until it serves it."""
        collection = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        self.api.post(collection, json=definition)
        self.wait(collection, definition["metadata"]["name"], has_condition("Established"))

    def get(self, path: str) -> Object:
        response = self.api.get(path)
        assert response.is_success, response.text
        return response.json()

    def wait(self, path: str, name: str, holds: Callable[[Object], bool]) -> Object:
        """Give the object of that name in the collection `path` as soon as the condition holds."""
        return self._watch(path, f"metadata.name={name}", holds)

    def wait_event(self, core: str, reason: str) -> Object:
        """Give the first event with that reason in a namespace."""
        return self._watch(f"{core}/events", f"reason={reason}", lambda _: True)

    def _watch(self, path: str, selector: str, holds: Callable[[Object], bool]) -> Object:
        query = {"watch": "true", "fieldSelector": selector, "timeoutSeconds": str(LIMIT_S)}
        last: Object = {}
        with self.api.stream("GET", path, params=query) as events:
            for line in events.iter_lines():
                last = json.loads(line)["object"]
                if holds(last):
                    return last
        raise AssertionError(f"{path} {selector} not as expected within {LIMIT_S} s:\n{json.dumps(last, indent=1)}")

    def wait_gone(self, path: str, name: str) -> None:
        """Wait until the object is deleted."""
        version = self.get(path)["metadata"]["resourceVersion"]
        if self.api.get(f"{path}/{name}").status_code == 404:
            return
        query = {"watch": "true", "fieldSelector": f"metadata.name={name}", "timeoutSeconds": str(LIMIT_S)}
        with self.api.stream("GET", path, params={**query, "resourceVersion": version}) as events:
            for line in events.iter_lines():
                if json.loads(line)["type"] == "DELETED":
                    return
        raise AssertionError(f"{path}/{name} was not deleted within {LIMIT_S} s")

    def change_node(self, name: str, change: str) -> None:
        """Have the node agent `stop` or `start` a node."""
        url = f"http://127.0.0.1:{NODE_CONTROL_PORT}/nodes/{name}/{change}"
        self.inside(sys.executable, "-c", f"import httpx2; httpx2.post({url!r}).raise_for_status()")

    def log(self, namespace: str, pod: str, container: str) -> str:
        return (self.state / "logs" / "pods" / namespace / pod / f"{container}.log").read_text()

    def inside(self, *argv: str) -> str:
        done = self.cluster.run_inside(argv)
        assert done.returncode == 0, done.stderr
        return done.stdout


def pod_manifest(
    name: str, image: str, labels: Mapping[str, str] | None = None, spec: Object | None = None, **container: Any
) -> str:
    """A pod with one container, `main`, with these further fields of its spec and of the container."""
    main = {"name": "main", "image": image, **container}
    metadata = {"name": name, "labels": dict(labels or {})}
    return json.dumps({"metadata": metadata, "spec": {"containers": [main], **(spec or {})}})


def phase_is(phase: str) -> Callable[[Object], bool]:
    return lambda pod: pod.get("status", {}).get("phase") == phase


def has_condition(*kinds: str) -> Callable[[Object], bool]:
    """Tell of an object whether one of these conditions holds."""

    def holds(item: Object) -> bool:
        conditions: list[Object] = item.get("status", {}).get("conditions") or []
        return any(one["type"] in kinds and one["status"] == "True" for one in conditions)

    return holds


is_ready = has_condition("Ready")


def container(pod: Object, name: str) -> Object:
    status = pod.get("status", {})
    statuses: list[Object] = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    unknown: Object = {"state": {}, "restartCount": 0}
    return next((item for item in statuses if item["name"] == name), unknown)
