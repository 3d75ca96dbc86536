"""Sandbox of a pod, from creation to removal: network namespace, IP address, folders and files."""

import asyncio
import logging
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path, PurePosixPath

import httpx2
from lightkube.core.async_client import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.models.core_v1 import Container, PodSpec
from lightkube.resources.core_v1 import ConfigMap, Pod, Secret, Service
from llmd_base.errors import KitError
from llmd_oke.operations.objects import texts

from llmd_rehearsal.agent_config import NodeConfig
from llmd_rehearsal.nodes import NodeFleet
from llmd_rehearsal.oci_plugin.faults import Faults
from llmd_rehearsal.pods import hardware, volumes
from llmd_rehearsal.pods.container_worker import BackOff, Starts
from llmd_rehearsal.pods.containers import Mount, termination_message
from llmd_rehearsal.pods.environment import (
    MissingConfigError,
    PodFacts,
    decoded,
    environment,
    expand,
    host_name,
    service_links,
)
from llmd_rehearsal.pods.image_pulls import ImagePuller
from llmd_rehearsal.pods.images import ContainerContext, ContainerFactory
from llmd_rehearsal.pods.networks import NAMESPACES, AddressPool, Networks
from llmd_rehearsal.pods.probes import ProbeCount
from llmd_rehearsal.pods.processes import start_task
from llmd_rehearsal.pods.status import EventRecorder
from llmd_rehearsal.pods.volumes import File, TokenRequest, renewal_s, request_tokens, write_files
from llmd_rehearsal.watches import ObjectIdentity, ObjectStore, identity, is_sidecar, spec_of

_log = logging.getLogger(__name__)
_RETRY_S = 1.0

_NO_NETWORK = NAMESPACES / "none"
"""Placeholder for the network of pods without processes, such as operators' DaemonSets: most pods of a large
cluster.
"""


@dataclass(frozen=True)
class Resolver:
    """Address of the local cluster's DNS server, and the cluster's domain, which pods get in /etc/resolv.conf."""

    address: str
    domain: str


@dataclass(frozen=True)
class StoredSources:
    """ConfigMaps and Secrets of the cluster, from the node agent's watches."""

    config_maps: ObjectStore[ConfigMap]
    secrets: ObjectStore[Secret]

    def config_map(self, namespace: str, name: str) -> Mapping[str, bytes] | None:
        """Return a ConfigMap's data and binary data; None if there is no such ConfigMap."""
        source = self.config_maps.get(namespace, name)
        if source is None:
            return None
        data = {key: value.encode() for key, value in texts(source, "data").items()}
        return data | decoded(texts(source, "binaryData"))

    def secret(self, namespace: str, name: str) -> Mapping[str, bytes] | None:
        """Return a Secret's decoded data; None if there is no such Secret."""
        source = self.secrets.get(namespace, name)
        return None if source is None else decoded(texts(source, "data"))


@dataclass(frozen=True)
class AgentContext:
    """Services and settings of the node agent that all pods share."""

    client: AsyncClient
    fleet: NodeFleet
    networks: Networks
    addresses: AddressPool
    sources: StoredSources
    services: ObjectStore[Service]
    factory: ContainerFactory
    recorder: EventRecorder
    state_folder: Path
    resolver: Resolver
    probes: ProbeCount
    starts: Starts
    probe_time_scale: float
    back_off: BackOff
    faults: Faults
    puller: ImagePuller


@dataclass(frozen=True)
class PodFolders:
    """Paths of a pod's folders and logs in the local cluster's folder."""

    state_folder: Path
    pod: ObjectIdentity

    @property
    def root(self) -> Path:
        """Folder on this machine with a pod's volumes and files, deleted with the pod."""
        return self.state_folder / "pods" / self.pod.uid

    @property
    def etc(self) -> Path:
        """Folder of the files that are mounted in the pod's /etc."""
        return self.root / "etc"

    def files_volume(self, name: str) -> Path:
        """Return the folder on this machine of a pod's volume whose files come from the API server."""
        return self.root / "volumes" / name

    def log(self, container: str) -> Path:
        """Return the path of a container's log, which is kept after the pod's deletion."""
        return self.state_folder / "logs" / "pods" / self.pod.namespace / self.pod.name / f"{container}.log"

    def termination_log(self, container: str) -> Path:
        """Return the path of the file for a container's termination message on this machine."""
        return self.root / "last-words" / container


