"""Effects of the simulated region on the local cluster: nodes, add-ons, and the deletion of all objects."""

import base64
import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

import httpx2
from llmd_base.errors import KitError
from llmd_oke.values import Entry, read_yaml, values_folder
from pydantic import Field

from llmd_rehearsal.agent_config import NodeConfig
from llmd_rehearsal.kubernetes_plugin import charts
from llmd_rehearsal.kubernetes_plugin.client import find_access, load
from llmd_rehearsal.kubernetes_plugin.helm import Helm, HelmError
from llmd_rehearsal.oci_plugin.facts import region_facts
from llmd_rehearsal.oci_plugin.region import Records, RegionClock, ResourceRecord, WorkRequestFailed
from llmd_rehearsal.plugin_values import JsonObject, OperationRefusal

AGENT_LIMIT_S: Final = 60.0
ETCD_LIMIT_S: Final = 30.0
DELETE_S: Final = 60
"""Helm's time limit for uninstalling an add-on, in seconds."""
RESTORE_ROUNDS: Final = 5
"""Limit of rounds in which all of a deleted cluster's objects are deleted; controllers may create objects between
rounds.
"""
RESTORE_PAUSE_S: Final = 0.2
_OBJECTS: Final = "/registry/"
_AFTER_OBJECTS: Final = "/registry0"

_log = logging.getLogger(__name__)


class LocalNodeControl(Protocol):
    """Interface for adding and removing the local cluster's nodes."""

    def add(self, nodes: Sequence[NodeConfig]) -> None:
        """Register nodes in the local cluster; leave existing nodes unchanged."""
        ...

    def remove(self, name: str) -> None:
        """Remove a node from the local cluster; do nothing if it doesn't exist."""
        ...


class AgentNodes:
    """Client of the node agent's HTTP API, by which the stand-in for OCI adds and removes nodes."""

    def __init__(self, url: str) -> None:
        self._http = httpx2.Client(base_url=url, timeout=AGENT_LIMIT_S, trust_env=False)

    def add(self, nodes: Sequence[NodeConfig]) -> None:
        """Register nodes in the local cluster; leave existing nodes unchanged.

        Raises:
            WorkRequestFailed: the node agent refuses or doesn't answer.
        """
        self._request("POST", "/nodes", {"nodes": [node.model_dump(exclude_none=True) for node in nodes]})

    def remove(self, name: str) -> None:
        """Remove a node from the local cluster; do nothing if it doesn't exist.

        Raises:
            WorkRequestFailed: the node agent refuses or doesn't answer.
        """
        self._request("DELETE", f"/nodes/{name}", None)

    def _request(self, method: str, path: str, body: object) -> None:
        try:
            response = self._http.request(method, path, json=body)
        except httpx2.HTTPError as error:
            raise WorkRequestFailed(f"the rehearsal's node agent does not answer: {error!r}") from error
        if response.is_error:
            raise WorkRequestFailed(f"the rehearsal's node agent refused: {response.status_code} {response.text}")


class AddOnChart(Entry):
    """Reference to a Helm chart of `values/rehearsal/charts.yaml`."""

    reference: str
    version: str
    repository: str = ""


class AddOnContent(Entry):
    """Helm chart and values of an OKE add-on; they are installed `delay_s` seconds of OCI's time (which the simulated
    region shortens) after the add-on becomes active.
    """

    chart: AddOnChart
    namespace: str
    values: dict[str, Any] = Field(default_factory=dict[str, Any])
    delay_s: float = 0


@cache
def contents() -> dict[str, AddOnContent]:
    """Return the chart and values of each OKE add-on that installs a chart into the cluster, by the add-on's name."""
    rows: dict[str, Any] = read_yaml(values_folder() / "rehearsal" / "add_ons.yaml")["add_ons"]
    return {name: AddOnContent.model_validate(row) for name, row in rows.items()}


