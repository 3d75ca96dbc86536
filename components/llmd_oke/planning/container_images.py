"""Container images and charts that a stack pulls, or that the kit can deploy at all. Images of OKE's add-ons are not
included: OKE pulls them from Oracle's registries.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from llmd_pods.acceptance import NAMESPACE as ACCEPTANCE_NAMESPACE
from pydantic.alias_generators import to_camel

from llmd_oke.catalogue import Release, operators, release, release_names
from llmd_oke.catalogue.benchmarks import inference_perf
from llmd_oke.catalogue.container_images import (
    OCI_REGISTRY,
    ContainerImage,
    job_images,
    kit_lock,
    locked_image,
    project_lock,
    registries,
)
from llmd_oke.catalogue.registry_mirror import MirrorRegistry
from llmd_oke.config import NoModelCache
from llmd_oke.planning.monitoring import OPERATOR as MONITORING
from llmd_oke.planning.plan import Advice, Plan
from llmd_oke.planning.releases import used_override

_GPU_OPERATOR = "amd-gpu-operator"
_OPERATORS = ("cert-manager", "node-feature-discovery", _GPU_OPERATOR)
_GROUPS = "leader-worker-set"
_PATHS = {MONITORING: "monitoring", _GROUPS: "leaderWorkerSets"}
"""Stack-file keys that make a stack install an operator, by the operator's name; operators without a row are installed
by `gpuStack`.
"""


@dataclass(frozen=True)
class UsedImage:
    """Image or chart, the program that uses it, and the key of the stack file that causes it to be pulled."""

    image: ContainerImage
    used_by: str
    path: str


@dataclass(frozen=True)
class Copy:
    """Copy of an image or chart in a private registry. `archive` is the chart if it comes from a chart repository, None
    otherwise. `destination` has the digest of `source`, except for such a chart.
    """

    source: ContainerImage
    destination: ContainerImage
    archive: operators.HelmChart | None = None


def images_of(plan: Plan) -> tuple[UsedImage, ...]:
    """Return the images and charts that an update of a stack pulls, without repetitions, by their public references."""
    first: dict[str, UsedImage] = {}
    for used in (*_of_cluster(plan), *(_of_serving(plan) if plan.layer != "cluster" else ())):
        first.setdefault(used.image.reference, used)
    return tuple(first.values())


def pulled_images(plan: Plan) -> tuple[UsedImage, ...]:
    """Return the images and charts of an update as nodes and Helm pull them: copies if the stack has a private
    registry.
    """
    return tuple(replace(used, image=plan.pulled(used.image)) for used in images_of(plan))


def copies(plan: Plan, mirror: MirrorRegistry) -> tuple[Copy, ...]:
    """Return the copies that a private registry must have before a stack pulls from it, including images of benchmark
    and evaluation Jobs; images that are in that registry already are left out.
    """
    of_jobs = [job_images().python, *([inference_perf().image] if plan.layer != "cluster" else [])]
    sources = {image.reference: image for image in (*(used.image for used in images_of(plan)), *of_jobs)}
    of_images = [Copy(image, mirror.copy_of(image)) for _, image in sorted(sources.items())]
    charts = [Copy(chart.published, mirror.copy_of(chart.published), chart) for chart in chart_archives(plan)]
    return tuple(copy for copy in (*of_images, *charts) if copy.source != copy.destination)


def kit_images() -> tuple[ContainerImage, ...]:
    """Return all images in the `values/` of the kit and the project, sorted by reference."""
    releases = (item for name in release_names() if (item := release(name)))
    images = [used.image for item in releases for used in _of_release(item)]
    images += [used.image for name in (*_OPERATORS, *_PATHS) for used in images_of_operator(name)]
    images += [job_images().python, inference_perf().image, *operators.policy_engine().images]
    return tuple(sorted({image.reference: image for image in images}.values(), key=lambda image: image.reference))


def project_images() -> tuple[ContainerImage, ...]:
    """Return the images for the lock of the open project: those without digest in the kit's lock, and those already in
    the project's.
    """
    own = {reference: locked_image(reference) for reference in project_lock().images}
    known = {reference for reference, digest in kit_lock().images.items() if digest.digest is not None}
    others = {image.reference: image for image in kit_images() if image.reference not in known}
    return tuple(image for _, image in sorted({**others, **own}.items()))


def chart_archives(plan: Plan) -> tuple[operators.HelmChart, ...]:
    """Return the charts of a stack that come from chart repositories rather than from an OCI registry."""
    charts = (operators.operator(name).chart for name in operators_of(plan))
    return tuple(chart for chart in charts if chart.repository is not None)


def not_mirrored(plan: Plan) -> Iterator[str]:
    """Yield a description of each part of a stack that isn't pulled from the private registry."""
    if plan.created is not None:
        yield "OKE's control plane, node software and add-ons come from Oracle's own registries"
    if plan.gateway is not None:
        yield f"pods of the Gateway run the image that {plan.gateway.provider.name} is installed with"


def registry_advice(plan: Plan) -> Iterator[Advice]:
    """Yield advice on the requirements and gaps of a private registry; without one, on public registries whose pull
    limit may be exceeded.
    """
    mirror = plan.registry_mirror
    if mirror is None:
        yield from _pull_limit_advice(plan)
        return
    for text in not_mirrored(plan):
        yield Advice("registryMirror", text)
    is_oracles, created = mirror.registry.endswith(OCI_REGISTRY), plan.created
    if is_oracles and created is not None and not (mirror.pull_secret or "ocir" in created.iam.cluster):
        text = (
            "nodes sign in to private repositories of OCI's registry with cluster.iam.grants: [ocir], or by pullSecret"
        )
        yield Advice("registryMirror.prefix", text)
    if mirror.pull_secret is not None:
        text = f"pods wait until the Secret {mirror.pull_secret} is in {', '.join(pull_namespaces(plan))}"
        yield Advice("registryMirror.pullSecret", text)


