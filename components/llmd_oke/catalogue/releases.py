"""llm-d releases: versions that were released together, their configuration formats, and their custom resource
definitions.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field

from llmd_oke.catalogue import entries
from llmd_oke.catalogue.container_images import LockedImage, envoy_image, locked_image, parse_reference, removal_reason
from llmd_oke.catalogue.downloads import pinned_file
from llmd_oke.catalogue.endpoint_pickers import EndpointPickerVersion, KnownLimit, endpoint_picker
from llmd_oke.catalogue.entries import EntryKind
from llmd_oke.catalogue.expert_parallel import All2AllBackend
from llmd_oke.catalogue.kv_connectors import KvConnector
from llmd_oke.catalogue.models import CatalogueModel
from llmd_oke.catalogue.speculation import DraftMethod
from llmd_oke.config.engine import Engine, Flag
from llmd_oke.config.stack import Override, QuickReduceFormat
from llmd_oke.values import Entry, cache_folder, follows_project, module_folder, read_yaml


class ImageProgram(Entry):
    """Program inside an image, by the name and version under which rehearsals look it up."""

    name: str
    version: str


def _tagged_program(name: str) -> Any:
    """Return a field for the program in a record's image; its version defaults to the image's tag."""
    return Field(default_factory=lambda record: ImageProgram(name=name, version=record["image"].tag))


class Requests(Entry):
    """Resource requests of a container: number of CPUs (hardware threads) and memory in GiB."""

    cpus: int
    memory_gib: int


class EndpointPicker(Entry):
    """Endpoint picker (EPP) of a release."""

    image: LockedImage
    program: ImageProgram = _tagged_program("epp")
    requests: Requests
    memory_limit_gib: int

    @property
    def dialect(self) -> EndpointPickerVersion:
        """Configuration format, metrics and known limits of the release's endpoint picker."""
        return endpoint_picker(self.program.version)


class RouterDialect(Entry):
    """Properties of a router's Kubernetes objects that differ between releases.

    Attributes:
        chart: upstream chart that tests compare the kit's objects with.
        mode_label: label (key and value) of a router's Deployment and pods that upstream's chart sets, such as
            `llm-d.ai/igw-mode: llm-d-router-gateway`.
        proxy_container: name of the proxy's container.
        replicas: number of router pods; more than one if an endpoint picker that isn't the leader also watches servers,
            so that it can take over at once.
        picker_arguments: arguments of the endpoint picker besides those for pool and config.
        objective_groups: API groups of objectives and rewrites that the picker reads.
        picker_protocol: `appProtocol` of the endpoint picker's port in the router's Service; None if the port has none.
        pool_protocol: `appProtocol` of the InferencePool; None if it has none.
        traces: whether the picker is known to export traces.
        rewrites: API version of InferenceModelRewrite in the release's definitions; None if the picker isn't known to
            read it.
        largest_body_mib: maximum size of a request's body in MiB: Envoy, after its checks of the body, sends the whole
            body to the endpoint picker in one message.
    """

    chart: str
    mode_label: dict[str, str]
    proxy_container: str
    replicas: int
    picker_arguments: tuple[str, ...]
    objective_groups: tuple[str, ...]
    picker_protocol: str | None = None
    pool_protocol: str | None = None
    traces: bool = False
    rewrites: str | None = None
    largest_body_mib: int


class CrdFiles(Entry):
    """Custom resource definitions: files of a Go module, each with its SHA-256.

    `repository` is the base URL of the same files over HTTPS.
    """

    module: str
    version: str
    repository: str
    folder: str
    files: dict[str, str]


class AwaitedAdmission(Entry):
    """Object that the cluster is asked to admit, without making it, until its webhooks answer: the object, the limit in
    seconds of the wait, and the remedy if it ends without an answer.
    """

    offered: dict[str, Any]
    timeout_s: int
    remedy: str


class AwaitedDefinitions(Entry):
    """Custom resource definitions that others install and that a stack depends on: their `names` (`plural.group`), the
    limit in seconds of the wait for them, and the remedy if they are missing. `admission` is an object of the first of
    them, whose webhooks may serve later than the definition; None if there are none.
    """

    names: tuple[str, ...]
    established_timeout_s: int
    remedy: str
    admission: AwaitedAdmission | None = None


class RouterProxy(Entry):
    """Envoy proxy next to the endpoint picker; the kit's own image unless the release has one."""

    image: LockedImage = Field(default_factory=envoy_image)
    arguments: tuple[str, ...]
    requests: Requests
    memory_limit_gib: int | None = None


