"""Envoy's configuration of a stack's front door: routes to models, authentication, limits of clients, and error
responses.

It consists of three files. Envoy reads the bootstrap only at its start, so that a change of models or of the kind of
authentication needs new Envoys. Envoy reads again, whenever they change, the units and weights (`clusters`) and the
keys or tokens (`authentication`). Field names are those of Envoy's API v3; a test loads the configuration into the real
Envoy.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from llmd_oke.serving import authentication, client_access, client_requests, envoy
from llmd_oke.serving.client_access import CLIENT_HEADER, PRIORITY_HEADER, ConcurrentRequests
from llmd_oke.serving.client_requests import LongestSequences
from llmd_oke.serving.envoy_bounds import bounds, process_bounds
from llmd_oke.serving.model_envoy import (
    ADMIN_PORT,
    DRAIN_PORT,
    Config,
    Upstream,
    connection_settings,
    drain_listener,
    local_cluster,
    ready_listener,
    requests_listener,
    route_to,
    router_filter,
    typed,
    units_cluster,
)

STACK_PORT = 8443
"""Port for requests to all models, with or without TLS."""

FIRST_MODEL_PORT = 8100
"""Port for requests to the first model from inside the cluster, without TLS and without authentication; the following
models have the following ports."""

TRAFFIC_FOLDER, TRAFFIC_FILE = "/etc/front-door/traffic", "clusters.json"
ACCESS_FOLDER, ACCESS_FILE, SALTS_FILE = "/etc/front-door/access", "authentication.json", "salts.json"
CERTIFICATE_FOLDER = "/etc/front-door/certificate"
"""Mount path of the front door's certificate in Envoys. Like the folders for traffic and access, it has files that
Envoy reads again when they change.
"""

CERTIFICATE_FILE = "certificate.json"
"""File beside the bootstrap with the paths of the certificate and its key."""

_USED_UP = {
    "requests": (428, "The client's requests of this minute are used up."),
    "tokens": (510, "The client's tokens of this minute are used up, or the request may take more than all of them."),
}
"""Internal status and message for each limit. The status is otherwise unused, so that the error mapping can recognise
it; clients get 429."""

_NO_LIMIT = 2**31 - 1
"""Tokens of a bucket in a minute that stand for no limit."""

_MAX_CLIENTS = 4096
"""Clients that Envoy counts at a time; chosen by this project. With more, the counters of those with the least recent
requests are reset."""

_CLUSTER: Config = {"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster"}

_READ_LATER: Config = {"validate_clusters": False}
"""Settings of a route configuration whose clusters come from a file."""

_CODES = {
    400: ("invalid_request_error", "bad_request"),
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("invalid_request_error", "permission_denied"),
    404: ("invalid_request_error", "not_found"),
    408: ("invalid_request_error", "request_timeout"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("requests", "rate_limit_exceeded"),
}
"""Type and code of errors in the format of OpenAI's API, by status (platform.openai.com/docs/guides/error-codes)."""

_WORDS = {
    401: "The key or token is missing, unknown or expired (%LOCAL_REPLY_BODY%)",
    413: f"The request is larger than {client_requests.LARGEST_BODY_MIB} MiB.",
    503: "No server of the model can be reached at the moment.",
}
"""Messages that replace those of Envoy, by status."""


@dataclass(frozen=True)
class ServedModel:
    """A model behind the front door.

    `name` is the name of its objects, `served_name` the `model` in bodies of requests, `hosts` are host names of this
    model only. `upstreams` are its units; those with weight 0 get requests only if all have weight 0. `max_model_len`
    is in tokens. `holds_back` tells whether its routers queue requests while servers are saturated, `session_headers`
    are the headers by which they keep sessions at one server, `adapters` the names of its LoRA adapters in requests.
    """

    name: str
    served_name: str
    hosts: tuple[str, ...]
    upstreams: tuple[Upstream, ...]
    max_model_len: int = field(default_factory=lambda: bounds().longest_sequence)
    holds_back: bool = False
    session_headers: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names in requests' bodies that lead to the model or to one of its adapters."""
        return self.served_name, *self.adapters


