"""Where a pod's files and logs lie in the state folder, and what of them its containers see."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lightkube.models.core_v1 import Container, VolumeMount
from lightkube.resources.core_v1 import Pod

from llmd_oke.rehearsal.pods.expansion import expand
from llmd_oke.rehearsal.pods.sandboxes import Mount
from llmd_oke.rehearsal.watches import Identity, identity


@dataclass(frozen=True)
class Places:
    """The folders of one pod."""

    state_folder: Path
    pod: Identity

    @property
    def root(self) -> Path:
        """Everything that goes with the pod."""
        return self.state_folder / "pods" / self.pod.uid

    @property
    def etc(self) -> Path:
        """Its files of /etc."""
        return self.root / "etc"

    def files_volume(self, name: str) -> Path:
        """Give the folder of a volume whose files come from the API."""
        return self.root / "volumes" / name

    def log(self, container: str) -> Path:
        """Give a container's log; it outlives the pod."""
        return self.state_folder / "logs" / "pods" / self.pod.namespace / self.pod.name / f"{container}.log"

    def last_words(self, container: str) -> Path:
        """Give the file that a container's termination message is written to."""
        return self.root / "last-words" / container

    def rotate_log(self, container: str) -> None:
        """Keep the log of the run before as `<container>.previous.log`."""
        log = self.log(container)
        if log.exists():
            log.replace(log.with_name(f"{container}.previous.log"))


def places_of(state_folder: Path, pod: Pod) -> Places:
    """Give a pod's places."""
    return Places(state_folder, identity(pod))


def container_mounts(
    container: Container, volumes: Mapping[str, Path], files: frozenset[str], environment: Mapping[str, str]
) -> list[Mount]:
    """Give the container's volume mounts; `files` names the volumes that are read-only by nature."""
    return [
        Mount(
            _source(mount, volumes[mount.name], environment, made=mount.name not in files),
            mount.mountPath,
            read_only=bool(mount.readOnly) or mount.name in files,
        )
        for mount in container.volumeMounts or []
    ]


def etc_mounts(etc: Path) -> list[Mount]:
    """Give the mounts of the pod's own /etc files."""
    return [Mount(path, f"/etc/{path.name}") for path in sorted(etc.iterdir())]


def _source(mount: VolumeMount, folder: Path, environment: Mapping[str, str], *, made: bool) -> Path:
    inner = mount.subPath or expand(mount.subPathExpr or "", environment)
    source = folder / inner if inner else folder
    if made and not source.exists():
        source.mkdir(parents=True)
    return source
