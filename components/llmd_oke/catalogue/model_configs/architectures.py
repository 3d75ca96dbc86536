"""Facts of architectures that a config.json leaves to the code of its models (`values/architectures`)."""

from collections.abc import Mapping
from functools import cache
from typing import Literal

from llmd_oke.values import Entry, required_entry


class ArchitectureFamily(Entry):
    """Facts of an architecture that its config.json leaves to the code of the model.

    `attention` is the kind of attention that its file must have the sizes of; of others the sizes tell the kind.
    `shared_experts` are those that each token passes through beside the ones that it is routed to, `plain_mlp` says
    that a dense layer, or an expert, has two matrices and not three, `tied_embeddings` that the head is the embeddings
    unless the file says otherwise, and `experts_beside_dense` that layers have a dense part beside experts.
    `float32_states` says that vLLM keeps the states of sequences in 32 bits unless the file says otherwise, and
    `attention_beside_states` that each layer has attention and a state space side by side.
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
"""What is assumed of an architecture whose code nobody looked at."""


class _Families(Entry):
    families: dict[str, ArchitectureFamily]


@cache
def families() -> Mapping[str, ArchitectureFamily]:
    """The architectures whose code was looked at, by the `model_type` of their text model in config.json."""
    return required_entry("architectures", "families", _Families).families
