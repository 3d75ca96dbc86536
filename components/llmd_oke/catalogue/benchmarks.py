"""Requests and limits of Jobs that benchmark inside a cluster, and the accuracy that models must keep."""

from functools import cache
from typing import Literal

from llmd_bench.evals import BuiltinSet

from llmd_oke.catalogue.container_images import LockedImage
from llmd_oke.values import Entry, follows_project, read_yaml, required_entry, values_folder


class Amounts(Entry):
    """Amounts of memory and processors in Kubernetes' notation."""

    memory: str
    cpu: str | None = None


class Resources(Entry):
    """Resources of a container: what it asks of its node, and what it may have at most."""

    requests: Amounts
    limits: Amounts


class JobFacts(Entry):
    """Facts of Jobs that benchmark and evaluate: Python packages that their programs may import beside the standard
    library, the number of the user that they run as, and the resources of each kind.
    """

    packages: tuple[str, ...]
    user_id: int
    smoke: Resources
    load: Resources
    evaluation: Resources


@cache
def bench_jobs() -> JobFacts:
    """The facts of `values/bench/jobs.yaml`."""
    return required_entry("bench", "jobs", JobFacts)


class CanaryFacts(Entry):
    """Facts of canaries, the known prompts that a pod asks each server all the time: their period and limit in seconds,
    the figures that prompts are made of, and the pod's resources.
    """

    name: str
    every_s: int
    timeout_s: int
    questions: BuiltinSet
    resources: Resources


@cache
def canaries() -> CanaryFacts:
    """The figures of `values/bench/canaries.yaml`."""
    return required_entry("bench", "canaries", CanaryFacts)


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


@follows_project
def inference_perf() -> InferencePerf:
    """The facts of `values/bench/inference-perf.yaml`."""
    return required_entry("bench", "inference-perf", InferencePerf)


class NodeFigures(Entry):
    """Figures that a shape's nodes must reach: bus bandwidth of an all-reduce between two nodes and within one, in GB/s
    (None where no threshold is published), and the MTU of the RDMA network.
    """

    all_reduce_gb_per_s: float | None
    all_reduce_alone_gb_per_s: float | None
    mtu_bytes: int


class AcceptanceFacts(Entry):
    """Acceptance of GPU nodes before they serve, by shape, and how it is measured."""

    shapes: dict[str, NodeFigures]
    least_link_share: float
    least_carried_share: float
    least_memory_share: float
    least_matrix_share: float
    least_disk_share: float
    least_disk_gb_per_s: float
    copy_gib: int
    matrix_size: int
    disk_gib: int
    link_gib: int
    reduce_gib: int
    repeats: int
    warm_ups: int
    most_rounds: int
    round_limit_s: float
    placement_limit_s: float
    start_limit_s: float
    resources: Resources
    leader: Resources
    shared_memory_gib: int


@cache
def acceptance() -> AcceptanceFacts:
    """The facts of `values/bench/acceptance.yaml`."""
    return required_entry("bench", "acceptance", AcceptanceFacts)


class KvPathFacts(Entry):
    """Number of pieces of memory that a layer's KV cache is in, by llm-d release."""

    regions_per_layer: dict[str, int]


@cache
def kv_path() -> KvPathFacts:
    """The facts of `values/bench/kv-path.yaml`."""
    return required_entry("bench", "kv-path", KvPathFacts)


BUILTIN = "builtin"
"""Name of the kit's own evaluation, a set of questions that it makes itself."""


class Floor(Entry):
    """Least score of a model in an evaluation, as a share of right answers from 0 to 1, and its public source."""

    score: float
    source: str


class EvalPackage(Entry):
    """A published evaluation, whose own Python package a Job runs."""

    requirements: str
    """Hashed lock of the package and all it needs, a file beside this one."""
    reader: Literal["gpt-oss", "lm-eval"]
    """Program whose format its result files have."""
    program: tuple[str, ...]
    """Words of the package's command; `{…}` is filled in from the deployment."""
    result_files: str
    """Pattern (glob) of the names of its result files."""
    questions: int
    """Number of answers that it judges, for progress and cost."""
    source: str


class Evals(Entry):
    """Accuracy that models must keep (`values/evals/evals.yaml`): floors by evaluation and model, and the packages of
    published evaluations by name.
    """

    floors: dict[str, dict[str, Floor]]
    packages: dict[str, EvalPackage]

    def floor(self, name: str, model: str) -> Floor | None:
        """The floor of a model in an evaluation, or None where the kit knows none."""
        floors = self.floors.get(name, {})
        return floors.get(model) or floors.get("any")


@cache
def evals() -> Evals:
    """The figures of `values/evals/evals.yaml`."""
    return required_entry("evals", "evals", Evals)


def requirements(package: EvalPackage) -> str:
    """The hashed lock that a package is installed from."""
    return (values_folder() / "evals" / package.requirements).read_text(encoding="utf-8")


@cache
def builtin_set() -> BuiltinSet:
    """The figures of `values/evals/builtin.yaml`."""
    return BuiltinSet.model_validate(read_yaml(values_folder() / "evals" / "builtin.yaml"))
