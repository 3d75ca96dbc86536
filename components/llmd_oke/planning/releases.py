"""Release of a stack with the user's overrides, and the endpoint picker's profile and config for each model."""

from collections.abc import Iterable, Iterator

from llmd_base.errors import SET, Problem
from pydantic.alias_generators import to_camel

from llmd_oke import catalogue
from llmd_oke.catalogue.container_images import lock, locked_image, parse_reference, removal_reason
from llmd_oke.catalogue.endpoint_pickers import (
    PRECISE_PREFIX,
    PREFIX_AFFINITY,
    EndpointPickerVersion,
    PickerConfig,
    ReportingServers,
)
from llmd_oke.catalogue.flow_control import FlowControl
from llmd_oke.catalogue.releases import (
    KV_EVENTS_FLAG,
    Release,
    default_release,
    release_of_former_name,
    release_of_router_image,
    release_of_vllm,
    with_override,
)
from llmd_oke.config import ModelConfig, StackConfig
from llmd_oke.config.engine import argument_of
from llmd_oke.config.model import PROFILE_NAMES, RouterConfig, RouterProfileName
from llmd_oke.config.shape_problems import did_you_mean
from llmd_oke.config.stack import Override
from llmd_oke.planning.flow_control import flow_control, flow_control_problems
from llmd_oke.planning.model_plan import ModelPlan
from llmd_oke.planning.plan import Advice, Plan

SHARED_PREFIX_SHARE = 0.25
"""Minimum share of shared tokens in a prompt from which prefix caching is assumed to save more than an even load; the
threshold is ours.
"""


_UNREPORTED = {
    KV_EVENTS_FLAG: "the kit's own says where and under which name servers report",
    "--no-enable-prefix-caching": "servers without a prefix cache have nothing to report",
}
"""Arguments with which a server publishes no KV cache events that its endpoint picker can use, with the reason."""


def used_override(config: StackConfig) -> Override:
    """Return the stack file's `override`, which replaces parts of the release; an empty one if it has none."""
    return config.override or Override()


def override_words(override: Override) -> dict[str, str]:
    """Return the overridden parts of a release by key of the stack file's `override`, with their values as text."""
    return {to_camel(name): value for name, value in override.replacements().items()}


def used_release(config: StackConfig) -> Release | None:
    """Return the release of a stack with its overrides; None if the catalogue has no such release."""
    base = catalogue.release(config.release)
    try:
        return None if base is None else with_override(base, used_override(config))
    except ValueError:  # another check reports the image
        return base


def vllm_facts(config: StackConfig) -> Release | None:
    """Return the release whose knowledge of vLLM applies to a stack, without the overrides; None if the stack overrides
    vLLM's image with one that no release has.
    """
    base, override = catalogue.release(config.release), used_override(config)
    return base if override.vllm_image is None else release_of_vllm(override.vllm_image)


def has_own_vllm(config: StackConfig) -> bool:
    """Tell whether a stack overrides vLLM's image with one that no release has."""
    image = used_override(config).vllm_image
    return image is not None and release_of_vllm(image) is None


def has_own_sidecar(config: StackConfig) -> bool:
    """Tell whether a stack overrides the routing sidecar's image with one that no release has."""
    image = used_override(config).routing_sidecar_image
    return image is not None and release_of_router_image(image) is None


def router_of(config: StackConfig) -> str:
    """Return the name of the release whose endpoint picker, proxy and sidecar a stack runs."""
    return (config.override.router if config.override else None) or config.release


def with_router(config: StackConfig, router: str) -> StackConfig:
    """Return the config with the router of this release as an override; unchanged if the config has that router
    already.
    """
    if router == router_of(config):
        return config
    override = used_override(config)
    return config.model_copy(update={"override": override.model_copy(update={"router": router})})


def router_replicas(model: ModelConfig, release: Release) -> int:
    """Return the number of pods of each router: the stack file's, or the release's; 1 behind a Gateway, which calls
    only one.
    """
    if model.router.mode != "standalone":
        return 1
    return model.router.replicas or release.router.replicas


def router_profile(model: ModelConfig, picker: EndpointPickerVersion) -> RouterProfileName:
    """Return the profile of a model's router: the stack file's, or the most similar one that this version supports."""
    if model.router.profile is not None:
        return picker.nearest_profile(model.router.profile)
    shared = model.workload.shared_prefix_tokens / model.workload.input_tokens
    return picker.nearest_profile("prefix" if shared >= SHARED_PREFIX_SHARE else "token-load")


