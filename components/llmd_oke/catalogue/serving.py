"""Facts for serving beside releases: storage drivers, scaling by load, servers over nodes, what servers may differ in,
Gateways.
"""

from functools import cache

from pydantic import Field, JsonValue

from llmd_oke.catalogue.releases import AwaitedDefinitions, CrdFiles
from llmd_oke.config.engine import flag_of, flags_by_word
from llmd_oke.values import Entry, entry, names, required_entry


class CacheRequests(Entry):
    """Requests of a container that prepares a cache to its node."""

    cpu: str
    memory: str


class FileStorageDriver(Entry):
    """Driver by which pods mount File Storage."""

    driver: str
    mount_options: tuple[str, ...]
    smallest_claim_gib: int


class LustreDriver(Entry):
    """Driver by which pods mount File Storage with Lustre."""

    driver: str
    mount_options: tuple[str, ...]
    volume_attributes: dict[str, str]


class CompiledCodeFacts(Entry):
    """Bounds of compiled code on a node's disk, for each stack: folders that no server has started with for
    `unused_days`, and the longest unused of more than `most_folders`, are removed. `requests` are of the container that
    does it.
    """

    requests: CacheRequests
    unused_days: int
    most_folders: int


class ModelCacheFacts(Entry):
    """Programs that fill caches, bounds of compiled code, and the drivers of shared caches."""

    requests: CacheRequests
    compiled_code: CompiledCodeFacts
    file_storage: FileStorageDriver
    lustre: LustreDriver


@cache
def model_cache() -> ModelCacheFacts:
    """The facts of `values/storage/model-cache.yaml`."""
    return required_entry("storage", "model-cache", ModelCacheFacts)


class ScalingRate(Entry):
    """Rate at which servers come or go: `pods` in each `period_s`, and only for what held for all of `window_s`;
    seconds.
    """

    pods: int
    period_s: int
    window_s: int


class ScalingFacts(AwaitedDefinitions):
    """Everything that a ScaledObject says beside what the stack file does.

    `queries` are PromQL by the threshold's name, with `<selector>` for the pods.
    """

    definitions: CrdFiles
    prometheus: str
    polling_interval_s: int
    scale_up: ScalingRate
    scale_down: ScalingRate
    queries: dict[str, str]
    ratio_factor: float


@cache
def scaling() -> ScalingFacts:
    """The facts of `values/scaling/keda.yaml`."""
    return required_entry("scaling", "keda", ScalingFacts)


class LeaderWorkerSetFacts(AwaitedDefinitions):
    """The controller of LeaderWorkerSets: its definitions, and what is said where the cluster has none. Since the minor
    version `group_affinity_minor` of Kubernetes 1 pods of a group can be required to be near each other.
    """

    definitions: CrdFiles
    group_affinity_minor: int


@cache
def leader_worker_sets() -> LeaderWorkerSetFacts:
    """The facts of `values/serving/leader-worker-set.yaml`."""
    return required_entry("serving", "leader-worker-set", LeaderWorkerSetFacts)


class Handshake(Entry):
    """Arguments and environment variables that vLLM's handshake before a transfer does not go by; all others count."""

    arguments: frozenset[str]
    environment: frozenset[str]

    def ignores(self, flag: str) -> bool:
        """Tell whether servers may differ in a flag, or in a key of its object, whichever of its forms stands there."""
        named = flag_of(flag)
        return named in self.arguments or named in _ignored_words()


@cache
def _ignored_words() -> frozenset[str]:
    """All words that stand for a flag that the handshake does not go by."""
    known = flags_by_word()
    ignored = [known[flag] for flag in handshake().arguments if flag in known]
    return frozenset(word for word, flag in known.items() if any(flag is other for other in ignored))


@cache
def handshake() -> Handshake:
    """The facts of `values/vllm/handshake.yaml`."""
    return required_entry("vllm", "handshake", Handshake)


class Repositories(Entry):
    """Flags and variables by which vLLM reads a repository beside its model's own; flags by where their values name it.

    `other_values` are those of a flag that name none.
    """

    name: str
    flags: dict[str, str]
    other_values: dict[str, frozenset[str]]
    variables: tuple[str, ...]


@cache
def repositories() -> Repositories:
    """The facts of `values/vllm/repositories.yaml`."""
    return required_entry("vllm", "repositories", Repositories)


class WithoutRdma(Entry):
    """Hand-over of KV cache between servers of one node without the RDMA network: the variables that they are given,
    and rates in GB (10^9 bytes) per second, as others measured or reported them.
    """

    name: str
    environment: dict[str, str]
    emulated_gb_per_s: float
    pipelined_gb_per_s: float
    reported_gb_per_s: float


@cache
def without_rdma() -> WithoutRdma:
    """The facts of `values/vllm/without-rdma.yaml`."""
    return required_entry("vllm", "without-rdma", WithoutRdma)


class ObjectTemplate(Entry):
    """An object of an implementation's own; its spec has marks such as `<gateway>`."""

    api_version: str
    kind: str
    spec: dict[str, JsonValue]


class GatewayProvider(Entry):
    """An implementation of the Gateway API.

    `inference_pools` says in words what it needs to know InferencePools, `pools_per_route` how many of them requests of
    one route may be shared over, any number if None. `service` is the Service before the pods of a
    Gateway, None where its name can't be told beforehand, and `created_service` that of a Gateway with `parameters`;
    Service and pods are in `namespace`, or in the Gateway's.
    `parameters` is the object that a Gateway names in `infrastructure`, and which says how its Service is; without one
    annotations do, `gateway_annotations` among them. `picker_policy` is how each endpoint picker is spoken to, where it
    has to be told. Requests are held to what clients may ask (`values/router/client-requests.yaml`) by the
    `route_policies` of each model's routes, or by the `gateway_policies` of a Gateway that the stack makes, which bound
    its connections too.
    """

    name: str
    source: str
    class_name: str
    controller: str
    inference_pools: str
    pools_per_route: int | None = None
    service: str | None = None
    created_service: str | None = None
    namespace: str | None = None
    pod_labels: dict[str, str]
    gateway_annotations: dict[str, str] = Field(default_factory=dict[str, str])
    parameters: ObjectTemplate | None = None
    picker_policy: ObjectTemplate | None = None
    route_policies: tuple[ObjectTemplate, ...] = ()
    gateway_policies: tuple[ObjectTemplate, ...] = ()


def gateway_provider(name: str) -> GatewayProvider | None:
    """The implementation of that name, or None."""
    return entry("gateways", name, GatewayProvider)


def gateway_provider_names() -> list[str]:
    """All implementations of the catalogue."""
    return names("gateways")