@dataclass(frozen=True)
class ClientLimits:
    """Limits of one client at one Envoy: requests and tokens in a minute, concurrent requests at each model, and served
    names of the models that it may use. None means the limit of all clients; in the limits of all clients, no limit.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    models: tuple[str, ...] | None = None


@dataclass(frozen=True)
class EnvoySettings:
    """Settings from which `bootstrap` makes the configuration of a front door's Envoys. `limits` apply to each client,
    `clients` are limits of single clients by their names, and `priorities` the clients' priorities by name.
    """

    models: tuple[ServedModel, ...]
    encrypted: bool
    authenticated: bool
    limits: ClientLimits = ClientLimits()
    key_set_uri: str | None = None
    clients: Mapping[str, ClientLimits] = field(default_factory=dict[str, ClientLimits])
    priorities: Mapping[str, int] = field(default_factory=dict[str, int])
    tokens: bool = False
    """Whether clients authenticate by tokens (JWT) instead of API keys."""
    salted: bool = False
    """Whether each client has its own `cache_salt`."""


def bootstrap(settings: EnvoySettings) -> str:
    """Return Envoy's bootstrap as JSON, which is valid YAML."""
    models = [
        requests_listener(
            f"model-{model.name}",
            FIRST_MODEL_PORT + i,
            _own_cluster(model),
            refusals_last=model.holds_back,
            sessions=model.session_headers,
            **_READ_LATER,
        )
        for i, model in enumerate(settings.models)
    ]
    return json.dumps(
        {
            "node": {"id": "front-door", "cluster": "front-door"},
            "admin": {"address": envoy.socket_address("127.0.0.1", ADMIN_PORT), "ignore_global_conn_limit": True},
            **process_bounds(bounds().memory_limit_mib),
            "dynamic_resources": {"cds_config": _watched(TRAFFIC_FOLDER, TRAFFIC_FILE)},
            "static_resources": {
                "listeners": [_stack_listener(settings), *models, ready_listener(), drain_listener()],
                "clusters": [
                    local_cluster("admin", ADMIN_PORT),
                    local_cluster("second", DRAIN_PORT),
                    *([authentication.key_set_cluster(settings.key_set_uri)] if settings.key_set_uri else []),
                ],
            },
        },
        indent=1,
    )


def clusters(models: Sequence[ServedModel], concurrent_requests: Mapping[str, int] | None = None) -> str:
    """Return the content of the file with Envoy's clusters: the units of each served name, and the units of each
    model's entry, with their weights.

    Clients with a limit of concurrent requests have one additional cluster for each served name, which counts their
    requests. Requests by the body's `model` and requests by an entry's path or host use different subsets of its units.
    """
    by_name: dict[str, list[ServedModel]] = {}
    for model in models:
        by_name.setdefault(model.served_name, []).append(model)
    named = {name: _used([unit for model in served for unit in model.upstreams]) for name, served in by_name.items()}
    units = {_served_cluster(name): upstreams for name, upstreams in named.items()}
    units |= {_own_cluster(model): _used(model.upstreams) for model in models}
    counted = [
        units_cluster(_clients_cluster(client, name), _in_subsets(served, named[name]), most)
        for client, most in sorted((concurrent_requests or {}).items())
        for name, served in by_name.items()
    ]
    plain = [units_cluster(name, upstreams) for name, upstreams in units.items()]
    return envoy.resources_file([_CLUSTER | cluster for cluster in (*plain, *counted)])


def _used(upstreams: Sequence[Upstream]) -> list[Upstream]:
    """Return the units that get requests: those with a weight other than 0; all if all have weight 0."""
    used = [upstream for upstream in upstreams if upstream.weight != 0]
    return used or [replace(upstream, weight=None) for upstream in upstreams]


def _in_subsets(entries: Sequence[ServedModel], named: Sequence[Upstream]) -> list[Upstream]:
    """Return the units of all entries of a served name, with the metadata of the subsets that `_routes` selects."""
    by_body = {upstream.host for upstream in named}
    return [
        replace(upstream, subsets={"entry": model.name, **({"by": "body"} if upstream.host in by_body else {})})
        for model in entries
        for upstream in _used(model.upstreams)
    ]


