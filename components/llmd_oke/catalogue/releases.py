"""llm-d releases: the versions that belong together, the dialect that they speak, and their CRDs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
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
from llmd_oke.config.engine import Engine, Flag
from llmd_oke.config.stack import Override, QuickReduceFormat
from llmd_oke.values import Entry, cache_folder, follows_project, module_folder, read_yaml


class ImageProgram(Entry):
    """The program inside an image, by the name and version that the rehearsal looks it up with."""

    name: str
    version: str


def _tagged_program(name: str) -> Any:
    """A field for the program of a record's image, of the version that the image's tag says unless the record does."""
    return Field(default_factory=lambda record: ImageProgram(name=name, version=record["image"].tag))


class Requests(Entry):
    """Requests of a container to its node: processors (hardware threads) and memory."""

    cpus: int
    memory_gib: int


class EndpointPicker(Entry):
    """The endpoint picker (EPP)."""

    image: LockedImage
    program: ImageProgram = _tagged_program("epp")
    requests: Requests
    memory_limit_gib: int

    @property
    def dialect(self) -> EndpointPickerVersion:
        """Fields that this version reads, counters that it has, and limits."""
        return endpoint_picker(self.program.version)


class RouterDialect(Entry):
    """Dialect of a release's upstream chart for the objects of a router, where releases differ.

    `chart` is the one that the kit's own objects are held to. `mode_label` marks a router's pods as upstream does.
    `replicas` is how many of them run: several where an endpoint picker that doesn't lead knows the servers too, so
    that it can stand in at once. `picker_arguments` are the picker's beside those that say which pool and which config,
    `objective_groups` the API groups of objectives and rewrites that it reads, and the protocols what Service and
    InferencePool say of their ports, if anything. `traces` says whether the picker is known to send traces.
    `rewrites` is the API version of InferenceModelRewrite in the release's definitions, None where its picker isn't
    known to read it. `largest_body_mib` is what a request may have: the picker gets it in one message, whole, once it
    is checked.
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

    `repository` serves the same files over HTTPS.
    """

    module: str
    version: str
    repository: str
    folder: str
    files: dict[str, str]


class AwaitedDefinitions(Entry):
    """Custom resource definitions that somebody else installs and that a stack counts on: their `names`
    (`plural.group`), how long they are waited for in seconds, and what to do where they don't come.
    """

    names: tuple[str, ...]
    established_timeout_s: int
    remedy: str


class RouterProxy(Entry):
    """The Envoy beside the endpoint picker; the kit's own unless a release names another one."""

    image: LockedImage = Field(default_factory=envoy_image)
    arguments: tuple[str, ...]
    requests: Requests
    memory_limit_gib: int | None = None


class RoutingSidecar(Entry):
    """The proxy in front of each decode server.

    `server_port_flag` names vLLM's port to it. `ssrf_protection` says whether it can refuse to send a prompt anywhere
    but to pods of an InferencePool (v1), for which it looks them up. With `tracing_arguments` it sends traces; None
    where that isn't known.
    """

    image: LockedImage
    program: ImageProgram = _tagged_program("pd-sidecar")
    arguments: tuple[str, ...]
    server_port_flag: str = "--vllm-port"
    ssrf_protection: bool = False
    tracing_arguments: tuple[str, ...] | None = None


class AttentionBackend(Entry):
    """vLLM's attention backends: of servers that have a KV connector, and of all others.

    Not every backend's layout of the KV cache can be handed over: vLLM doesn't start with a KV connector and one of
    `refused_with_kv_connector`. Only those of `split_by_heads` can be handed over between servers of different tensor
    parallel sizes; with another one answers are garbage. Those `without_sinks` don't run models with attention sinks.
    Models with latent attention run with `latent` alone, whether or not they hand their cache over. Those of
    `heads_by_sixteen` run where the attention heads of each GPU are a multiple or a divisor of 16. No model has been
    evaluated with those of `evaluated_by_updates` in this very version: each update evaluates one that runs with them.
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
        """The backends of which something is known."""
        chosen = (self.default, self.kv_connector, self.latent)
        return frozenset((*chosen, *self.refused_with_kv_connector, *self.split_by_heads))

    def chosen(self, model: CatalogueModel, *, kv_connector: bool) -> str:
        """Return the connector or backend of a model's servers, with or without a KV connector."""
        if model.architecture.latent_attention is not None:
            return self.latent
        return self.kv_connector if kv_connector else self.default


