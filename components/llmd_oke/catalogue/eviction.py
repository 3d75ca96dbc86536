"""How long nodes are drained before they go."""

from functools import cache

from llmd_oke.catalogue.files import Entry, required_entry


class Eviction(Entry):
    """Minutes that OKE drains a node of a managed pool; `cycling_grace_minutes` where GPU nodes replace each other."""

    grace_minutes: int
    cycling_grace_minutes: int


@cache
def eviction() -> Eviction:
    """How long nodes are drained before they go."""
    return required_entry("node-pools", "eviction", Eviction)
