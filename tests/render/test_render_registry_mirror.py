"""Stacks with a private registry: nothing that they declare is pulled from anywhere else."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest
from created_cluster import cluster_layer, created
from golden_stacks import CHOICES, CLUSTER, COMPONENTS, CREATED, varied_stack
from llmd_oke import planning
from llmd_oke.catalogue import operators, release_names
from llmd_oke.catalogue.benchmarks import bench_jobs, evals
from llmd_oke.catalogue.container_images import lock
from llmd_oke.catalogue.registry_mirror import MirrorRegistry
from llmd_oke.config import stacks, validate
from llmd_oke.gitops.rendering import rendering_of
from llmd_oke.operations import acceptance, load
from llmd_oke.operations.evals import evaluation_place
from llmd_oke.operations.load import LoadOptions
from llmd_oke.operations.status.status import planned_images
from llmd_oke.operators.helm_operators import chart_values, device_config
from llmd_oke.planning.container_images import copies, images_of, pulled_images
from llmd_oke.program.acceptance import accepted_pool
from llmd_oke.serving.acceptance import request
from llmd_oke.serving.jobs import Evaluation, evaluation_job
from llmd_oke.testing import Declared, Rendered
from llmd_oke.values import read_yaml
from render_support import PROJECT, SHARED_DATA
from stack_files import StackObject, model, read, stack

PREFIX = "iad.ocir.io/ai/mirror"
MIRROR = {"registryMirror": {"prefix": PREFIX, "pullSecret": "ocir"}}
PODS = ("containers", "initContainers", "ephemeralContainers")
ELSEWHERE = re.compile(rf"(?<!{re.escape(PREFIX)}/)\b(docker\.io|ghcr\.io|quay\.io|registry\.k8s\.io|gcr\.io)/")
RELEASE = "kubernetes:helm.sh/v3:Release"


NO_RDMA = created(monitoring="install", rdma="none", models=[model("agg-tp1-8r")])
VARIANTS: dict[str, StackObject] = {
    "created-with-everything": CLUSTER,
    "created-with-oke-plugin": created(monitoring="install", gpuStack="oke-plugin"),
    "created-without-rdma": {**NO_RDMA, "gpuStack": "helm-operator"},  # with the chart of Node Feature Discovery
    "cluster-layer": cluster_layer(monitoring="install"),
    "canary": varied_stack(COMPONENTS["Canary"]),
    **{f"release-{name}": stack(model("2p-tp1-2d-tp1"), release=name) for name in release_names()},
    **{
        name: varied_stack(CHOICES[name].choice)
        for name in (
            *("kv-cache-in-memory-and-on-disk", "two-models", "proxy-image", "behind-a-gateway"),
            *("servers-over-nodes", "disaggregated-set", "wide-expert-parallelism"),
        )
    },
}
"""Stacks that together have every container of every component, and every chart."""


@pytest.fixture(params=VARIANTS)
def config(request: pytest.FixtureRequest) -> StackObject:
    """A stack of `VARIANTS` with a private registry."""
    return {**VARIANTS[request.param], **MIRROR}


@pytest.fixture
def mirrored(config: StackObject, rendered: Callable[..., Rendered]) -> Rendered:
    return rendered(config)


def declared_objects(rendered: Rendered) -> Iterator[Declared]:
    """Return what reaches a cluster: objects and Helm releases."""
    return (resource for resource in rendered.resources if resource.type.startswith("kubernetes:"))


def pods(value: object) -> Iterator[Mapping[str, Any]]:
    """All pods in a manifest, those in the JSON of ConfigMaps among them, which programs start."""
    if isinstance(value, Mapping):
        if isinstance(value.get("containers"), list):
            yield value
        for inner in value.values():
            yield from pods(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pods(inner)
    elif isinstance(value, str) and value.startswith("{"):
        try:
            yield from pods(json.loads(value))
        except ValueError:
            return


def texts(value: object) -> Iterator[str]:
    """All texts in a value; an image that a chart wants in parts is one."""
    if isinstance(value, Mapping):
        parts = [value[key] for key in ("registry", "repository") if key in value]
        if len(parts) == 2 and all(isinstance(part, str) for part in parts):
            own = value.get("sha") or value.get("digest") or ""
            digest = f"@sha256:{own.removeprefix('sha256:')}" if own else ""
            yield f"{'/'.join(parts)}:{value['tag']}{digest}"
            return
        for inner in value.values():
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)
    elif isinstance(value, str):
        yield value


def test_every_pod_pulls_its_images_from_the_private_registry(mirrored: Rendered):
    declared = [(resource.name, pod) for resource in declared_objects(mirrored) for pod in pods(resource.inputs)]
    images = [(name, c["image"]) for name, pod in declared for key in PODS for c in pod.get(key, ())]
    assert images, "a stack without pods shows nothing"
    assert [image for image in images if not image[1].startswith(f"{PREFIX}/")] == []
    assert [name for name, pod in declared if pod.get("imagePullSecrets") != [{"name": "ocir"}]] == []


def test_with_a_private_registry_no_object_or_chart_value_names_another_registry(mirrored: Rendered):
    """But for ConfigMaps: what they say of images is told in reports; the pods that they describe are tested above."""
    named = [
        (resource.name, text)
        for resource in declared_objects(mirrored)
        if not resource.type.endswith(":ConfigMap") and "CustomResourceDefinition" not in resource.type
        for text in texts(resource.inputs)
        if ELSEWHERE.search(text)
    ]
    assert named == []


def test_charts_are_pulled_from_the_private_registry(mirrored: Rendered):
    releases = [resource.inputs for resource in declared_objects(mirrored) if resource.type == RELEASE]
    assert [release["chart"] for release in releases if not release["chart"].startswith(f"oci://{PREFIX}/")] == []
    assert [release for release in releases if "repositoryOpts" in release] == []


def test_digests_and_resource_names_are_the_same_with_a_private_registry(
    rendered: Callable[..., Rendered], mirrored: Rendered, config: StackObject
):
    plain = rendered({key: value for key, value in config.items() if key not in MIRROR})
    assert {resource.urn for resource in plain.resources} == {resource.urn for resource in mirrored.resources}
    digests = [re.findall(r"sha256:[0-9a-f]{64}", json.dumps(pod_images(item))) for item in (plain, mirrored)]
    assert digests[0] == digests[1]


def pod_images(rendered: Rendered) -> list[str]:
    return [
        container["image"]
        for resource in declared_objects(rendered)
        for pod in pods(resource.inputs)
        for key in PODS
        for container in pod.get(key, ())
    ]


def test_the_list_of_images_and_charts_to_mirror_has_every_one_that_is_pulled(mirrored: Rendered, config: StackObject):
    plan = planning.plan(validate(config))
    wanted = {copy.destination.pinned for copy in copies(plan, MirrorRegistry(PREFIX))}
    used = set(pod_images(mirrored))
    used |= {text for text in texts([r.inputs for r in declared_objects(mirrored)]) if IMAGE.fullmatch(text)}
    assert used - wanted == set()
    assert {item.image.pinned for item in pulled_images(plan)} <= wanted


IMAGE = re.compile(rf"{re.escape(PREFIX)}/[^\s:]+:[^\s]+")


def test_every_namespace_with_pods_has_the_pull_secret(mirrored: Rendered, config: StackObject):
    plan = planning.plan(validate(config))
    (advice,) = [advice for advice in plan.advice if advice.path == "registryMirror.pullSecret"]
    told = set(advice.text.rpartition(" is in ")[2].split(", "))
    declared = list(declared_objects(mirrored))
    of_pods = {r.inputs["metadata"]["namespace"] for r in declared if r.type != RELEASE and any(pods(r.inputs))}
    assert told == of_pods | {r.inputs["namespace"] for r in declared if r.type == RELEASE}


def test_the_mirrored_stacks_pull_every_image_that_a_stack_of_the_golden_files_pulls():
    golden = [change.choice for change in CHOICES.values() if not change.secrets] + [*COMPONENTS.values()]
    others = [*map(varied_stack, golden), *CREATED.values(), *map(read, stacks(PROJECT))]

    def pulled(configs: Iterable[StackObject]) -> set[tuple[str, str]]:
        used = (images_of(planning.plan(validate(config))) for config in configs)
        return {(item.path, item.image.repository) for images in used for item in images}

    assert pulled(others) - pulled(VARIANTS.values()) == set()


# What charts' default values bring, beside what the kit says: images that nothing here switches on.
SWITCHED_OFF = {
    "amd-gpu-operator": {
        "deviceConfig",  # the default DeviceConfig is not installed (crds.defaultCR); the kit's own is a resource
        "kmm",
        "node-feature-discovery",
        "remediation",
    },
    "cert-manager": set[str](),
    "kube-prometheus-stack": {
        "crds.upgradeJob.image.busybox",
        "crds.upgradeJob.image.kubectl",
        "prometheusOperator.admissionWebhooks.deployment.image",
        "prometheusOperator.thanosImage",  # the operator's argument for sidecars and rulers, of which there are none
        "thanosRuler.thanosRulerSpec.image",
    },
}
CHART_VALUES = {
    "amd-gpu-operator": "amd-gpu-operator-v1.5.1.yaml",
    "cert-manager": "cert-manager-v1.20.2.yaml",
    "kube-prometheus-stack": "kube-prometheus-stack-88.5.3.yaml",  # places of images are those of 87.2.1
}


SUB_CHARTS = {
    "grafana.image",
    "grafana.sidecar.image",
    "kube-state-metrics.image",
    "prometheus-node-exporter.image",
}
"""What pulls images in sub-charts of kube-prometheus-stack (values.yaml of each)."""


def image_places(values: object, path: str = "") -> Iterator[str]:
    """Return where a chart's values have an image: a map with a repository, or a text."""
    if not isinstance(values, Mapping):
        return
    if "repository" in values:
        yield path
    for key, value in values.items():
        inner = f"{path}.{key}".lstrip(".")
        if isinstance(value, str) and re.fullmatch(r"(.*[a-z])?[iI]mage", key) and re.search(r"\w[:/]\w", value):
            yield inner
        yield from image_places(value, inner)


