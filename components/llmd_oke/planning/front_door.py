"""Plan and checks of the front door of a stack: the models and units (servers with a router of their own) behind it,
weights, limits and access.
"""

from collections.abc import Iterator, Mapping, Sequence

from llmd_base.errors import SET, Problem
from llmd_base.records import record

from llmd_oke import catalogue
from llmd_oke.config import CreateCluster, ModelConfig, StackConfig
from llmd_oke.config.front_door import ClientLimit, FrontDoorConfig, Limits
from llmd_oke.config.shape_problems import did_you_mean
from llmd_oke.planning.flow_control import priority_problems
from llmd_oke.planning.model_plan import ModelPlan
from llmd_oke.planning.network_policies import network_policies, takes_calico
from llmd_oke.planning.placement import FRONT_DOOR_REPLICAS, FRONT_DOOR_THREADS, unit_names
from llmd_oke.planning.plan import Advice, ClientLimitsPlan, FrontDoorModel, FrontDoorPlan

NAME = "front-door"
"""Name of the front door's Kubernetes objects."""

_PATH = "frontDoor"


def front_door(config: StackConfig) -> FrontDoorPlan | None:
    """Return the plan of the front door of a stack whose models are in the catalogue; None if the stack has no front
    door.
    """
    door = config.front_door
    if door is None:
        return None
    limits = door.limits or Limits()
    served = {model.object_name: (_served_name(model), *_adapters(model)) for model in config.models}
    return record(
        FrontDoorPlan,
        door,
        limits=_client_limits(limits, served),
        clients={name: _client_limits(limit, served) for name, limit in limits.clients.items()},
        models=tuple(_model(door, model) for model in config.models),
    )


def _client_limits(own: Limits | ClientLimit, served: Mapping[str, tuple[str, ...]]) -> ClientLimitsPlan:
    models = None
    if own.models is not None:
        models = tuple(dict.fromkeys(said for name in own.models for said in served.get(name, ())))
    return ClientLimitsPlan(
        _share(own.requests_per_minute), _share(own.tokens_per_minute), _share(own.concurrent_requests), models
    )


def _share(number: int | None) -> int | None:
    return None if number is None else number // FRONT_DOOR_REPLICAS


def _model(door: FrontDoorConfig, model: ModelConfig) -> FrontDoorModel:
    hosts = tuple(host for host, name in door.hosts.items() if name == model.object_name)
    return FrontDoorModel(model.object_name, _served_name(model), hosts, tuple(_units(model)), _adapters(model))


def _adapters(model: ModelConfig) -> tuple[str, ...]:
    """Return the names by which requests select a model's adapters."""
    return tuple(adapter.name for adapter in model.adapters)


def _served_name(model: ModelConfig) -> str:
    facts = catalogue.model(model.model)
    return facts.repository if facts else model.model


def _units(model: ModelConfig) -> list[str]:
    return [model.object_name] if model.router.mode == "none" else unit_names(model)


def front_door_problems(config: StackConfig) -> Iterator[Problem]:
    """Yield the problems of the front door of a stack that don't depend on its secrets."""
    door = config.front_door
    if door is None:
        return
    if config.layer == "cluster":
        why = "the cluster layer deploys no models"
        yield Problem(_PATH, SET, "nothing, or the stack of the serving layer", why)
    yield from _name_problems(config, door)
    yield from _access_problems(config, door)
    yield from _limit_problems(config, door)
    yield from priority_problems(config)
    yield from _load_balancer_problems(config, door)
    yield from _weight_problems(config, door)


def _name_problems(config: StackConfig, door: FrontDoorConfig) -> Iterator[Problem]:
    names = [model.object_name for model in config.models]
    for i, name in enumerate(names):
        if name == NAME:
            yield Problem(f"models[{i}].name", name, "another name", "the front door of the stack has it")
    for host, name in door.hosts.items():
        if name not in names:
            why = "the stack has no model whose objects have this name"
            yield Problem(f"{_PATH}.hosts.{host}", name, did_you_mean(name, names), why)
        if host == door.host:
            why = "it is the front door's own host, which leads to all models"
            yield Problem(f"{_PATH}.hosts.{host}", name, "another host", why)


