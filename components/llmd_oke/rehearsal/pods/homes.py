"""A pod's own network namespace, address and folders, from its start to its end."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx2
from lightkube.core.exceptions import ApiError
from lightkube.models.core_v1 import Container as ContainerModel
from lightkube.models.core_v1 import PodSpec
from lightkube.resources.core_v1 import Pod

from llmd_oke.errors import KitError
from llmd_oke.rehearsal.pods import tasks
from llmd_oke.rehearsal.pods.environment import environment, service_links
from llmd_oke.rehearsal.pods.factory import Setting
from llmd_oke.rehearsal.pods.facts import MissingSourceError, PodFacts, host_name, is_sidecar, spec_of
from llmd_oke.rehearsal.pods.furnishing import Furnishing
from llmd_oke.rehearsal.pods.last_words import last_words
from llmd_oke.rehearsal.pods.networks import NAMESPACES
from llmd_oke.rehearsal.pods.places import container_mounts, etc_mounts, places_of
from llmd_oke.rehearsal.pods.surroundings import Surroundings
from llmd_oke.rehearsal.watches import identity

_log = logging.getLogger(__name__)
_RETRY_S = 1.0

_NO_NETWORK = NAMESPACES / "none"
"""Of pods of which nothing runs. A bridge of Linux has room for 1,024 pods, which the DaemonSets of operators fill."""


class Home:
    """Where one pod lives; `facts` is None until it has its network."""

    def __init__(self, surroundings: Surroundings, pod: Pod) -> None:
        self._surroundings = surroundings
        self._places = places_of(surroundings.state_folder, pod)
        self._network: Path | None = None
        self._attaching: asyncio.Task[Path] | None = None
        self._furnishing: Furnishing | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._address: str | None = None
        self._changed = asyncio.Event()
        self.facts: PodFacts | None = None

    async def enter(self, pod: Pod, warn: Callable[[str, str], None]) -> None:
        """Make folders and then, like a kubelet, the network.

        Waits for ConfigMaps, Secrets and accounts that aren't there yet, and tries a network that fails again.
        """
        facts = self._claim(pod)
        furnishing = self._furnishing = Furnishing(self._surroundings, self._places, facts)
        while True:
            try:
                await furnishing.furnish(pod)
                break
            except (MissingSourceError, ApiError, httpx2.HTTPError) as error:
                warn("FailedMount", f"MountVolume.SetUp failed: {error}")
            await self._source_change()
        self._keeping = tasks.start(furnishing.keep_current(pod), f"volumes of {self._places.pod.name}")
        while True:
            try:
                self._network = await self._attach(spec_of(pod), facts)
                break
            except KitError as error:
                warn("FailedCreatePodSandBox", f"Failed to create pod sandbox: {error}")
            await asyncio.sleep(_RETRY_S)
        self.facts = facts

    def touch(self) -> None:
        """Say that a ConfigMap or Secret of the pod's namespace has changed."""
        self._changed.set()
        if self._furnishing is not None:
            self._furnishing.touch()

    def setting(self, pod: Pod, model: ContainerModel) -> Setting:
        """Give what a container finds when it starts now; MissingSourceError when its environment can't be made."""
        if self.facts is None or self._network is None or self._furnishing is None:
            raise RuntimeError("the pod has no home yet")
        spec, services = spec_of(pod), self._surroundings.services
        links = service_links(services, identity(pod).namespace, all_of_namespace=spec.enableServiceLinks is not False)
        values = environment(pod, model, self.facts, self._surroundings.sources, links)
        furnishing = self._furnishing
        mounts = container_mounts(model, furnishing.folders, furnishing.file_volumes, values)
        is_init = any(model is each for each in spec.initContainers or [])
        completes = not is_sidecar(model) if is_init else spec.restartPolicy != "Always"
        return Setting(
            network=self._network,
            host_name=host_name(pod),
            mounts=[*etc_mounts(self._places.etc), *mounts],
            environment=values,
            log=self._places.log(model.name),
            last_words=self._places.last_words(model.name),
            completes=completes,
        )

    def rotate_log(self, container: str) -> None:
        """Set the log of a container's last run aside."""
        self._places.rotate_log(container)

    def last_words(self, model: ContainerModel, code: int) -> str | None:
        """What a container that ended with this exit code has to say."""
        return last_words(model, code, self._places.last_words(model.name), self._places.log(model.name))

    async def leave(self) -> None:
        """Remove network and folders and give the address back; logs stay. `facts` stay for the last status."""
        if self._keeping is not None:
            self._keeping.cancel()
        if self._furnishing is not None:
            self._furnishing.remove()
        if self._attaching is not None:
            await asyncio.wait([self._attaching])
            await self._surroundings.networks.detach(self._name(), self._link())
        if self._address is not None:
            self._surroundings.addresses.give_back(self._address)
        self._attaching = self._address = self._network = None

    def _claim(self, pod: Pod) -> PodFacts:
        spec, fleet = spec_of(pod), self._surroundings.fleet
        node = spec.nodeName or ""
        host_ip = fleet.address(node)
        known = pod.status.podIP if pod.status else None
        if not spec.hostNetwork:
            self._address = self._surroundings.addresses.take(fleet.index(node), known)
        return PodFacts(self._address or host_ip, host_ip, node, fleet.config(node).capacity)

    async def _attach(self, spec: PodSpec, facts: PodFacts) -> Path:
        networks, factory = self._surroundings.networks, self._surroundings.factory
        if all(factory.is_simulated(model) for model in (*(spec.initContainers or ()), *spec.containers)):
            return _NO_NETWORK
        if spec.hostNetwork:
            return await networks.attach_node(facts.node_name, facts.host_ip)
        self._attaching = asyncio.create_task(
            networks.attach(self._name(), facts.pod_ip, self._link(), self._places.pod.uid)
        )
        return await asyncio.shield(self._attaching)

    async def _source_change(self) -> None:
        self._changed.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), _RETRY_S)

    def _name(self) -> str:
        pod = self._places.pod
        return f"{pod.name[:63]}-{pod.uid[:8]}"

    def _link(self) -> str:
        return f"veth{self._places.pod.uid.replace('-', '')[:11]}"