class PodFiles:
    """Volumes and /etc files of a pod on disk; the volumes are updated when their sources change."""

    def __init__(self, context: AgentContext, node: NodeConfig, folders: PodFolders, facts: PodFacts) -> None:
        self._context = context
        self._node = node
        self._folders = folders
        self._facts = facts
        self.written: dict[str, dict[str, File]] = {}
        self._tokens: Mapping[TokenRequest, str] = {}
        self._stale = asyncio.Event()
        self.volume_folders: dict[str, Path] = {}

    def touch(self) -> None:
        """Request that the pod's volumes are written anew, because a ConfigMap or Secret may have changed."""
        self._stale.set()

    async def write(self, pod: Pod) -> None:
        """Write the files of all of a pod's volumes, and its /etc files, to disk.

        Raises:
            MissingConfigError: a required ConfigMap, Secret or key doesn't exist yet.
            ApiError: the API server issued no service account token.
        """
        requests = volumes.token_requests(pod)
        if requests and not self._tokens:
            self._tokens = await request_tokens(self._context.client, pod, requests)
        self._folders.etc.mkdir(parents=True, exist_ok=True)
        for name, text in etc_files(pod, self._facts.pod_ip, self._context.resolver).items():
            (self._folders.etc / name).write_text(text)
        self._write_volumes(pod)

    async def keep_current(self, pod: Pod) -> None:
        """Update the files of a pod's volumes until cancelled: when ConfigMaps or Secrets change, or tokens are near
        their expiry.
        """
        requests = volumes.token_requests(pod)
        while True:
            try:
                await asyncio.wait_for(self._stale.wait(), renewal_s(requests))
            except TimeoutError:
                with suppress(ApiError, httpx2.HTTPError):
                    self._tokens = await request_tokens(self._context.client, pod, requests)
            self._stale.clear()
            try:
                self._write_volumes(pod)
            except MissingConfigError as error:
                _log.info("volumes of %s not refreshed: %s", self._folders.pod.name, error)

    def remove(self) -> None:
        """Delete the pod's folders; keep its logs and the volumes of PersistentVolumeClaims."""
        shutil.rmtree(self._folders.root, ignore_errors=True)

    def _write_volumes(self, pod: Pod) -> None:
        sources = volumes.VolumeSources(self._facts, self._context.sources, self._tokens)
        for volume in spec_of(pod).volumes or []:
            if not volumes.has_files(volume):
                path = volumes.folder(volume, pod, self._folders.root, self._folders.state_folder)
                path.mkdir(parents=True, exist_ok=True)
                if volume.hostPath and volume.hostPath.path == hardware.SYSFS:
                    hardware.write_pci_functions(path, self._node)
                self.volume_folders[volume.name] = path
                continue
            files = volumes.files(volume, pod, sources)
            if self.written.get(volume.name) != files:
                self.volume_folders[volume.name] = self._folders.files_volume(volume.name)
                write_files(self.volume_folders[volume.name], files)
                self.written[volume.name] = files