class BlockSize(Entry):
    """vLLM's `--block-size` in tokens: of servers that have a KV connector, and of all others, where the size that
    their attention backend prefers wins over `default`.
    """

    default: int
    kv_connector: int
    preferred: dict[str, int]


class KvEvents(Entry):
    """Reports of a server on what is in its KV cache: the port where it publishes them, and what it takes to be asked
    for a prompt's tokens beside.
    """

    port: int
    arguments: tuple[str, ...]

    def given(self, model: str, server_port: int) -> list[str]:
        """Return vLLM's arguments for servers of a model that endpoint pickers know by this port; Kubernetes puts the
        pod's address in place of `POD_IP`.
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
"""Variable with the pod's address, of servers that report on their KV cache."""


@dataclass(frozen=True)
class KvCacheSettings:
    """KV cache settings of servers of one kind: whether they have a connector, the attention backend, and the size of
    blocks in tokens.
    """

    kv_connector: bool
    attention_backend: str
    block_size: int


class OverNodes(Entry):
    """Start of the pods of a server that spans nodes, by which they find each other, and what is known of it.

    `arguments` and `environment` are added to those of a server of one node; `{nodes}` and `{data_parallel_size_local}`
    stand for the nodes of a server and its ranks on each, `$(…)` for variables that the LeaderWorkerSet's controller
    gives each pod. Pods wait for each other as long as `wait_variable` says, in seconds.
    """

    arguments: tuple[str, ...]
    environment: dict[str, str]
    wait_variable: str
    limits: tuple[KnownLimit, ...] = ()


class Vllm(Entry):
    """The vLLM image and what every server of it is started with.

    `other_images` have the same vLLM and are not used, each with the reason.
    `scratch_gib` is the room on a node's disk that a server may fill beside weights: compiled kernels and logs.
    `kv_events` is how servers report on their KV cache, None where that isn't known.
    `compiled_code` are variables of the folders that it compiles to, with paths in the first of `scratch_folders`, for
    servers that keep the code on their node; empty where a next server would not find it.
    `quick_reduce` is the user's override: no release has any. `limits` are what this vLLM is known to do wrong,
    `traces` whether it is known to have the packages that it sends traces with, `adapters` whether it is known to read
    LoRA adapters from a folder while it runs. `over_nodes` is what servers that span nodes are started with beside
    that; None where nobody knows how. `all2all` are the backends by which ranks may exchange tokens with experts.
    """

    image: LockedImage
    other_images: dict[str, str] = Field(default_factory=dict[str, str])
    arguments: tuple[str, ...]
    block_size: BlockSize
    attention_backend: AttentionBackend
    kv_connector: KvConnector
    environment: dict[str, str]
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

    def kv_cache_settings(self, model: CatalogueModel, engine: Engine, *, hands_over: bool) -> KvCacheSettings:
        """Decide what a model's servers are started with for their KV cache, whether or not they hand it over: as
        `engine` asks, else as this vLLM has it.
        """
        connected = hands_over or bool(self.kv_connector.given(engine.extra_args) or engine.kv_cache.host_memory_gib)
        named = engine.argument("--attention-backend")
        backend = named[1].upper() if named else self.attention_backend.chosen(model, kv_connector=connected)
        sizes = self.block_size
        usual = sizes.kv_connector if connected else sizes.preferred.get(backend, sizes.default)
        return KvCacheSettings(connected, backend, engine.block_size or usual)

    def runs(self, reference: str) -> bool:
        """Tell whether that image has this vLLM: the record's own, a mirror of it, or one of the others."""
        return any(image.is_copied_by(reference) for image in (self.image, *map(parse_reference, self.other_images)))