@pytest.mark.parametrize("name", CHART_VALUES)
def test_every_image_in_a_charts_values_is_set_by_the_kit(name: str):
    published = SHARED_DATA / "chart-values" / CHART_VALUES[name]
    if not published.is_file():
        pytest.skip(f"{published} is absent")
    brought = set(image_places(read_yaml(published)))
    brought |= SUB_CHARTS if name == "kube-prometheus-stack" else set()
    named = {".".join(place.at) for place in operators.operator(name).images}
    off = {place for place in brought if any(place == key or place.startswith(f"{key}.") for key in SWITCHED_OFF[name])}
    assert brought - named - off == set()


@pytest.mark.parametrize("name", [*CHART_VALUES, "node-feature-discovery"])
def test_operators_images_are_pulled_from_the_private_registry_by_digest(name: str):
    facts, mirror = operators.operator(name), MirrorRegistry(PREFIX, "ocir")
    values = chart_values(facts.taken_from(mirror), [])
    written = json.dumps(values)
    assert [text for text in texts(values) if ELSEWHERE.search(text)] == []
    assert written.count('"ocir"') == 1
    for place in facts.images:
        assert (place.image.digest or "").removeprefix("sha256:") in written


def test_the_gpu_operators_device_config_uses_the_private_registry():
    spec = device_config("ns", None, [], MirrorRegistry(PREFIX, "ocir"))["spec"]
    assert ELSEWHERE.search(json.dumps(spec)) is None
    assert spec["commonConfig"]["imageRegistrySecrets"] == [{"name": "ocir"}]


