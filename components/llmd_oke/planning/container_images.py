"""The container images that the pods of a stack run, and all that the kit can deploy. OKE's add-ons bring further ones,
which are Oracle's matter."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pydantic.alias_generators import to_camel

from llmd_oke.catalogue import Release, operators, release, release_names
from llmd_oke.catalogue.benchmarks import inference_perf
from llmd_oke.catalogue.container_images import ContainerImage, job_images, kit_lock, parse_reference, project_lock
from llmd_oke.config import NoModelCache
from llmd_oke.planning.monitoring import OPERATOR as MONITORING
from llmd_oke.planning.plan import Plan

_GPU_OPERATOR = "amd-gpu-operator"
_OPERATORS = ("cert-manager", "node-feature-discovery", _GPU_OPERATOR)


@dataclass(frozen=True)
class UsedImage:
    """An image, who runs it, and the place in the stack file that brings it."""

    image: ContainerImage
    used_by: str
    path: str


def images_of(plan: Plan) -> tuple[UsedImage, ...]:
    """The images that an update of a stack pulls, each once."""
    first: dict[str, UsedImage] = {}
    for used in (*_of_cluster(plan), *(_of_serving(plan) if plan.layer != "cluster" else ())):
        first.setdefault(used.image.reference, used)
    return tuple(first.values())


def kit_images() -> tuple[ContainerImage, ...]:
    """All images that the kit's `values/` and the project's name, by their references."""
    releases = (item for name in release_names() if (item := release(name)))
    images = [used.image for item in releases for used in _of_release(item)]
    images += [used.image for name in _OPERATORS for used in _of_operator(name)]
    images += [job_images().python, inference_perf().image]
    return tuple(sorted({image.reference: image for image in images}.values(), key=lambda image: image.reference))


def project_images() -> tuple[ContainerImage, ...]:
    """The images that the lock of the open project is to have: those that the kit's lock knows no digest of, and those
    that it has already.
    """
    own = {reference: parse_reference(reference) for reference in project_lock().images}
    known = {reference for reference, digest in kit_lock().images.items() if digest.digest is not None}
    others = {image.reference: image for image in kit_images() if image.reference not in known}
    return tuple(image for _, image in sorted({**others, **own}.items()))


def chart_archives(plan: Plan) -> tuple[operators.HelmChart, ...]:
    """The charts of a stack that come from chart repositories, and so from no registry."""
    charts = (operators.operator(name).chart for name in _operators_of(plan))
    return tuple(chart for chart in charts if chart.repository is not None)


def unchecked_archives_sentence(charts: tuple[operators.HelmChart, ...]) -> str | None:
    """What to say of charts whose archive is held to no checksum; None where there is none."""
    unknown = [
        f"{chart.reference} {chart.version} of {chart.repository} ({chart.reason})"
        for chart in charts
        if not chart.sha256
    ]
    if not unknown:
        return None
    return f"no checksum is known of {' and '.join(unknown)}: `llmd-oke preflight` says what there is today"


def tag_only_sentence(images: tuple[UsedImage, ...]) -> str | None:
    """What to say of images without a digest; None where all have one."""
    unpinned = [used for used in images if used.image.digest is None]
    if not unpinned:
        return None
    return (
        f"{len(unpinned)} of {len(images)} container images and charts are named by tag alone, so that something else"
        " may be pulled another day: `llmd-oke images update` asks the registries for their digests"
    )


def _of_cluster(plan: Plan) -> Iterator[UsedImage]:
    if plan.config.created_cluster is not None:
        yield UsedImage(job_images().python, "gate", "gpuPools")
        if any(accepted.in_update for accepted in plan.acceptance):
            overridden = plan.config.override is not None and plan.config.override.vllm_image is not None
            path = "override.vllmImage" if overridden else "release"
            yield UsedImage(plan.release.vllm.image, "vLLM", path)
    for name in _operators_of(plan):
        yield from _of_operator(name)


def _operators_of(plan: Plan) -> list[str]:
    own = [MONITORING] if plan.monitoring is not None and plan.monitoring.install else []
    if plan.config.created_cluster is None:
        return own
    return [*(name for name in _OPERATORS if name in plan.gpu_stack.components), *own]


def _of_operator(name: str) -> Iterator[UsedImage]:
    if chart := operators.operator(name).chart.artifact:
        yield UsedImage(chart, f"{name} (chart)", "gpuStack")
    devices = operators.device_config().images if name == _GPU_OPERATOR else ()
    for place in (*operators.operator(name).images, *devices):
        yield UsedImage(place.image, f"{name} ({'.'.join(place.at)})", "gpuStack")


def _of_serving(plan: Plan) -> Iterator[UsedImage]:
    cache = plan.config.storage
    if not isinstance(cache.model_cache, NoModelCache) and cache.prewarm.source != "none":
        yield UsedImage(job_images().python, "pre-warm", "storage.prewarm")
    yield UsedImage(job_images().python, "image pull", "release")
    routed = any(model.routed for model in plan.models)
    proxied = plan.front_door is not None or any(model.routed and not model.behind_gateway for model in plan.models)
    disaggregated = any(model.topology.disaggregated for model in plan.models)
    override = plan.config.override
    for used in _of_release(plan.release):
        if {_PICKER: routed, _PROXY: proxied, _SIDECAR: disaggregated}.get(used.used_by, True):
            key = _OVERRIDES[used.used_by]
            overridden = override is not None and getattr(override, key) is not None
            yield replace(used, path=f"override.{to_camel(key)}") if overridden else used


_PICKER, _PROXY = "endpoint picker", "Envoy"
_SIDECAR = "routing sidecar"
_OVERRIDES = {
    "vLLM": "vllm_image",
    _PICKER: "endpoint_picker_image",
    _PROXY: "proxy_image",
    _SIDECAR: "routing_sidecar_image",
}
"""What in the stack file's `override` takes the place of each image of a release."""


def _of_release(release_: Release) -> Iterator[UsedImage]:
    yield UsedImage(release_.vllm.image, "vLLM", "release")
    yield UsedImage(release_.endpoint_picker.image, _PICKER, "release")
    yield UsedImage(release_.proxy.image, _PROXY, "release")
    yield UsedImage(release_.routing_sidecar.image, _SIDECAR, "release")
