"""Request to the program of a model's canaries: whom it asks, what, and how often, as plain data that fits a file."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from pydantic import TypeAdapter

from llmd_bench.deployment import Role

METRICS_PORT = 9100
"""Where the program gives its metrics."""


@dataclass(frozen=True)
class CanaryUnit:
    """A unit of the model: the labels of its servers by their role."""

    name: str
    selectors: Mapping[Role, Mapping[str, str]]


@dataclass(frozen=True)
class CanaryRequest:
    """Request to the program of a model's canaries: whom it asks, what, and how often.

    Attributes:
        namespace: of the servers.
        model: its name in requests.
        units: units whose servers are asked.
        version_label: label of servers by which alone those of one value hand KV cache over to each other.
        ports: where vLLM listens, by role.
        prompts: asked in turn, one in each round.
        max_tokens: length of an answer.
        every_s: seconds from the beginning of a round to that of the next.
        timeout_s: limit of one request in seconds.
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
        """Write the request as the program reads it."""
        return _adapter().dump_json(self).decode()


def from_json(text: str | bytes) -> CanaryRequest:
    """Read the request that `to_json` wrote."""
    return _adapter().validate_json(text)


@cache
def _adapter() -> TypeAdapter[CanaryRequest]:
    return TypeAdapter(CanaryRequest)
