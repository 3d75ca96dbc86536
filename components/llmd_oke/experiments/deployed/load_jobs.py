"""Load from inside the cluster as an operation: a Job is created, watched, read and taken away."""

import json
import secrets
import time
from collections.abc import Mapping

from llmd_oke.bench.in_cluster.load_job import START_KEY
from llmd_oke.bench.in_cluster.load_request import LoadRequest
from llmd_oke.bench.in_cluster.load_result import PodResult, unpack
from llmd_oke.bench.in_cluster.parcels import COUNT_ANNOTATION, PART_KEY, joined
from llmd_oke.catalogue.bench_jobs import bench_jobs, inference_perf
from llmd_oke.errors import KitError
from llmd_oke.experiments.deployed.cluster_jobs import ClusterJobs
from llmd_oke.experiments.deployed.jobs import Content, JobReader
from llmd_oke.rehearsal.pods.pod_worker import SIMULATED_ANNOTATION
from llmd_oke.rehearsal.watches import metadata, texts
from llmd_oke.serving import load_jobs
from llmd_oke.serving.operation_jobs import STARTING_S, Place

LEAD_S = 3.0
"""Between the word to begin and the start: pods ask four times a second."""


def new_name(model: str) -> str:
    """A name for a Job of this model, short enough for the names of its pods."""
    return f"load-{model}-{secrets.token_hex(3)}"


class LoadJobs(ClusterJobs):
    """Jobs that send load to a model."""

    def send(self, place: Place, request: LoadRequest) -> list[PodResult]:
        """Sends a load from `request.parallelism` pods; gives what each of them measured."""
        manifest = load_jobs.load_job(place, request, bench_jobs())
        with self.running(manifest, lambda uid: load_jobs.load_objects(place, request, uid)) as uid:
            self.await_pods(place, request.parallelism)
            begin_s = time.time() + LEAD_S
            told = {START_KEY: str(begin_s)}
            self.create([load_jobs.start_config_map(place, request, uid, told)])
            self.progress.step(f"{request.parallelism} pods begin together in {LEAD_S:.0f} s")
            self.await_end(place, request.limit_s + LEAD_S)
            return [unpack(self._content(place, pod)) for pod in range(request.parallelism)]

    def run_tool(self, place: Place, config: str, limit_s: float) -> Mapping[str, str]:
        """Runs inference-perf with a configuration; gives its files by name."""
        manifest = load_jobs.tool_job(place, inference_perf(), bench_jobs(), limit_s)
        with self.running(manifest, lambda uid: load_jobs.tool_objects(place, config, uid)):
            try:
                self.await_end(place, limit_s + STARTING_S)
            except KitError as error:
                if any(texts(metadata(pod), "annotations").get(SIMULATED_ANNOTATION) for pod in self.pods(place)):
                    raise KitError("inference-perf did not run: a rehearsal has no program for its image.") from error
                raise
            return json.loads(self._content(place, 0))

    def _content(self, place: Place, pod: int) -> bytes:
        reader = JobReader(self.client, place.namespace)
        first = _there(reader.config_map(f"{place.job}-{pod}-0"), place, pod)
        rest = range(1, int(first.annotations[COUNT_ANNOTATION]))
        parts = [first, *(_there(reader.config_map(f"{place.job}-{pod}-{chunk}"), place, pod) for chunk in rest)]
        return joined(part.data[PART_KEY] for part in parts)


def _there(content: Content | None, place: Place, pod: int) -> Content:
    if content is None:
        raise KitError(f"Pod {pod} of Job {place.job} left no result, or not all of it.")
    return content
