"""Kubernetes Jobs: creation, lookup by label, waits, termination messages, results in ConfigMaps, and deletion."""

import base64
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

import httpx2
import lightkube
from lightkube.codecs import from_dict
from lightkube.core.exceptions import ApiError
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import ConfigMap, Pod
from lightkube.types import CascadeType, PatchType
from llmd_base.errors import KitError
from llmd_base.progress import Progress

from llmd_oke.objects import Manifest
from llmd_oke.operations.objects import metadata, texts
from llmd_oke.planning import Plan
from llmd_oke.program.arguments import node_taints
from llmd_oke.serving.jobs import STARTING_S, JobSettings

PAUSE_S = 1.0

DETAIL_EVERY_S = 10.0

OUTAGE_S = 60.0
"""Maximum time in seconds that a command waits for an API server without answer while a Job runs, since the Job itself
doesn't need the API server.
"""

Answer = TypeVar("Answer")

JOB_NAME_LABEL = "batch.kubernetes.io/job-name"


@dataclass(frozen=True)
class Content:
    """Content of a ConfigMap: annotations, `data` as `texts`, and decoded `binaryData` as `data`."""

    annotations: Mapping[str, str]
    texts: Mapping[str, str]
    data: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


class JobReader:
    """Reader of Jobs, their pods and their results in one namespace.

    All methods raise KitError if the cluster doesn't answer or refuses.
    """

    def __init__(self, client: lightkube.Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    def newest(self, labels: Mapping[str, str]) -> Job | None:
        """Return the Job with these labels that was created last; None if there is none."""
        jobs = self._read(lambda: list(self._client.list(Job, namespace=self._namespace, labels=dict(labels))))
        return max(jobs, key=_created, default=None)

    def last_words(self, job: str) -> str | None:
        """Return the termination message of a Job's newest pod that has one; None if no pod has one."""
        labels = {JOB_NAME_LABEL: job}
        pods = self._read(lambda: list(self._client.list(Pod, namespace=self._namespace, labels=dict(labels))))
        for pod in sorted(pods, key=_created, reverse=True):
            statuses = (pod.status.containerStatuses if pod.status else None) or []
            states = (status.state.terminated for status in statuses if status.state and status.state.terminated)
            if words := next((state.message for state in states if state.message), None):
                return words
        return None

    def config_map(self, name: str) -> Content | None:
        """Return the content of a ConfigMap; None if the ConfigMap doesn't exist."""
        return self._read(lambda: content_of(self._client, self._namespace, name))

    def nodes(self, labels: Mapping[str, str]) -> list[str]:
        """Return the sorted names of the nodes on which pods with these labels are placed."""
        pods = self._read(lambda: list(self._client.list(Pod, namespace=self._namespace, labels=dict(labels))))
        return sorted({pod.spec.nodeName for pod in pods if pod.spec and pod.spec.nodeName})

    def _read(self, ask: Callable[[], Answer]) -> Answer:
        try:
            return ask()
        except (ApiError, httpx2.HTTPError) as error:
            raise KitError(f"The Jobs of {self._namespace} can't be read: {error}") from error


def content_of(client: lightkube.Client, namespace: str, name: str) -> Content | None:
    """Return the content of a ConfigMap; None if the ConfigMap doesn't exist. Raises the errors of `client`."""
    try:
        config_map = client.get(ConfigMap, name, namespace=namespace)
    except ApiError as error:
        if error.status.code == HTTPStatus.NOT_FOUND:
            return None
        raise
    data = texts(config_map, "binaryData")
    return Content(
        annotations=texts(metadata(config_map), "annotations"),
        texts=texts(config_map, "data"),
        data={key: base64.b64decode(value) for key, value in data.items()},
    )


def why_ended(pod: Pod) -> str:
    """Return the cause of a pod's failure: reason, exit code and last line of the first terminated container's message
    (`Error, exit code 1: …`), or else the pod's own reason and message.
    """
    status = pod.status
    if status is None:
        return "unknown"
    states = [
        container.state.terminated
        for container in status.containerStatuses or []
        if container.state and container.state.terminated
    ]
    endings = [f"{state.reason or 'ended'}, exit code {state.exitCode}{_last_line(state.message)}" for state in states]
    return endings[0] if endings else f"{status.reason or status.phase or 'unknown'}{_last_line(status.message)}"


def _last_line(text: str | None) -> str:
    lines = (text or "").strip().splitlines()
    return f": {lines[-1]}" if lines else ""


def name_of(job: Job) -> str:
    """Return the name in a Job's metadata."""
    return metadata(job).name or ""


def ended(job: Job) -> bool | None:
    """Tell whether a Job has ended: True if it is complete, False if it has failed, None if it hasn't ended."""
    conditions = (job.status.conditions if job.status else None) or []
    true = {condition.type for condition in conditions if condition.status == "True"}
    if "Complete" in true:
        return True
    return False if "Failed" in true else None


def why_failed(job: Job) -> str | None:
    """Return the Job controller's message on the Job's failure; None if the Job hasn't failed."""
    conditions = (job.status.conditions if job.status else None) or []
    return next((c.message for c in conditions if c.type == "Failed" and c.status == "True"), None)


def _created(item: Job | Pod) -> str:
    return str(metadata(item).creationTimestamp or "")


class ClusterJobs:
    """Execution of Jobs in one cluster.

    All methods raise KitError if the cluster doesn't answer or refuses, or if a Job fails or takes too long.
    """

    def __init__(self, client: lightkube.Client, progress: Progress) -> None:
        self.client = client
        self.progress = progress

    @contextmanager
    def running(self, job: Manifest, others: Callable[[str], Iterable[Manifest]]) -> Generator[str]:
        """Create a suspended Job, then the objects `others(uid)` that it needs, and start the Job; delete the Job and
        its dependents after the block. Yields the Job's UID.
        """
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        self.progress.step(f"creating Job {name}")
        created = _request(lambda: self.client.create(from_dict(dict(job))))
        try:
            uid = metadata(created).uid or ""
            self.create(others(uid))
            _request(lambda: self._patch(name, namespace, {"spec": {"suspend": False}}))
            yield uid
        finally:
            with suppress(ApiError, httpx2.HTTPError):
                self.client.delete(Job, name, namespace=namespace, cascade=CascadeType.BACKGROUND)

    def create(self, manifests: Iterable[Manifest]) -> None:
        """Create Kubernetes objects one after the other."""
        for manifest in manifests:
            _request(lambda item=manifest: self.client.create(from_dict(dict(item))))

    def await_pods(self, place: JobSettings, count: int) -> None:
        """Wait until `count` pods of the Job run, or the Job has ended. A failed pod ends the wait with KitError."""

        def there() -> str | None:
            self.refuse_failed(place)
            running = sum(_phase(pod) == "Running" for pod in self.pods(place))
            return None if running == count else f"{running} of {count} pods run{_waiting(self.pods(place))}"

        self.await_that(place, there, STARTING_S, "for pods to start")

    def refuse_failed(self, place: JobSettings) -> None:
        """Raise KitError if a pod of the Job has failed."""
        if any(_phase(pod) == "Failed" for pod in self.pods(place)):
            raise self._failure(place)

    def await_end(self, place: JobSettings, limit_s: float) -> None:
        """Wait for the Job's end, at most `limit_s` seconds."""

        def there() -> str:
            return f"Job {place.job} runs{_waiting(self.pods(place))}"

        self.await_that(place, there, limit_s, "for its end", until_end=True)

    def await_that(
        self,
        place: JobSettings,
        missing: Callable[[], str | None],
        limit_s: float,
        what: str,
        *,
        until_end: bool = False,
    ) -> None:
        """Wait until `missing` returns None, or the Job has ended; a failed Job ends the wait with KitError.

        Args:
            place: the Job.
            missing: function that returns the text of what is still missing, or None.
            limit_s: longest wait in seconds.
            what: purpose of the wait, for messages.
            until_end: whether the wait is for the Job's end, so that messages leave out the limit.
        """
        started_s = detailed_s = time.monotonic()
        while True:
            over = ended(self._job(place))
            if over is False:
                raise self._failure(place)
            text = missing()
            if over or text is None:
                return
            now_s = time.monotonic()
            if now_s - started_s > limit_s:
                raise KitError(f"Waited {limit_s:.0f} s {what} of {place.job}: {text}.")
            if now_s - detailed_s >= DETAIL_EVERY_S:
                self.progress.detail(f"{text} ({now_s - started_s:.0f} s{'' if until_end else f' of {limit_s:.0f}'})")
                detailed_s = now_s
            time.sleep(PAUSE_S)

    def _failure(self, place: JobSettings) -> KitError:
        job = self._job(place)
        words = JobReader(self.client, place.namespace).last_words(place.job)
        return KitError(f"Job {place.job} failed: {words or why_failed(job) or 'it says nothing'}")

    def _job(self, place: JobSettings) -> Job:
        return self._retrying(lambda: self.client.get(Job, place.job, namespace=place.namespace))

    def stop(self, place: JobSettings, limit_s: float) -> None:
        """Suspend the Job, which ends its pods, and wait at most `limit_s` seconds until no pod runs. Results remain
        until the Job is deleted.

        If the cluster doesn't answer or refuses, the error is only reported as progress, since results can still be
        read.
        """
        try:
            self._retrying(lambda: self._patch(place.job, place.namespace, {"spec": {"suspend": True}}))
            until_s = time.monotonic() + limit_s
            while time.monotonic() < until_s and any(_phase(pod) == "Running" for pod in self.pods(place)):
                time.sleep(PAUSE_S)
        except KitError as error:
            self.progress.detail(f"the pods of {place.job} could not be told to end: {error.message}")

    def config_map(self, place: JobSettings, name: str) -> Content | None:
        """Return the content of a ConfigMap, with retries for `OUTAGE_S`; None if the ConfigMap doesn't exist."""
        return self._retrying(lambda: content_of(self.client, place.namespace, name))

    def _patch(self, name: str, namespace: str, change: dict[str, Any]) -> None:
        self.client.patch(Job, name, change, namespace=namespace, patch_type=PatchType.MERGE)

    def pods(self, place: JobSettings) -> list[Pod]:
        """Return the Job's pods, with retries for `OUTAGE_S`."""

        def ask() -> list[Pod]:
            return list(self.client.list(Pod, namespace=place.namespace, labels={JOB_NAME_LABEL: place.job}))

        return self._retrying(ask)

    def _retrying(self, ask: Callable[[], Answer]) -> Answer:
        """Return the result of `ask`, with retries for `OUTAGE_S`; errors that a retry doesn't change are raised at
        once as KitError.
        """
        until_s = time.monotonic() + OUTAGE_S
        while True:
            try:
                return ask()
            except (ApiError, httpx2.HTTPError) as error:
                is_refused = isinstance(error, ApiError) and (error.status.code or 0) < HTTPStatus.TOO_MANY_REQUESTS
                if is_refused or time.monotonic() > until_s:
                    raise KitError(f"The cluster refuses, or does not answer: {error}") from error
                self.progress.detail(f"the API server does not answer, waiting up to {OUTAGE_S:.0f} s: {error}")
            time.sleep(PAUSE_S)


def _request(ask: Callable[[], Answer]) -> Answer:
    try:
        return ask()
    except (ApiError, httpx2.HTTPError) as error:
        raise KitError(f"The cluster refuses, or does not answer: {error}") from error


def _phase(pod: Pod) -> str | None:
    return pod.status.phase if pod.status else None


def _waiting(pods: Sequence[Pod]) -> str:
    """Return the reasons why pods aren't placed yet or containers don't start, each after a semicolon; empty without
    reasons.
    """
    statuses = [pod.status for pod in pods if pod.status]
    conditions = [condition for status in statuses for condition in status.conditions or []]
    reasons = {
        condition_.message
        for condition_ in conditions
        if condition_.type == "PodScheduled" and condition_.status != "True"
    }
    containers = [container for status in statuses for container in status.containerStatuses or []]
    states = [container.state.waiting for container in containers if container.state and container.state.waiting]
    reasons |= {f"{state.reason}: {state.message}" for state in states if state.message}
    return "".join(f"; {reason}" for reason in sorted(filter(None, reasons)))


def place_of(plan: Plan, job: str) -> JobSettings:
    """Return the settings of a Job that a command runs: namespace, servers' image, and tolerations of GPU nodes."""
    taints, shape = tuple(node_taints(plan)), plan.pools[0].shape
    return JobSettings(plan.namespace, job, plan.release.vllm.image, shape, taints, plan.registry_mirror)
