"""The llm-d router of one unit, in standalone mode: endpoint picker, Envoy beside it, and the InferencePool."""

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from typing import Any, NotRequired, TypedDict, cast

import pulumi
import yaml

from llmd_oke.catalogue.endpoint_pickers import RouterProfileName
from llmd_oke.catalogue.releases import Release
from llmd_oke.errors import KitError
from llmd_oke.objects import Manifest, when_declared
from llmd_oke.serving import labels, templates
from llmd_oke.serving.chart import render_chart
from llmd_oke.serving.lookup import OverrideArgs, release
from llmd_oke.serving.manifests import declare
from llmd_oke.serving.router_pod import completed
from llmd_oke.serving.timeouts import ROUTER_S, timeouts

DEFAULT_NON_CACHED_TOKENS = 16
"""llm-d-inference-scheduler, deploy/config/pd-epp-config.yaml."""

CHART_NAME_LIMIT = 40
"""The chart cuts the name of its release here when it names its objects."""

ANY_UNIT = "unit-of-this-router"
"""Stands for the unit's name in what Helm renders once for all units."""


class RouterArgs(TypedDict):
    """What a router needs."""

    release: str
    """llm-d release of the catalogue."""
    override: NotRequired[OverrideArgs]
    """Parts of the release that others take the place of; none if left out."""
    namespace: str
    """Namespace of the unit."""
    model: str
    """Name that the model's objects carry as label."""
    unit: str
    """Unit whose servers the router picks from."""
    disaggregated: bool
    """Whether the unit has prefill and decode servers."""
    profile: NotRequired[str]
    """How servers are chosen: prefix, token-load or running-requests; prefix if left out."""
    decider: NotRequired[str]
    """Which prompts are prefilled remotely: prefix, those with uncached tokens, or always; prefix if left out."""
    non_cached_tokens: NotRequired[int]
    """Prompts with at least this many uncached tokens are prefilled remotely; 16 if left out."""


class Router(pulumi.ComponentResource):
    """Endpoint picker with an Envoy in the same pod, and the InferencePool that it picks from."""

    service_name: pulumi.Output[str]
    """Service of the router; port 80 takes requests, 9090 gives metrics."""

    def __init__(self, name: str, args: RouterArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:Router", name, None, opts)
        service = _declare_all(self, name, router_manifests(args))
        self.service_name = when_declared(service, service_name(args["unit"]))
        self.register_outputs({"service_name": self.service_name})


def service_name(unit: str) -> str:
    """Name of a unit's router Service."""
    return f"{unit[:CHART_NAME_LIMIT]}-epp"


def router_manifests(args: RouterArgs) -> list[Manifest]:
    """The router's objects: the chart's, with what it can't be told.

    Raises:
        KitError: the catalogue has no such release, Helm is missing, or the chart refuses the values.
    """
    return completed(rendered(args), labels.router(args["model"], args["unit"]))


def rendered(args: RouterArgs) -> list[dict[str, Any]]:
    """The chart's objects. Units differ in their names only: Helm runs once for all whose names it keeps whole."""
    unit = args["unit"] if len(args["unit"]) > CHART_NAME_LIMIT else ANY_UNIT
    of_any = _render(json.dumps({**args, "unit": unit, "model": unit}, sort_keys=True))
    if unit == args["unit"]:
        return of_any
    return [_named(manifest, args["unit"]) for manifest in of_any]


@cache
def _render(text: str) -> list[dict[str, Any]]:
    args = cast("RouterArgs", json.loads(text))
    facts = release(args["release"], args.get("override"))
    if facts.chart is None:
        raise KitError(f"The router of {facts.name} has no chart.")
    return render_chart(facts.chart, args["unit"], args["namespace"], chart_values(facts, args))


def _named(value: Any, unit: str) -> Any:
    """A copy with the unit's name wherever the stand-in for it is."""
    if isinstance(value, str):
        return value.replace(ANY_UNIT, unit)
    if isinstance(value, list):
        return [_named(item, unit) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {_named(key, unit): _named(item, unit) for key, item in cast("dict[str, Any]", value).items()}
    return value


def chart_values(facts: Release, args: RouterArgs) -> str:
    """The values of the standalone chart, as YAML."""
    config = endpoint_picker_config(facts, args)
    return templates.render(
        "gaie-standalone.yaml.j2",
        name=args["unit"],
        image_keys=facts.chart.image_keys if facts.chart else None,
        endpoint_picker=facts.endpoint_picker,
        proxy=facts.proxy,
        config=config,
        config_file=config_file_name(config),
        match_labels=labels.unit_selector(args["unit"]),
    )


def endpoint_picker_config(facts: Release, args: RouterArgs) -> str:
    """The endpoint picker's config in the dialect of the release."""
    profile, decider = args.get("profile", "prefix"), args.get("decider", "prefix")
    config = facts.endpoint_picker.dialect.config(
        cast("RouterProfileName", profile),
        disaggregated=args["disaggregated"],
        decider="always" if decider == "always" else "prefix",
        non_cached_tokens=args.get("non_cached_tokens", DEFAULT_NON_CACHED_TOKENS),
    )
    return yaml.safe_dump(config, sort_keys=False)


def config_file_name(config: str) -> str:
    """A name that changes with the content: the endpoint picker reads its config at start only, and must be rolled."""
    return f"plugins-{hashlib.sha256(config.encode()).hexdigest()[:10]}.yaml"


def _declare_all(parent: pulumi.Resource, name: str, manifests: Sequence[Manifest]) -> pulumi.Resource:
    """Declares the router's objects; the answer is its Service.

    Pods come after what they read. The Service comes beside them: waiting for one another, both would take longer.
    """

    def one(manifest: Manifest, needed: Sequence[pulumi.Resource] = ()) -> pulumi.Resource:
        key = f"{name}-{manifest['kind'].lower()}-{manifest['metadata']['name']}"
        options = pulumi.ResourceOptions(parent=parent, custom_timeouts=timeouts(ROUTER_S), depends_on=list(needed))
        return declare(key, manifest, options)

    read = [one(manifest) for manifest in manifests if manifest["kind"] not in {"Deployment", "Service"}]
    for manifest in _of_kind(manifests, "Deployment"):
        one(manifest, read)
    (service,) = _of_kind(manifests, "Service")
    return one(service)


def _of_kind(manifests: Sequence[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]
