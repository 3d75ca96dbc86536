"""Authentication and limits of clients at a front door, as Envoy's Lua filters.

Envoy's project rates its Lua filter as stable and robust against untrusted clients. Its API key filter is `alpha`, logs
at each start that it is work in progress, and compares keys in plain text.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
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
"""Header with the client's name, for routers and servers: the name of the API key, or the subject of the token. The
front door removes the header from requests of clients."""

PRIORITY_HEADER = "x-llmd-oke-priority"
"""Header with a client's priority for routers, if it isn't 0. The front door removes the header from requests of
clients."""

BODIES_FILTER, RIGHTS_FILTER, TOKENS_FILTER = "bodies-in-flight", "client-rights", "client-tokens"
"""Names of the front door's Lua filters: limits on request bodies in memory, rights of clients to models, and checks of
tokens.
"""

SERVED = "served"
"""Key in a route's metadata that the filter of clients' rights reads: the served name of the route's model, or, on a
route that lists models, the name of the model's stack-file entry whose host the route has.
"""

Config = dict[str, Any]


def key_digest(key: str) -> str:
    """Return the SHA-256 of an API key as hexadecimal digits, which is stored instead of the key. Keys are long and
    random, so that no key can be guessed from its digest.
    """
    return hashlib.sha256(key.encode()).hexdigest()


def keys_filter(digests: Iterable[tuple[str, str]]) -> Config:
    """Return the Envoy filter that authenticates clients by the digests of their API keys and refuses other requests.

    The filter answers 429 to unknown keys from an address that had too many refusals in a minute.

    Args:
        digests: names of clients with the SHA-256 of one of their keys; a client may have several.
    """
    clients = {digest: client for client, digest in sorted(digests)}
    per_minute = bounds().refusals_per_minute
    return _lua("sha256", "client-keys", Clients=clients, NameHeader=CLIENT_HEADER, RefusalsPerMinute=per_minute)


def tokens_filter() -> Config:
    """Return the Envoy filter that limits the verification of tokens: it answers 429 to a token that was refused too
    often in a minute before the token is verified again, and, while too many tokens are refused, to tokens that have
    never passed.
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
    """Return the Envoy filter that refuses a request if the bodies of the same client's unanswered requests take too
    much of the memory for bodies, compared with those of other clients.
    """
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
    """Limit on a client's requests under way at each model. `counted_by_clusters` names the clients whose requests
    Envoy's clusters count instead of the filter.
    """

    most: int
    counted_by_clusters: Sequence[str]


def rights_filter(
    rights: Mapping[str, Sequence[str]],
    lists: Mapping[str, Mapping[str, str]],
    concurrent_requests: ConcurrentRequests | None,
) -> Config:
    """Return the Envoy filter that limits the models that clients may use, and a client's requests under way at each
    model.

    Clusters count exactly, but only for clients whose names are known when Envoy starts, which the names of tokens are
    not. The filter's state belongs to one thread of Envoy, so that each thread allows its share of the limit: a client
    with few connections may be on one thread only.

    Args:
        rights: served names of models by the names of clients; all other clients have those of the key "", or may use
            all models if that key is missing.
        lists: answers to `/v1/models` as JSON text, by client and by the value of `SERVED` in the route's metadata.
        concurrent_requests: limit of clients at one Envoy; no limit if None.
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
    """Return the Envoy filter that sets the header with the client's priority, 0 for clients without one.

    Args:
        priorities: priorities by the clients' names.
    """
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