def reports_kv_cache(model: ModelConfig, picker: EndpointPickerVersion) -> bool:
    """Tell whether a model's servers publish events about their KV cache to its routers."""
    if model.router.mode == "none":
        return False
    if (own := model.router.config) is not None:
        return picker.reads_reports(own)
    return picker.profiles[router_profile(model, picker)].kv_events


def session_headers(model: ModelConfig, picker: EndpointPickerVersion) -> tuple[str, ...]:
    """Return the HTTP headers by whose value a model's routers send requests of a session to the same server."""
    if model.router.mode == "none":
        return ()
    own = model.router.config
    return picker.session_headers(_profile_config(model, picker) if own is None else own)


def _profile_config(model: ModelConfig, picker: EndpointPickerVersion, flow: FlowControl | None = None) -> PickerConfig:
    return picker.config(
        router_profile(model, picker),
        disaggregated=model.topology.disaggregated,
        decider=model.router.decider,
        non_cached_tokens=model.router.non_cached_tokens,
        peak_prefill_tokens_per_s=model.router.peak_prefill_tokens_per_s,
        flow_control=flow,
        servers=ReportingServers("model", "http://render", 64, 5556),  # placeholders, which don't affect the checks
    )


def release_problems(config: StackConfig) -> Iterator[Problem]:
    """Yield a problem for unknown releases, invalid overrides, and router settings that the release doesn't support."""
    base = catalogue.release(config.release)
    if base is None:
        yield _unknown("release", config.release)
    yield from _override_problems(config)
    release = used_release(config)
    if release is not None:
        for i, model in enumerate(config.models):
            if model.router.mode != "standalone" and model.router.replicas is not None:
                why = "a Gateway asks one endpoint picker" if model.router.mode == "gateway" else "there is no router"
                path = f"models[{i}].router.replicas"
                yield Problem(path, model.router.replicas, "nothing, or router.mode: standalone", why)
            if model.router.mode == "none":
                yield from _unused_router_problems(model, f"models[{i}].router")
            else:
                yield from _router_problems(config, model, f"models[{i}]", release)


_OF_PICKERS = ("profile", "decider", "non_cached_tokens", "peak_prefill_tokens_per_s", "config", "flow_control")


def _unused_router_problems(model: ModelConfig, path: str) -> Iterator[Problem]:
    """Yield a problem for settings of an endpoint picker where a model has none."""
    for key, value in _given_settings(model.router, _OF_PICKERS):
        shown = value if isinstance(value, str | int | float) else SET
        accepted = "nothing, or router.mode: standalone"
        yield Problem(f"{path}.{key}", shown, accepted, "there is no router that would read it")


def _given_settings(router: RouterConfig, names: Iterable[str]) -> Iterator[tuple[str, object]]:
    """Yield the key in stack files and the value of each of these settings that isn't its default."""
    for name in names:
        if (value := getattr(router, name)) != type(router).model_fields[name].default:
            yield to_camel(name), value


def _unknown(path: str, name: str) -> Problem:
    former = release_of_former_name(name)
    if former is None:
        return Problem(path, name, did_you_mean(name, catalogue.release_names()), "the catalogue has no such release")
    number = former.name.removeprefix("llm-d-")
    why = f"releases carry llm-d's own numbers, and what was called {name} is llm-d's {number}"
    pulled = f", or {default_release().name}, whose images can be pulled" if former.images_gone else ""
    return Problem(path, name, f"{former.name}{pulled}", why)