def salts(models: Sequence[ServedModel], secret: str) -> str:
    """Return the content of the file with the Envoy filter that checks bodies and adds each client's `cache_salt`, made
    from `secret` and the client's name.
    """
    salting = client_requests.salting_filter(_longest(models), secret)
    return envoy.resources_file([envoy.extension(salting["typed_config"], salting["name"])])


def certificate() -> str:
    """Return the content of the file with the paths of the certificate and its key, which Envoy reads again when they
    change.
    """
    files = {
        "certificate_chain": {"filename": f"{CERTIFICATE_FOLDER}/tls.crt"},
        "private_key": {"filename": f"{CERTIFICATE_FOLDER}/tls.key"},
        "watched_directory": {"path": CERTIFICATE_FOLDER},
    }
    return envoy.resources_file(
        [typed("transport_sockets.tls.v3.Secret") | {"name": "certificate", "tls_certificate": files}]
    )


def _stack_listener(settings: EnvoySettings) -> Config:
    connections = connection_settings()
    manager = envoy.connection_manager(
        stat_prefix="requests",
        route_config={
            "name": "models",
            "virtual_hosts": _hosts(settings.models, list(_own(settings, "concurrent_requests"))),
            **_READ_LATER,
        },
        http_filters=_filters(settings),
        strip_any_host_port=True,
        always_set_request_id_in_response=True,
        access_log=[_access_log()],
        local_reply_config={"mappers": _errors()},
        **connections,
    )
    tls = {"transport_socket": _tls()} if settings.encrypted else None
    return envoy.listener("requests", "0.0.0.0", STACK_PORT, manager, tls)  # noqa: S104 - a pod's own address


def _tls() -> Config:
    context = {
        "alpn_protocols": ["h2", "http/1.1"],
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
        "tls_certificate_sds_secret_configs": [
            {
                "name": "certificate",
                "sds_config": {"path_config_source": {"path": f"/etc/envoy/{CERTIFICATE_FILE}"}},
            }
        ],
    }
    kind = typed("transport_sockets.tls.v3.DownstreamTlsContext")
    return {"name": "envoy.transport_sockets.tls", "typed_config": {**kind, "common_tls_context": context}}


def _filters(settings: EnvoySettings) -> list[Config]:
    """Return the filters in the order in which they handle requests: authentication, limits, choice of the model."""
    own = (CLIENT_HEADER, *([PRIORITY_HEADER] if settings.priorities else []))
    kept = dict.fromkeys(header for model in settings.models for header in model.session_headers)
    filters: list[Config] = [client_requests.cleaning_filter(*own, kept=list(kept))]
    if settings.tokens:
        filters.append(client_access.tokens_filter())
    if settings.authenticated:
        filters.append(_read_filter("authentication", ACCESS_FILE, "lua.v3.Lua", "jwt_authn.v3.JwtAuthentication"))
    if requests := _limit_filter(
        "requests", settings.limits.requests_per_minute, _own(settings, "requests_per_minute")
    ):
        filters.append(requests)
    salting = _read_filter(client_requests.BODIES_FILTER, SALTS_FILE, "lua.v3.Lua") if settings.salted else None
    filters += [client_access.bodies_filter(), *client_requests.choosing_filters(_longest(settings.models), salting)]
    filters += _rights(settings)
    counted = {"format": f"%DYNAMIC_METADATA({client_requests.TOKENS_NAMESPACE}:{client_requests.MODEL_KEY})%"}
    own_tokens = _own(settings, "tokens_per_minute")
    if tokens := _limit_filter("tokens", settings.limits.tokens_per_minute, own_tokens, hits_addend=counted):
        filters.append(tokens)
    if settings.priorities:
        filters.append(client_access.priorities_filter(settings.priorities))
    return [*filters, router_filter()]


def _rights(settings: EnvoySettings) -> list[Config]:
    """Return the filter that limits models and concurrent requests; no filter if there are no such limits."""
    everybody = settings.limits
    limits = {**settings.clients, "": everybody}
    rights = {client: limit.models for client, limit in limits.items() if limit.models is not None}
    most = everybody.concurrent_requests
    if not rights and most is None:
        return []
    counted = list(_own(settings, "concurrent_requests"))
    requests = None if most is None else ConcurrentRequests(most, counted)
    return [client_access.rights_filter(rights, _lists(settings.models, rights), requests)]