class PodSandbox:
    """Sandbox of one pod's containers; `facts` (the pod's addresses) is None until the network is attached."""

    def __init__(self, context: AgentContext, pod: Pod) -> None:
        self._context = context
        self._folders = PodFolders(context.state_folder, identity(pod))
        self._network: Path | None = None
        self._attaching: asyncio.Task[Path] | None = None
        self._files: PodFiles | None = None
        self._updating: asyncio.Task[None] | None = None
        self._address: str | None = None
        self._changed = asyncio.Event()
        self.facts: PodFacts | None = None

    async def create(self, pod: Pod, warn: Callable[[str, str], None]) -> None:
        """Create the pod's folders and then, like a kubelet, its network.

        Waits for ConfigMaps, Secrets and service accounts that don't exist yet, and retries if the network can't be
        created.
        """
        spec, fleet = spec_of(pod), self._context.fleet
        node = spec.nodeName or ""
        host_ip = fleet.address(node)
        if not spec.hostNetwork:
            previous = pod.status.podIP if pod.status else None
            self._address = self._context.addresses.take(fleet.index(node), previous)
        facts = PodFacts(self._address or host_ip, host_ip, node, fleet.config(node).capacity)
        files = self._files = PodFiles(self._context, fleet.config(node), self._folders, facts)
        while True:
            try:
                await files.write(pod)
                break
            except (MissingConfigError, ApiError, httpx2.HTTPError) as error:
                warn("FailedMount", f"MountVolume.SetUp failed: {error}")
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _RETRY_S)
        self._updating = start_task(files.keep_current(pod), f"volumes of {self._folders.pod.name}")
        while True:
            try:
                self._network = await self._attach(spec, facts)
                break
            except KitError as error:
                warn("FailedCreatePodSandBox", f"Failed to create pod sandbox: {error}")
            await asyncio.sleep(_RETRY_S)
        self.facts = facts

    def touch(self) -> None:
        """Request that the pod's volumes are written anew, because a ConfigMap or Secret has changed."""
        self._changed.set()
        if self._files is not None:
            self._files.touch()

    def container_context(self, pod: Pod, container: Container) -> ContainerContext:
        """Return the network, files and variables for a container that starts now; rename the log of its previous run.

        Raises:
            MissingConfigError: a ConfigMap, Secret or key that the environment needs doesn't exist.
        """
        files = self._files
        if self.facts is None or self._network is None or files is None:
            raise RuntimeError("the pod has no sandbox yet")
        spec, services = spec_of(pod), self._context.services
        links = service_links(services, identity(pod).namespace, all_of_namespace=spec.enableServiceLinks is not False)
        values = environment(pod, container, self.facts, self._context.sources, links)
        mounts = container_mounts(container, files.volume_folders, frozenset(files.written), values)
        if self._context.factory.runs_python(container) and hardware.takes_node(container, self._node):
            simulated = self._folders.root / "hardware" / container.name
            mounts += hardware.mounts(container, self._node, simulated, self._context.faults)
            values = {**hardware.ENVIRONMENT, **values}
        is_init = any(container is init for init in spec.initContainers or [])
        log = self._folders.log(container.name)
        if log.exists():
            log.replace(log.with_name(f"{container.name}.previous.log"))
        return ContainerContext(
            network=self._network,
            host_name=host_name(pod),
            mounts=[*(Mount(path, f"/etc/{path.name}") for path in sorted(self._folders.etc.iterdir())), *mounts],
            environment=values,
            log=log,
            termination_log=self._folders.termination_log(container.name),
            completes=not is_sidecar(container) if is_init else spec.restartPolicy != "Always",
        )

    def termination_message(self, container: Container, code: int) -> str | None:
        """Return the termination message of a container that ended with this exit code; None without a message."""
        folders, name = self._folders, container.name
        return termination_message(container, code, folders.termination_log(name), folders.log(name))

    async def remove(self) -> None:
        """Remove the pod's network and folders and return its IP address to the pool. Logs are kept, and `facts` for
        the last status.
        """
        if self._updating is not None:
            self._updating.cancel()
        if self._files is not None:
            self._files.remove()
        if self._attaching is not None:
            await asyncio.wait([self._attaching])
            await self._context.networks.detach(*self._network_names())
        if self._address is not None:
            self._context.addresses.give_back(self._address)
        self._attaching = self._address = self._network = None

    @property
    def _node(self) -> NodeConfig:
        return self._context.fleet.config(self.facts.node_name if self.facts else "")

    async def _attach(self, spec: PodSpec, facts: PodFacts) -> Path:
        networks, factory = self._context.networks, self._context.factory
        if not any(factory.needs_process(container) for container in (*(spec.initContainers or ()), *spec.containers)):
            return _NO_NETWORK
        if spec.hostNetwork:
            return await networks.attach_node(facts.node_name, facts.host_ip)
        name, link = self._network_names()
        self._attaching = asyncio.create_task(networks.attach(name, facts.pod_ip, link, self._folders.pod.uid))
        return await asyncio.shield(self._attaching)

    def _network_names(self) -> tuple[str, str]:
        """Return the names of the pod's network namespace and its link."""
        pod = self._folders.pod
        return f"{pod.name[:63]}-{pod.uid[:8]}", f"veth{pod.uid.replace('-', '')[:11]}"


def container_mounts(
    container: Container, volumes: Mapping[str, Path], files: frozenset[str], environment: Mapping[str, str]
) -> list[Mount]:
    """Return the container's volume mounts; `files` names the volumes with files from the API server, which are
    read-only.

    If one volume is mounted inside another, a folder for the mount point is created in the outer one, as kubelet does.
    """
    mounts: list[Mount] = []
    for mount in container.volumeMounts or []:
        from_server = mount.name in files
        source = volumes[mount.name] / (mount.subPath or expand(mount.subPathExpr or "", environment))
        if not from_server and not source.exists():
            source.mkdir(parents=True)
        mounts.append(Mount(source, mount.mountPath, read_only=bool(mount.readOnly) or from_server))
    for outer, inner in permutations(mounts, 2):
        target = PurePosixPath(inner.target)
        inside = target != PurePosixPath(outer.target) and target.is_relative_to(outer.target)
        if inside and outer.source.is_dir() and inner.source.is_dir():
            (outer.source / target.relative_to(outer.target)).mkdir(parents=True, exist_ok=True)
    return mounts


def etc_files(pod: Pod, pod_ip: str, resolver: Resolver) -> Mapping[str, str]:
    """Return the contents, by name, of the files of /etc that programs in a pod need."""
    name, spec, domain, namespace = host_name(pod), spec_of(pod), resolver.domain, identity(pod).namespace
    names = f"{name}.{spec.subdomain}.{namespace}.svc.{domain} {name}" if spec.subdomain else name
    hosts = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback", f"{pod_ip}\t{names}"]
    hosts += [f"{alias.ip}\t{' '.join(alias.hostnames or [])}" for alias in spec.hostAliases or []]
    search = f"{namespace}.svc.{domain} svc.{domain} {domain}"
    return {
        "hosts": "\n".join(hosts) + "\n",
        "hostname": f"{name}\n",
        "resolv.conf": f"search {search}\nnameserver {resolver.address}\noptions ndots:5\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
        "passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
        "group": "root:x:0:\nnogroup:x:65534:\n",
    }
