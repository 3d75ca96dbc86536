"""What an Envoy makes of clients' requests before anybody else reads them.

Headers and fields that are the router's alone are dropped and refused (`values/router/client-requests.yaml`) by Envoy's
Lua filter, which its project counts as robust against untrusted clients (extensions_metadata.yaml of v1.40.0:
`robust_to_untrusted_downstream`, `stable`; `header_mutation` is `unknown`, `json_to_metadata` is `alpha`).
"""

from collections.abc import Iterable
from functools import cache
from typing import Any, cast

from llmd_oke.catalogue.client_requests import client_requests
from llmd_oke.serving.envoy_bounds import bounds
from llmd_oke.values import values_folder

LARGEST_BODY_MIB = bounds().body_mib
"""Of a request to a front door, which is held until it is whole."""

MODEL_NAMESPACE, MODEL_KEY = "llmd-oke", "model"
"""Where a stack's front door finds what the body says (dynamic metadata)."""

HEADERS_FILTER, FIELDS_FILTER = "client-headers", "client-fields"
"""Names of the filters."""

_PATH_PREFIX = "^/models/[^/]+"
"""Of paths at a stack's front door that lead to one model."""

Config = dict[str, Any]


def headers_filter(*more: str) -> Config:
    """Takes the router's headers out of requests, and `more` of them."""
    return _lua(HEADERS_FILTER, "clean(handle)", dropped=more)


def fields_filters(*, chooses_route: bool = False) -> list[Config]:
    """Holds requests back until they are whole, and refuses what isn't a client's to ask.

    Args:
        chooses_route: the body's `model` is written down, and the route chosen anew by it.
    """
    do = _CHOOSE if chooses_route else "check(handle)"
    return [_buffer(LARGEST_BODY_MIB), _lua(FIELDS_FILTER, do, prefixed=chooses_route)]


def filters(largest_body_mib: int = LARGEST_BODY_MIB) -> list[Config]:
    """What an Envoy has that everybody may ask: clean headers, and requests that are whole and checked."""
    return [_buffer(largest_body_mib), _lua(FIELDS_FILTER, _CLEAN_AND_CHECK)]


def program(do: str, *, dropped: Iterable[str] = (), prefixed: bool = False) -> str:
    """The Lua program: tables, functions, and what is done with each request."""
    facts = client_requests()
    names, prefixes = _split([*facts.dropped, *dropped])
    fields, field_prefixes = _split(facts.refused("body"))
    anywhere = facts.refused("anywhere")
    places: dict[str, Any] = {}
    for name in fields:
        _mark(places, name, "refused")
    for name in facts.refused("place"):
        _mark(places, name, "refused")
    for name in facts.refused("data-url"):
        _mark(places, name, "data_url")
    tables = {
        "Paths": {path.path: {"method": path.method} for path in facts.paths},
        "PathPrefix": _PATH_PREFIX if prefixed else None,
        "Deepest": facts.deepest,
        "MostNames": facts.most_names,
        "Dropped": dict.fromkeys(names, True),
        "DroppedPrefixes": prefixes,
        "Anywhere": dict.fromkeys(anywhere, True),
        "Prefixes": field_prefixes,
        "Places": places,
    }
    head = "".join(f"local {name} = {lua_literal(value)}\n" for name, value in tables.items())
    tail = f"\nfunction envoy_on_request(handle)\n  guarded(handle, function(handle)\n  {do}\n  end)\nend\n"
    return head + _functions() + tail


@cache
def _functions() -> str:
    lines = (values_folder() / "router" / "client-requests.lua").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("--"))


_CLEAN_AND_CHECK = "clean(handle)\n  check(handle)"

_CHOOSE = f"""local model = check(handle)
  if model then handle:streamInfo():dynamicMetadata():set("{MODEL_NAMESPACE}", "{MODEL_KEY}", model) end
  handle:clearRouteCache()"""
"""No filter of Envoy's own chooses the route anew."""

_FILTERS = "type.googleapis.com/envoy.extensions.filters.http"


def _buffer(largest_mib: int) -> Config:
    """Holds a request back until it is whole, or refuses it (413)."""
    config = {"@type": f"{_FILTERS}.buffer.v3.Buffer", "max_request_bytes": largest_mib * 2**20}
    return {"name": "envoy.filters.http.buffer", "typed_config": config}


def _lua(name: str, do: str, *, dropped: Iterable[str] = (), prefixed: bool = False) -> Config:
    text = program(do, dropped=dropped, prefixed=prefixed)
    config = {"@type": f"{_FILTERS}.lua.v3.Lua", "default_source_code": {"inline_string": text}}
    return {"name": name, "typed_config": config}


def _split(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Whole names, and beginnings of names."""
    listed = list(names)
    return [name for name in listed if not name.endswith("*")], [name[:-1] for name in listed if name.endswith("*")]


def _mark(places: dict[str, Any], name: str, mark: str) -> None:
    """Writes what is refused at a place into the tree of places."""
    node = places
    for part in name.split("."):
        node = node.setdefault("fields", {}).setdefault(part, {})
    node[mark] = True


def lua_literal(value: Any) -> str:
    """A value as Lua writes it. Texts have neither quotes nor line ends."""
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value).items()
        return f"{{{', '.join(f'[{lua_literal(key)}] = {lua_literal(part)}' for key, part in pairs)}}}"
    if isinstance(value, list):
        return f"{{{', '.join(map(lua_literal, cast('list[Any]', value)))}}}"
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else f'"{value}"'