def _longest(models: Sequence[ServedModel]) -> LongestSequences:
    named: dict[str, int] = {}
    for model in models:
        named |= {name: max(model.max_model_len, named.get(name, 0)) for name in model.names}
    return LongestSequences(
        hosts={host.lower(): model.max_model_len for model in models for host in model.hosts},
        entries={model.name: model.max_model_len for model in models},
        models=named,
    )


def _own(settings: EnvoySettings, name: str) -> dict[str, int]:
    """Return a limit of single clients that differs from that of all clients, by the clients' names."""
    limits = {client: getattr(limits, name) for client, limits in sorted(settings.clients.items())}
    return {client: number for client, number in limits.items() if number is not None}


def _lists(models: Sequence[ServedModel], rights: Mapping[str, Sequence[str]]) -> dict[str, dict[str, str]]:
    """Return the responses to `/v1/models` for clients that may use some models only, by client and host."""
    hosts = {"": models, **{model.name: [model] for model in models}}
    return {
        client: {
            host: _models_text([model for model in of_host if model.served_name in allowed])
            for host, of_host in hosts.items()
        }
        for client, allowed in rights.items()
    }


def _read_filter(name: str, file: str, *kinds: str) -> Config:
    """Return a filter that Envoy reads from a file. The listener accepts no requests until the file can be read."""
    return {
        "name": name,
        "config_discovery": {
            "config_source": _watched(ACCESS_FOLDER, file),
            "type_urls": [f"type.googleapis.com/envoy.extensions.filters.http.{kind}" for kind in kinds],
        },
    }


def _limit_filter(prefix: str, everybody: int | None, clients: Mapping[str, int], **counted: object) -> Config | None:
    """Return the filter that limits what each client may use in a minute: by the client's own limit, otherwise by that
    of all clients. Requests without a client's name share one limit. None if there is no limit.
    """
    if everybody is None and not clients:
        return None
    own = [
        {"entries": [{"key": "client", "value": client}], "token_bucket": _bucket(limit)}
        for client, limit in sorted(clients.items())
    ]
    others = [] if everybody is None else [{"entries": [{"key": "client"}], "token_bucket": _bucket(everybody)}]
    named = {"request_headers": {"header_name": CLIENT_HEADER, "descriptor_key": "client"}}
    always = {"default_value": {"numerator": 100}}
    kind = typed("filters.http.local_ratelimit.v3.LocalRateLimit")
    settings: Config = {
        "stat_prefix": f"limits.{prefix}",
        "token_bucket": _bucket(everybody or _NO_LIMIT),
        "status": {"code": _USED_UP[prefix][0]},
        "filter_enabled": always,
        "filter_enforced": always,
        "descriptors": [*own, *others],
        "rate_limits": [{"actions": [named], **counted}],
        "always_consume_default_token_bucket": False,
        "max_dynamic_descriptors": _MAX_CLIENTS,
    }
    return {"name": f"{prefix}-per-minute", "typed_config": {**kind, **settings}}


def _bucket(per_minute: int) -> Config:
    return {"max_tokens": per_minute, "tokens_per_fill": per_minute, "fill_interval": "60s"}


def _hosts(models: Sequence[ServedModel], counted: Sequence[str]) -> list[Config]:
    """Return the virtual hosts: one for each model with host names, and one for all other hosts, where the path or the
    body names the model.
    """
    own = [
        _host(
            f"model-{model.name}",
            list(model.hosts),
            [_models_route([model], model.name), *_own_routes(model, "/", counted)],
        )
        for model in models
        if model.hosts
    ]
    names = ", ".join(sorted({name for model in models for name in model.names}))
    holding = {model.served_name for model in models if model.holds_back}
    by_body: list[Config] = [
        route
        for name in dict.fromkeys(model.served_name for model in models)
        for route in _routes(
            {"prefix": "/v1/", "dynamic_metadata": [_metadata({"string_match": {"exact": name}})]},
            _served_cluster(name),
            {_clients_cluster(client, name): client for client in counted},
            {"by": "body"},
            refusals_last=name in holding,
        )
    ]
    by_body += [
        route
        for model in models
        for name in model.adapters
        for route in _routes(
            {"prefix": "/v1/", "dynamic_metadata": [_metadata({"string_match": {"exact": name}})]},
            _own_cluster(model),
            {_clients_cluster(client, model.served_name): client for client in counted},
            {"entry": model.name},
            refusals_last=model.holds_back,
        )
    ]
    routes: list[Config] = [
        _models_route(models),
        *(route for model in models for route in _own_routes(model, f"/models/{model.name}/", counted)),
        *by_body,
        _answer(
            {"prefix": "/v1/", "dynamic_metadata": [_metadata({"present_match": True})]},
            404,
            f"The model doesn't exist. The models are: {names}.",
        ),
        _answer({"prefix": "/v1/"}, 400, f"The body is no JSON object with a model. The models are: {names}."),
        _answer({"prefix": "/"}, 404, "There is no such path: the API is below /v1/."),
    ]
    return [*own, _host("all", ["*"], routes)]


