"""Jobs that a command creates in a cluster, watches, and takes away."""

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any, TypeVar

import httpx2
import lightkube
from lightkube.codecs import from_dict
from lightkube.core.exceptions import ApiError
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod
from lightkube.types import CascadeType, PatchType

from llmd_oke.errors import KitError
from llmd_oke.experiments.deployed.jobs import JOB_NAME_LABEL, Content, JobReader, content_of, ended, why_failed
from llmd_oke.progress import Progress
from llmd_oke.rehearsal.watches import metadata
from llmd_oke.serving.operation_jobs import STARTING_S, Place

Found = TypeVar("Found")

PAUSE_S = 1.0
SAID_EVERY_S = 10.0
OUTAGE_S = 60.0
"""How long an API server may be away while a Job runs: the Job does not need it."""


class ClusterJobs:
    """Runs Jobs in one cluster.

    All of it raises KitError where the cluster doesn't answer or refuses, or where a Job fails or takes too long.
    """

    def __init__(self, client: lightkube.Client, progress: Progress) -> None:
        self.client = client
        self.progress = progress

    @contextmanager
    def running(self, job: dict[str, Any], others: Callable[[str], Iterable[dict[str, Any]]]) -> Generator[str]:
        """A Job that begins once what it needs is there; in the end it is taken away with all that belongs to it."""
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        self.progress.step(f"creating Job {name}")
        made = _told(lambda: self.client.create(from_dict(job)))
        try:
            uid = metadata(made).uid or ""
            self.create(others(uid))
            _told(lambda: self._patch(name, namespace, {"spec": {"suspend": False}}))
            yield uid
        finally:
            with suppress(ApiError, httpx2.HTTPError):
                self.client.delete(Job, name, namespace=namespace, cascade=CascadeType.BACKGROUND)

    def create(self, manifests: Iterable[dict[str, Any]]) -> None:
        """Creates objects one after the other."""
        for manifest in manifests:
            _told(lambda each=manifest: self.client.create(from_dict(each)))

    def await_pods(self, place: Place, count: int) -> None:
        """Waits until so many pods of the Job run, or it has ended. One that fails ends the wait."""

        def there() -> str | None:
            self.refuse_failed(place)
            running = sum(_phase(pod) == "Running" for pod in self.pods(place))
            return None if running == count else f"{running} of {count} pods run{_waiting(self.pods(place))}"

        self.await_that(place, there, STARTING_S, "for pods to start")

    def refuse_failed(self, place: Place) -> None:
        """Raises KitError where a pod of the Job has failed."""
        if any(_phase(pod) == "Failed" for pod in self.pods(place)):
            raise self._failure(place)

    def await_end(self, place: Place, limit_s: float) -> None:
        """Waits for the Job's end."""
        self.await_that(place, lambda: f"Job {place.job} runs", limit_s, "for its end", until_end=True)

    def await_that(
        self, place: Place, missing: Callable[[], str | None], limit_s: float, what: str, *, until_end: bool = False
    ) -> None:
        """Waits until nothing is `missing`, or the Job has ended; a Job that fails ends the wait with its cause."""
        began_s = said_s = time.monotonic()
        while True:
            over = ended(self._job(place))
            if over is False:
                raise self._failure(place)
            text = missing()
            if over or text is None:
                return
            now_s = time.monotonic()
            if now_s - began_s > limit_s:
                raise KitError(f"Waited {limit_s:.0f} s {what} of {place.job}: {text}.")
            if now_s - said_s >= SAID_EVERY_S:
                self.progress.detail(f"{text} ({now_s - began_s:.0f} s{'' if until_end else f' of {limit_s:.0f}'})")
                said_s = now_s
            time.sleep(PAUSE_S)

    def _failure(self, place: Place) -> KitError:
        job = self._job(place)
        words = JobReader(self.client, place.namespace).last_words(place.job)
        return KitError(f"Job {place.job} failed: {words or why_failed(job) or 'it says nothing'}")

    def _job(self, place: Place) -> Job:
        return self._patiently(lambda: self.client.get(Job, place.job, namespace=place.namespace))

    def stop(self, place: Place, limit_s: float) -> None:
        """Has the Job's pods end, and gives them time to; what they wrote stays until the Job goes.

        Where the cluster doesn't take the order it says so and goes on: what pods wrote until then can still be read.
        """
        try:
            self._patiently(lambda: self._patch(place.job, place.namespace, {"spec": {"suspend": True}}))
            until_s = time.monotonic() + limit_s
            while time.monotonic() < until_s and any(_phase(pod) == "Running" for pod in self.pods(place)):
                time.sleep(PAUSE_S)
        except KitError as error:
            self.progress.detail(f"the pods of {place.job} could not be told to end: {error.message}")

    def config_map(self, place: Place, name: str) -> Content | None:
        """A ConfigMap's content, even if it takes some attempts; None where there is none."""
        return self._patiently(lambda: content_of(self.client, place.namespace, name))

    def _patch(self, name: str, namespace: str, change: dict[str, Any]) -> None:
        self.client.patch(Job, name, change, namespace=namespace, patch_type=PatchType.MERGE)

    def pods(self, place: Place) -> list[Pod]:
        """The Job's pods."""

        def ask() -> list[Pod]:
            return list(self.client.list(Pod, namespace=place.namespace, labels={JOB_NAME_LABEL: place.job}))

        return self._patiently(ask)

    def _patiently(self, ask: Callable[[], Found]) -> Found:
        """The answer, even if it takes some attempts; what no attempt changes is told at once."""
        until_s = time.monotonic() + OUTAGE_S
        while True:
            try:
                return ask()
            except (ApiError, httpx2.HTTPError) as error:
                if _final(error) or time.monotonic() > until_s:
                    raise KitError(f"The cluster refuses, or does not answer: {error}") from error
                self.progress.detail(f"the API server does not answer, waiting up to {OUTAGE_S:.0f} s: {error}")
            time.sleep(PAUSE_S)


def _told(ask: Callable[[], Found]) -> Found:
    try:
        return ask()
    except (ApiError, httpx2.HTTPError) as error:
        raise KitError(f"The cluster refuses, or does not answer: {error}") from error


def _final(error: Exception) -> bool:
    """Whether an API server means what it says: not where it is overloaded or away."""
    return isinstance(error, ApiError) and (error.status.code or 0) < HTTPStatus.TOO_MANY_REQUESTS


def _phase(pod: Pod) -> str | None:
    return pod.status.phase if pod.status else None


def _waiting(pods: Sequence[Pod]) -> str:
    """Why pods don't run yet, in the scheduler's words."""
    conditions = [condition for pod in pods for condition in ((pod.status.conditions if pod.status else None) or [])]
    reasons = {each.message for each in conditions if each.type == "PodScheduled" and each.status != "True"}
    return "".join(f"; {reason}" for reason in sorted(filter(None, reasons)))
