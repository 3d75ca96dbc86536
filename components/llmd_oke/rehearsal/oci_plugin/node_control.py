"""How nodes come into the rehearsal's cluster and leave it: the control API of its node agent."""

from collections.abc import Sequence
from typing import Final, Protocol

import httpx2

from llmd_oke.rehearsal.nodes.config import NodeConfig
from llmd_oke.rehearsal.oci_plugin.errors import WorkRequestFailed

LIMIT_S: Final = 60.0


class NodeControl(Protocol):
    """Adds and removes nodes."""

    def add(self, nodes: Sequence[NodeConfig]) -> None:
        """Registers nodes; those that are there already are left."""
        ...

    def remove(self, name: str) -> None:
        """Removes a node; one that isn't there is no error."""
        ...


class NoCluster:
    """For a plug-in that stands alone: nodes are known to OCI only."""

    def add(self, nodes: Sequence[NodeConfig]) -> None:
        """Nothing."""

    def remove(self, name: str) -> None:
        """Nothing."""


class AgentNodes:
    """The node agent of the plug-in's world."""

    def __init__(self, url: str) -> None:
        self._http = httpx2.Client(base_url=url, timeout=LIMIT_S, trust_env=False)

    def add(self, nodes: Sequence[NodeConfig]) -> None:
        """Registers nodes. Raises WorkRequestFailed where the agent doesn't take them."""
        body = {"nodes": [node.model_dump(exclude_none=True) for node in nodes]}
        self._ask("POST", "/nodes", body)

    def remove(self, name: str) -> None:
        """Removes a node."""
        self._ask("DELETE", f"/nodes/{name}", None)

    def _ask(self, method: str, path: str, body: object) -> None:
        try:
            answer = self._http.request(method, path, json=body)
        except httpx2.HTTPError as error:
            raise WorkRequestFailed(f"the rehearsal's node agent does not answer: {error!r}") from error
        if answer.is_error:
            raise WorkRequestFailed(f"the rehearsal's node agent refused: {answer.status_code} {answer.text}")