def _host(name: str, domains: Sequence[str], routes: Sequence[Config]) -> Config:
    return {"name": name, "domains": list(domains), "routes": list(routes)}


def _own_routes(model: ServedModel, prefix: str, counted: Sequence[str]) -> list[Config]:
    """Return the routes to one model by path or host, whatever `model` the body names."""
    clients = {_clients_cluster(client, model.served_name): client for client in counted}
    match: Config = {"prefix": f"{prefix}v1/"}
    last, subset = model.holds_back, {"entry": model.name}
    routes = _routes(match, _own_cluster(model), clients, subset, refusals_last=last, prefix_rewrite="/v1/")
    return [
        *({**route, **_says(model.served_name)} for route in routes),
        _answer({"prefix": prefix}, 404, f"There is no such path: the API of the model is below {prefix}v1/."),
    ]


def _metadata(value: Config, key: str = client_requests.MODEL_KEY) -> Config:
    path = [{"key": key}]
    return {"filter": client_requests.MODEL_NAMESPACE, "path": path, "value": value}


def _routes(
    match: Config,
    cluster: str,
    clients: Mapping[str, str],
    subset: Mapping[str, str],
    *,
    refusals_last: bool,
    **route: object,
) -> list[Config]:
    """Return the route to a cluster, after the routes of single clients to subsets of their own clusters.

    Args:
        match: condition on requests.
        cluster: cluster of all clients whose requests aren't counted.
        clients: names of the clients whose requests are counted, by the names of their clusters.
        subset: metadata of the units in the clients' clusters that get these requests.
        refusals_last: whether requests that units refuse are not retried.
        **route: further settings of all routes.
    """
    chosen = {"metadata_match": {"filter_metadata": {"envoy.lb": dict(subset)}}}
    own: list[Config] = [
        {
            "match": {**match, "headers": [{"name": CLIENT_HEADER, "string_match": {"exact": client}}]},
            "route": {**route_to(counted, refusals_last=refusals_last), **chosen, **route},
        }
        for counted, client in clients.items()
    ]
    return [*own, {"match": match, "route": {**route_to(cluster, refusals_last=refusals_last), **route}}]


def _says(served: str) -> Config:
    """Return the metadata by which a route names its model for the filter of rights."""
    return {"metadata": {"filter_metadata": {client_access.RIGHTS_FILTER: {client_access.SERVED: served}}}}


def _models_text(models: Sequence[ServedModel]) -> str:
    """Return the list of models as JSON in the format of OpenAI's API."""
    names = dict.fromkeys(name for model in models for name in model.names)
    entries = [{"id": name, "object": "model", "created": 0, "owned_by": "llmd-oke"} for name in names]
    return json.dumps({"object": "list", "data": entries})


