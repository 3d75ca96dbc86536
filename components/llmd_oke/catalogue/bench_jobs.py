"""What Jobs that benchmark inside a cluster run with."""

from functools import cache

from llmd_oke.catalogue.container_images import LockedImage
from llmd_oke.catalogue.files import Entry, required_entry


class Amounts(Entry):
    """Amounts in Kubernetes' notation."""

    memory: str
    cpu: str | None = None


class Resources(Entry):
    """What a container asks of its node, and what it may have at most."""

    requests: Amounts
    limits: Amounts


class JobFacts(Entry):
    """`packages` are those that a program may import beside the standard library, `user_id` whom it runs as."""

    packages: tuple[str, ...]
    user_id: int
    smoke: Resources
    load: Resources
    evaluation: Resources


@cache
def bench_jobs() -> JobFacts:
    """The facts of `values/bench/jobs.yaml`."""
    return required_entry("bench", "jobs", JobFacts)


class InferencePerf(Entry):
    """inference-perf's image and how it is run: a process for each `requests_per_worker` of a second's requests."""

    image: LockedImage
    command: str
    config_option: str
    resources: Resources
    worker_max_concurrency: int
    requests_per_worker: float
    most_workers: int
    user_id: int


@cache
def inference_perf() -> InferencePerf:
    """The facts of `values/bench/inference-perf.yaml`."""
    return required_entry("bench", "inference-perf", InferencePerf)


class RcclFigure(Entry):
    """Bus bandwidth of a published all-reduce between two nodes, and the ports of a node that share it."""

    busbw_gb_per_s: float
    ports: int


class KvPathFacts(Entry):
    """What a measurement of the path of KV cache reads, what its pods need, and which share of it ports count that
    carried it; `regions_per_layer` is by llm-d release, `rccl` by shape.
    """

    prompt_tokens: tuple[int, ...]
    regions_per_layer: dict[str, int]
    repeats: int
    warm_ups: int
    limit_s: float
    resources: Resources
    shared_memory_gib: int
    least_carried_share: float
    most_carried_share: float
    rccl: dict[str, RcclFigure]


@cache
def kv_path() -> KvPathFacts:
    """The facts of `values/bench/kv-path.yaml`."""
    return required_entry("bench", "kv-path", KvPathFacts)
