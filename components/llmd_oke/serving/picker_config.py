"""Configuration of a router's endpoint picker, made from the router's arguments in the format of its release."""

from typing import Any, NotRequired, TypedDict, cast

import pulumi
import yaml
from llmd_base.records import record

from llmd_oke.catalogue.endpoint_pickers import ReportingServers, endpoint_picker
from llmd_oke.catalogue.flow_control import Detector, FlowControl, PriorityBand
from llmd_oke.catalogue.releases import Release
from llmd_oke.catalogue.server_settings import SERVER_PORT
from llmd_oke.config.model import RouterProfileName
from llmd_oke.objects import OverrideArgs, ReleaseRef
from llmd_oke.serving.args import GatewayPodsArgs, TracingArgs
from llmd_oke.values import follows_project, parse_yaml

DEFAULT_NON_CACHED_TOKENS = 16
"""Default number of uncached prompt tokens from which prompts are prefilled remotely (llm-d-inference-scheduler,
deploy/config/pd-epp-config.yaml).
"""


class PriorityBandArgs(TypedDict):
    """Limits of the queue for requests of one priority."""

    priority: int
    """Priority; requests without one have 0."""
    max_requests: NotRequired[int | None]
    """Most requests in the queue; the endpoint picker's default if left out."""
    max_mib: NotRequired[int | None]
    """Most MiB of requests in the queue; the endpoint picker's default if left out."""


class FlowControlArgs(TypedDict):
    """Flow control: the endpoint picker queues requests while servers are saturated."""

    detector: str
    """Detector of saturated servers: utilization or concurrency."""
    request_ttl_s: int
    """Longest time of a request in the queue, in seconds."""
    bands: list[PriorityBandArgs]
    """Queue limits by priority of requests."""
    max_concurrency: NotRequired[int | None]
    """Requests in flight at each server from which servers count as saturated; the endpoint picker's default if left
    out, as for the fields below.
    """
    queue_depth_threshold: NotRequired[int | None]
    """Number of waiting requests from which a server counts as saturated."""
    kv_cache_util_threshold: NotRequired[float | None]
    """Share of the KV cache in use from which a server counts as saturated; 0.8 is 80 %."""
    metrics_staleness_ms: NotRequired[int | None]
    """Age of a server's metrics, in milliseconds, from which the server counts as saturated."""


class ReportedModelArgs(TypedDict):
    """Model whose servers publish KV cache events to the endpoint picker."""

    model: str
    """Name of the model in requests and events."""
    block_size: int
    """Tokens in a block of the servers' KV cache."""


class RouterArgs(TypedDict):
    """Arguments of the router of a unit (the servers of one topology)."""

    release: ReleaseRef
    """llm-d release of the catalogue."""
    override: NotRequired[OverrideArgs | None]
    """Replacements for parts of the release; none if left out."""
    namespace: pulumi.Input[str]
    """Namespace of the unit's objects."""
    model: str
    """Value of the label `llmd-oke/model` on the router's objects."""
    unit: str
    """Name of the unit whose servers the router chooses from."""
    version: NotRequired[str | None]
    """Version of the servers that the router chooses from; any version if left out."""
    disaggregated: bool
    """Whether the unit has prefill and decode servers."""
    profile: NotRequired[str | None]
    """Name of the release's profile by which servers are chosen; prefix if left out."""
    decider: NotRequired[str | None]
    """Rule for remote prefill: `prefix` for prompts with enough uncached tokens, or `always`; prefix if left out."""
    non_cached_tokens: NotRequired[int | None]
    """Number of uncached tokens from which prompts are prefilled remotely; 16 if left out."""
    peak_prefill_tokens_per_s: NotRequired[float | None]
    """Highest rate at which a prefill server computes prompt tokens, in tokens per second, for the profile
    prefix-affinity; llm-d's figure for an H200 if left out."""
    config: NotRequired[str | None]
    """Configuration of the endpoint picker as YAML; if left out, it is made from `profile`, `decider`,
    `non_cached_tokens` and `peak_prefill_tokens_per_s`.
    """
    reported: NotRequired[ReportedModelArgs | None]
    """Model whose servers publish KV cache events (`kv_events` of their unit), for the profile precise-prefix, or for a
    `config` with the placeholders `{model}`, `{block_size}`, `{events_port}` and `{render_url}`."""
    flow_control: NotRequired[FlowControlArgs | None]
    """Flow control, added to the configuration that is made from `profile` and `decider`; none if left out."""
    priorities: NotRequired[list[int] | None]
    """Priorities other than 0 that a front door sends in a header, each of which gets an InferenceObjective; none if
    left out."""
    replicas: NotRequired[int | None]
    """Number of pods with endpoint picker and Envoy; of several endpoint pickers one leads. The release's default if
    left out."""
    control_plane_cidrs: NotRequired[list[str] | None]
    """Source addresses of connections from the API server to pods; without them metrics can't be read through the API
    server.
    """
    signed_in: NotRequired[bool | None]
    """Whether clients authenticate at the stack's front door, so that only the front door, measuring pods, monitoring
    and the API server may send requests; false if left out."""
    gateway: NotRequired[GatewayPodsArgs | None]
    """Pods of the Gateway that calls the endpoint picker, of which there is only one then; an Envoy beside each
    endpoint picker calls it if left out."""
    cache_salts: NotRequired[bool | None]
    """Whether requests may have a `cache_salt`, which the front door of the stack adds; false if left out."""
    tracing: NotRequired[TracingArgs | None]
    """Destination of the endpoint picker's traces; no traces if left out."""


