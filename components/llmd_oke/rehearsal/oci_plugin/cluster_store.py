"""What a cluster holds goes with it: the rehearsal's API server is emptied when OCI deletes the cluster."""

import base64
import threading
from collections.abc import Iterable
from typing import Any, Final, Protocol

import httpx2

from llmd_oke.rehearsal.oci_plugin.errors import WorkRequestFailed

LIMIT_S: Final = 30.0
ROUNDS: Final = 5
"""How often what controllers made meanwhile is taken away too."""
PAUSE_S: Final = 0.2

_OBJECTS: Final = "/registry/"
_AFTER_OBJECTS: Final = "/registry0"


class ClusterStore(Protocol):
    """The objects of the cluster that clusters lead to."""

    def begin(self) -> None:
        """Remembers what is there before a cluster is made."""
        ...

    def empty(self) -> None:
        """Takes everything else away."""
        ...


class NoStore:
    """For a plug-in that stands alone."""

    def begin(self) -> None:
        """Nothing."""

    def empty(self) -> None:
        """Nothing."""


class EtcdStore:
    """The etcd of the plug-in's world, by its JSON gateway.

    Objects are taken from under the API server, whose watches see them go. Deleting them one by one would wait for
    finalizers of controllers that went with the cluster.
    """

    def __init__(self, http: httpx2.Client, pause_s: float = PAUSE_S) -> None:
        self._http = http
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self._own: frozenset[str] | None = None

    def begin(self) -> None:
        """Remembers the objects that are there before the first cluster: the API server's own."""
        with self._lock:
            if self._own is None:
                self._own = frozenset(self._keys())

    def empty(self) -> None:
        """Takes away what was not there before the first cluster.

        Raises:
            WorkRequestFailed: etcd doesn't answer.
        """
        with self._lock:
            if self._own is None:
                return
            for _ in range(ROUNDS):
                left = [key for key in self._keys() if key not in self._own]
                if not left:
                    return
                self._delete(left)
                threading.Event().wait(self._pause_s)

    def _keys(self) -> list[str]:
        asked = {"key": _encoded(_OBJECTS), "range_end": _encoded(_AFTER_OBJECTS), "keys_only": True}
        return [base64.b64decode(entry["key"]).decode() for entry in self._ask("range", asked).get("kvs", ())]

    def _delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._ask("deleterange", {"key": _encoded(key)})

    def _ask(self, call: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = self._http.post(f"/v3/kv/{call}", json=body)
            answer.raise_for_status()
        except httpx2.HTTPError as error:
            raise WorkRequestFailed(f"the rehearsal's etcd does not answer: {error!r}") from error
        return answer.json()


def etcd_client(url: str) -> httpx2.Client:
    """A client of an etcd of this machine."""
    return httpx2.Client(base_url=url, timeout=LIMIT_S, trust_env=False)


def _encoded(key: str) -> str:
    return base64.b64encode(key.encode()).decode()