def pull_problems(config: StackConfig) -> Iterator[Problem]:
    """Yield a problem for images that can no longer be pulled from their public registries, unless the stack has a
    private registry, which may have copies. Rehearsals, which pull no images, don't call it.
    """
    release, override = used_release(config), used_override(config)
    if release is None or config.layer == "cluster" or config.registry_mirror is not None:
        return
    images = {"vllm_image": release.vllm.image}
    if any(model.router.mode != "none" for model in config.models):
        images["endpoint_picker_image"] = release.endpoint_picker.image
    if any(model.router.mode == "standalone" for model in config.models):
        images["proxy_image"] = release.proxy.image
    if any(model.topology.disaggregated for model in config.models):
        images["routing_sidecar_image"] = release.routing_sidecar.image
    for field, image in images.items():
        because, key = removal_reason(image), f"override.{to_camel(field)}"
        if because is None:
            continue
        path, value = "release", config.release
        accepted = f"{default_release().name}, or {key} with a copy that nodes can pull"
        if own := getattr(override, field):
            released = catalogue.release(config.release if field == "vllm_image" else router_of(config))
            none = f"nothing, for {released.name}'s own image; or " if released and not released.images_gone else ""
            path, value, accepted = key, own, f"{none}a copy in a registry that nodes can reach"
        elif override.router and field != "vllm_image":
            path, value = "override.router", override.router
        yield Problem(path, value, accepted, f"nodes can't pull {image.reference}: {because}")


def _right_image(image: str) -> str:
    """Describe the correct form of an image reference that is invalid, or whose digest differs from the lock's."""
    try:
        image_ = parse_reference(image)
    except ValueError:
        return "registry/repository:tag, and @sha256:… of its own"
    digest = lock().images[image_.reference].digest
    moved = "`llmd-oke images update --moved` takes what its registry has now"
    return f"{image_.reference}@{digest}, or the tag alone; where the tag has moved, {moved}"


def _override_problems(config: StackConfig) -> Iterator[Problem]:
    override = config.override
    if override is None:
        return
    if override.router is not None and catalogue.release(override.router) is None:
        yield _unknown("override.router", override.router)
    images = {
        "vllmImage": override.vllm_image,
        "endpointPickerImage": override.endpoint_picker_image,
        "routingSidecarImage": override.routing_sidecar_image,
        "proxyImage": override.proxy_image,
    }
    for key, image in images.items():
        if image is None:
            continue
        try:
            locked_image(image)
        except ValueError as error:
            yield Problem(f"override.{key}", image, _right_image(image), str(error))
    for key in ("endpointPickerImage", "routingSidecarImage"):
        other = release_of_router_image(images[key] or "")
        if other is not None and other.name != router_of(config):
            why = f"this image belongs to {other.name}, but config, flags and metrics would be {router_of(config)}'s"
            gone = removal_reason(parse_reference(images[key] or "")) is not None
            what = "a copy that nodes can pull" if gone else "this image"
            accepted = f"nothing, or {what} together with override.router: {other.name}"
            yield Problem(f"override.{key}", images[key], accepted, why)
    facts, backend = vllm_facts(config), override.attention_backend
    refused = facts.vllm.attention_backend.refused_with_kv_connector if facts else ()
    if facts and backend in refused and any(model.topology.disaggregated for model in config.models):
        why = f"vLLM of {facts.name} does not start with {backend} and a KV connector"
        yield Problem("override.attentionBackend", backend, "another backend, or none", why)


def _router_problems(config: StackConfig, model: ModelConfig, path: str, release: Release) -> Iterator[Problem]:
    picker = release.endpoint_picker.dialect
    of_flow_control = list(flow_control_problems(config, model, path, picker))
    yield from of_flow_control
    if model.router.mode == "gateway" and (headers := session_headers(model, picker)):
        why = f"a Gateway takes {', '.join(headers)} out of requests, so that no session would be kept"
        yield Problem(f"{path}.router.mode", "gateway", "standalone, or routing without sessions", why)
    if model.router.profile == "lora-affinity" and model.engine.adapters is None:
        why = "its servers have no adapters, so that the profile would tell none from another"
        yield Problem(f"{path}.router.profile", "lora-affinity", "another profile, or engine.adapters", why)
    yield from _report_problems(model, path, picker, release)
    if model.router.config is not None:
        yield from _own_config_problems(model, f"{path}.router", picker)
        return
    asked, peak = model.router.replicas, model.router.peak_prefill_tokens_per_s
    if asked is not None and asked > release.router.replicas:
        most = release.router.replicas
        pickers = f"{most} endpoint pickers, one leading and the rest ready to take over"
        if most == 1:
            pickers = "1 endpoint picker, for which no other could take over"
        why = f"{router_of(config)} supports {pickers}; more bring nothing"
        yield Problem(f"{path}.router.replicas", asked, f"at most {most}", why)
    if peak is not None and PREFIX_AFFINITY not in picker.profiles[router_profile(model, picker)].filters:
        why = "no other profile goes by it"
        accepted = "nothing, or profile: prefix-affinity or precise-prefix"
        yield Problem(f"{path}.router.peakPrefillTokensPerS", peak, accepted, why)
    profile = model.router.profile
    replaced = config.override is not None and config.override.router is not None
    if profile is not None and profile not in picker.profiles and not replaced:
        profiles = ", ".join(name for name in PROFILE_NAMES if name in picker.profiles)
        why = f"the endpoint picker of {release.name}, {picker.version}, has no scorers for it"
        yield Problem(f"{path}.router.profile", profile, f"one of {profiles}, or a later release", why)
        return
    config_ = _profile_config(model, picker, None if of_flow_control else flow_control(config, model))
    for why, accepted in picker.refusals(config_, experimental=True):
        yield Problem(f"{path}.router", None, accepted, why)
    if model.workload.shared_prefix_tokens > model.workload.input_tokens:
        why = f"prompts have {model.workload.input_tokens} tokens"
        tokens = model.workload.shared_prefix_tokens
        yield Problem(f"{path}.workload.sharedPrefixTokens", tokens, f"at most {model.workload.input_tokens}", why)