def render_name(unit: str) -> str:
    """Return the name of the Service of a unit's servers that tokenize prompts for the endpoint picker."""
    return f"{unit}-render"


def endpoint_picker_config(facts: Release, args: RouterArgs) -> str:
    """Return the endpoint picker's configuration as YAML, in the format of the release."""
    if (own := args.get("config")) is not None:
        asked = cast("dict[str, Any]", parse_yaml(own))
        config = facts.endpoint_picker.dialect.own_config(asked, _reporting_servers(facts, args))
        return yaml.safe_dump(config, sort_keys=False)
    flow_control: FlowControl | None = None
    if (flow := args.get("flow_control")) is not None:
        bands = tuple(record(PriorityBand, band) for band in flow["bands"])
        flow_control = record(FlowControl, flow, detector=cast("Detector", flow["detector"]), bands=bands)
    non_cached_tokens = args.get("non_cached_tokens")
    return _config_text(
        facts.endpoint_picker.dialect.version,
        args.get("profile") or "prefix",
        args["disaggregated"],
        args.get("decider") or "prefix",
        DEFAULT_NON_CACHED_TOKENS if non_cached_tokens is None else non_cached_tokens,
        args.get("peak_prefill_tokens_per_s"),
        flow_control,
        _reporting_servers(facts, args),
    )


def reports_port(facts: Release, args: RouterArgs) -> int | None:
    """Return the port on which a unit's servers publish KV cache events; None if they publish none."""
    servers = _reporting_servers(facts, args)
    return None if servers is None else servers.events_port


def _reporting_servers(facts: Release, args: RouterArgs) -> ReportingServers | None:
    events, reported = facts.vllm.kv_events, args.get("reported")
    if events is None or reported is None:
        return None
    return ReportingServers(
        reported["model"], f"http://{render_name(args['unit'])}:{SERVER_PORT}", reported["block_size"], events.port
    )


@follows_project
def _config_text(
    version: str,
    profile: str,
    disaggregated: bool,
    decider: str,
    non_cached_tokens: int,
    peak_prefill_tokens_per_s: float | None,
    flow_control: FlowControl | None,
    servers: ReportingServers | None,
) -> str:
    """Return the configuration as YAML. The result is cached, since the hundreds of units in a preview may share it."""
    config = endpoint_picker(version).config(
        cast("RouterProfileName", profile),
        disaggregated=disaggregated,
        decider="always" if decider == "always" else "prefix",
        non_cached_tokens=non_cached_tokens,
        peak_prefill_tokens_per_s=peak_prefill_tokens_per_s,
        flow_control=flow_control,
        servers=servers,
    )
    return yaml.safe_dump(config, sort_keys=False)


@follows_project
def is_experimental(version: str, config: str) -> bool:
    """Tell whether an endpoint picker's configuration needs `--allow-experimental-plugins`. The result is cached for
    equal configurations.
    """
    return bool(endpoint_picker(version).experimental_plugins(parse_yaml(config)))


@follows_project
def holds_back(version: str, config: str) -> bool:
    """Tell whether an endpoint picker's configuration enables flow control, so that requests wait in the picker while
    servers are saturated. The result is cached for equal configurations.
    """
    return endpoint_picker(version).holds_back(parse_yaml(config))


@follows_project
def session_headers(version: str, config: str) -> tuple[str, ...]:
    """Return the HTTP headers by whose value an endpoint picker sends requests of a session to the same server. The
    result is cached for equal configurations.
    """
    return endpoint_picker(version).session_headers(parse_yaml(config))
