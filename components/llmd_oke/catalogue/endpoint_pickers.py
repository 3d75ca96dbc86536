"""Versions of llm-d's endpoint picker: the configuration format of each version, and the kit's scheduling profiles for
it.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, cast

from pydantic import Field, JsonValue

from llmd_oke.catalogue import entries
from llmd_oke.catalogue.entries import EntryKind
from llmd_oke.catalogue.flow_control import FlowControl, FlowControlDialect
from llmd_oke.config.base import HttpsUrl, matching
from llmd_oke.config.model import Decider, RouterProfileName
from llmd_oke.config.shape_problems import did_you_mean
from llmd_oke.values import Entry, follows_project

Api = Literal["completions", "chat", "responses", "messages"]
"""vLLM's APIs that answer prompts: `/v1/completions`, `/v1/chat/completions`, `/v1/responses`, `/v1/messages`."""

JsonType = Literal["string", "integer", "number", "boolean", "object", "array"]

_PYTHON_TYPES: Mapping[JsonType, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}

PREFIX_AFFINITY = "prefix-cache-affinity-filter"
PRECISE_PREFIX = "precise-prefix-cache-producer"
PEAK_PREFILL_THROUGHPUT = "peakPrefillThroughput"

EXPERIMENTAL = "--allow-experimental-plugins"

_DISAGGREGATION = "disagg-profile-handler"
_SESSION_PLUGINS = ("session-affinity-filter", "session-affinity-scorer")
_SESSION_TOKEN, _SESSION_ID = "x-session-token", "x-session-id"
"""Default headers of the session plugins (llm-d-router v0.10.0, scheduling/util/sessionaffinity)."""

PickerConfig = dict[str, JsonValue]
"""Configuration of the endpoint picker (EndpointPickerConfig), as parsed YAML."""

Refusal = tuple[str, str]
"""Reason why a picker config is refused, and what would be accepted."""


class Plugin(Entry):
    """Type of an endpoint picker's plugin, with the JSON type of each parameter. `deprecated` names the replacement of
    a deprecated plugin.
    """

    kind: Literal[
        "handler", "decider", "headers", "filter", "scorer", "picker", "producer", "source", "extractor", "parser",
        "admitter", "screener", "fairness", "ordering", "usage-limit", "eviction", "detector", "reporter",
        "request-header",
    ]  # fmt: skip
    parameters: dict[str, JsonType] = Field(default_factory=dict[str, JsonType])
    experimental: bool = False
    deprecated: str | None = None


@dataclass(frozen=True)
class ReportingServers:
    """Facts about model servers that publish KV cache events, from which an endpoint picker's plugins are configured.

    Attributes:
        model: served name of the model.
        render_url: URL that tokenizes prompts.
        block_size: number of tokens in a block.
        events_port: port of the events.
    """

    model: str
    render_url: str
    block_size: int
    events_port: int


class RouterProfile(Entry):
    """Scheduling profile of the endpoint picker: scorers for each role with their weights, and the plugins that they
    depend on.

    Attributes:
        prefill: weights of the scorers for prefill servers.
        decode: weights of the scorers for decode servers.
        aggregated: weights of the scorers for aggregated servers.
        producers: plugins that produce the data that scorers and deciders read.
        filters: plugins that narrow the choice among servers that compute prompts.
        sessions: filter that keeps a session at its servers, used once per role; None if sessions aren't kept.
        kv_events: whether the profile uses KV cache events; placeholders in parameters, such as `{block_size}`, then
            stand for fields of `ReportingServers`.
        sources: data sources with their extractors.
        parameters: parameters of plugins in this profile.
    """

    prefill: dict[str, float]
    decode: dict[str, float]
    aggregated: dict[str, float]
    producers: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    sessions: str | None = None
    kv_events: bool = False
    sources: dict[str, tuple[str, ...]] = Field(default_factory=dict[str, tuple[str, ...]])
    parameters: dict[str, dict[str, JsonValue]] = Field(default_factory=dict[str, dict[str, JsonValue]])