def _report_problems(
    model: ModelConfig, path: str, picker: EndpointPickerVersion, release: Release
) -> Iterator[Problem]:
    """Yield a problem for settings with which the endpoint picker would get no KV cache events, or would misinterpret
    them.
    """
    if not reports_kv_cache(model, picker):
        return
    profile, place = "precise-prefix", f"{path}.router.profile"
    if model.router.config is not None:
        profile, place = PRECISE_PREFIX, f"{path}.router.config"
    if release.vllm.kv_events is None:
        why = f"nothing is known of how servers of vLLM {release.vllm.image.tag} report on their KV cache"
        yield Problem(place, profile, "prefix-affinity, or another release", why)
    if model.topology.disaggregated and model.router.decider == "prefix" and model.router.config is None:
        why = "the decider goes by the approximate index, whichever producer others name"
        yield Problem(f"{path}.router.decider", "prefix", "always", why)
    if model.topology.data_parallel:
        why = "each rank reports at a port of its own, and endpoint pickers read the first"
        yield Problem(place, profile, "prefix-affinity, or servers of one rank", why)
    facts = catalogue.model(model.model)
    if facts is not None and facts.architecture.linear_attention is not None:
        why = "blocks of models with linear attention aren't of --block-size: prompts would never match"
        yield Problem(place, profile, "prefix-affinity", f"{why} (https://github.com/vllm-project/vllm/issues/40696)")
    arguments = list(facts.arguments if facts else ())
    for role in model.topology.servers():
        arguments += model.engine.of_role(role).extra_args
    for flag, why in _UNREPORTED.items():
        if argument_of(arguments, flag) is not None:
            yield Problem(place, profile, f"prefix-affinity, or servers without {flag}", why)


def _own_config_problems(model: ModelConfig, path: str, picker: EndpointPickerVersion) -> Iterator[Problem]:
    """Yield a problem for parts of the user's own picker config that the endpoint picker wouldn't read, and for
    settings that this config replaces.
    """
    own, router = model.router.config or {}, model.router
    for name in ("profile", "decider", "non_cached_tokens", "peak_prefill_tokens_per_s"):
        if (value := getattr(router, name)) != type(router).model_fields[name].default:
            why = "router.config replaces this key, so that it would have no effect"
            yield Problem(f"{path}.{to_camel(name)}", value, "nothing beside router.config", why)
    config = picker.own_config(own)
    for why, accepted in picker.own_refusals(config, disaggregated=model.topology.disaggregated):
        yield Problem(f"{path}.config", SET, accepted, why)


