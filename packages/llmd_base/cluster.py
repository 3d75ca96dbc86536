"""Client of the Kubernetes API for a program in a pod: pods and ConfigMaps through the pod's service account."""

import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

import httpx

from llmd_base.addresses import HttpEndpoint, PodAddress
from llmd_base.errors import KitError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Directory in which Kubernetes mounts the service account's token and the API server's CA certificate."""

FIELD_MANAGER = "llmd-oke"
REQUEST_TIMEOUT_S = 30.0
PAUSES_S = (1.0, 4.0, 15.0)
"""Seconds to wait before the second, third and fourth attempt of a request that the API server didn't answer, or
answered with status 429, 500, 502, 503 or 504, so that a restart of the API server doesn't end a measurement.
"""

_BUSY = frozenset({429, 500, 502, 503, 504})


class InCluster:
    """Client of the Kubernetes API that lists pods and reads and writes ConfigMaps with a pod's service account.

    Args:
        url: base URL of the API server, for example `https://10.96.0.1:443`.
        account: directory with the service account's token and the CA certificate.
        transport: HTTP transport, for tests.
        pause: function that sleeps for a number of seconds, for tests.
    """

    def __init__(
        self,
        url: str,
        account: Path = ACCOUNT,
        transport: httpx.BaseTransport | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        authority = account / "ca.crt"
        self._account = account
        self._pause = pause
        self._client = httpx.Client(
            base_url=url,
            verify=ssl.create_default_context(cafile=str(authority)) if authority.exists() else True,
            timeout=REQUEST_TIMEOUT_S,
            trust_env=False,
            transport=transport,
        )

    def service(self, namespace: str, name: str) -> HttpEndpoint:
        """Return the base URL of port 80 of a Service, by the Service's DNS name."""
        return HttpEndpoint(f"http://{name}.{namespace}.svc.cluster.local")

    def pods(self, namespace: str, labels: Mapping[str, str]) -> Sequence[PodAddress]:
        """Return the pods with these labels that have an IP address and aren't being deleted, sorted by name.

        Raises:
            KitError: the API server doesn't answer or refuses the request.
        """
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        pods = self._ask("GET", f"/api/v1/namespaces/{namespace}/pods", params={"labelSelector": selector})
        addresses: list[PodAddress] = []
        for pod in cast("list[dict[str, Any]]", pods["items"]):
            metadata, status = pod["metadata"], cast("dict[str, Any]", pod.get("status", {}))
            if status.get("podIP") and metadata.get("deletionTimestamp") is None:
                containers = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
                restarts = sum(container.get("restartCount", 0) for container in containers)
                started = all(container.get("started", False) for container in status.get("containerStatuses", ()))
                labels = metadata.get("labels", {})
                addresses.append(PodAddress(metadata["name"], status["podIP"], restarts, started, labels))
        return sorted(addresses, key=lambda address: address.name)

    def pod(self, namespace: str, pod: PodAddress, port: int) -> HttpEndpoint:  # noqa: ARG002 - others need the namespace
        """Return the base URL of a port at a pod's IP address."""
        return HttpEndpoint(f"http://{pod.address}:{port}")

    def config_map(self, namespace: str, name: str) -> Mapping[str, str] | None:
        """Return the `data` of a ConfigMap; None if the ConfigMap doesn't exist.

        Raises:
            KitError: the API server doesn't answer or refuses the request.
        """
        answer = self._send("GET", f"/api/v1/namespaces/{namespace}/configmaps/{name}")
        return None if answer.status_code == HTTPStatus.NOT_FOUND else _checked(answer).get("data") or {}

    def created_s(self, namespace: str, name: str) -> float | None:
        """Return a ConfigMap's `creationTimestamp` in seconds since the Unix epoch (whole seconds, by the API server's
        clock); None if the ConfigMap doesn't exist.

        Raises:
            KitError: the API server doesn't answer or refuses the request.
        """
        answer = self._send("GET", f"/api/v1/namespaces/{namespace}/configmaps/{name}")
        if answer.status_code == HTTPStatus.NOT_FOUND:
            return None
        return datetime.fromisoformat(_checked(answer)["metadata"]["creationTimestamp"]).timestamp()

    def apply(self, config_map: Mapping[str, Any]) -> None:
        """Create or change a ConfigMap by server-side apply: a Role can permit a `patch` by the object's name, but not
        a `create`.

        Raises:
            KitError: the API server doesn't answer or refuses the request.
        """
        metadata = config_map["metadata"]
        self._ask(
            "PATCH",
            f"/api/v1/namespaces/{metadata['namespace']}/configmaps/{metadata['name']}",
            params={"fieldManager": FIELD_MANAGER, "force": "true"},
            headers={"Content-Type": "application/apply-patch+yaml"},
            json=dict(config_map),
        )

    def _ask(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        return _checked(self._send(method, path, **request))

    def _send(self, method: str, path: str, headers: Mapping[str, str] | None = None, **request: Any) -> httpx.Response:
        problem = ""
        for pause_s in (0.0, *PAUSES_S):
            self._pause(pause_s)
            # read the token before each attempt: the kubelet replaces its file while the pod runs
            token = (self._account / "token").read_text().strip()
            try:
                answer = self._client.request(
                    method, path, headers={**(headers or {}), "Authorization": f"Bearer {token}"}, **request
                )
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if answer.status_code not in _BUSY:
                return answer
            problem = f"HTTP {answer.status_code}"
        raise KitError(f"{method} {path}: the API server gave no answer in {1 + len(PAUSES_S)} tries ({problem})")


def from_environment(environment: Mapping[str, str]) -> InCluster:
    """Return the API client for the cluster in whose pod this process runs.

    Raises:
        KitError: the process doesn't run in a pod.
    """
    try:
        host, port = environment["KUBERNETES_SERVICE_HOST"], environment["KUBERNETES_SERVICE_PORT"]
    except KeyError as error:
        raise KitError("This program runs in pods only: KUBERNETES_SERVICE_HOST is not set.") from error
    return InCluster(f"https://{f'[{host}]' if ':' in host else host}:{port}")


def _checked(answer: httpx.Response) -> dict[str, Any]:
    if answer.is_success:
        return answer.json()
    try:
        message = answer.json()["message"]
    except (ValueError, KeyError):
        message = answer.text[:200]
    raise KitError(f"{answer.request.method} {answer.request.url.path}: HTTP {answer.status_code}: {message}")