def _access_problems(config: StackConfig, door: FrontDoorConfig) -> Iterator[Problem]:
    """Yield a problem for a certificate without host, for keys without encryption, and for access from the internet
    without authentication; also for pods that could bypass authentication.
    """
    if door.tls is not None and door.host is None:
        yield Problem(f"{_PATH}.host", None, "the name that the certificate is for", "the key is missing")
    outside = door.exposure != "cluster"
    if door.tls is None and (door.exposure == "public" or (outside and door.authentication is not None)):
        what = "requests" if door.authentication is None else "keys and requests"
        why = f"{what} would pass in plain text outside of the cluster"
        yield Problem(f"{_PATH}.tls", None, "a certificate: kind config, secret or issuer", why)
    if door.authentication is None and door.exposure == "public":
        why = "everybody on the internet could use the models"
        yield Problem(f"{_PATH}.authentication", None, "kind api-keys or jwt, or exposure: internal", why)
    unenforced = network_policies(config).engine == "none"
    if door.authentication is not None and unenforced and door.unchecked_pods is None:
        why = "nothing enforces NetworkPolicies, without which every pod of the cluster goes around keys and limits"
        engine = "calico" if takes_calico(config) else "existing"
        accepted = f"the word accepted, if you trust all pods of the cluster; or networkPolicies.engine: {engine}"
        yield Problem(f"{_PATH}.uncheckedPods", None, accepted, why)
    if door.authentication is None and door.cache_isolation == "client":
        why = "without it clients can't be told apart"
        yield Problem(f"{_PATH}.authentication", None, "kind api-keys or jwt, or cacheIsolation: none", why)


def cache_isolation_advice(door: FrontDoorPlan | None) -> Iterator[Advice]:
    """Yield advice about `frontDoor.cacheIsolation`: on the cost of separate prefix caches per client, or on the
    information that clients learn of each other from a shared one.
    """
    if door is None or door.authentication is None:
        return
    if door.cache_isolation == "client":
        text = (
            "prefixes that clients have in common (system prompts, tools, documents) are computed and kept in KV cache"
            " once for each client: fewer cache hits, later first tokens and room for fewer sequences, and requests"
            " of different clients have no server in common that they would be sent to; /v1/messages is refused, as"
            " vLLM takes no cache_salt there"
        )
    else:
        text = (
            "clients share prefix cache: by the time to the first token one can tell whether another asked for the same"
            " beginning; with `client` each has its own, and shares nothing"
        )
    yield Advice(f"{_PATH}.cacheIsolation", text)


def token_budget_advice(door: FrontDoorPlan | None, models: Sequence[ModelPlan]) -> Iterator[Advice]:
    """Yield advice on token limits that always refuse requests without `max_tokens`, which count as the model's maximum
    sequence length.
    """
    if door is None:
        return
    path = f"{_PATH}.limits"
    limits = {path: door.limits, **{f"{path}.clients.{name}": limit for name, limit in door.clients.items()}}
    for where, limit in limits.items():
        most = limit.tokens_per_minute
        longer = {model.name: model.max_model_len for model in models if most and model.max_model_len >= most}
        if longer:
            lengths = ", ".join(f"{name} {tokens:,}" for name, tokens in longer.items())
            text = (
                f"each of {FRONT_DOOR_REPLICAS} Envoys allows {most:,} tokens in a minute, and a request that says no"
                f" max_tokens counts as the longest sequence of its model ({lengths}): it is always refused (429)"
            )
            yield Advice(f"{where}.tokensPerMinute", text)