class KnownLimit(Entry):
    """Known limit of an endpoint picker's version. It applies to disaggregated servers only if `disaggregated`, and
    with `api` only to models used by that API.
    """

    text: str
    source: HttpsUrl
    disaggregated: bool = False
    api: Api | None = None


class SilentFault(Entry):
    """Fault of an endpoint picker's config that loads without error but behaves differently from what it says. Each
    condition applies only if given.

    Attributes:
        plugin: plugin that the config has.
        beside: other plugin that the config also has.
        lacking: other plugin that the config lacks.
        without: parameter that the plugin lacks.
        profile: scheduling profile that references the plugin.
        disaggregated: whether the fault occurs only with disaggregated servers.
        why: consequence of the fault.
        source: source that documents it.
    """

    plugin: str
    beside: str | None = None
    lacking: str | None = None
    without: str | None = None
    profile: str | None = None
    disaggregated: bool = False
    why: str
    source: HttpsUrl

    @property
    def accepted(self) -> str:
        """Change of the config that avoids the fault, in words."""
        if self.without:
            return f"{self.plugin} with the parameter {self.without}"
        return f"no {self.plugin} in profile {self.profile}" if self.profile else f"no {self.plugin}"

    def met(self, config: Mapping[str, JsonValue], *, disaggregated: bool) -> bool:
        """Tell whether a picker config has the fault. `disaggregated` says whether its servers are separate prefill and
        decode servers, as some faults matter only for these.
        """
        plugins = _mappings(config.get("plugins"))
        types = [plugin.get("type") for plugin in plugins]
        if self.disaggregated and not disaggregated:
            return False
        if (self.beside and self.beside not in types) or (self.lacking and self.lacking in types):
            return False
        profiles = [item for item in _mappings(config.get("schedulingProfiles")) if item.get("name") == self.profile]
        named = {str(item.get("pluginRef")) for profile in profiles for item in _mappings(profile.get("plugins"))}
        return any(
            self.without is None or self.without not in _parameters(plugin)
            for plugin in plugins
            if plugin.get("type") == self.plugin
            and (self.profile is None or str(plugin.get("name", plugin.get("type"))) in named)
        )


class Metrics(Entry):
    """Metric names of an endpoint picker's version: counters of routing decisions and of requests, and the gauge of
    ready servers (`ready_servers`, None if the version has no such gauge).
    """

    decisions: str
    requests: str
    ready_servers: str | None = None


