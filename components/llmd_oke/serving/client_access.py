"""Clients' access to a front door, and how much of its memory one client may take: filters in Envoy's Lua.

Envoy's project counts its Lua filter as robust against untrusted clients, and as stable; its own filter for keys is
`alpha`, says at each start that it is work in progress, and compares keys as they are.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmd_oke.planning.placement import FRONT_DOOR_THREADS
from llmd_oke.serving.client_requests import (
    MODEL_KEY,
    MODEL_NAMESPACE,
    TOKENS_NAMESPACE,
    lua_functions,
    lua_literal,
)
from llmd_oke.serving.envoy_bounds import bounds

CLIENT_HEADER = "x-llmd-oke-client"
"""Says routers and servers who asks: the name of the key, or the subject of the token. Clients can't set it."""

PRIORITY_HEADER = "x-llmd-oke-priority"
"""Says routers a client's priority where it isn't 0. Clients can't set it."""

BODIES_FILTER, RIGHTS_FILTER, TOKENS_FILTER = "bodies-in-flight", "client-rights", "client-tokens"
"""Names of filters."""

SERVED = "served"
"""What a route says of itself, below the name of the filter of rights: the model that it leads to, or, where it lists
models, the entry whose host it is."""

Config = dict[str, Any]


def key_digest(key: str) -> str:
    """Return what is kept of a key: its SHA-256. Keys are too long and too much by chance for anybody to find one by
    it.
    """
    return hashlib.sha256(key.encode()).hexdigest()


def keys_filter(digests: Mapping[str, str]) -> Config:
    """Tell clients by digests of their keys, which are given by the clients' names; refuse all others.

    Of an address that was refused too often in a minute, what isn't known is refused with 429.
    """
    clients = {digest: client for client, digest in sorted(digests.items())}
    per_minute = bounds().refusals_per_minute
    return _lua("sha256", "client-keys", Clients=clients, NameHeader=CLIENT_HEADER, RefusalsPerMinute=per_minute)


def tokens_filter() -> Config:
    """Answers 429 to a token that was refused too often in a minute, before it is verified once more, and to those that
    haven't passed before, while too many are refused.
    """
    return {
        "name": TOKENS_FILTER,
        "typed_config": _lua(
            "client-tokens",
            RefusalsPerMinute=bounds().refusals_per_minute,
            FailuresPerSecond=bounds().refused_tokens_per_second,
            PassedNamespace=TOKENS_NAMESPACE,
        ),
    }


def bodies_filter() -> Config:
    """Refuse a request where those of its client whose answers haven't begun are too large beside those of others."""
    most = bounds()
    thread_bytes = most.bodies_mib * 1024 * 1024 // FRONT_DOOR_THREADS
    return {
        "name": BODIES_FILTER,
        "typed_config": _lua(
            "bodies-in-flight",
            MostBytes=thread_bytes,
            ClientShare=most.client_bodies_share,
            LargestBody=most.body_mib * 1024 * 1024,
            SmallBody=most.stream_window_kib * 1024,
            NameHeader=CLIENT_HEADER,
        ),
    }


@dataclass(frozen=True)
class ConcurrentRequests:
    """Requests that a client may have under way at each model at a time, other than those that clusters count."""

    most: int
    counted_by_clusters: Sequence[str]


def rights_filter(
    rights: Mapping[str, Sequence[str]],
    lists: Mapping[str, Mapping[str, str]],
    concurrent_requests: ConcurrentRequests | None,
) -> Config:
    """Make the filter that lets clients use some models only, and have so many requests under way at each.

    Clusters count exactly, but only for clients whose names are known when Envoy starts; those of tokens are not. The
    filter has a state for each of Envoy's threads, so that each thread allows its share: a client that opens few
    connections may be at one of them alone.

    Args:
        rights: served names of models by the names of clients; all others have those of "", or all where it is missing.
        lists: what `/v1/models` answers, by client and by what its route says of itself.
        concurrent_requests: of clients at one Envoy; any number if None.
    """
    most = concurrent_requests
    return {
        "name": RIGHTS_FILTER,
        "typed_config": _lua(
            "client-rights",
            Models={client: dict.fromkeys(models, True) for client, models in rights.items()},
            Lists={client: ", ".join(models) or "none" for client, models in rights.items()},
            Entries={client: dict(texts) for client, texts in lists.items()},
            Most=None if most is None else max(1, most.most // FRONT_DOOR_THREADS),
            Counted={} if most is None else dict.fromkeys(most.counted_by_clusters, True),
            NameHeader=CLIENT_HEADER,
            Namespace=MODEL_NAMESPACE,
            Key=MODEL_KEY,
            Route=SERVED,
        ),
    }


def priorities_filter(priorities: Mapping[str, int]) -> Config:
    """Tell routers the priorities of clients, which are given by their names; all others have 0."""
    texts = {client: str(priority) for client, priority in sorted(priorities.items()) if priority}
    return {
        "name": "client-priorities",
        "typed_config": _lua(
            "client-priorities", Priorities=texts, NameHeader=CLIENT_HEADER, PriorityHeader=PRIORITY_HEADER
        ),
    }


def _lua(*names: str, **tables: Any) -> Config:
    head = "".join(f"local {key} = {lua_literal(value)}\n" for key, value in tables.items())
    return {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
        "default_source_code": {"inline_string": head + "".join(lua_functions(f"serving/{name}") for name in names)},
    }
