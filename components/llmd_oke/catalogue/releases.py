"""llm-d releases: the versions that belong together and the dialect that they speak."""

from functools import cache

from llmd_oke.catalogue.files import Entry, entry, names


class Image(Entry):
    """A container image in parts, as the router's chart asks for it."""

    registry: str
    repository: str
    tag: str


class Program(Entry):
    """The program inside an image, by the name and version that the rehearsal looks it up with."""

    name: str
    version: str


class Requests(Entry):
    """What a container asks of its node: processors (hardware threads) and memory."""

    cpus: int
    memory_gib: int


class EndpointPicker(Entry):
    """The endpoint picker (EPP).

    `feature_gates` are those that its config must name, `decision_metric` counts its routing decisions.
    """

    image: Image
    program: Program
    config_api_version: str
    feature_gates: tuple[str, ...]
    decision_metric: str
    requests: Requests
    memory_limit_gib: int


class ImageKeys(Entry):
    """What the chart calls the parts of the endpoint picker's image."""

    registry: str
    repository: str


class Chart(Entry):
    """The router's chart: a folder of a Go module, published as an OCI artifact too."""

    module: str
    version: str
    folder: str
    oci: str
    image_keys: ImageKeys


class Crds(Entry):
    """Custom resource definitions: files of a Go module, each with its SHA-256.

    `repository` serves the same files over HTTPS.
    """

    module: str
    version: str
    repository: str
    folder: str
    files: dict[str, str]


class Proxy(Entry):
    """The Envoy beside the endpoint picker."""

    image: str
    arguments: tuple[str, ...]
    requests: Requests


class RoutingSidecar(Entry):
    """The proxy in front of each decode server."""

    image: str
    program: Program
    arguments: tuple[str, ...]


class AttentionBackend(Entry):
    """vLLM's attention backends: of servers that have a KV connector, and of all others.

    Not every backend's layout of the KV cache can be handed over: vLLM doesn't start with a KV connector and one of
    `refused_with_kv_connector`.
    """

    default: str
    kv_connector: str
    refused_with_kv_connector: tuple[str, ...]


class Vllm(Entry):
    """The vLLM image and what every server of it is started with."""

    image: str
    arguments: tuple[str, ...]
    attention_backend: AttentionBackend
    environment: dict[str, str]
    tensor_parallel_environment: dict[str, str]
    scratch_folders: tuple[str, ...]


class Release(Entry):
    """An llm-d release. `order` says which releases are near each other."""

    name: str
    order: int
    endpoint_picker: EndpointPicker
    chart: Chart
    crds: Crds
    proxy: Proxy
    routing_sidecar: RoutingSidecar
    vllm: Vllm

    @property
    def router_requests(self) -> Requests:
        """What the pod of a router asks of its node: endpoint picker and Envoy."""
        picker, proxy = self.endpoint_picker.requests, self.proxy.requests
        return Requests(cpus=picker.cpus + proxy.cpus, memory_gib=picker.memory_gib + proxy.memory_gib)


@cache
def release(name: str) -> Release | None:
    """The release of that name, or None."""
    return entry("releases", name, Release)


def release_of_vllm(image: str) -> Release | None:
    """The release whose servers run that image, or None."""
    return next((found for found in map(release, release_names()) if found and found.vllm.image == image), None)


def release_names() -> list[str]:
    """All releases of the catalogue, oldest first."""
    return sorted(names("releases"), key=lambda name: found.order if (found := release(name)) else 0)
