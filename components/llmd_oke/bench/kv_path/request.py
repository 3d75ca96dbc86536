"""Which reads two pods do, as plain data that fits a file."""

from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter

Side = Literal["prefill", "decode"]
"""The prefill side has the cache, the decode side reads it, as NIXL's connector of vLLM does."""

SIDES: tuple[Side, Side] = ("prefill", "decode")
"""By the index of their pods."""


@dataclass(frozen=True)
class Transfer:
    """The cache of a prompt of `tokens` tokens, in `descriptors` pieces of `descriptor_bytes` each."""

    tokens: int
    descriptor_bytes: int
    descriptors: int

    @property
    def length_bytes(self) -> int:
        """All of it."""
        return self.descriptor_bytes * self.descriptors


@dataclass(frozen=True)
class KvPathRequest:
    """Each transfer is done `warm_ups` times, then `repeats` times by the clock. `limit_s` is for all of it."""

    namespace: str
    job: str
    transfers: tuple[Transfer, ...]
    repeats: int
    warm_ups: int
    limit_s: float

    @property
    def buffer_bytes(self) -> int:
        """What the largest transfer needs."""
        return max(transfer.length_bytes for transfer in self.transfers)

    @property
    def meeting_name(self) -> str:
        """The ConfigMap in which the prefill side says where its buffer is."""
        return f"{self.job}-meeting"

    def report_name(self, side: Side) -> str:
        """The ConfigMap with what a side found."""
        return f"{self.job}-{side}"

    def to_json(self) -> str:
        """As JSON."""
        return _REQUEST.dump_json(self).decode()


def from_json(text: str | bytes) -> KvPathRequest:
    """The request of `to_json`."""
    return _REQUEST.validate_json(text)


_REQUEST = TypeAdapter(KvPathRequest)