def _models_route(models: Sequence[ServedModel], host: str = "") -> Config:
    """Return the route of `/v1/models`, which lists the models of one host, or all models."""
    header = {"key": "content-type", "value": "application/json"}
    return {
        **_answer({"path": "/v1/models"}, 200, _models_text(models)),
        **_says(host),
        "response_headers_to_add": [{"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}],
    }


def _answer(match: Config, status: int, text: str) -> Config:
    return {"match": match, "direct_response": {"status": status, "body": {"inline_string": text}}}


def _errors() -> list[Config]:
    """Return the mappings of Envoy's own error responses to the format of OpenAI's API. Servers' responses, and the
    check filters' error responses, which have this format already, stay unchanged.
    """
    refused = _metadata({"present_match": True}, client_requests.REFUSED_KEY)
    formed: Config = {
        "filter": {"metadata_filter": {"matcher": refused, "match_if_key_not_found": False}},
        "body_format_override": {
            "text_format_source": {"inline_string": "%LOCAL_REPLY_BODY%"},
            "content_type": "application/json",
        },
    }
    unknown = _error(404, "EQ", "invalid_request_error", "model_not_found")
    below = {"header_filter": {"header": {"name": ":path", "string_match": {"prefix": "/v1/"}}}}
    unknown["filter"] = {"and_filter": {"filters": [unknown["filter"], below]}}
    known = [_error(status, "EQ", *_CODES[status]) for status in _CODES]
    busy = _error(503, "EQ", "server_error", "service_unavailable")
    used_up = [
        _error(status, "EQ", *_CODES[429], message=words) | {"status_code": 429} for status, words in _USED_UP.values()
    ]
    words = "The client has as many requests under way at this model as it may have at a time."
    crowded = _error(503, "EQ", *_CODES[429], message=words) | {"status_code": 429}
    overflow = {"response_flag_filter": {"flags": ["UO"]}}
    crowded["filter"] = {"and_filter": {"filters": [crowded["filter"], overflow]}}
    return [formed, unknown, *used_up, crowded, *known, busy, _error(500, "GE", "server_error", "server_error")]


def _error(status: int, comparison: str, kind: str, code: str, message: str | None = None) -> Config:
    value = {"default_value": status, "runtime_key": f"front_door.{status}"}
    words = message or _WORDS.get(status, "%LOCAL_REPLY_BODY%")
    error = {"message": words, "type": kind, "param": None, "code": code}
    mapper: Config = {
        "filter": {"status_code_filter": {"comparison": {"op": comparison, "value": value}}},
        "body_format_override": {"json_format": {"error": error}, "content_type": "application/json"},
    }
    if code == "rate_limit_exceeded":
        mapper["headers_to_add"] = [{"header": {"key": "retry-after", "value": "60"}}]
    return mapper


def _access_log() -> Config:
    """Return the access log with one line for each request, without prompts, answers and keys."""
    fields = {
        "start_time": "%START_TIME%",
        "request_id": "%REQ(X-REQUEST-ID)%",
        "client": f"%REQ({CLIENT_HEADER}):63%",
        "method": "%REQ(:METHOD):20%",
        "host": "%REQ(:AUTHORITY):253%",
        "path": "%PATH(NQ):200%",
        "model": f"%DYNAMIC_METADATA({client_requests.MODEL_NAMESPACE}:{client_requests.MODEL_KEY}):200%",
        "status": "%RESPONSE_CODE%",
        "refused": f"%DYNAMIC_METADATA({client_requests.MODEL_NAMESPACE}:{client_requests.REFUSED_KEY}):200%",
        "details": "%RESPONSE_CODE_DETAILS%",
        "flags": "%RESPONSE_FLAGS%",
        "duration_ms": "%DURATION%",
        "first_byte_ms": "%RESPONSE_DURATION%",
        "bytes_received": "%BYTES_RECEIVED%",
        "bytes_sent": "%BYTES_SENT%",
        "unit": "%UPSTREAM_HOST_NAME%",
        "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
        "address": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
    }
    kind = typed("access_loggers.stream.v3.StdoutAccessLog")
    return {"name": "envoy.access_loggers.stdout", "typed_config": {**kind, "log_format": {"json_format": fields}}}


def _served_cluster(served_name: str) -> str:
    return f"served/{served_name}"


def _clients_cluster(client: str, served_name: str) -> str:
    return f"client/{client}/{served_name}"


def _own_cluster(model: ServedModel) -> str:
    return f"model/{model.name}"


def _watched(folder: str, file: str) -> Config:
    """Return a file of a mounted ConfigMap or Secret as a configuration source. Kubernetes updates all files by
    replacing one symbolic link in their directory, which Envoy watches.
    """
    return {"path_config_source": {"path": f"{folder}/{file}", "watched_directory": {"path": folder}}}