class EndpointPickerVersion(Entry):
    """Version of the endpoint picker.

    Attributes:
        version: version of the program.
        api_versions: API versions of the config that it reads, the first of which the kit writes.
        top_level: keys of the config.
        feature_gates: names of feature gates.
        unknown_parameters: what it does with unknown parameters of plugins.
        plugins: types of plugins by name.
        always: plugins that every prefill/decode config needs.
        written_gates: feature gates that a prefill/decode config must have.
        parameters: parameters of plugins in every profile.
        profiles: scheduling profiles by name.
        disaggregating_apis: APIs whose prompts may be prefilled remotely.
        metrics: metric names.
        limits: known limits.
        silent_faults: faults for which a user's own config is refused.
        flow_control: configuration format of flow control; None if the version has none.
    """

    version: Annotated[str, matching(r"^v[0-9]+\.[0-9]+\.[0-9]+$", "a version such as v0.10.0")]
    api_versions: tuple[str, ...]
    top_level: tuple[str, ...]
    feature_gates: tuple[str, ...]
    unknown_parameters: Literal["refused", "ignored"]
    plugins: dict[str, Plugin]
    always: tuple[str, ...]
    written_gates: tuple[str, ...] = ()
    parameters: dict[str, dict[str, JsonValue]]
    profiles: dict[RouterProfileName, RouterProfile]
    disaggregating_apis: tuple[Api, ...]
    metrics: Metrics
    limits: tuple[KnownLimit, ...]
    silent_faults: tuple[SilentFault, ...] = ()
    flow_control: FlowControlDialect | None = None

    def nearest_profile(self, name: RouterProfileName) -> RouterProfileName:
        """Return the profile with this name, or the most similar one that this version supports."""
        if name in self.profiles:
            return name
        if name not in {"prefix", "running-requests"} and "token-load" in self.profiles:
            return "token-load"
        return "running-requests" if "running-requests" in self.profiles else "prefix"

    def config(
        self,
        profile: RouterProfileName,
        *,
        disaggregated: bool,
        decider: Decider,
        non_cached_tokens: int,
        peak_prefill_tokens_per_s: float | None = None,
        flow_control: FlowControl | None = None,
        servers: ReportingServers | None = None,
    ) -> PickerConfig:
        """Return the router's config in the format of this version.

        `decider` chooses the prompts that are prefilled remotely: those with at least `non_cached_tokens` tokens that
        the decode server hasn't cached, or all. `peak_prefill_tokens_per_s` replaces the profile's own value, if the
        profile has one. `flow_control` must be supported by this version. `servers` is needed for profiles with
        `kv_events`.
        """
        scoring = self.profiles[profile]
        known = {**self.parameters, **scoring.parameters}
        if servers is not None:
            known = {name: _filled(own, servers) for name, own in known.items()}
        if peak_prefill_tokens_per_s is not None and PREFIX_AFFINITY in scoring.filters:
            own_peak: dict[str, JsonValue] = {PEAK_PREFILL_THROUGHPUT: peak_prefill_tokens_per_s}
            known[PREFIX_AFFINITY] = {**known.get(PREFIX_AFFINITY, {}), **own_peak}
        roles = (
            {"prefill": scoring.prefill, "decode": scoring.decode} if disaggregated else {"default": scoring.aggregated}
        )
        sessions = {role: f"{scoring.sessions}-{role}" for role in roles} if scoring.sessions else {}
        scorers = dict.fromkeys(name for weights in roles.values() for name in weights)
        always = self.always if disaggregated else ()
        names = dict.fromkeys([*always, *scoring.producers, *scoring.filters, *scorers])
        plugins: list[JsonValue] = [
            {"type": name, "parameters": dict(own)} if (own := known.get(name)) else {"type": name} for name in names
        ]
        for role, name in sessions.items():
            own = {**known.get(str(scoring.sessions), {}), **({"profileName": role} if disaggregated else {})}
            plugins.append({"name": name, "type": scoring.sessions, "parameters": own})
        if disaggregated:
            plugins += _disaggregation(decider, non_cached_tokens)
        config: PickerConfig = {
            "apiVersion": self.api_versions[0],
            "kind": "EndpointPickerConfig",
            **({"featureGates": list(self.written_gates)} if disaggregated and self.written_gates else {}),
            "plugins": plugins,
            "schedulingProfiles": [
                _scheduling(
                    role,
                    (*([sessions[role]] if sessions else []), *(() if role == "decode" else scoring.filters)),
                    weights,
                )
                for role, weights in roles.items()
            ],
        }
        if scoring.sources:
            sources: list[JsonValue] = [
                {"pluginRef": name, "extractors": [{"pluginRef": extractor} for extractor in extractors]}
                for name, extractors in scoring.sources.items()
            ]
            config["dataLayer"] = {"sources": sources}
        if flow_control is None or self.flow_control is None:
            return config
        return self.flow_control.applied(config, flow_control)

    def holds_back(self, config: Mapping[str, JsonValue]) -> bool:
        """Tell whether an endpoint picker's config turns flow control on."""
        return self.flow_control is not None and self.flow_control.gated(config.get("featureGates"))

    def session_headers(self, config: Mapping[str, JsonValue]) -> tuple[str, ...]:
        """Return the HTTP headers, in lower case, by whose value an endpoint picker with this config sends requests of
        a session to the same server.
        """
        found: dict[str, None] = {}
        for plugin in _mappings(config.get("plugins")):
            if plugin.get("type") not in _SESSION_PLUGINS:
                continue
            parameters = _parameters(plugin)
            if parameters.get("strategy") == "session_id":
                sources = _mappings(_object(parameters.get("sessionIdConfig")).get("sources"))
                found |= dict.fromkeys(str(source["header"]) for source in sources if "header" in source)
                found |= {} if sources else {_SESSION_ID: None}
            else:
                header = _object(parameters.get("encodedEndpointHeaderConfig")).get("header", _SESSION_TOKEN)
                found[str(header)] = None
        return tuple(name.lower() for name in found)

    def own_config(self, asked: Mapping[str, JsonValue], servers: ReportingServers | None = None) -> PickerConfig:
        """Return the user's own config `asked` with `apiVersion` and `kind`, and with placeholders such as
        `{block_size}` replaced by fields of `servers`.
        """
        given = asked if servers is None else _filled(dict(asked), servers)
        return {"apiVersion": self.api_versions[0], "kind": "EndpointPickerConfig", **given}

    def reads_reports(self, config: Mapping[str, JsonValue]) -> bool:
        """Tell whether an endpoint picker's config uses the KV cache events that servers publish."""
        return any(plugin.get("type") == PRECISE_PREFIX for plugin in _mappings(config.get("plugins")))

    def experimental_plugins(self, config: Mapping[str, JsonValue]) -> list[str]:
        """Return the plugin types in an endpoint picker's config for which this version needs
        `--allow-experimental-plugins`.
        """
        types = [str(plugin.get("type")) for plugin in _mappings(config.get("plugins"))]
        return [name for name in types if (known := self.plugins.get(name)) is not None and known.experimental]

    def own_refusals(self, config: Mapping[str, JsonValue], *, disaggregated: bool) -> Iterator[Refusal]:
        """Yield the reasons why a config from the stack file doesn't work with servers that are
        `disaggregated` or not, each with what would be accepted.
        """
        yield from self._unread(config)
        types = [str(plugin.get("type")) for plugin in _mappings(config.get("plugins"))]
        known = [(name, plugin) for name in types if (plugin := self.plugins.get(name)) is not None]
        profiles = [str(profile.get("name")) for profile in _mappings(config.get("schedulingProfiles"))]
        if not profiles:
            yield "it has no schedulingProfiles", "schedulingProfiles with a profile for each kind of servers"
        if disaggregated:
            handlers = [name for name, plugin in known if plugin.kind == "handler"]
            if not any(name.startswith(("disagg-", "pd-")) for name in handlers):
                why = f"nothing in it sends prompts to prefill servers: it has no {_DISAGGREGATION}"
                yield why, f"{_DISAGGREGATION} under plugins"
            for plugin in _mappings(config.get("plugins")):
                if plugin.get("type") == _DISAGGREGATION:
                    yield from _decider_refusals(_parameters(plugin), config)
            for role in ("prefill", "decode"):
                if f"{role}-filter" not in types:
                    why = f"nothing in it tells {role} servers from the others: it has no {role}-filter"
                    yield why, f"{role}-filter under plugins"
        for fault in self.silent_faults:
            if fault.met(config, disaggregated=disaggregated):
                yield f"{fault.plugin}: {fault.why} ({fault.source})", fault.accepted

    def refusals(self, config: Mapping[str, JsonValue], *, experimental: bool = False) -> Iterator[Refusal]:
        """Yield the reasons why this version wouldn't start with a config, or would silently ignore a part of it,
        each with what would be accepted.
        `experimental` tells whether the argument for experimental plugins is set.
        """
        yield from self._unread(config)
        for name in [] if experimental else self.experimental_plugins(config):
            yield f"plugin {name} is experimental and wants {EXPERIMENTAL}", "another plugin"

    def _unread(self, config: Mapping[str, JsonValue]) -> Iterator[Refusal]:
        for key in config:
            if key not in self.top_level:
                yield f"unknown key {key}", did_you_mean(key, self.top_level)
        yield from _form_refusals(config)
        if (written := config.get("apiVersion")) not in self.api_versions:
            why = f"endpoint picker {self.version} doesn't read apiVersion {_shown(written)}"
            yield why, f"apiVersion: {' or '.join(self.api_versions)}"
        gates = config.get("featureGates")
        for gate in gates if isinstance(gates, list) else ():
            if isinstance(gate, str) and (name := gate.split("=")[0]) not in self.feature_gates:
                yield f"feature gate {gate} is unknown or unregistered", did_you_mean(name, self.feature_gates)
        plugins = _mappings(config.get("plugins"))
        for plugin in plugins:
            yield from self._plugin_refusals(plugin)
        names = _plugin_names(config)
        for profile in _mappings(config.get("schedulingProfiles")):
            place = f"profile {_shown(profile.get('name'))}"
            yield from _reference_refusals(place, _mappings(profile.get("plugins")), names, names)
        sources = _mappings(_object(config.get("dataLayer")).get("sources"))
        extractors = [extractor for source in sources for extractor in _mappings(source.get("extractors"))]
        of_data = [name for name, plugin in self.plugins.items() if plugin.kind in {"source", "extractor"}]
        known = {*names, *self.plugins}  # the picker adds those of its defaults itself
        yield from _reference_refusals("dataLayer", [*sources, *extractors], known, of_data)

    def _plugin_refusals(self, plugin: Mapping[str, JsonValue]) -> Iterator[Refusal]:
        if (name := plugin.get("type")) is None:
            yield "an item of plugins has no type", f"type: one of {', '.join(self.plugins)}"
        if not isinstance(name, str):  # _form_refusals tells of another type than text
            return
        known = self.plugins.get(name)
        if known is None:
            yield (
                f"the kit knows of no plugin {name} in endpoint picker {self.version}",
                did_you_mean(name, self.plugins),
            )
            return
        for key, value in _parameters(plugin).items():
            type_ = known.parameters.get(key)
            if type_ is None:
                why = f"plugin {name} has no parameter {key}: it would be {self.unknown_parameters}"
                yield why, did_you_mean(key, known.parameters)
            elif not _is_of_type(value, type_):
                yield f"parameter {key} of plugin {name} is not of type {type_}", f"a value of type {type_}"