@dataclass(frozen=True)
class LocalAddOns:
    """Installation of OKE's add-ons in the local cluster. `helm` is Helm's path; if empty, Helm is taken from PATH."""

    kubeconfig: Path
    helm: str = ""
    cancelled: threading.Event = field(default_factory=threading.Event)

    def delay_s(self, name: str) -> float:
        """Return the seconds, as real OCI takes them, from when an add-on becomes active until its installation
        starts.
        """
        content = contents().get(name)
        return content.delay_s if content else 0

    def install(self, name: str, configurations: Mapping[str, str]) -> None:
        """Install an OKE add-on in the local cluster or change its configuration, without waiting for its pods, as OKE
        does.

        Raises:
            KitError: Helm failed.
        """
        content = contents().get(name)
        if content is None:
            return
        helm, release, chart = self._helm(), _release_name(name), content.chart
        values = _merged(content.values, _nested(configurations))
        try:
            with charts.chart(chart.reference, chart.repository, chart.version) as folder:
                if helm.metadata(release, content.namespace) is None:
                    helm.install(release, content.namespace, folder, values, ["--create-namespace"])
                else:
                    helm.upgrade(release, content.namespace, folder, values, [])
        except HelmError as error:
            raise KitError(f"The add-on {name} can't be installed: {error}") from error

    def remove(self, name: str) -> None:
        """Uninstall an OKE add-on except for its CustomResourceDefinitions; do nothing if it isn't installed.

        Raises:
            KitError: Helm failed.
        """
        content = contents().get(name)
        if content is None:
            return
        try:
            self._helm().uninstall(_release_name(name), content.namespace, DELETE_S)
        except HelmError as error:
            raise KitError(f"The add-on {name} can't be removed: {error}") from error

    def _helm(self) -> Helm:
        access = find_access(load(str(self.kubeconfig)))
        if access is None:
            raise KitError(f"{self.kubeconfig} names no cluster")
        return Helm(access, self.cancelled, self.helm)


def _release_name(name: str) -> str:
    return f"oke-{name.lower()}"


def _nested(configurations: Mapping[str, str]) -> dict[str, Any]:
    """Return chart values from an add-on's configuration with dotted keys: `{"worker.tolerations": "[...]"}` becomes
    `{"worker": {"tolerations": [...]}}`.
    """
    values: dict[str, Any] = {}
    for key, text in configurations.items():
        *path, last = key.split(".")
        part = values
        for step in path:
            part = part.setdefault(step, {})
        try:
            part[last] = json.loads(text)
        except ValueError:
            part[last] = text
    return values


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = {**below, **above}
    inner = [
        key for key in below.keys() & above.keys() if isinstance(below[key], dict) and isinstance(above[key], dict)
    ]
    return {**both, **{key: _merged(below[key], above[key]) for key in inner}}


class AddOnController(Protocol):
    """Interface of an OKE add-on that acts on OCI, such as ClusterAutoscaler, and installs nothing into the cluster."""

    def configure(self, configurations: Mapping[str, str]) -> None:
        """Start to act by an add-on's configuration, or continue with a changed configuration."""
        ...

    def remove(self) -> None:
        """Stop acting on OCI, because the add-on was removed."""
        ...


class ClusterAddOns:
    """All OKE add-ons of the local cluster. As in OKE, an add-on counts as active before it is installed. `controllers`
    are the add-ons that act on OCI themselves, by name.
    """

    def __init__(
        self,
        add_ons: LocalAddOns,
        clock: RegionClock,
        controllers: Mapping[str, AddOnController] = MappingProxyType({}),
    ) -> None:
        self._add_ons = add_ons
        self._clock = clock
        self._controllers = controllers
        self._lock = threading.Lock()
        self._desired: dict[str, Mapping[str, str]] = {}

    def install(self, name: str, configurations: Mapping[str, str]) -> None:
        """Start to install an OKE add-on, or to change its configuration, in a thread; failures are logged."""
        if controller := self._controllers.get(name):
            controller.configure(configurations)
            return
        with self._lock:
            self._desired[name] = configurations
        threading.Thread(target=self._install, args=(name, configurations), name=f"add-on {name}", daemon=True).start()

    def remove(self, name: str) -> None:
        """Remove an OKE add-on; do nothing if it isn't installed.

        Raises:
            WorkRequestFailed: Helm can't uninstall the add-on.
        """
        if controller := self._controllers.get(name):
            controller.remove()
            return
        with self._lock:
            self._desired.pop(name, None)
            try:
                self._add_ons.remove(name)
            except (KitError, OperationRefusal) as error:
                raise WorkRequestFailed(str(error)) from error

    def cancel_all(self) -> None:
        """Wait for the installation of an add-on in progress and prevent further ones, because the cluster is deleted
        with its add-ons.
        """
        for controller in self._controllers.values():
            controller.remove()
        with self._lock:
            self._desired.clear()

    def _install(self, name: str, configurations: Mapping[str, str]) -> None:
        try:
            self._clock.wait(self._add_ons.delay_s(name))
            with self._lock:
                if self._desired.get(name) is configurations:
                    self._add_ons.install(name, configurations)
        except (KitError, OperationRefusal, WorkRequestFailed) as error:
            _log.error("add-on %s: %s", name, error)


