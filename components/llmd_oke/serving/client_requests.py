"""Checks of clients' requests by an Envoy, before anybody else reads them.

Headers and fields that are the router's alone are dropped and refused (`values/router/client-requests.yaml`) by Envoy's
Lua filter, which its project counts as robust against untrusted clients (extensions_metadata.yaml of v1.40.0:
`robust_to_untrusted_downstream`, `stable`; `header_mutation` is `unknown`, `json_to_metadata` is `alpha`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, cast

from llmd_oke.catalogue.client_requests import client_requests
from llmd_oke.serving.envoy_bounds import bounds
from llmd_oke.values import values_folder

LARGEST_BODY_MIB = bounds().body_mib
"""Of a request to a front door, which is held until it is whole."""

MODEL_NAMESPACE, MODEL_KEY, REFUSED_KEY = "llmd-oke", "model", "refused"
"""Where Envoy finds what the body says, and the field or the kind of what was refused (dynamic metadata)."""

TOKENS_NAMESPACE = "llmd-oke.tokens"
"""Where Envoy finds how many tokens a request may take, by the key of its model."""

BODIES_FILTER = "client-bodies"
"""Name of the filter that checks bodies."""

_PATH_PREFIX = "^/models/[^/]+"
"""Of paths at a stack's front door that lead to one model."""

_FILTERS = "type.googleapis.com/envoy.extensions.filters.http"

Config = dict[str, Any]


@dataclass(frozen=True)
class LongestSequences:
    """Tokens that one sequence may have, by what leads to a model: hosts, entries of paths, and models of bodies."""

    hosts: Mapping[str, int]
    entries: Mapping[str, int]
    models: Mapping[str, int]


@dataclass(frozen=True)
class ClientObjectives:
    """Headers in which an endpoint picker reads what a request is part of: an InferenceObjective, and whose turn it
    counts for. `client_header` and `priority_header` are those in which a front door says both, `objectives` pairs of a
    priority and the name of its InferenceObjective.
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
    """Return the filters of an Envoy that everybody may ask: clean headers, and requests that are whole and checked.

    Args:
        largest_body_mib: of a request.
        salted: a body may have a `cache_salt`, which a front door writes into it; nobody else knows those of clients.
        objectives: how an endpoint picker is told of clients that a front door knows; not at all if left out.
        sessions: headers by which an endpoint picker keeps a client's session at its server.
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
    """The Lua of all that `filters` have, for a Gateway that holds requests back until they are whole before it.

    Args:
        kept: headers by which its routes tell models apart, with their values: they stay, since routes may be chosen
            anew behind it, and a client says no other value by them.
    """
    values = {name.lower(): dict.fromkeys(texts, True) for name, texts in (kept or {}).items()}
    tables = {**_header_tables(), **_body_tables(salted=False), "Salt": None, "Kept": values}
    files = ("router/client-headers", "router/client-bodies")
    return _program(tables, files, "clean(handle)\n  admit(handle)\n  check(handle)")


def cleaning_filter(*more: str, kept: Sequence[str] = ()) -> Config:
    """Take the router's headers out of requests but for those `kept`, and `more` of them, before it is asked who the
    client is.
    """
    tables = _header_tables(more, kept=kept)
    return _lua("client-headers", tables, ("router/client-headers",), "clean(handle)")


def choosing_filters(longest: LongestSequences, salting: Config | None = None) -> list[Config]:
    """Checks requests whose headers are clean, writes the body's `model` down, and has the route chosen anew by it.

    Args:
        longest: what a sequence is counted with of which the request doesn't say how long it may be.
        salting: a filter that says where the one of `salting_filter` is found, where clients have salts.
    """
    tables = _header_tables((), _PATH_PREFIX, salting=salting is not None)
    admitted = _lua("client-paths", tables, ("router/client-headers",), "admit(handle)")
    return [admitted, _buffer(LARGEST_BODY_MIB), salting or _bodies(_CHOOSE, longest=longest)]


def salting_filter(longest: LongestSequences, secret: str) -> Config:
    """Make the last of `choosing_filters`, with a `cache_salt` for each client, of a secret of the stack."""
    return _bodies(_CHOOSE, longest=longest, secret=secret)


_MAX_TOKENS = 10**9
"""That a request is counted with: as many as a limit may be."""

_CHOOSE = f"""local model, read, sequences, most = check(handle)
  if model then handle:streamInfo():dynamicMetadata():set("{MODEL_NAMESPACE}", "{MODEL_KEY}", model) end
  local tokens = model and read + sequences * (most or longest(handle:headers(), model)) or 1
  local counted = math.ceil(math.max(1, math.min(tokens, {_MAX_TOKENS})))
  handle:streamInfo():dynamicMetadata():set("{TOKENS_NAMESPACE}", "{MODEL_KEY}", counted)
  handle:clearRouteCache()"""
"""No filter of Envoy's own chooses the route anew."""


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
    """Hold a request back until it is whole, or refuse it (413)."""
    config = {"@type": f"{_FILTERS}.buffer.v3.Buffer", "max_request_bytes": largest_mib * 2**20}
    return {"name": "envoy.filters.http.buffer", "typed_config": config}


def _lua(name: str, tables: Config, files: Iterable[str], do: str) -> Config:
    source = {"inline_string": _program(tables, files, do)}
    return {"name": name, "typed_config": {"@type": f"{_FILTERS}.lua.v3.Lua", "default_source_code": source}}


def _program(tables: Config, files: Iterable[str], do: str) -> str:
    """Tables, functions, and what is done with each request."""
    head = "".join(f"local {table} = {lua_literal(value)}\n" for table, value in tables.items())
    body = "".join(lua_functions(file) for file in files)
    return (
        head + body + f"\nfunction envoy_on_request(handle)\n  guarded(handle, function(handle)\n  {do}\n  end)\nend\n"
    )


@cache
def lua_functions(file: str) -> str:
    """Return a Lua program of `values/`, by folder and name, without its comments."""
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
    """Return the tables of headers. Where clients have salts, a path whose requests read the prefix cache without one
    is none of theirs.
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
    """Whole names, and beginnings of names."""
    listed = list(names)
    return [name for name in listed if not name.endswith("*")], [name[:-1] for name in listed if name.endswith("*")]


def _mark(places: dict[str, Any], name: str, mark: str) -> None:
    """Write what is refused at a place into the tree of places."""
    node = places
    for part in name.split("."):
        node = node.setdefault("fields", {}).setdefault(part, {})
    node[mark] = True


def lua_literal(value: Any) -> str:
    """A value as Lua writes it. Texts have no line ends."""
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
