"""Units of simulated model servers with a router as the kit declares it, and what their servers count."""

import json
from dataclasses import dataclass

import pytest
from llmd_oke import catalogue
from llmd_oke.serving import labels, picker_config, router
from pod_cluster import Object, PodCluster, is_ready, program_of
from test_router_in_cluster import PLURALS, create_definitions, release_of, with_few_processors

SERVERS_RELEASE = "llm-d-0.9.0"
ROUTER_RELEASES = ("llm-d-0.6.0", "llm-d-0.9.0")
"""Releases whose endpoint pickers (v0.7.1, v0.10.0) tests may find on a machine."""
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
        release = release_of(router_release)
        if program_of("envoy") is None:
            pytest.skip("no envoy on this machine")
        full = f"{name}-{router_release.replace('.', '-')}"
        cluster.namespace(full)
        create_definitions(cluster, release)
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
        args: picker_config.RouterArgs = {
            "release": SERVERS_RELEASE,
            "override": None if self.router_release == SERVERS_RELEASE else {"router": self.router_release},
            "namespace": self.name,
            "model": unit,
            "unit": unit,
            "disaggregated": False,
            "replicas": 1,
            **router_args,
        }
        for manifest in with_few_processors(router.router_manifests(args)):
            response = self.cluster.api.post(f"/{PLURALS[manifest['kind']].format(self.name)}", json=manifest)
            assert response.is_success, response.text
        self.cluster.wait(f"/apis/apps/v1/namespaces/{self.name}/deployments", f"{unit}-epp", _has_a_router)
        address = self.cluster.get(f"{self.core}/services/{unit}-epp")["spec"]["clusterIP"]
        again = ("--retry-connrefused", "--retry", "30", "--retry-delay", "1")
        self.cluster.inside("curl", "-sS", *again, f"http://{address}/")
        return f"{address}:80"

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


def _has_a_router(deployment: Object) -> bool:
    return deployment.get("status", {}).get("readyReplicas", 0) >= 1
