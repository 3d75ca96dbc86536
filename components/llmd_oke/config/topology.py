"""How many servers of which tensor parallel size make up one unit of a model."""

from typing import Annotated, Any, Literal, Self

from llmd_pods.topology import aggregated_short_form, disaggregated_short_form, parse_short_form
from pydantic import Field, ModelWrapValidatorHandler, model_validator

from llmd_oke.config.base import Part

Role = Literal["prefill", "decode", "aggregated"]


class Servers(Part):
    """Equal vLLM servers of one role."""

    replicas: Annotated[int, Field(ge=1, le=1024)]
    """Number of servers."""

    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)]
    """GPUs of each server. A server never spans nodes, so that a node's GPUs are the limit."""


class Topology(Part):
    """Either prefill and decode servers, or aggregated servers, of one unit.

    The short form is one string: `8p-tp1-4d-tp2` or `agg-tp1-16r`.
    """

    prefill: Servers | None = None
    """Servers that compute prompts and hand their KV cache over."""

    decode: Servers | None = None
    """Servers that generate tokens."""

    aggregated: Servers | None = None
    """Servers that do both."""

    _source_text: str | None = None

    @model_validator(mode="wrap")
    @classmethod
    def _from_short_form(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(value, str):
            return handler(value)
        topology = handler(parse_short_form(value))
        topology._source_text = value
        return topology

    @property
    def source_text(self) -> str | None:
        """The text of the short form, where the stack file has that; problems then name the topology as a whole."""
        return self._source_text

    def __eq__(self, other: object) -> bool:
        """Whether the servers are equal, in whichever form they were written."""
        return isinstance(other, Topology) and self.servers() == other.servers()

    __hash__ = Part.__hash__

    def servers(self) -> dict[Role, Servers]:
        """The roles that the unit has, in the order prefill, decode, aggregated."""
        by_role: dict[Role, Servers | None] = {
            "prefill": self.prefill,
            "decode": self.decode,
            "aggregated": self.aggregated,
        }
        return {role: servers for role, servers in by_role.items() if servers is not None}

    @property
    def disaggregated(self) -> bool:
        """Whether prefill and decode are separate servers."""
        return self.prefill is not None and self.decode is not None

    @property
    def gpus(self) -> int:
        """GPUs of one unit."""
        return sum(servers.replicas * servers.tensor_parallel_size for servers in self.servers().values())

    def __str__(self) -> str:
        """The short form where there is one (`8p-tp1-4d-tp2`), otherwise the roles one by one."""
        if self.prefill and self.decode and not self.aggregated:
            prefill, decode = self.prefill, self.decode
            return disaggregated_short_form(
                prefill.replicas, prefill.tensor_parallel_size, decode.replicas, decode.tensor_parallel_size
            )
        if self.aggregated and not self.prefill and not self.decode:
            return aggregated_short_form(self.aggregated.tensor_parallel_size, self.aggregated.replicas)
        return ", ".join(f"{role} {s.replicas} x tp{s.tensor_parallel_size}" for role, s in self.servers().items())
