"""What is asked of a smoke benchmark, as plain data that fits a file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from llmd_oke.bench.deployment.metrics import EndpointRole
from llmd_oke.bench.deployment.topology import Topology
from llmd_oke.bench.evals.items import BuiltinSet
from llmd_oke.bench.smoke.evidence import EvidenceSettings, OtherApi
from llmd_oke.bench.smoke.thresholds import Thresholds


@dataclass(frozen=True)
class PodGroup:
    """Equal pods of one unit, and the port where they show their counters; an autoscaler may change their number."""

    unit: str
    role: EndpointRole
    selector: Mapping[str, str]
    metrics_port: int
    scaled: bool = False


@dataclass(frozen=True)
class SmokeRequest:
    """A smoke benchmark of one model, without anything that is known only when its pods are there.

    `service` takes requests on port 80; `server_port` is where each server, behind its routing sidecar if it has one,
    takes them itself, and `prefill_header` what tells a routing sidecar which prefill server to use. `other_apis`
    are the model's beside the measured one. `evidence` is None where there is nothing to prove, `questions` where
    answers are not evaluated.
    """

    namespace: str
    service: str
    model: str
    topology: Topology
    input_tokens: int
    output_tokens: int
    requests: int
    concurrency: int
    timeout_s: float
    thresholds: Thresholds
    groups: tuple[PodGroup, ...]
    server_port: int
    prefill_header: str
    other_apis: tuple[OtherApi, ...] = ()
    evidence: EvidenceSettings | None = None
    questions: BuiltinSet | None = None
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_json(self) -> str:
        """The request as the text of a file; equal requests give equal texts."""
        return _adapter().dump_json(self, indent=1).decode()


def from_json(text: str | bytes) -> SmokeRequest:
    """The request that `to_json` wrote."""
    return _adapter().validate_json(text)


@cache
def _adapter() -> TypeAdapter[SmokeRequest]:
    return TypeAdapter(SmokeRequest)
