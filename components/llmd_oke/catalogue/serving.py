"""Catalogue of serving besides releases: storage drivers, scaling, LeaderWorkerSets, vLLM's handshake, and Gateways."""

from functools import cache

from pydantic import Field, JsonValue

from llmd_oke.catalogue.releases import AwaitedDefinitions, CrdFiles
from llmd_oke.config.engine import flag_of, flags_by_word
from llmd_oke.values import Entry, entry, entry_reader, names


class CacheRequests(Entry):
    """Resource requests of a container that prepares a cache."""

    cpu: str
    memory: str


class FileStorageDriver(Entry):
    """CSI driver for File Storage volumes; `smallest_claim_gib` is the size in GiB of claims for which the stack file
    sets none, as the file system grows by itself.
    """

    driver: str
    mount_options: tuple[str, ...]
    smallest_claim_gib: int


class LustreDriver(Entry):
    """CSI driver for File Storage with Lustre volumes."""

    driver: str
    mount_options: tuple[str, ...]
    volume_attributes: dict[str, str]


class CompiledCodeFacts(Entry):
    """Limits of compiled code on a node's disk, for each stack. Directories that no server has used for `unused_days`
    are removed, and the least recently used of more than `most_folders`. `requests` are those of the container that
    removes them.
    """

    requests: CacheRequests
    unused_days: int
    most_folders: int


class KvCacheDiskFacts(Entry):
    """Settings of the container that limits KV cache in files: its requests and limit of memory, the share of the file
    system that must be free, and the time in seconds between two looks at it.
    """

    least_free_share: float
    requests: CacheRequests
    memory_limit: str
    period_s: int


class ModelCacheFacts(Entry):
    """Settings of model caches: containers that fill them, limits of compiled code and of KV cache in files beside
    them, and drivers of shared file systems.
    """

    requests: CacheRequests
    compiled_code: CompiledCodeFacts
    kv_cache_disk: KvCacheDiskFacts
    file_storage: FileStorageDriver
    lustre: LustreDriver


model_cache = entry_reader("storage", "model-cache", ModelCacheFacts)
"""Return the settings of model caches (`values/storage/model-cache.yaml`)."""


class ScalingRate(Entry):
    """Limit on how fast servers are added or removed: at most `pods` within `period_s`, after the condition has held
    for `window_s`; times in seconds.
    """

    pods: int
    period_s: int
    window_s: int


class ScalingFacts(AwaitedDefinitions):
    """Settings of a KEDA ScaledObject that don't come from the stack file.

    `queries` maps each threshold's name to PromQL, with `<selector>` as placeholder for the pods' selector. Advice is
    given if the ratio of prefill to decode servers at their minimum or maximum differs from the topology's by more than
    the factor `ratio_factor`.
    """

    definitions: CrdFiles
    prometheus: str
    polling_interval_s: int
    scale_up: ScalingRate
    scale_down: ScalingRate
    queries: dict[str, str]
    ratio_factor: float


scaling = entry_reader("scaling", "keda", ScalingFacts)
"""Return the settings of KEDA ScaledObjects (`values/scaling/keda.yaml`)."""


class LeaderWorkerSetFacts(AwaitedDefinitions):
    """Resource definitions of LeaderWorkerSets, and the error message if the cluster lacks them.

    `group_affinity_minor` is the first minor version of Kubernetes 1 in which affinity between the pods of one group
    can be required. `disaggregated_set` is the name of the definition of DisaggregatedSets.
    """

    definitions: CrdFiles
    group_affinity_minor: int
    disaggregated_set: str


leader_worker_sets = entry_reader("serving", "leader-worker-set", LeaderWorkerSetFacts)
"""Return the facts about LeaderWorkerSets (`values/serving/leader-worker-set.yaml`)."""


class Handshake(Entry):
    """Arguments and environment variables that vLLM's handshake before a KV transfer doesn't compare; it compares all
    others.
    """

    arguments: frozenset[str]
    environment: frozenset[str]

    def ignores(self, flag: str) -> bool:
        """Tell whether paired servers may differ in a flag, or a key of its JSON object, in any of the flag's
        spellings.
        """
        named = flag_of(flag)
        return named in self.arguments or named in _ignored_words()


@cache
def _ignored_words() -> frozenset[str]:
    """Return all spellings of the flags that the handshake doesn't compare."""
    known = flags_by_word()
    ignored = [known[flag] for flag in handshake().arguments if flag in known]
    return frozenset(word for word, flag in known.items() if any(flag is other for other in ignored))


handshake = entry_reader("vllm", "handshake", Handshake)
"""Return the settings that vLLM's handshake before a KV transfer doesn't compare (`values/vllm/handshake.yaml`)."""


class Repositories(Entry):
    """Flags and variables by which vLLM reads another repository than its model's own. `flags` maps each flag to the
    position of the repository in its value.

    `other_values` are values of a flag that name no repository.
    """

    name: str
    flags: dict[str, str]
    other_values: dict[str, frozenset[str]]
    variables: tuple[str, ...]


repositories = entry_reader("vllm", "repositories", Repositories)
"""Return the flags and variables by which vLLM reads other repositories (`values/vllm/repositories.yaml`)."""


class WithoutRdma(Entry):
    """Transfer of KV cache between servers of one node without the RDMA network.

    Attributes:
        environment: environment variables by which UCX copies pieces through host memory side by side.
        emulated_gb_per_s: published rate in GB (10^9 bytes) per second without these variables.
        pipelined_gb_per_s: published rate with these variables, on other GPUs than MI300X.
        reported_gb_per_s: rate that was reported of MI300X.
    """

    name: str
    environment: dict[str, str]
    emulated_gb_per_s: float
    pipelined_gb_per_s: float
    reported_gb_per_s: float


without_rdma = entry_reader("vllm", "without-rdma", WithoutRdma)
"""Return the settings and rates of KV transfer without RDMA (`values/vllm/without-rdma.yaml`)."""


class ObjectTemplate(Entry):
    """Template of a custom resource of a Gateway implementation; its spec has placeholders such as `<gateway>`."""

    api_version: str
    kind: str
    spec: dict[str, JsonValue]


class GatewayProvider(Entry):
    """Implementation of the Gateway API.

    Attributes:
        name: name of the implementation.
        source: URL of the documentation.
        class_name: GatewayClass in the documentation.
        controller: name of the controller.
        inference_pools: description of what the implementation needs to support InferencePools.
        pools_per_route: maximum number of InferencePools per route; None for no limit.
        service: name of the Service of a Gateway's pods; None if it is unknown before the Gateway exists.
        created_service: name of the Service of a Gateway with `parameters`.
        namespace: namespace of the Service and the pods; None for the Gateway's own.
        pod_labels: labels of the Gateway's pods.
        gateway_annotations: annotations of the Gateway.
        parameters: object that a Gateway references in `infrastructure` to configure its Service; None if annotations
            configure it.
        picker_policy: object that configures the connection to each endpoint picker; None if not needed.
        route_policies: objects that restrict requests of each model's routes (`values/router/client-requests.yaml`).
        gateway_policies: objects that restrict requests of a created Gateway and limit its connections.
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
    """Return the implementation with this name; None if the catalogue has none."""
    return entry("gateways", name, GatewayProvider)


def gateway_provider_names() -> list[str]:
    """Return the names of all implementations in the catalogue, sorted."""
    return names("gateways")
