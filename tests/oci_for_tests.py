"""OCI as a table of answers."""

from collections.abc import Mapping
from typing import Any

from llmd_oke.access.oci_client import OciError
from llmd_oke.catalogue.operations import oci_resources

CLUSTER = {
    "id": "x",
    "name": "prod",
    "lifecycleState": "ACTIVE",
    "compartmentId": "c",
    "vcnId": "vcn",
    "endpoints": {"privateEndpoint": "10.0.0.6:6443"},
}
"""A cluster that a tunnel leads to."""


class FakeOci:
    """Answers by `service path`; an answer that is an error is raised, one that is a list of answers is used up."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = dict(answers)
        self.sent: list[tuple[str, str, Any]] = []
        self.asked: list[tuple[str, dict[str, str]]] = []

    def get(self, service: str, path: str, **query: str) -> Any:
        self.asked.append((f"{service} {path}", query))
        return self._answer(f"{service} {path}")

    def send(self, method: str, service: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        self.sent.append((method, f"{service} {path}", body))
        return self._answer(f"{method} {service} {path}")

    def _answer(self, key: str) -> Any:
        answer = self.answers.get(key, OciError(404, "NotAuthorizedOrNotFound", f"OCI refuses {key}: 404"))
        if isinstance(answer, Sequence):
            answer = answer.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class EmptyOci(FakeOci):
    """A tenancy that has nothing of what no answer is given for."""

    def _answer(self, key: str) -> Any:
        if key in self.answers:
            return super()._answer(key)
        kinds = oci_resources().resources.values()
        return {"items": []} if any(kind.items and key == f"{kind.service} {kind.path}" for kind in kinds) else []


class Sequence(list[Any]):
    """Answers that are given one after the other."""
