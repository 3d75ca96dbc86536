"""Load from inside the cluster as an operation: a Job is created, watched, read and taken away."""

import secrets
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from llmd_oke.bench.in_cluster.load_job import LEAD_S
from llmd_oke.bench.in_cluster.load_request import LoadRequest
from llmd_oke.bench.in_cluster.load_result import PodResult, unpack
from llmd_oke.bench.in_cluster.parcels import PART_KEY, count_of, joined
from llmd_oke.catalogue.bench_jobs import bench_jobs, inference_perf
from llmd_oke.errors import KitError
from llmd_oke.experiments.deployed.cluster_jobs import ClusterJobs
from llmd_oke.experiments.deployed.jobs import why_ended
from llmd_oke.rehearsal.pods.pod_worker import SIMULATED_ANNOTATION
from llmd_oke.rehearsal.watches import metadata, texts
from llmd_oke.results.files import explain
from llmd_oke.serving import load_jobs
from llmd_oke.serving.operation_jobs import STARTING_S, Place

STOPPING_S = 40.0
"""What pods may take to publish what they have once they are told to end: their grace period of 30 s, and some more."""

_FILES = TypeAdapter(Mapping[str, str])

INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"


@dataclass(frozen=True)
class Sent:
    """What the pods of a load measured; `missing` are the numbers of those that left nothing, and why."""

    pods: tuple[PodResult, ...]
    missing: Mapping[int, str]
    interrupted: bool = False


def new_name(model: str) -> str:
    """A name for a Job of this model, short enough for the names of its pods."""
    return f"load-{model}-{secrets.token_hex(3)}"


class LoadJobs(ClusterJobs):
    """Jobs that send load to a model."""

    @contextmanager
    def send(self, place: Place, request: LoadRequest) -> Generator[Sent]:
        """Sends a load from `request.parallelism` pods; gives what each of them measured. The Job goes after the block,
        in which the result is best kept.

        The load begins once the generators of all pods wait for it. A pod that fails after that takes nothing from the
        others. Ctrl-C has the pods publish what they have.

        Raises:
            KitError: a pod does not get ready, or none left a result.
        """
        manifest = load_jobs.load_job(place, request, bench_jobs())
        with self.running(manifest, lambda uid: load_jobs.load_objects(place, request, uid)) as uid:
            self.await_pods(place, request.parallelism)
            self._await_generators(place, request)
            self.create([load_jobs.start_config_map(place, request, uid)])
            self.progress.step(f"{request.parallelism} pods begin together in {LEAD_S:.0f} s")
            yield self._collected(place, request, self._failure_of(place, LEAD_S + request.limit_s + STOPPING_S))

    def _await_generators(self, place: Place, request: LoadRequest) -> None:
        """Waits until each pod has said that it waits for the start; one that fails ends the wait."""
        unready = set(range(request.parallelism))

        def missing() -> str | None:
            self.refuse_failed(place)
            unready.difference_update([pod for pod in unready if self.config_map(place, request.ready_name(pod))])
            return f"pods {', '.join(map(str, sorted(unready)))} are not ready to send" if unready else None

        self.await_that(place, missing, STARTING_S, "for the generators")

    def _failure_of(self, place: Place, limit_s: float) -> KitError | KeyboardInterrupt | None:
        """Why the Job did not end well, once it has ended; None where it did."""
        try:
            self.await_end(place, limit_s)
        except KeyboardInterrupt as interrupt:
            self.progress.step("interrupted: the pods publish what they have measured; once more gives it up")
            self.stop(place, STOPPING_S)
            return interrupt
        except KitError as error:
            return error
        return None

    @contextmanager
    def run_tool(self, place: Place, config: str, limit_s: float) -> Generator[Mapping[str, str]]:
        """Runs inference-perf with a configuration; gives its files by relative path. The Job goes after the block."""
        manifest = load_jobs.tool_job(place, inference_perf(), bench_jobs(), limit_s)
        with self.running(manifest, lambda uid: load_jobs.tool_objects(place, config, uid)):
            try:
                self.await_end(place, limit_s + STARTING_S)
            except KitError as error:
                if any(texts(metadata(pod), "annotations").get(SIMULATED_ANNOTATION) for pod in self.pods(place)):
                    raise KitError("inference-perf did not run: a rehearsal has no program for its image.") from error
                raise
            content = self._content(place, 0)
            if content is None:
                raise KitError(f"Job {place.job} left no result, or not all of it.")
            yield _texts(content)

    def _collected(self, place: Place, request: LoadRequest, failure: KitError | KeyboardInterrupt | None) -> Sent:
        contents = [self._content(place, pod) for pod in range(request.parallelism)]
        found = tuple(unpack(content) for content in contents if content is not None)
        if not found:
            raise failure or KitError(f"No pod of Job {place.job} left a result.")
        lost = [pod for pod, content in enumerate(contents) if content is None]
        why = self._causes(place) if lost else {}
        missing = {pod: why.get(pod, "it is gone") for pod in lost}
        return Sent(found, missing, isinstance(failure, KeyboardInterrupt))

    def _causes(self, place: Place) -> dict[int, str]:
        pods = ((texts(metadata(pod), "annotations").get(INDEX_ANNOTATION), pod) for pod in self.pods(place))
        return {int(index): why_ended(pod) for index, pod in pods if index is not None}

    def _content(self, place: Place, pod: int) -> bytes | None:
        """What a pod published, None where that is not there, or not whole."""
        parts = [self.config_map(place, f"{place.job}-{pod}-0")]
        if parts[0] is not None:
            rest = range(1, count_of(parts[0].annotations))
            parts += [self.config_map(place, f"{place.job}-{pod}-{chunk}") for chunk in rest]
        whole = [part.data.get(PART_KEY, b"") for part in parts if part is not None]
        return joined(whole) if len(whole) == len(parts) else None


def _texts(content: bytes) -> Mapping[str, str]:
    """The files that a pod published, by their relative paths."""
    try:
        return _FILES.validate_json(content)
    except ValidationError as error:
        raise KitError(f"The pod's result is no set of files: {explain(error, 'result')}") from error
