"""The endpoint picker's config of a router, by the router's arguments and in the dialect of its release."""

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
from llmd_oke.values import follows_project

DEFAULT_NON_CACHED_TOKENS = 16
"""llm-d-inference-scheduler, deploy/config/pd-epp-config.yaml."""


class PriorityBandArgs(TypedDict):
    """Room for requests of one priority that wait."""

    priority: int
    """Priority; whoever has none has 0."""
    max_requests: NotRequired[int | None]
    """Requests that wait; the endpoint picker's own limit if left out."""
    max_mib: NotRequired[int | None]
    """Size of the requests that wait, in MiB; the endpoint picker's own limit if left out."""


class FlowControlArgs(TypedDict):
    """Flow control: while servers are saturated requests wait in the endpoint picker."""

    detector: str
    """What servers are found saturated by: utilization or concurrency."""
    request_ttl_s: int
    """Seconds that a request waits at most."""
    bands: list[PriorityBandArgs]
    """The priorities that requests have."""
    max_concurrency: NotRequired[int | None]
    """Requests under way at each server; the endpoint picker's own figure if left out, as with those below."""
    queue_depth_threshold: NotRequired[int | None]
    """Waiting requests of a saturated server."""
    kv_cache_util_threshold: NotRequired[float | None]
    """Share of the KV cache in use of a saturated server."""
    metrics_staleness_ms: NotRequired[int | None]
    """Age in milliseconds from which what a server reported counts as saturation."""


class ReportedModelArgs(TypedDict):
    """Model whose servers report on their KV cache."""

    model: str
    """Name by which requests and reports say it."""
    block_size: int
    """Tokens in a block of its servers' KV cache."""


class RouterArgs(TypedDict):
    """Arguments of a router."""

    release: ReleaseRef
    """llm-d release of the catalogue."""
    override: NotRequired[OverrideArgs | None]
    """Parts of the release that others take the place of; none if left out."""
    namespace: pulumi.Input[str]
    """Namespace of the unit."""
    model: str
    """Name that the model's objects carry as label."""
    unit: str
    """Unit whose servers the router picks from."""
    version: NotRequired[str | None]
    """Version of the servers that the router picks from; of whatever version they are if left out."""
    disaggregated: bool
    """Whether the unit has prefill and decode servers."""
    profile: NotRequired[str | None]
    """How servers are chosen: by the name of one of the release's profiles; prefix if left out."""
    decider: NotRequired[str | None]
    """Which prompts are prefilled remotely: prefix, those with uncached tokens, or always; prefix if left out."""
    non_cached_tokens: NotRequired[int | None]
    """Prompts with at least this many uncached tokens are prefilled remotely; 16 if left out."""
    peak_prefill_tokens_per_s: NotRequired[float | None]
    """Prompt tokens that a prefill server computes in a second at most, by which prefix-affinity goes; llm-d's figure
    of an H200 if left out."""
    config: NotRequired[str | None]
    """The endpoint picker's own config as YAML, in place of what `profile`, `decider` and the numbers beside them stand
    for; made of them if left out."""
    reported: NotRequired[ReportedModelArgs | None]
    """Model whose servers report on their KV cache (`kv_events` of their unit), for the profile precise-prefix, or for
    a `config` that goes by it: `{model}`, `{block_size}`, `{events_port}` and `{render_url}` stand for them there."""
    flow_control: NotRequired[FlowControlArgs | None]
    """Flow control, beside what `profile`, `decider` and the numbers beside them stand for; none if left out."""
    priorities: NotRequired[list[int] | None]
    """Priorities other than 0 that a front door says its clients have, each an InferenceObjective; none if left out."""
    replicas: NotRequired[int | None]
    """Pods with endpoint picker and Envoy; of several pickers one leads. As many as the release says if left out."""
    control_plane_cidrs: NotRequired[list[str] | None]
    """Addresses that the API server speaks to pods from; without them it reads no metrics."""
    signed_in: NotRequired[bool | None]
    """Whether clients sign in at the stack's front door, so that it, pods that measure, monitoring and the API server
    alone send requests; false if left out."""
    gateway: NotRequired[GatewayPodsArgs | None]
    """Pods of the Gateway that asks the one picker there is then; an Envoy beside each picker does if left out."""
    cache_salts: NotRequired[bool | None]
    """Whether requests may have a `cache_salt`, which the front door of the stack writes into them; not if left out."""
    tracing: NotRequired[TracingArgs | None]
    """Where the endpoint picker sends traces; nowhere if left out."""


def render_name(unit: str) -> str:
    """Name of the Service of a unit's servers that make tokens of prompts for its endpoint picker."""
    return f"{unit}-render"


def endpoint_picker_config(facts: Release, args: RouterArgs) -> str:
    """The endpoint picker's config in the dialect of the release."""
    if (own := args.get("config")) is not None:
        asked = cast("dict[str, Any]", yaml.safe_load(own))
        config = facts.endpoint_picker.dialect.own_config(asked, _reporting_servers(facts, args))
        return yaml.safe_dump(config, sort_keys=False)
    non_cached_tokens = args.get("non_cached_tokens")
    return _config_text(
        facts.endpoint_picker.dialect.version,
        args.get("profile") or "prefix",
        args["disaggregated"],
        args.get("decider") or "prefix",
        DEFAULT_NON_CACHED_TOKENS if non_cached_tokens is None else non_cached_tokens,
        args.get("peak_prefill_tokens_per_s"),
        _flow_control(args.get("flow_control")),
        _reporting_servers(facts, args),
    )


def reports_port(facts: Release, args: RouterArgs) -> int | None:
    """The port at which the unit's servers report on their KV cache; None where they don't."""
    events = facts.vllm.kv_events
    return None if events is None or args.get("reported") is None else events.port


def _reporting_servers(facts: Release, args: RouterArgs) -> ReportingServers | None:
    port, reported = reports_port(facts, args), args.get("reported")
    if port is None or reported is None:
        return None
    return ReportingServers(
        reported["model"], f"http://{render_name(args['unit'])}:{SERVER_PORT}", reported["block_size"], port
    )


def _flow_control(args: FlowControlArgs | None) -> FlowControl | None:
    if args is None:
        return None
    bands = tuple(record(PriorityBand, band) for band in args["bands"])
    return record(FlowControl, args, detector=cast("Detector", args["detector"]), bands=bands)


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
    """All units of a model have the same; there may be hundreds of them in a preview."""
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
    """Tell whether a config's text takes `--allow-experimental-plugins`; read once for all units with the same."""
    return bool(endpoint_picker(version).experimental_plugins(yaml.safe_load(config)))


@follows_project
def holds_back(version: str, config: str) -> bool:
    """Tell whether a config's text turns flow control on; read once for all units with the same."""
    return endpoint_picker(version).holds_back(yaml.safe_load(config))


@follows_project
def session_headers(version: str, config: str) -> tuple[str, ...]:
    """Return the headers of sessions that a config's text goes by; read once for all units with the same."""
    return endpoint_picker(version).session_headers(yaml.safe_load(config))
