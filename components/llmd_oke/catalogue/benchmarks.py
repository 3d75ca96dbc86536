"""Settings of Jobs that benchmark and evaluate models and test nodes inside a cluster, and the accuracy that models
must reach.
"""

from functools import cache
from typing import Literal

from llmd_bench.evals import BuiltinSet

from llmd_oke.catalogue.container_images import LockedImage
from llmd_oke.values import Entry, entry_reader, follows_project, read_yaml, required_entry, values_folder


class Amounts(Entry):
    """Amounts of memory and CPU in Kubernetes' notation."""

    memory: str
    cpu: str | None = None


class Resources(Entry):
    """Resource requests and limits of a container."""

    requests: Amounts
    limits: Amounts


class JobFacts(Entry):
    """Settings of Jobs that benchmark and evaluate: Python packages that their programs import besides the standard
    library, their user ID, and the resources of each kind of Job.
    """

    packages: tuple[str, ...]
    user_id: int
    smoke: Resources
    load: Resources
    evaluation: Resources


bench_jobs = entry_reader("bench", "jobs", JobFacts)
"""Return the settings of Jobs that benchmark and evaluate (`values/bench/jobs.yaml`)."""


class CanaryFacts(Entry):
    """Settings of canaries, the known prompts that a pod sends to each server continuously: interval and timeout in
    seconds, parameters of the prompts, and the pod's resources.
    """

    name: str
    every_s: int
    timeout_s: int
    questions: BuiltinSet
    resources: Resources


canaries = entry_reader("bench", "canaries", CanaryFacts)
"""Return the settings of canaries, pods that send known prompts to servers (`values/bench/canaries.yaml`)."""


class InferencePerf(Entry):
    """Image of inference-perf and how it is run: one worker process per `requests_per_worker` requests per second, at
    most `most_workers`, each with at most `worker_max_concurrency` concurrent requests.
    """

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
    """Return inference-perf's image and how it is run (`values/bench/inference-perf.yaml`)."""
    return required_entry("bench", "inference-perf", InferencePerf)


class NodeFigures(Entry):
    """Thresholds for the acceptance test of a shape's nodes: bus bandwidth of an all-reduce between two nodes and
    within one, in GB/s (None if no threshold is published), and the MTU of the RDMA network.
    """

    all_reduce_gb_per_s: float | None
    all_reduce_alone_gb_per_s: float | None
    mtu_bytes: int


class AcceptanceFacts(Entry):
    """Thresholds of the acceptance test of GPU nodes, and parameters of its measurements.

    Attributes:
        shapes: thresholds by shape.
        least_link_share: least rate of a read over one RDMA port, as a share of the port's line rate.
        least_carried_share: least share of the bytes read that the counters of the RDMA ports must show.
        least_memory_share: least rate of a copy within a GPU's memory, as a share of the GPU's peak bandwidth.
        least_matrix_share: least rate of matrix products, as a share of the GPU's peak rate.
        least_disk_share: least size of a local disk, as a share of its nominal size.
        least_disk_gb_per_s: least rate of reads from the local disks' file system, in GB/s.
        copy_gib: size of the copy within a GPU's memory.
        matrix_size: number of rows and columns of the matrices.
        disk_gib: amount that is read from the local disks' file system.
        link_gib: size of the read over an RDMA port.
        reduce_gib: size of the all-reduce.
        repeats: number of measured repetitions.
        warm_ups: number of repetitions before the measured ones.
        most_rounds: maximum number of rounds, in each of which a node is measured with another one.
        round_limit_s: limit in seconds of one round of measurements.
        placement_limit_s: time in seconds after which a node without room for a test pod is left out, as it serves.
        start_limit_s: limit in seconds of the start of a test pod, with the pull of its image.
        resources: resources of a test pod.
        leader: resources of the pod that runs the test.
        shared_memory_gib: size of /dev/shm in a test pod.
    """

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


acceptance = entry_reader("bench", "acceptance", AcceptanceFacts)
"""Return the thresholds and parameters of the acceptance test of GPU nodes (`values/bench/acceptance.yaml`)."""


class KvPathFacts(Entry):
    """Number of memory regions in which one block of a layer's KV cache is transferred (keys and values apart: 2), by
    llm-d release.
    """

    regions_per_layer: dict[str, int]


kv_path = entry_reader("bench", "kv-path", KvPathFacts)
"""Return the numbers of memory regions of a layer's KV cache by release (`values/bench/kv-path.yaml`)."""


BUILTIN = "builtin"
"""Name of the kit's own evaluation, whose questions it generates itself."""


class Floor(Entry):
    """Minimum score of a model in an evaluation, as a share of right answers from 0 to 1, with its public source."""

    score: float
    source: str


class EvalPackage(Entry):
    """Published evaluation, whose Python package runs in a Job."""

    requirements: str
    """File with the hashed lock of the package and its dependencies, in the same folder of `values/`."""
    reader: Literal["gpt-oss", "lm-eval"]
    """Program whose format the result files have."""
    program: tuple[str, ...]
    """Command of the package; `{…}` are placeholders filled in from the deployment."""
    result_files: str
    """Glob pattern that matches the names of the evaluation's result files."""
    questions: int
    """Number of the evaluation's answers that are judged, from which progress and cost are computed."""
    source: str


class Evals(Entry):
    """Accuracy that models must reach (`values/evals/evals.yaml`): minimum scores by evaluation and model, and
    published evaluations by name.
    """

    floors: dict[str, dict[str, Floor]]
    packages: dict[str, EvalPackage]

    def floor(self, name: str, model: str) -> Floor | None:
        """Return the floor of a model in an evaluation, else the evaluation's floor for any model; None if there is
        neither.
        """
        floors = self.floors.get(name, {})
        return floors.get(model) or floors.get("any")


evals = entry_reader("evals", "evals", Evals)
"""Return the minimum scores of models and the published evaluations (`values/evals/evals.yaml`)."""


def requirements(package: EvalPackage) -> str:
    """Return the text of the hashed lock that a package is installed from."""
    return (values_folder() / "evals" / package.requirements).read_text(encoding="utf-8")


@cache
def builtin_set() -> BuiltinSet:
    """Return the parameters of the kit's own evaluation (`values/evals/builtin.yaml`)."""
    return BuiltinSet.model_validate(read_yaml(values_folder() / "evals" / "builtin.yaml"))
