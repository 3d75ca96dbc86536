"""What the runner knows of each container of a pod; the pod's status is computed from these alone."""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from lightkube.models.core_v1 import ContainerStatus
from lightkube.resources.core_v1 import Pod

from llmd_oke.rehearsal.pods.facts import is_sidecar, spec_of


class Role(Enum):
    """What a container is to its pod."""

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"


@dataclass(frozen=True)
class Waiting:
    """Not running, with the reason that `kubectl get pods` shows."""

    reason: str
    message: str | None = None


@dataclass(frozen=True)
class Running:
    """Running since then."""

    since: datetime


@dataclass(frozen=True)
class Terminated:
    """Ended."""

    exit_code: int
    reason: str
    started: datetime
    finished: datetime
    container_id: str
    message: str | None = None


@dataclass
class ContainerRecord:
    """One container's history.

    `started` is true once its startup probe (if any) has passed, `ready` while it may get traffic, `over` when it
    won't run again in this pod.
    """

    name: str
    image: str
    role: Role
    state: Waiting | Running | Terminated = Waiting("ContainerCreating")
    last: Terminated | None = None
    restarts: int = 0
    started: bool = False
    ready: bool = False
    over: bool = False
    container_id: str = ""

    @property
    def succeeded(self) -> bool:
        """Whether its last run ended with exit code 0 and it's over."""
        return self.over and isinstance(self.state, Terminated) and self.state.exit_code == 0

    @property
    def failed(self) -> bool:
        """Whether its last run ended with another exit code and it's over."""
        return self.over and not self.succeeded


def initial_records(pod: Pod) -> dict[str, ContainerRecord]:
    """Give a record for each container, init containers first, with the restarts that the pod has had already."""
    spec = spec_of(pod)
    inits = spec.initContainers or []
    waiting = Waiting("PodInitializing" if inits else "ContainerCreating")
    roles = [(each, Role.SIDECAR if is_sidecar(each) else Role.INIT) for each in inits]
    roles += [(each, Role.MAIN) for each in spec.containers]
    restarts = _restarts_so_far(pod)
    return {
        each.name: ContainerRecord(each.name, each.image or "", role, waiting, restarts=restarts.get(each.name, 0))
        for each, role in roles
    }


def _restarts_so_far(pod: Pod) -> dict[str, int]:
    """Count a container that ran under an agent which is gone as restarted once more."""
    status = pod.status
    if status is None:
        return {}
    known: list[ContainerStatus] = [*(status.initContainerStatuses or []), *(status.containerStatuses or [])]
    return {each.name: each.restartCount + (1 if each.containerID else 0) for each in known}
