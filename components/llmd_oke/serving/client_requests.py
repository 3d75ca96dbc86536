"""Checks of clients' requests in an Envoy, before any other filter or server reads them.

Headers that only the router may set are removed, and fields that only the router may set are refused
(`values/router/client-requests.yaml`), both by Envoy's Lua filter, which Envoy's project rates as robust against
untrusted clients (extensions_metadata.yaml of v1.40.0: `robust_to_untrusted_downstream`, `stable`; `header_mutation` is
`unknown`, `json_to_metadata` is `alpha`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, cast

from llmd_oke.catalogue.client_requests import client_requests
from llmd_oke.serving.envoy_bounds import bounds
from llmd_oke.values import values_folder

LARGEST_BODY_MIB = bounds().body_mib
"""Largest body of a request to a front door, in MiB. Envoy buffers the whole body."""

MODEL_NAMESPACE, MODEL_KEY, REFUSED_KEY = "llmd-oke", "model", "refused"
"""Namespace and keys of the dynamic metadata with the body's `model`, and with the field or kind of what was refused.
"""

TOKENS_NAMESPACE = "llmd-oke.tokens"
"""Namespace of the dynamic metadata with the number of tokens that a request may take, under `MODEL_KEY`."""

BODIES_FILTER = "client-bodies"
"""Name of the Envoy filter that checks the bodies of clients' requests."""

_PATH_PREFIX = "^/models/[^/]+"
"""Lua pattern of the prefix of paths that lead to one model at a stack's front door."""

_FILTERS = "type.googleapis.com/envoy.extensions.filters.http"

Config = dict[str, Any]


@dataclass(frozen=True)
class LongestSequences:
    """Longest sequences in tokens, by the host name, by the entry's name in the path, and by the body's `model`."""

    hosts: Mapping[str, int]
    entries: Mapping[str, int]
    models: Mapping[str, int]


@dataclass(frozen=True)
class ClientObjectives:
    """Headers from which an endpoint picker reads a request's InferenceObjective (`objective_header`) and the client
    for fairness (`fairness_header`). A front door sends `client_header` and `priority_header`, from which the former
    are made; `objectives` are pairs of a priority and the name of its InferenceObjective.
    """

    client_header: str
    priority_header: str
    objective_header: str
    fairness_header: str
    objectives: tuple[tuple[str, str], ...]


def filters(
    largest_body_mib: int = LARGEST_BODY_MIB,
    *,
    salted: bool = False,
    objectives: ClientObjectives | None = None,
    sessions: Sequence[str] = (),
) -> list[Config]:
    """Return the filters of an Envoy that untrusted clients can reach: they remove the router's headers, buffer
    requests and check bodies.

    Args:
        largest_body_mib: largest body of a request in MiB.
        salted: whether a body may have a `cache_salt`. Only a front door that writes salts may send requests then.
        objectives: headers for the endpoint picker about clients that a front door has authenticated; none if None.
        sessions: headers by which an endpoint picker keeps a client's session at one server.
    """
    tables, files, steps = _header_tables(kept=sessions), ["router/client-headers"], ["clean(handle)"]
    if sessions:
        tables["Sessions"] = list(sessions)
        files.append("router/client-sessions")
        steps.append("bound_sessions(handle)")
    if objectives is not None:
        tables |= {
            "ClientHeader": objectives.client_header,
            "PriorityHeader": objectives.priority_header,
            "ObjectiveHeader": objectives.objective_header,
            "FairnessHeader": objectives.fairness_header,
            "Objectives": dict(objectives.objectives),
        }
        files.append("router/client-objectives")
        steps.append("bind(handle)")
    cleaned = _lua("client-headers", tables, files, "\n  ".join([*steps, "admit(handle)"]))
    return [cleaned, _buffer(largest_body_mib), _bodies("check(handle)", salted=salted)]


def gateway_program(kept: Mapping[str, Iterable[str]] | None = None) -> str:
    """Return the Lua program with all checks of `filters`, for a Gateway whose proxy buffers requests before the
    program runs.

    Args:
        kept: headers by which the Gateway's routes choose a model, with their values. The program doesn't remove them
            if they have one of these values, since a route may be chosen again after the program.
    """
    values = {name.lower(): dict.fromkeys(texts, True) for name, texts in (kept or {}).items()}
    tables = {**_header_tables(), **_body_tables(salted=False), "Salt": None, "Kept": values}
    files = ("router/client-headers", "router/client-bodies")
    return _program(tables, files, "clean(handle)\n  admit(handle)\n  check(handle)")


def cleaning_filter(*more: str, kept: Sequence[str] = ()) -> Config:
    """Return the Envoy filter that removes the router's headers but those in `kept`, and the headers `more`, before the
    client is authenticated.
    """
    tables = _header_tables(more, kept=kept)
    return _lua("client-headers", tables, ("router/client-headers",), "clean(handle)")


def choosing_filters(longest: LongestSequences, salting: Config | None = None) -> list[Config]:
    """Return the Envoy filters that check requests whose headers are already cleaned, store the body's `model` as
    dynamic metadata, and have Envoy choose the route again.

    Args:
        longest: length in tokens that counts for a sequence whose request doesn't limit it.
        salting: filter that reads the filter of `salting_filter` from a file, if clients have salts.
    """
    tables = _header_tables((), _PATH_PREFIX, salting=salting is not None)
    admitted = _lua("client-paths", tables, ("router/client-headers",), "admit(handle)")
    return [admitted, _buffer(LARGEST_BODY_MIB), salting or _bodies(_CHOOSE, longest=longest)]