class RoutingSidecar(Entry):
    """Routing sidecar: the proxy in front of each decode server.

    Attributes:
        image: container image.
        program: program in the image.
        arguments: arguments of the sidecar.
        server_port_flag: flag for vLLM's port.
        ssrf_protection: whether the sidecar can refuse to send prompts to other prefill servers than the pods of an
            InferencePool (v1), which it looks up at the API server.
        tracing_arguments: arguments that export traces; None if none are known.
    """

    image: LockedImage
    program: ImageProgram = _tagged_program("pd-sidecar")
    arguments: tuple[str, ...]
    server_port_flag: str = "--vllm-port"
    ssrf_protection: bool = False
    tracing_arguments: tuple[str, ...] | None = None


class AttentionBackend(Entry):
    """vLLM's attention backends.

    Attributes:
        default: backend of servers without a KV connector.
        kv_connector: backend of servers with a KV connector.
        latent: the only backend of models with latent attention, with or without a KV connector.
        refused_with_kv_connector: backends with which vLLM doesn't start if it has a KV connector, because their KV
            cache layout can't be transferred.
        split_by_heads: the only backends whose KV cache can be transferred between servers of different tensor parallel
            sizes; with others answers are garbage.
        without_sinks: backends that don't support attention sinks.
        heads_by_sixteen: backends that need a number of attention heads per GPU that is a multiple or divisor of 16.
        evaluated_by_updates: backends with which no model was evaluated in this version; each update evaluates models
            that use them.
    """

    default: str
    kv_connector: str
    latent: str
    refused_with_kv_connector: tuple[str, ...]
    split_by_heads: tuple[str, ...]
    without_sinks: tuple[str, ...]
    heads_by_sixteen: tuple[str, ...] = ()
    evaluated_by_updates: tuple[str, ...] = ()

    @property
    def named(self) -> frozenset[str]:
        """Attention backends that are chosen by default, refused with a KV connector, or needed for unequal tensor
        parallel sizes.
        """
        chosen = (self.default, self.kv_connector, self.latent)
        return frozenset((*chosen, *self.refused_with_kv_connector, *self.split_by_heads))

    def chosen(self, model: CatalogueModel, *, kv_connector: bool) -> str:
        """Return the backend of a model's servers, with or without a KV connector."""
        if model.architecture.latent_attention is not None:
            return self.latent
        return self.kv_connector if kv_connector else self.default


class BlockSize(Entry):
    """vLLM's `--block-size` in tokens: of servers with a KV connector, and of all others, where the size preferred by
    their attention backend overrides `default`.
    """

    default: int
    kv_connector: int
    preferred: dict[str, int]


class KvEvents(Entry):
    """Port of the KV cache events that a server publishes, and the additional `arguments` by which it also tokenizes
    prompts on request.
    """

    port: int
    arguments: tuple[str, ...]

    def given(self, model: str, server_port: int) -> list[str]:
        """Return vLLM's arguments that make servers of a model publish KV cache events; the endpoint picker reaches the
        servers at `server_port`. Kubernetes replaces `$(POD_IP)` by the pod's address.
        """
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self.port}",
            "topic": f"kv@$({POD_IP}):{server_port}@{model}",
        }
        return [f"{KV_EVENTS_FLAG}={json.dumps(events, separators=(',', ':'))}", *self.arguments]


KV_EVENTS_FLAG = "--kv-events-config"
POD_IP = "POD_IP"
"""Environment variable with the pod's address, for servers that publish KV cache events."""


@dataclass(frozen=True)
class KvCacheSettings:
    """KV cache settings of the servers of one role: whether they have a KV connector, the attention backend, and the
    block size in tokens.
    """

    kv_connector: bool
    attention_backend: str
    block_size: int


class OverNodes(Entry):
    """Arguments and environment of the pods of a server that spans nodes.

    Attributes:
        arguments: additional arguments; `{nodes}` and `{data_parallel_size_local}` stand for the number of nodes of a
            server and its ranks on each, `$(…)` for variables that the LeaderWorkerSet controller sets.
        environment: additional environment variables, with the same placeholders.
        wait_variable: environment variable with the time in seconds that API servers wait for data-parallel ranks,
            whether on one node or on several.
        limits: known faults.
    """

    arguments: tuple[str, ...]
    environment: dict[str, str]
    wait_variable: str
    limits: tuple[KnownLimit, ...] = ()