def pull_namespaces(plan: Plan) -> tuple[str, ...]:
    """Return the namespaces whose pods pull images from a stack's private registry."""
    namespaces = [operators.operator(name).namespace for name in operators_of(plan)]
    namespaces += ["kube-system"] if plan.created is not None else []  # namespace of the gates
    namespaces += [ACCEPTANCE_NAMESPACE] if any(pool.in_update for pool in plan.acceptance) else []
    namespaces += [plan.namespace] if plan.layer != "cluster" else []
    return tuple(dict.fromkeys(namespaces))


def _pull_limit_advice(plan: Plan) -> Iterator[Advice]:
    """Yield advice on public registries whose pull limit is exceeded if all nodes, behind one IP address, pull every
    image. A bound.
    """
    nodes = sum(pool.limits.most for pool in plan.pools)
    if plan.created is not None:
        nodes += sum(pool.size for pool in plan.created.cpu_pools)
    for registry, limit in registries().pull_limits.items():
        images = [used for used in images_of(plan) if used.image.registry == registry]
        if len(images) * nodes > limit.pulls:
            text = (
                f"{nodes} nodes pull {len(images)} images from {registry}, at most {len(images) * nodes} pulls; behind"
                f" one address it gives {limit.pulls} in {limit.hours} hours without an account ({limit.source}):"
                " registryMirror takes them from a registry of yours"
            )
            yield Advice("registryMirror", text)


def unchecked_archives_sentence(charts: tuple[operators.HelmChart, ...]) -> str | None:
    """Return a sentence about charts whose archive isn't verified by a checksum; None if there are none."""
    unknown = [
        f"{chart.reference} {chart.version} of {chart.repository} ({chart.reason})"
        for chart in charts
        if not chart.sha256
    ]
    if not unknown:
        return None
    return f"no checksum is known of {' and '.join(unknown)}: `llmd-oke preflight` says what there is today"


def tag_only_sentence(images: tuple[UsedImage, ...]) -> str | None:
    """Return a sentence about images without a digest; None if all have one."""
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
            path = "override.vllmImage" if used_override(plan.config).vllm_image is not None else "release"
            yield UsedImage(plan.release.vllm.image, "vLLM", path)
    if plan.network_policies.engine == "calico":
        yield from (UsedImage(image, "Calico", "networkPolicies.engine") for image in operators.policy_engine().images)
    for name in operators_of(plan):
        yield from images_of_operator(name)


def operators_of(plan: Plan) -> list[str]:
    """Return the names of the operators that a stack installs with Helm."""
    own = [MONITORING] if plan.monitoring is not None and plan.monitoring.install else []
    own += [_GROUPS] if plan.installs_group_controller else []
    if plan.config.created_cluster is None:
        return own
    return [*(name for name in _OPERATORS if name in plan.gpu_stack.components), *own]


def images_of_operator(name: str) -> Iterator[UsedImage]:
    """Yield the images of an operator, and its chart if that is in an OCI registry."""
    path = _PATHS.get(name, "gpuStack")
    if chart := operators.operator(name).chart.artifact:
        yield UsedImage(chart, f"{name} (chart)", path)
    devices = operators.device_config().images if name == _GPU_OPERATOR else ()
    for place in (*operators.operator(name).images, *devices):
        yield UsedImage(place.image, f"{name} ({'.'.join(place.at)})", path)


def _of_serving(plan: Plan) -> Iterator[UsedImage]:
    cache = plan.config.storage
    if not isinstance(cache.model_cache, NoModelCache) and cache.prewarm.source != "none":
        yield UsedImage(job_images().python, "pre-warm", "storage.prewarm")
    yield UsedImage(job_images().python, "image pull", "release")
    routed = any(model.routed for model in plan.models)
    proxied = plan.front_door is not None or any(model.routed and not model.behind_gateway for model in plan.models)
    disaggregated = any(model.topology.disaggregated for model in plan.models)
    override = used_override(plan.config)
    for used in _of_release(plan.release):
        if {_PICKER: routed, _PROXY: proxied, _SIDECAR: disaggregated}.get(used.used_by, True):
            key = _OVERRIDES[used.used_by]
            yield used if getattr(override, key) is None else replace(used, path=f"override.{to_camel(key)}")


_PICKER, _PROXY = "endpoint picker", "Envoy"
_SIDECAR = "routing sidecar"
_OVERRIDES = {
    "vLLM": "vllm_image",
    _PICKER: "endpoint_picker_image",
    _PROXY: "proxy_image",
    _SIDECAR: "routing_sidecar_image",
}
"""Key of the stack file's `override` that replaces each image of a release."""


def _of_release(release_: Release) -> Iterator[UsedImage]:
    yield UsedImage(release_.vllm.image, "vLLM", "release")
    yield UsedImage(release_.endpoint_picker.image, _PICKER, "release")
    yield UsedImage(release_.proxy.image, _PROXY, "release")
    yield UsedImage(release_.routing_sidecar.image, _SIDECAR, "release")