def _limit_problems(config: StackConfig, door: FrontDoorConfig) -> Iterator[Problem]:
    limits = door.limits
    if limits is None:
        return
    if door.authentication is None:
        why = "without it clients can't be told apart"
        yield Problem(f"{_PATH}.authentication", None, "kind api-keys or jwt, or no limits", why)
    path = f"{_PATH}.limits"
    known = [model.object_name for model in config.models]
    yield from _share_problems(path, limits)
    yield from _models_problems(path, limits, known)
    for name, limit in limits.clients.items():
        yield from _share_problems(f"{path}.clients.{name}", limit)
        yield from _models_problems(f"{path}.clients.{name}", limit, known)
        if (limits.models if limit.models is None else limit.models) == ():
            why = "a client without a model can ask nothing"
            yield Problem(f"{path}.clients.{name}.models", (), "one of " + ", ".join(known), why)


def _models_problems(path: str, limits: Limits | ClientLimit, known: Sequence[str]) -> Iterator[Problem]:
    for i, model in enumerate(limits.models or ()):
        if model not in known:
            why = "the stack has no model whose objects have this name"
            yield Problem(f"{path}.models[{i}]", model, did_you_mean(model, known), why)


def _share_problems(path: str, limits: Limits | ClientLimit) -> Iterator[Problem]:
    """Yield a problem for each limit that isn't a multiple of the number of Envoys, or, for concurrent requests of all
    clients, of the number of their threads: each enforces an equal share.
    """
    envoys, threads = FRONT_DOOR_REPLICAS, FRONT_DOOR_THREADS if isinstance(limits, Limits) else 1
    allowing = f"{envoys} Envoys" if threads == 1 else f"the {threads} threads of {envoys} Envoys"
    numbers = (
        ("requestsPerMinute", limits.requests_per_minute, envoys, f"{envoys} Envoys"),
        ("tokensPerMinute", limits.tokens_per_minute, envoys, f"{envoys} Envoys"),
        ("concurrentRequests", limits.concurrent_requests, envoys * threads, allowing),
    )
    for key, number, shares, who in numbers:
        if number is not None and number % shares:
            yield Problem(f"{path}.{key}", number, f"a multiple of {shares}", f"each of {who} allows its share")


def _load_balancer_problems(config: StackConfig, door: FrontDoorConfig) -> Iterator[Problem]:
    """Yield a problem if the subnet of a public load balancer is unknown: OKE would use the subnet of internal ones by
    default.
    """
    balancer, path = door.load_balancer, f"{_PATH}.loadBalancer"
    if door.exposure == "cluster":
        if balancer.subnet_id is not None or balancer.security_group_ids:
            why = "a front door for pods has no load balancer"
            yield Problem(path, SET, "nothing, or exposure: internal or public", why)
        return
    if door.exposure == "public" and balancer.subnet_id is None:
        cluster = config.cluster if config.layer == "all" else None
        if not isinstance(cluster, CreateCluster):
            why = "the stack doesn't create the network, and OKE's own choice is the subnet of internal load balancers"
            yield Problem(f"{path}.subnetId", None, "OCID of a public subnet", why)
        elif not cluster.network.public_load_balancers and cluster.network.subnets.public_load_balancers is None:
            why = "the network has no subnet for a public load balancer"
            yield Problem("cluster.network.publicLoadBalancers", None, "true, or frontDoor.loadBalancer.subnetId", why)


def _weight_problems(config: StackConfig, door: FrontDoorConfig) -> Iterator[Problem]:
    units: dict[str, list[str]] = {}
    for model in config.models:
        units.setdefault(_served_name(model), []).extend(_units(model))
    known = [unit for names in units.values() for unit in names]
    for unit, weight in door.weights.items():
        if unit not in known:
            why = "no copy of a model in the stack has this name"
            yield Problem(f"{_PATH}.weights.{unit}", weight, did_you_mean(unit, known), why)
    for served, names in units.items():
        weights = {unit: door.weights[unit] for unit in names if unit in door.weights}
        if not weights:
            continue
        if missing := [unit for unit in names if unit not in weights]:
            why = f"{served} is served by {', '.join(names)}, and each needs a weight (0 for none)"
            yield Problem(f"{_PATH}.weights", weights, f"also {', '.join(missing)}", why)
        elif (total := sum(weights.values())) != 100:
            why = f"those of {served} add up to {total}"
            yield Problem(f"{_PATH}.weights", weights, "weights that add up to 100", why)