def release_advice(plan: Plan) -> Iterator[Advice]:
    """Yield advice on images of the release that can't be pulled, on replaced parts, and on limits that
    concern a model.
    """
    for image, because in plan.release.images_gone.items() if plan.registry_mirror is None else ():
        remedy = f"use {default_release().name}, or an override with a copy that nodes can pull"
        yield Advice("release", f"nodes can't pull {image}: {because}; {remedy}")
    override, facts = used_override(plan.config), vllm_facts(plan.config)
    if override.vllm_image and facts:
        for other, why in facts.vllm.other_images.items():
            if parse_reference(other).is_copied_by(override.vllm_image):
                yield Advice("override.vllmImage", f"{facts.name} does without it: {why}")
    for name, value in override.replacements().items():
        text = (
            f"{name.replace('_', ' ')} {value} is not what {plan.release.name} was released with, so llm-d's own tests"
            " and benchmarks don't cover it; run `llmd-oke smoke` and `llmd-oke eval` after the update"
        )
        yield Advice("override", text)
    for model in plan.models:
        yield from _evaluation_advice(plan, model)
    yield from _split_advice(plan)
    if plan.layer == "cluster":
        return
    for i, model in enumerate(plan.models):
        if model.router.mode != "none":
            yield from _model_advice(plan, model, f"models[{i}]")


def _evaluation_advice(plan: Plan, model: ModelPlan) -> Iterator[Advice]:
    """Yield advice on who evaluates settings that change answers."""
    judge = "each update" if plan.smoke.where == "cluster" else "`llmd-oke up`, and no plain `pulumi up`,"
    for change in model.answer_changes:
        text = (
            f"{change.what} changes answers: {judge} asks {model.name} what `llmd-oke eval` asks, and fails below"
            f" {model.min_accuracy:.1%} of right answers"
        )
        yield Advice(change.path, text)


def _split_advice(plan: Plan) -> Iterator[Advice]:
    """Yield advice on a user's attention backend whose KV cache may not be transferable between servers of
    unequal sizes. A latent KV cache isn't split by heads.
    """
    backend, backends = used_override(plan.config).attention_backend, plan.release.vllm.attention_backend
    for model in plan.models:
        sizes = {role.parallelism.tensor_parallel_size for role in model.units[0].roles}
        by_heads = model.model.architecture.latent_attention is None
        if backend and backend not in backends.split_by_heads and by_heads and len(sizes) > 1:
            text = (
                f"KV cache of {backend} is not known to be split by heads: between servers of different tensor parallel"
                f" sizes answers of {model.name} may be garbage; serve nobody before its evaluation has passed"
            )
            yield Advice("override.attentionBackend", text)


def _model_advice(plan: Plan, model: ModelPlan, path: str) -> Iterator[Advice]:
    picker = plan.release.endpoint_picker.dialect
    if model.router.config is not None:
        text = f"forecasts go by the profile {model.profile}, while the endpoint picker goes by the stack's own config"
        yield Advice(f"{path}.router.config", text)
    elif model.router.profile is None and model.profile != "prefix":
        lacking = "" if model.profile == "token-load" else f", as endpoint picker {picker.version} has no token-load"
        text = (
            f"requests go to the least loaded server (profile {model.profile}{lacking}), because"
            f" workload.sharedPrefixTokens is {model.workload.shared_prefix_tokens}, below {SHARED_PREFIX_SHARE:.0%} of"
            " inputTokens; if prompts share more, set it, and servers are also chosen by what they have cached"
        )
        yield Advice(f"{path}.router.profile", text, "note")
    if model.profile in {"prefix-affinity", "precise-prefix"} and model.router.peak_prefill_tokens_per_s is None:
        text = (
            f"{model.profile} goes by llm-d's figure for gpt-oss-120b on one H200 each, which nobody has measured on"
            " AMD's GPUs; router.peakPrefillTokensPerS takes your own"
        )
        yield Advice(f"{path}.router.profile", text)
    if model.router.profile not in {None, model.profile}:
        text = f"endpoint picker {picker.version} has no scorers for {model.router.profile}: {model.profile} is used"
        yield Advice(f"{path}.router.profile", text)
    decisions = () if model.topology.disaggregated else ("decider", "non_cached_tokens")
    for key, value in _given_settings(model.router, decisions):
        why = "because aggregated servers compute their prompts themselves"
        text = f"{key}: {value} has no effect, {why}; leave it out"
        yield Advice(f"{path}.router.{key}", text)
    vllm = plan.release.vllm
    limits = [(f"endpoint picker {picker.version}", limit) for limit in picker.limits]
    for what, limit in [*limits, *((f"vLLM {vllm.image.tag}", limit) for limit in vllm.limits)]:
        concerns = model.topology.disaggregated or not limit.disaggregated
        if concerns and (limit.api is None or limit.api in model.model.apis):
            yield Advice(path, f"{what}: {limit.text} ({limit.source})", "limit")
