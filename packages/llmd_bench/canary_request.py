"""Configuration of the canary program of a model, as JSON in a file: servers, prompts and interval."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from pydantic import TypeAdapter

from llmd_bench.deployment import Role

METRICS_PORT = 9100
"""TCP port on which the canary program exposes its Prometheus metrics."""


@dataclass(frozen=True)
class CanaryUnit:
    """Name of a unit of the model (servers behind one router), with the label selectors of its servers by role."""

    name: str
    selectors: Mapping[Role, Mapping[str, str]]


@dataclass(frozen=True)
class CanaryRequest:
    """Configuration of the canary program of a model.

    Attributes:
        namespace: namespace of the servers.
        model: name of the model in requests.
        units: units of the model (the servers behind one router each) whose servers get requests.
        version_label: key of the pod label with the servers' version; only servers with equal values hand KV cache over
            to each other.
        ports: ports that vLLM listens on, by role.
        prompts: prompts, one per round, in turn.
        max_tokens: maximum length of an answer in tokens.
        every_s: seconds from the beginning of a round to the beginning of the next.
        timeout_s: time limit of one request in seconds.
    """

    namespace: str
    model: str
    units: tuple[CanaryUnit, ...]
    version_label: str
    ports: Mapping[Role, int]
    prompts: tuple[str, ...]
    max_tokens: int
    every_s: int
    timeout_s: int

    def to_json(self) -> str:
        """Return the configuration as JSON text, which `from_json` reads."""
        return _adapter().dump_json(self).decode()


def from_json(text: str | bytes) -> CanaryRequest:
    """Return the configuration from the JSON text that `to_json` wrote."""
    return _adapter().validate_json(text)


@cache
def _adapter() -> TypeAdapter[CanaryRequest]:
    return TypeAdapter(CanaryRequest)