def _reference_refusals(
    place: str, references: Sequence[Mapping[str, JsonValue]], known: Collection[str], offered: Sequence[str]
) -> Iterator[Refusal]:
    """Yield a reason for each reference that names no plugin, or none of those `known`."""
    for reference in references:
        if (name := reference.get("pluginRef")) is None:
            yield f"a plugin of {place} has no pluginRef", f"pluginRef: one of {', '.join(offered)}"
        elif _shown(name) not in known:
            yield f"{place} names plugin {_shown(name)}, which is not there", did_you_mean(_shown(name), offered)


def _plugin_names(config: Mapping[str, JsonValue]) -> list[str]:
    """Return the names of a config's plugins, by which its other parts refer to them."""
    return [_shown(plugin.get("name", plugin.get("type"))) for plugin in _mappings(config.get("plugins"))]


def _shown(value: JsonValue) -> str:
    """Return a value of a picker config for an error's text: text as it is, another value as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def _form_refusals(config: Mapping[str, JsonValue]) -> Iterator[Refusal]:
    """Yield a reason for each part of a config that doesn't have the form of its type (llm-d-router v0.10.0,
    apix/config/v1alpha1): the picker would exit at startup, or ignore the part.
    """
    lists: list[tuple[str, JsonValue, Mapping[str, JsonType]]] = [
        ("plugins", config.get("plugins"), {"name": "string", "type": "string", "parameters": "object"}),
        ("schedulingProfiles", config.get("schedulingProfiles"), {"name": "string", "plugins": "array"}),
    ]
    reference: Mapping[str, JsonType] = {"pluginRef": "string", "weight": "number"}
    lists += [
        (f"plugins of profile {_shown(profile.get('name'))}", profile["plugins"], reference)
        for profile in _mappings(config.get("schedulingProfiles"))
        if isinstance(profile.get("plugins"), list)
    ]
    for place, items, known in lists:
        if items is not None and not isinstance(items, list):
            yield f"{place} is no list", "a list of objects"
        for item in items if isinstance(items, list) else ():
            if not isinstance(item, dict):
                yield f"{place} has {_shown(item)}, which is no object", f"objects of {', '.join(known)}"
                continue
            for key, value in item.items():
                if key not in known:
                    yield f"{place} has no key {key}", did_you_mean(key, known)
                elif value is not None and not _is_of_type(value, known[key]):
                    yield f"{key} in {place} is not of type {known[key]}", f"a value of type {known[key]}"


def _is_of_type(value: JsonValue, type_: JsonType) -> bool:
    return type_ == "boolean" if isinstance(value, bool) else isinstance(value, _PYTHON_TYPES[type_])


def _disaggregation(decider: Decider, non_cached_tokens: int) -> list[JsonValue]:
    """Return the plugins by which prompts of at least `non_cached_tokens` tokens that aren't cached, or all prompts,
    are prefilled remotely. The decider precedes the handler: older versions look it up when they create the handler.
    """
    decision: dict[str, JsonValue] = {"type": "always-disagg-pd-decider"}
    if decider == "prefix":
        decision = {"type": "prefix-based-pd-decider", "parameters": {"nonCachedTokens": non_cached_tokens}}
    handler: JsonValue = {"type": "disagg-profile-handler", "parameters": {"deciders": {"prefill": decision["type"]}}}
    return [*({"type": name} for name in ("prefill-filter", "decode-filter", "max-score-picker")), decision, handler]


def _scheduling(role: str, filters: Sequence[str], weights: Mapping[str, float]) -> JsonValue:
    named = list(filters) if role == "default" else [f"{role}-filter", *filters, "max-score-picker"]
    scored: list[JsonValue] = [{"pluginRef": name, "weight": weight} for name, weight in weights.items()]
    return {"name": role, "plugins": [*({"pluginRef": name} for name in named), *scored]}


def _decider_refusals(parameters: Mapping[str, JsonValue], config: Mapping[str, JsonValue]) -> Iterator[Refusal]:
    """Yield the reasons why a disaggregation handler would prefill nothing remotely, or make the picker exit at
    startup.
    """
    nested = _object(parameters.get("deciders")).get("prefill")
    decider = nested or parameters.get("prefillDeciderPluginName") or parameters.get("deciderPluginName")
    prefill_first = str(parameters.get("stageOrder", "")).lower().startswith("prefill")
    if decider is None and not prefill_first:
        why = f"nothing in it has prompts prefilled remotely: {_DISAGGREGATION} names no decider"
        yield why, "deciders.prefill with the name of a decider under plugins"
    if decider is not None and prefill_first:
        order = _shown(parameters.get("stageOrder"))
        why = f"{_DISAGGREGATION} takes no decider with stageOrder {order}: the picker would end"
        yield why, "no decider, or another stageOrder"
    if decider is not None and _shown(decider) not in _plugin_names(config):
        why = f"{_DISAGGREGATION} names the decider {_shown(decider)}, which is not there"
        yield why, "the name of a decider under plugins"


def _filled(value: Any, servers: ReportingServers) -> Any:
    """Return the value with each placeholder replaced by the field of `servers` that it names."""
    if isinstance(value, dict):
        return {key: _filled(item, servers) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_filled(item, servers) for item in cast("list[Any]", value)]
    known = {f"{{{item.name}}}": item.name for item in fields(servers)}
    return getattr(servers, known[value]) if isinstance(value, str) and value in known else value


def _parameters(plugin: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    return _object(plugin.get("parameters"))


def _object(value: JsonValue) -> Mapping[str, JsonValue]:
    return value if isinstance(value, dict) else {}


def _mappings(value: JsonValue) -> Sequence[Mapping[str, JsonValue]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


ENDPOINT_PICKERS = EntryKind("endpoint-pickers", EndpointPickerVersion, key="version")


@follows_project
def endpoint_picker(version: str) -> EndpointPickerVersion:
    """Return the endpoint picker with this version, which must be in the catalogue."""
    return entries.required_entry(ENDPOINT_PICKERS, version)


@follows_project
def request_counters() -> tuple[str, ...]:
    """Return the metric names under which endpoint pickers count requests, the newest version's first. The newest
    version also counts under the older names.
    """
    versions = sorted(
        entries.names(ENDPOINT_PICKERS.folder),
        key=lambda version: [int(part) for part in version.removeprefix("v").split(".")],
        reverse=True,
    )
    return tuple(dict.fromkeys(endpoint_picker(version).metrics.requests for version in versions))