def test_without_a_pull_secret_in_the_stack_file_no_pod_refers_to_one(rendered: Callable[..., Rendered]):
    quiet = rendered({**created(monitoring="install"), "registryMirror": {"prefix": PREFIX}})
    assert "imagePullSecrets" not in json.dumps([resource.inputs for resource in declared_objects(quiet)])


def test_images_that_are_in_the_private_registry_already_keep_their_reference(rendered: Callable[..., Rendered]):
    own = f"iad.ocir.io/ai/vllm/own:1@sha256:{'1' * 64}"
    config = {**stack(model("agg-tp1-8r")), **MIRROR, "override": {"vllmImage": own}}
    assert own in pod_images(rendered(config))
    assert own not in {
        copy.destination.pinned for copy in copies(planning.plan(validate(config)), MirrorRegistry(PREFIX))
    }


def test_every_image_of_a_stack_is_in_the_image_lock_file():
    """Also those that charts bring: a digest, or the reason why there is none."""
    plan = planning.plan(validate(created(monitoring="install")))
    assert [used.image.reference for used in images_of(plan) if used.image.reference not in lock().images] == []


def test_rendered_gitops_files_use_the_private_registry(rendered: Callable[..., Rendered]):
    config = {**stack(model("2p-tp1-2d-tp2")), **MIRROR}
    objects = [part.manifest for part in rendering_of("s", rendered(config).resources).objects]
    images = [c["image"] for item in objects for pod in pods(item) for key in PODS for c in pod.get(key, ())]
    assert images
    assert [image for image in images if not image.startswith(f"{PREFIX}/")] == []


def jobs_of_commands() -> Iterator[Mapping[str, Any]]:
    """The Jobs that commands start in a cluster, which no stack declares."""
    of = planning.plan(validate({**read("rehearsal"), **MIRROR}))
    (served,) = of.models
    options = LoadOptions(shapes=("constant:1",), duration_s=60)
    for tool in ("own", "inference-perf"):
        yield load.manifests(of, served, options, tool)[0]
    place = evaluation_place(of, "job")
    package = next(iter(evals().packages.values()))
    yield evaluation_job(place, Evaluation("e", package, "http://m", "m", 1), bench_jobs(), 60)
    (accepted,) = of.acceptance
    yield acceptance._job(of, accepted, "accept")
    yield request(accepted_pool(accepted, ""), "docker.io/vllm/vllm:1", of.registry_mirror)["pod"]


def test_jobs_that_commands_start_pull_from_the_private_registry():
    for job in jobs_of_commands():
        declared = list(pods(job))
        assert declared
        images = [c["image"] for pod in declared for key in PODS for c in pod.get(key, ())]
        assert [image for image in images if not image.startswith(f"{PREFIX}/")] == []
        assert all(pod["imagePullSecrets"] == [{"name": "ocir"}] for pod in declared)


def test_the_status_command_expects_pods_to_run_images_of_the_private_registry():
    of = planning.plan(validate({**read("rehearsal"), **MIRROR}))
    assert all(image.startswith(f"{PREFIX}/") for image in planned_images(of).values())
