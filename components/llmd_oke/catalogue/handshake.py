"""What vLLM servers may differ in and still hand KV cache over."""

from functools import cache

from llmd_oke.catalogue.files import Entry, required_entry


class Handshake(Entry):
    """Arguments and environment variables that vLLM's handshake before a transfer does not go by; all others count."""

    arguments: frozenset[str]
    environment: frozenset[str]


@cache
def handshake() -> Handshake:
    """The facts of `values/vllm/handshake.yaml`."""
    return required_entry("vllm", "handshake", Handshake)
