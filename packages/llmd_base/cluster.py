"""The cluster as a pod in it sees it: its API server by the pod's own account, Services and pods by their addresses."""

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
"""Folder in which every pod finds its account's token and the API server's certificate authority."""

FIELD_MANAGER = "llmd-oke"
REQUEST_TIMEOUT_S = 30.0
PAUSES_S = (1.0, 4.0, 15.0)
"""Pauses before each further try, because the API server didn't answer or is busy: what was measured must not be lost
with one that restarts.
"""

_BUSY = frozenset({429, 500, 502, 503, 504})


class InCluster:
    """A directory of the pod's cluster, and a writer of ConfigMaps as far as the account may.

    Args:
        url: the API server, for example `https://10.96.0.1:443`.
        account: folder of token and certificate authority.
        transport: for tests, as is `pause`.
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
        """Return the way to port 80 of a Service, by its name."""
        return HttpEndpoint(f"http://{name}.{namespace}.svc.cluster.local")

    def pods(self, namespace: str, labels: Mapping[str, str]) -> Sequence[PodAddress]:
        """Return the pods with these labels that have an address, sorted by name.

        Raises:
            KitError: the API server doesn't answer or refuses.
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
        """Return the way to a port of a pod."""
        return HttpEndpoint(f"http://{pod.address}:{port}")

    def config_map(self, namespace: str, name: str) -> Mapping[str, str] | None:
        """Return the texts of a ConfigMap, None where there is none.

        Raises:
            KitError: the API server doesn't answer or refuses.
        """
        answer = self._send("GET", f"/api/v1/namespaces/{namespace}/configmaps/{name}")
        return None if answer.status_code == HTTPStatus.NOT_FOUND else _checked(answer).get("data") or {}

    def created_s(self, namespace: str, name: str) -> float | None:
        """Return the moment at which a ConfigMap was created, in whole seconds of the epoch by the API server's clock;
        None where there is no such ConfigMap.

        Raises:
            KitError: the API server doesn't answer or refuses.
        """
        answer = self._send("GET", f"/api/v1/namespaces/{namespace}/configmaps/{name}")
        if answer.status_code == HTTPStatus.NOT_FOUND:
            return None
        return datetime.fromisoformat(_checked(answer)["metadata"]["creationTimestamp"]).timestamp()

    def apply(self, config_map: Mapping[str, Any]) -> None:
        """Create or change a ConfigMap by server-side apply, for which a role can name the one that it may.

        Raises:
            KitError: the API server doesn't answer or refuses.
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
            # read anew for each try: it is replaced while the pod runs
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
    """Return the cluster that this process's pod is in.

    Raises:
        KitError: it isn't in a pod.
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