def salting_filter(longest: LongestSequences, secret: str) -> Config:
    """Return the last of `choosing_filters`, which also adds a `cache_salt` for each client, made from the stack's
    secret.
    """
    return _bodies(_CHOOSE, longest=longest, secret=secret)


_MAX_TOKENS = 10**9
"""Upper bound on the tokens counted for one request: the largest possible limit."""

_CHOOSE = f"""local model, read, sequences, most = check(handle)
  if model then handle:streamInfo():dynamicMetadata():set("{MODEL_NAMESPACE}", "{MODEL_KEY}", model) end
  local tokens = model and read + sequences * (most or longest(handle:headers(), model)) or 1
  local counted = math.ceil(math.max(1, math.min(tokens, {_MAX_TOKENS})))
  handle:streamInfo():dynamicMetadata():set("{TOKENS_NAMESPACE}", "{MODEL_KEY}", counted)
  handle:clearRouteCache()"""
"""Lua statements of the last choosing filter; Envoy has no filter of its own that clears the route cache."""


def _bodies(
    do: str, *, salted: bool = False, longest: LongestSequences | None = None, secret: str | None = None
) -> Config:
    tables = {
        **_header_tables((), None if longest is None else _PATH_PREFIX, counted=longest is not None),
        **_body_tables(salted=salted),
        "Salt": secret,
        **({} if longest is None else {"Longest": asdict(longest)}),
    }
    digests = ("serving/sha256",) if secret else ()
    sequences = () if longest is None else ("router/client-sequences",)
    return _lua(BODIES_FILTER, tables, (*digests, "router/client-headers", "router/client-bodies", *sequences), do)


def _buffer(largest_mib: int) -> Config:
    """Return the filter that buffers whole requests and refuses larger ones with 413."""
    config = {"@type": f"{_FILTERS}.buffer.v3.Buffer", "max_request_bytes": largest_mib * 2**20}
    return {"name": "envoy.filters.http.buffer", "typed_config": config}


def _lua(name: str, tables: Config, files: Iterable[str], do: str) -> Config:
    source = {"inline_string": _program(tables, files, do)}
    return {"name": name, "typed_config": {"@type": f"{_FILTERS}.lua.v3.Lua", "default_source_code": source}}


def _program(tables: Config, files: Iterable[str], do: str) -> str:
    """Return a Lua program: tables, functions, and the statements `do` that run for each request."""
    head = "".join(f"local {table} = {lua_literal(value)}\n" for table, value in tables.items())
    body = "".join(lua_functions(file) for file in files)
    return (
        head + body + f"\nfunction envoy_on_request(handle)\n  guarded(handle, function(handle)\n  {do}\n  end)\nend\n"
    )


@cache
def lua_functions(file: str) -> str:
    """Return the text of a Lua file of `values/`, named by its path without `.lua`, without comment lines."""
    lines = (values_folder() / f"{file}.lua").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("--"))


def _header_tables(
    dropped: Iterable[str] = (),
    path_prefix: str | None = None,
    *,
    salting: bool = False,
    counted: bool = False,
    kept: Iterable[str] = (),
) -> Config:
    """Return the tables about headers and paths. If clients have salts, the paths whose requests would use the prefix
    cache without a salt are left out.
    """
    facts = client_requests()
    paths = [path for path in facts.paths if not (salting and path.cache == "unsalted")]
    sessions = facts.sessions.intersection(kept)
    names, prefixes = _split(name for name in (*facts.dropped, *dropped) if name not in sessions)
    return {
        "Paths": {
            path.path: {
                "method": path.method,
                "salted": path.cache == "salted",
                **({"outputs": dict.fromkeys(path.outputs, True)} if counted and path.outputs else {}),
            }
            for path in paths
        },
        "PathPrefix": path_prefix,
        "Dropped": dict.fromkeys(names, True),
        "DroppedPrefixes": prefixes,
        "Kept": None,
    }


def _body_tables(*, salted: bool) -> Config:
    facts = client_requests()
    names, prefixes = _split(name for name in facts.refused("body") if not (salted and name == "cache_salt"))
    places: dict[str, Any] = {}
    for name in (*names, *facts.refused("place")):
        _mark(places, name, "refused")
    for name in facts.refused("data-url"):
        _mark(places, name, "data_url")
    return {
        "Anywhere": dict.fromkeys(facts.refused("anywhere"), True),
        "Prefixes": prefixes,
        "Places": places,
        "Deepest": facts.deepest,
        "MostNames": facts.most_names,
        "LongestName": facts.longest_name,
        "BytesPerToken": bounds().bytes_per_token,
    }


def _split(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the whole names, and the prefixes (names that end with `*`, without it)."""
    listed = list(names)
    return [name for name in listed if not name.endswith("*")], [name[:-1] for name in listed if name.endswith("*")]


def _mark(places: dict[str, Any], name: str, mark: str) -> None:
    """Set a mark at a dotted name in the tree of the body's fields."""
    node = places
    for part in name.split("."):
        node = node.setdefault("fields", {}).setdefault(part, {})
    node[mark] = True


def lua_literal(value: Any) -> str:
    """Return a value as a Lua literal. Strings must not contain line breaks."""
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value).items()
        return f"{{{', '.join(f'[{lua_literal(key)}] = {lua_literal(part)}' for key, part in pairs)}}}"
    if isinstance(value, list):
        return f"{{{', '.join(map(lua_literal, cast('list[Any]', value)))}}}"
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