def require_add_on_dependencies(record: ResourceRecord, records: Records) -> None:
    """Check, as OKE does, that the add-ons on which the add-on in `record` depends are all active.

    Raises:
        WorkRequestFailed: a required add-on isn't active.
    """
    check = region_facts().add_on_checks.get(record.state.get("addonName", ""))
    if check is None or configurations_of(record.state).get(check.skipped_by) == "true":
        return
    active = {
        other.state["addonName"]
        for other in records.all_of("Addon")
        if (other.state["clusterId"], other.state["state"]) == (record.state["clusterId"], "ACTIVE")
    }
    if missing := [name for name in check.needs if name not in active]:
        raise WorkRequestFailed(f"Dependency check failed: {', '.join(missing)} must be installed and active")


def configurations_of(state: JsonObject) -> dict[str, str]:
    """Return an add-on's configuration as a mapping from the names of settings to their values."""
    return {entry["key"]: entry["value"] for entry in state.get("configurations") or ()}


class EtcdStore:
    """Client of the local cluster's etcd (JSON gateway) that deletes all objects when OCI deletes the cluster.

    Objects are deleted in etcd, and the API server's watches still report the deletions. Deleted through the API
    server, objects would wait for finalizers of controllers that were deleted with the cluster.
    """

    def __init__(self, http: httpx2.Client, pause_s: float = RESTORE_PAUSE_S) -> None:
        self._http = http
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self._own: frozenset[str] | None = None

    def snapshot(self) -> None:
        """Record the keys in etcd before the first cluster is created: those of the API server's own objects."""
        with self._lock:
            if self._own is None:
                self._own = frozenset(self._keys())

    def restore(self) -> None:
        """Delete all objects in etcd that `snapshot` didn't record.

        Raises:
            WorkRequestFailed: etcd doesn't answer.
        """
        with self._lock:
            if self._own is None:
                return
            for _ in range(RESTORE_ROUNDS):
                others = [key for key in self._keys() if key not in self._own]
                if not others:
                    return
                for key in others:
                    self._call("deleterange", {"key": _base64(key)})
                time.sleep(self._pause_s)

    def _keys(self) -> list[str]:
        body = {"key": _base64(_OBJECTS), "range_end": _base64(_AFTER_OBJECTS), "keys_only": True}
        return [base64.b64decode(entry["key"]).decode() for entry in self._call("range", body).get("kvs", ())]

    def _call(self, call: str, body: dict[str, str | bool]) -> Any:
        try:
            response = self._http.post(f"/v3/kv/{call}", json=body)
            response.raise_for_status()
        except httpx2.HTTPError as error:
            raise WorkRequestFailed(f"the rehearsal's etcd does not answer: {error!r}") from error
        return response.json()


def etcd_client(url: str) -> httpx2.Client:
    """Return an HTTP client for an etcd on this machine."""
    return httpx2.Client(base_url=url, timeout=ETCD_LIMIT_S, trust_env=False)


def _base64(key: str) -> str:
    return base64.b64encode(key.encode()).decode()