class DisaggregatedSets(Entry):
    """DisaggregatedSets as a choice for prefill and decode servers; `limits` are known faults."""

    limits: tuple[KnownLimit, ...] = ()


class Vllm(Entry):
    """vLLM image of a release, and the settings of all its servers.

    Attributes:
        image: container image.
        other_images: references of images with the same vLLM that are not used, with the reason.
        arguments: arguments of every server.
        block_size: block size of KV cache.
        attention_backend: attention backends.
        kv_connector: KV connectors.
        environment: environment variables of every server.
        gpu_environment: environment variables of servers on GPUs of an architecture, such as `gfx950`, by architecture.
        scratch_folders: directories that servers write to.
        scratch_gib: space in GiB on a node's disk that a server may fill besides weights: compiled kernels and logs.
        compiled_code: environment variables with the directories for compiled code, inside the first of
            `scratch_folders`, for servers that keep it on their node; empty if a later server wouldn't find it.
        limits: known faults of this vLLM.
        quick_reduce: the user's override of the all-reduce format; None in the catalogue.
        traces: whether the image is known to have the packages for exporting traces.
        over_nodes: start of servers that span nodes; None if unknown.
        all2all: backends by name with which ranks can exchange tokens with experts.
        kv_events: publication of KV cache events; None if unknown.
        adapters: whether this vLLM is known to load LoRA adapters from a directory at run time.
        drafts: methods of speculative decoding that this vLLM is known to have.
    """

    image: LockedImage
    other_images: dict[str, str] = Field(default_factory=dict[str, str])
    arguments: tuple[str, ...]
    block_size: BlockSize
    attention_backend: AttentionBackend
    kv_connector: KvConnector
    environment: dict[str, str]
    gpu_environment: dict[str, dict[str, str]] = Field(default_factory=dict[str, dict[str, str]])
    scratch_folders: tuple[str, ...]
    scratch_gib: int
    compiled_code: dict[str, str] = Field(default_factory=dict[str, str])
    limits: tuple[KnownLimit, ...] = ()
    quick_reduce: QuickReduceFormat | None = None
    traces: bool = False
    over_nodes: OverNodes | None = None
    all2all: dict[str, All2AllBackend] = Field(default_factory=dict[str, All2AllBackend])
    kv_events: KvEvents | None = None
    adapters: bool = False
    drafts: tuple[DraftMethod, ...] = ()

    def kv_cache_settings(self, model: CatalogueModel, engine: Engine, *, hands_over: bool) -> KvCacheSettings:
        """Return the KV cache settings of a model's servers: those that `engine` has, else those of this vLLM."""
        connected = hands_over or bool(self.kv_connector.given(engine.extra_args) or engine.kv_cache.host_memory_gib)
        named = engine.argument("--attention-backend")
        backend = named[1].upper() if named else self.attention_backend.chosen(model, kv_connector=connected)
        sizes = self.block_size
        usual = sizes.kv_connector if connected else sizes.preferred.get(backend, sizes.default)
        return KvCacheSettings(connected, backend, engine.block_size or usual)

    def runs(self, reference: str) -> bool:
        """Tell whether an image contains this vLLM: it is the record's own image, a mirrored copy of it, or one of
        `other_images`.
        """
        return any(image.is_copied_by(reference) for image in (self.image, *map(parse_reference, self.other_images)))


class Release(Entry):
    """llm-d release: versions that were released together, with their source.

    `order` sorts releases by age, `former_names` are earlier names of the release in the kit. `default` marks releases
    that may be proposed for stacks without one; the newest of them is used. `disaggregated_sets` is None if prefill and
    decode servers can't be roles of one DisaggregatedSet.
    """

    name: str
    order: int
    default: bool = False
    source: str
    former_names: tuple[str, ...] = ()
    endpoint_picker: EndpointPicker
    router: RouterDialect
    crds: CrdFiles
    proxy: RouterProxy
    routing_sidecar: RoutingSidecar
    vllm: Vllm
    disaggregated_sets: DisaggregatedSets | None = None

    def has_flag(self, flag: Flag) -> bool:
        """Tell whether the vLLM of the release has a command-line flag."""
        first, last = (release(name) if name else None for name in (flag.since, flag.until))
        return (first is None or first.order <= self.order) and (last is None or self.order <= last.order)

    @property
    def images_gone(self) -> Mapping[str, str]:
        """Images of the release that can't be pulled any more, by reference, with the reason."""
        parts = (self.endpoint_picker, self.proxy, self.routing_sidecar, self.vllm)
        return {part.image.reference: why for part in parts if (why := removal_reason(part.image))}

    @property
    def router_requests(self) -> Requests:
        """Resource requests of a router's pod: endpoint picker and Envoy."""
        picker, proxy = self.endpoint_picker.requests, self.proxy.requests
        return Requests(cpus=picker.cpus + proxy.cpus, memory_gib=picker.memory_gib + proxy.memory_gib)


