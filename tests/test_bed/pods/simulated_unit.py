"""Units of simulated model servers with a router as the kit declares it, and what their servers count."""

import json
from dataclasses import dataclass

from llmd_oke import catalogue
from llmd_oke.serving import labels, picker_config
from pod_cluster import PodCluster, is_ready
from routers_for_tests import route, router_namespace

SERVERS_RELEASE = "llm-d-0.9.0"
MODEL, SERVERS, BLOCK = "Qwen/Qwen3-8B", 4, 16
LARGE_MODEL = "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic"
"""A model whose long answers take longer than any test needs."""
SERVER = """
metadata: {{name: {name}, namespace: {namespace}, labels: {labels}}}
spec:
  containers:
    - name: vllm
      image: {image}
      command: {command}
      env: [{{name: POD_IP, valueFrom: {{fieldRef: {{fieldPath: status.podIP}}}}}}]
      readinessProbe: {{httpGet: {{path: /health, port: 8000}}, periodSeconds: 1}}
"""


@dataclass(frozen=True)
class Namespace:
    """A namespace of the local cluster for units whose routers are those of one llm-d release."""

    cluster: PodCluster
    name: str
    router_release: str

    @classmethod
    def made(cls, cluster: PodCluster, name: str, router_release: str) -> "Namespace":
        """Make a namespace for that release, with its name; skip where the endpoint picker is missing."""
        full = f"{name}-{router_release.replace('.', '-')}"
        router_namespace(cluster, full, router_release)
        return cls(cluster, full, router_release)

    @property
    def core(self) -> str:
        return f"/api/v1/namespaces/{self.name}"

    def serve(self, unit: str, *arguments: str, model: str = MODEL) -> list[str]:
        """Return the addresses of a unit's servers, once they are ready."""
        newer = catalogue.release(SERVERS_RELEASE)
        assert newer is not None
        command = json.dumps(["vllm", "serve", model, "--port=8000", f"--block-size={BLOCK}", *arguments])
        selected, image = json.dumps(labels.role_selector(unit, "aggregated")), newer.vllm.image.pinned
        names = [f"{unit}-{index}" for index in range(SERVERS)]
        for name in names:
            pod = SERVER.format(name=name, namespace=self.name, labels=selected, image=image, command=command)
            self.cluster.create(f"{self.core}/pods", pod)
        return [self.cluster.wait(f"{self.core}/pods", name, is_ready)["status"]["podIP"] for name in names]

    def route(self, unit: str, router_args: picker_config.RouterArgs) -> str:
        """Return the address of a unit's router, once it answers."""
        override = None if self.router_release == SERVERS_RELEASE else {"router": self.router_release}
        args = {"override": override, "replicas": 1, **router_args}
        return route(self.cluster, self.name, SERVERS_RELEASE, unit, **args)

    def remove(self, unit: str) -> None:
        """Delete a unit's servers and router, whose endpoint picker reads its servers 20 times a second."""
        for path in (f"/apis/apps/v1/namespaces/{self.name}/deployments/{unit}-epp", *self._pods(unit)):
            assert self.cluster.api.delete(path).is_success

    def _pods(self, unit: str) -> list[str]:
        return [f"{self.core}/pods/{unit}-{index}" for index in range(SERVERS)]

    def counted(self, servers: list[str], metric: str) -> list[float]:
        """Return a counter of each of these servers."""
        texts = [self.cluster.inside("curl", "-sS", f"http://{server}:8000/metrics") for server in servers]
        return [
            sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{metric}{{"))
            for text in texts
        ]