class Release(Entry):
    """An llm-d release: versions that belong together, by one source.

    `order` says which releases are near each other, `former_names` what the kit called it before. One of all is the
    `default`, which is proposed to stacks and goes where nothing names another.
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

    def has_flag(self, flag: Flag) -> bool:
        """Tell whether the vLLM of the release has a flag of vLLM's command line."""
        first, last = (release(name) if name else None for name in (flag.since, flag.until))
        return (first is None or first.order <= self.order) and (last is None or self.order <= last.order)

    @property
    def images_gone(self) -> Mapping[str, str]:
        """Images that can't be pulled any more, by reference, and why."""
        parts = (self.endpoint_picker, self.proxy, self.routing_sidecar, self.vllm)
        return {part.image.reference: why for part in parts if (why := removal_reason(part.image))}

    @property
    def router_requests(self) -> Requests:
        """Requests of a router's pod to its node: endpoint picker and Envoy."""
        picker, proxy = self.endpoint_picker.requests, self.proxy.requests
        return Requests(cpus=picker.cpus + proxy.cpus, memory_gib=picker.memory_gib + proxy.memory_gib)


Part = TypeVar("Part", EndpointPicker, RouterProxy, RoutingSidecar, Vllm)


def with_override(base: Release, override: Override) -> Release:
    """A release with what the user put in place of its parts, by full references of images; a router of a release that
    isn't known is left out.

    A vLLM image that another release has, or a mirror of it, is started as that release starts it: arguments,
    environment and backends belong to the image.

    Raises:
        ValueError: an image has the wrong form, or a digest that isn't the lock's.
    """
    router = (release(override.router) if override.router else None) or base
    source = vllm_release(base, override)
    vllm = _with_image(source.vllm, override.vllm_image)
    if source is base and vllm.image != base.vllm.image:
        vllm = vllm.model_copy(update={"limits": ()})  # known of the release's own image
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


def vllm_release(base: Release, override: Override) -> Release:
    """The release whose facts of vLLM hold: that of the overriding image, else the base."""
    return (release_of_vllm(override.vllm_image) if override.vllm_image else None) or base


RELEASES = EntryKind("releases", Release, key="name")


@follows_project
def release(name: str) -> Release | None:
    """The release of that name, or None."""
    return entries.entry(RELEASES, name)


def _releases() -> list[Release]:
    """All releases of the catalogue, oldest first."""
    return sorted(
        (item for name in entries.names(RELEASES.folder) if (item := release(name))), key=lambda item: item.order
    )


def release_names() -> list[str]:
    """All releases of the catalogue, oldest first."""
    return [item.name for item in _releases()]


def default_release() -> Release:
    """The release that is proposed to stacks, and goes where nothing names another: the newest that says so."""
    return [item for item in _releases() if item.default][-1]


def release_of_vllm(image: str) -> Release | None:
    """The release that has the vLLM of that image, pinned or not; None where there is none."""
    return next((item for item in _releases() if item.vllm.runs(image)), None)


def release_of_router_image(image: str) -> Release | None:
    """The release whose endpoint picker or routing sidecar that image is, or a mirror of it; None where none is."""
    parts = ((item, part) for item in _releases() for part in (item.endpoint_picker, item.routing_sidecar))
    return next((item for item, part in parts if part.image.is_copied_by(image)), None)


def release_of_former_name(name: str) -> Release | None:
    """The release that the kit once called so, or None."""
    return next((item for item in _releases() if name in item.former_names), None)


def crd_manifests(crds: CrdFiles) -> list[dict[str, Any]]:
    """The custom resource definitions of a release.

    Each file comes from the release's Go module where that is on the machine, otherwise over HTTPS, and is held
    to its SHA-256.

    Raises:
        KitError: a file can't be had, or isn't the one that the release names.
    """
    return [read_yaml(_definition_file(crds, name, sha256)) for name, sha256 in crds.files.items()]


def _definition_file(crds: CrdFiles, name: str, sha256: str) -> Path:
    url = f"{crds.repository}/{crds.version}/{crds.folder}/{name}"
    cached = cache_folder() / "crds" / crds.version / name
    return pinned_file(url, sha256, cached, module_folder(crds.module, crds.version) / crds.folder / name)