Part = TypeVar("Part", EndpointPicker, RouterProxy, RoutingSidecar, Vllm)


def with_override(base: Release, override: Override) -> Release:
    """Return a release with the user's replacements of its parts. If `override.router` is no release of the catalogue,
    the router stays that of `base`.

    A vLLM image of another release, or a mirrored copy of it, is started as that release starts it: arguments,
    environment and backends belong to the image.

    Raises:
        ValueError: an image reference has the wrong form, or a digest that differs from the lock's.
    """
    if not override.model_fields_set:
        return base
    router = (release(override.router) if override.router else None) or base
    source = (release_of_vllm(override.vllm_image) if override.vllm_image else None) or base
    vllm = _with_image(source.vllm, override.vllm_image)
    if source is base and vllm.image != base.vllm.image:
        vllm = vllm.model_copy(update={"limits": ()})  # the limits are those of the release's own image
    if backend := override.attention_backend:
        replaced: dict[str, str] = dict.fromkeys(("default", "kv_connector", "latent"), backend)
        vllm = vllm.model_copy(update={"attention_backend": vllm.attention_backend.model_copy(update=replaced)})
    return base.model_copy(
        update={
            "endpoint_picker": _with_image(router.endpoint_picker, override.endpoint_picker_image),
            "router": router.router,
            "proxy": _with_image(router.proxy, override.proxy_image),
            "routing_sidecar": _with_image(router.routing_sidecar, override.routing_sidecar_image),
            "vllm": vllm.model_copy(update={"quick_reduce": override.quick_reduce}),
        }
    )


def _with_image(part: Part, image: str | None) -> Part:
    return part if image is None else part.model_copy(update={"image": locked_image(image)})


RELEASES = EntryKind("releases", Release, key="name")


@follows_project
def release(name: str) -> Release | None:
    """Return the release with this name; None if the catalogue has none."""
    return entries.entry(RELEASES, name)


@follows_project
def _releases() -> list[Release]:
    """Return all releases of the catalogue, oldest first."""
    return sorted(
        (item for name in entries.names(RELEASES.folder) if (item := release(name))), key=lambda item: item.order
    )


def release_names() -> list[str]:
    """Return the names of all releases of the catalogue, oldest first."""
    return [item.name for item in _releases()]


def default_release() -> Release:
    """Return the release for stacks and programs that name none: the newest one marked as default."""
    return [item for item in _releases() if item.default][-1]


def release_of_vllm(image: str) -> Release | None:
    """Return the release with the vLLM of an image, pinned or not; None if no release has it."""
    return next((item for item in _releases() if item.vllm.runs(image)), None)


def release_of_router_image(image: str) -> Release | None:
    """Return the release whose endpoint picker or routing sidecar has this image, or a mirrored copy of it; None if no
    release has it.
    """
    parts = ((item, part) for item in _releases() for part in (item.endpoint_picker, item.routing_sidecar))
    return next((item for item, part in parts if part.image.is_copied_by(image)), None)


def release_of_former_name(name: str) -> Release | None:
    """Return the release with this former name; None if no release has it."""
    return next((item for item in _releases() if name in item.former_names), None)


def crd_manifests(crds: CrdFiles) -> list[dict[str, Any]]:
    """Return the custom resource definitions of a release.

    Each file is read from the release's Go module if that is on the machine, otherwise over HTTPS, and its SHA-256 is
    verified. Callers may not change what is returned: a file is parsed once.

    Raises:
        KitError: a file can't be read, or has a different SHA-256.
    """
    url = f"{crds.repository}/{crds.version}/{crds.folder}"
    cached, local = cache_folder() / "crds" / crds.version, module_folder(crds.module, crds.version) / crds.folder
    return [
        _definition(pinned_file(f"{url}/{name}", sha256, cached / name, local / name), sha256)
        for name, sha256 in crds.files.items()
    ]


@cache
def _definition(file: Path, _sha256: str) -> dict[str, Any]:
    return read_yaml(file)
