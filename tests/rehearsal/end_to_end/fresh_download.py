"""A download of weights into an empty cache by the stack's own pre-warm Job, as on a node that comes later.

Run inside a rehearsal's cluster: fresh_download.py PREWARM NAME EXPECTED makes a Job NAME of the Job PREWARM unless it
is there, waits until a line of its log has the expected words, and prints that line.
"""

import sys
import time

from lightkube import ApiError, Client, KubeConfig
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod
from llmd_oke.operations.objects import metadata

LIMIT_S = 180
POLL_S = 0.5
TRIES = 100
"""Of the pod: rehearsed ones are repeated within seconds, so that those of the Job would end before an update does."""
JOB_LABEL = "batch.kubernetes.io/job-name"
CONTROLLERS_LABELS = (JOB_LABEL, "job-name", "batch.kubernetes.io/controller-uid", "controller-uid")


def start(client: Client, prewarm: str, name: str) -> None:
    spec = client.get(Job, prewarm).spec
    assert spec is not None
    spec.selector, spec.backoffLimit, pod = None, TRIES, spec.template
    labels = metadata(pod).labels or {}
    pod.metadata = ObjectMeta(labels={key: labels[key] for key in labels.keys() - CONTROLLERS_LABELS})
    assert pod.spec is not None
    for volume in pod.spec.volumes or ():
        if volume.hostPath:
            volume.hostPath.path += f"-{name}"
    client.create(Job(metadata=ObjectMeta(name=name), spec=spec))


def line_of(client: Client, name: str, expected: str) -> str | None:
    """Return the line of the log that has the expected words; None if there is none so far."""
    for pod in client.list(Pod, labels={JOB_LABEL: name}):
        try:
            lines = [*client.log(metadata(pod).name or "", container="prewarm", newlines=False)]
        except ApiError:
            continue  # the container has not started
        if line := next((line for line in lines if expected in line), None):
            return line
    return None


def main(prewarm: str, name: str, expected: str) -> None:
    client = Client(KubeConfig.from_env(), namespace="llm-d", trust_env=False)
    if name not in {metadata(job).name for job in client.list(Job)}:
        start(client, prewarm, name)
    end_s = time.monotonic() + LIMIT_S
    while (line := line_of(client, name, expected)) is None:
        assert time.monotonic() < end_s, f"no log of {name} has {expected!r}"
        time.sleep(POLL_S)
    print(line)


if __name__ == "__main__":
    main(*sys.argv[1:])
