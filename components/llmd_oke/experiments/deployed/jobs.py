"""Jobs of a cluster as a command sees them: found by label, waited for, and heard."""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeVar

import httpx2
import lightkube
from lightkube.core.exceptions import ApiError
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import ConfigMap, Pod

from llmd_oke.errors import KitError
from llmd_oke.rehearsal.watches import metadata, texts

Found = TypeVar("Found")

JOB_NAME_LABEL = "batch.kubernetes.io/job-name"


@dataclass(frozen=True)
class Content:
    """What a ConfigMap holds: texts, and bytes."""

    annotations: Mapping[str, str]
    texts: Mapping[str, str]
    data: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


class JobReader:
    """Reads Jobs, their pods and their results in one namespace.

    All of it raises KitError where the cluster doesn't answer or refuses.
    """

    def __init__(self, client: lightkube.Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    def newest(self, labels: Mapping[str, str]) -> Job | None:
        """The Job with these labels that was created last, None where there is none."""
        found = self._asked(lambda: list(self._client.list(Job, namespace=self._namespace, labels=dict(labels))))
        return max(found, key=_created, default=None)

    def last_words(self, job: str) -> str | None:
        """The termination message of a Job's pod, of the newest that has one."""
        labels = {JOB_NAME_LABEL: job}
        pods = self._asked(lambda: list(self._client.list(Pod, namespace=self._namespace, labels=dict(labels))))
        said = (_termination_message(pod) for pod in sorted(pods, key=_created, reverse=True))
        return next((words for words in said if words), None)

    def config_map(self, name: str) -> Content | None:
        """A ConfigMap's content, None where there is none."""
        return self._asked(lambda: content_of(self._client, self._namespace, name))

    def nodes(self, labels: Mapping[str, str]) -> list[str]:
        """The nodes of the pods with these labels, each once, sorted."""
        pods = self._asked(lambda: list(self._client.list(Pod, namespace=self._namespace, labels=dict(labels))))
        return sorted({pod.spec.nodeName for pod in pods if pod.spec and pod.spec.nodeName})

    def _asked(self, ask: Callable[[], Found]) -> Found:
        try:
            return ask()
        except (ApiError, httpx2.HTTPError) as error:
            raise KitError(f"The Jobs of {self._namespace} can't be read: {error}") from error


def content_of(client: lightkube.Client, namespace: str, name: str) -> Content | None:
    """A ConfigMap's content, None where there is none; errors are the client's own."""
    try:
        found = client.get(ConfigMap, name, namespace=namespace)
    except ApiError as error:
        if error.status.code == HTTPStatus.NOT_FOUND:
            return None
        raise
    data = texts(found, "binaryData")
    return Content(
        annotations=texts(metadata(found), "annotations"),
        texts=texts(found, "data"),
        data={key: base64.b64decode(value) for key, value in data.items()},
    )


def why_ended(pod: Pod) -> str:
    """Why a pod did not do its work, as far as it or its node says: `Error, exit code 1: the last line of its log`."""
    status = pod.status
    if status is None:
        return "unknown"
    states = [each.state.terminated for each in status.containerStatuses or [] if each.state and each.state.terminated]
    told = [f"{state.reason or 'ended'}, exit code {state.exitCode}{_last_line(state.message)}" for state in states]
    return told[0] if told else f"{status.reason or status.phase or 'unknown'}{_last_line(status.message)}"


def _last_line(text: str | None) -> str:
    lines = (text or "").strip().splitlines()
    return f": {lines[-1]}" if lines else ""


def name_of(job: Job) -> str:
    """A Job's name."""
    return metadata(job).name or ""


def ended(job: Job) -> bool | None:
    """Whether a Job ended well; None while it has not ended."""
    conditions = (job.status.conditions if job.status else None) or []
    true = {condition.type for condition in conditions if condition.status == "True"}
    if "Complete" in true:
        return True
    return False if "Failed" in true else None


def why_failed(job: Job) -> str | None:
    """What the Job's controller says of its end, None where it did not fail."""
    conditions = (job.status.conditions if job.status else None) or []
    return next((c.message for c in conditions if c.type == "Failed" and c.status == "True"), None)


def _created(found: Job | Pod) -> str:
    return str(metadata(found).creationTimestamp or "")


def _termination_message(pod: Pod) -> str | None:
    statuses = (pod.status.containerStatuses if pod.status else None) or []
    states = (status.state.terminated for status in statuses if status.state and status.state.terminated)
    return next((state.message for state in states if state.message), None)
