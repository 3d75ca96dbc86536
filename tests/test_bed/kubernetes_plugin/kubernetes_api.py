"""The API server of a control plane, as tests ask it for objects."""

import json
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from llmd_oke import catalogue
from llmd_oke.operations.locks import until
from llmd_oke.values import module_folder

ESTABLISHED_S = 30


def need_definitions(release_name: str) -> None:
    """Skip where the definitions of a release are not on the machine."""
    release = catalogue.release(release_name)
    if release and not (module_folder(release.crds.module, release.crds.version) / release.crds.folder).is_dir():
        pytest.skip(f"the definitions of {release_name} are not on this machine")


@dataclass
class ApiServer:
    """The API server; it refuses fields that a kind doesn't have."""

    client: httpx2.Client
    served: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    namespaces: set[str] = field(default_factory=set)

    def resource(self, api_version: str, kind: str) -> dict[str, Any] | None:
        """Return how the server serves a kind; None where it doesn't."""
        if api_version not in self.served:
            answer = self.client.get(f"{_root(api_version)}")
            names: list[dict[str, Any]] = answer.json()["resources"] if answer.is_success else []
            self.served[api_version] = {item["kind"]: item for item in names if "/" not in item["name"]}
        return self.served[api_version].get(kind)

    def namespace(self, name: str) -> str:
        """A namespace that is really there, without which not even a dry-run is taken."""
        if name not in self.namespaces:
            answer = self.client.post("/api/v1/namespaces", json={"metadata": {"name": name}})
            assert answer.is_success or answer.status_code == 409, answer.text
            self.namespaces.add(name)
        return name

    def define(self, definition: dict[str, Any]) -> None:
        """Make a custom resource definition, and wait until it is served."""
        path = _definition_path(definition)
        answer = self._apply(path, definition, {"force": "true"})
        assert answer.is_success, answer.text
        self._wait_established(path)

    def _wait_established(self, path: str) -> None:
        assert until(lambda: "Established" in self._conditions(path), ESTABLISHED_S), f"{path} is not established"

    def _conditions(self, path: str) -> list[str]:
        conditions: list[dict[str, str]] = self.client.get(path).json().get("status", {}).get("conditions") or []
        return [condition["type"] for condition in conditions if condition["status"] == "True"]

    def forget(self, definition: dict[str, Any]) -> None:
        """Delete a custom resource definition with its objects, and wait until it is gone."""
        path = _definition_path(definition)
        self.client.delete(path)
        assert until(lambda: self.client.get(path).status_code == 404, ESTABLISHED_S), f"{path} is still there"

    def apply(self, manifest: dict[str, Any]) -> None:
        """Have the server apply an object, as `kubectl apply --server-side` does."""
        answer = self._apply(self.path(manifest), manifest, {"fieldValidation": "Strict"})
        assert answer.is_success, f"{manifest['kind']} {manifest['metadata']['name']}: {answer.text}"
        if manifest["kind"] == "CustomResourceDefinition":
            self._wait_established(self.path(manifest))

    def get(self, manifest: dict[str, Any]) -> dict[str, Any] | None:
        """Return what the server has of an object."""
        answer = self.client.get(self.path(manifest))
        return answer.json() if answer.is_success else None

    def path(self, manifest: dict[str, Any]) -> str:
        """Return where an object is."""
        resource = self.resource(manifest["apiVersion"], manifest["kind"])
        assert resource is not None, f"{manifest['apiVersion']} {manifest['kind']} is not served"
        metadata = manifest["metadata"]
        place = f"/namespaces/{metadata['namespace']}" if resource["namespaced"] else ""
        return f"{_root(manifest['apiVersion'])}{place}/{resource['name']}/{metadata['name']}"

    def refusal(self, manifest: dict[str, Any]) -> str | None:
        """Return why the server would not take an object."""
        if (namespace := manifest["metadata"].get("namespace")) is not None:
            self.namespace(namespace)
        answer = self._apply(
            self.path(manifest), manifest, {"force": "true", "dryRun": "All", "fieldValidation": "Strict"}
        )
        return None if answer.is_success else answer.json()["message"]

    def _apply(self, path: str, manifest: dict[str, Any], parameters: dict[str, str]) -> httpx2.Response:
        return self.client.patch(
            path,
            params={"fieldManager": "test", **parameters},
            content=json.dumps(manifest),
            headers={"Content-Type": "application/apply-patch+yaml"},
        )


def _definition_path(definition: dict[str, Any]) -> str:
    return f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition['metadata']['name']}"


def _root(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
