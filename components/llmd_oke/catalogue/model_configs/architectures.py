"""Facts about architectures that a config.json leaves to the model's code (`values/architectures`)."""

from collections.abc import Mapping
from functools import cache
from typing import Literal

from llmd_oke.values import Entry, required_entry


class ArchitectureFamily(Entry):
    """Facts about an architecture that its config.json leaves to the model's code.

    Attributes:
        source: source of the facts.
        attention: kind of attention whose sizes config.json must have; None if the sizes alone determine the kind.
        attention_sinks: whether attention has sinks.
        expert_biases: whether experts have biases.
        query_gate: whether queries have a gate.
        shared_experts: number of experts that every token passes through, besides the routed ones.
        plain_mlp: whether a dense layer or an expert has two matrices instead of three.
        tied_embeddings: whether the head shares the embeddings' weights, unless config.json says otherwise.
        experts_beside_dense: whether layers have a dense part besides experts.
        float32_states: whether vLLM keeps the states of sequences in 32 bits, unless config.json says otherwise.
        attention_beside_states: whether each layer has both attention and a state space.
    """

    source: str
    attention: Literal["latent", "gated-delta-net"] | None = None
    attention_sinks: bool = False
    expert_biases: bool = False
    query_gate: bool = False
    shared_experts: int = 0
    plain_mlp: bool = False
    tied_embeddings: bool = False
    experts_beside_dense: bool = False
    float32_states: bool = False
    attention_beside_states: bool = False


UNKNOWN_FAMILY = ArchitectureFamily(source="")
"""Assumptions about an architecture that has no row in `values/architectures`."""


class _Families(Entry):
    families: dict[str, ArchitectureFamily]


@cache
def families() -> Mapping[str, ArchitectureFamily]:
    """Return the facts about architectures by the `model_type` of the text model in config.json."""
    return required_entry("architectures", "families", _Families).families
