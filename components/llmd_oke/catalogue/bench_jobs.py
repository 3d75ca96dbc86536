"""What Jobs that benchmark inside a cluster run with."""

from functools import cache

from llmd_oke.catalogue.files import Entry, entry


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
    found = entry("bench", "jobs", JobFacts)
    assert found is not None  # noqa: S101 - the file is part of the kit
    return found


class InferencePerf(Entry):
    """inference-perf's image and how it is run: a process for each `requests_per_worker` of a second's requests."""

    image: str
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
    found = entry("bench", "inference-perf", InferencePerf)
    assert found is not None  # noqa: S101 - the file is part of the kit
    return found


class RcclFigure(Entry):
    """Bus bandwidth of a published all-reduce between two nodes, and the ports of a node that share it."""

    busbw_gb_per_s: float
    ports: int


class KvPathFacts(Entry):
    """What a measurement of the path of KV cache reads, and what its pods need; `rccl` is by shape."""

    prompt_tokens: tuple[int, ...]
    block_tokens: int
    repeats: int
    warm_ups: int
    limit_s: float
    resources: Resources
    shared_memory_gib: int
    rccl: dict[str, RcclFigure]


@cache
def kv_path() -> KvPathFacts:
    """The facts of `values/bench/kv-path.yaml`."""
    found = entry("bench", "kv-path", KvPathFacts)
    assert found is not None  # noqa: S101 - the file is part of the kit
    return found
