"""The node agent: simulated nodes, their pods and the Services, in one process of a rehearsal's world.

Run by `python -m llmd_oke.rehearsal.agent --config FILE` inside the world's namespaces. Once it answers
DNS questions, nodes are registered and Services served, and it writes `node agent ready` to its standard output.
SIGTERM ends it and all of its pods.
"""

import argparse
import asyncio
import gc
import logging
import shutil
import signal
import sys
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
from aiohttp import web
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.async_client import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import ConfigMap, Namespace, Pod, Secret, Service
from lightkube.resources.discovery_v1 import EndpointSlice
from lightkube.resources.networking_v1 import NetworkPolicy
from pydantic import ValidationError

from llmd_oke.errors import KitError
from llmd_oke.rehearsal.agent_config import POLICIES_FILE, AgentConfig
from llmd_oke.rehearsal.nodes.config import NodeConfig
from llmd_oke.rehearsal.nodes.control import Change, ChangeNode, NodeControl, serve_control
from llmd_oke.rehearsal.nodes.fleet import Fleet
from llmd_oke.rehearsal.nodes.installing import install
from llmd_oke.rehearsal.nodes.providing import DeviceProvider
from llmd_oke.rehearsal.pods import filters, pythons
from llmd_oke.rehearsal.pods.container_worker import BackOff
from llmd_oke.rehearsal.pods.etc_files import Resolver
from llmd_oke.rehearsal.pods.events import Recorder
from llmd_oke.rehearsal.pods.factory import ContainerFactory
from llmd_oke.rehearsal.pods.images import load
from llmd_oke.rehearsal.pods.networks import AddressPool, Networks, route_services
from llmd_oke.rehearsal.pods.policing import Policing
from llmd_oke.rehearsal.pods.runner import Runner
from llmd_oke.rehearsal.pods.simulator_containers import simulator_client
from llmd_oke.rehearsal.pods.surroundings import StoredSources, Surroundings
from llmd_oke.rehearsal.services.names import Name
from llmd_oke.rehearsal.services.network import ServiceNetwork
from llmd_oke.rehearsal.services.table import Address
from llmd_oke.rehearsal.watches import Store

_log = logging.getLogger(__name__)
READY = "node agent ready"
_HTTPS = 443


class Agent:
    """All parts of the node agent, put together from its configuration."""

    def __init__(self, config: AgentConfig) -> None:
        client = AsyncClient(config=KubeConfig.from_file(config.kubeconfig).get(), trust_env=False)
        self._config = config
        self._client = client
        self._pods = Store(client, Pod)
        self._services = Store(client, Service)
        self._slices = Store(client, EndpointSlice)
        self._sources = StoredSources(Store(client, ConfigMap), Store(client, Secret))
        self._networks = Networks(config.bridge, config.bridge_address)
        self.fleet = Fleet(client, config.bridge_address)
        self._devices = DeviceProvider(client, self.fleet)
        self._runner = Runner(self._surroundings(client), self._pods)
        self._policies = Store(client, NetworkPolicy)
        self._namespaces = Store(client, Namespace)
        self._policing = Policing(self._pods, self._policies, self._namespaces, self._networks, config.bridge_address)
        self._unpoliced = filters.unsupported()
        self._service_network = self._services_of(config)
        self._tasks: list[asyncio.Task[None]] = []
        self._control: web.AppRunner | None = None

    async def start(self) -> None:
        """Register nodes, serve Services, take pods, and at last answer DNS: with that, the rest is there."""
        config = self._config
        (config.state_folder / POLICIES_FILE).write_text(self._unpoliced or "")
        await self._networks.sweep()
        shutil.rmtree(config.state_folder / "pods", ignore_errors=True)  # of an agent that died
        await route_services(config.service_cidr)
        await self.fleet.await_api_server()
        await install(self._client, config.definitions)
        await self.fleet.add(config.nodes)
        sources = (self._services, self._slices, self._sources.config_maps, self._sources.secrets)
        self._begin(self._service_network.run(), self.fleet.run(), *(store.run() for store in sources))
        await asyncio.gather(*(store.synced() for store in sources))
        self._begin(self._pods.run(), self._devices.run())
        await self._pods.synced()
        if self._unpoliced is None:
            self._begin(self._policies.run(), self._namespaces.run(), self._policing.run())
        if config.control_port is not None:
            change: dict[Change, ChangeNode] = {
                "remove": self.remove_node,
                "stop": self.stop_node,
                "start": self.start_node,
            }
            self._control = await serve_control(NodeControl(self.fleet, self.add_nodes, change), config.control_port)
        await self._service_network.serve_names(config.dns_address)

    async def add_nodes(self, configs: Iterable[NodeConfig]) -> None:
        """Register more nodes while running; pods bound to them by then are taken."""
        await self.fleet.add(configs)
        self._consider_pods()

    async def stop_node(self, name: str) -> None:
        """End all processes of a node's pods and its heartbeat, as of a machine that loses power; nobody is told."""
        self.fleet.stop(name)
        await self._runner.cut_off(name)

    async def start_node(self, name: str) -> None:
        """Have a stopped node report itself and run the pods again that are still bound to it."""
        await self.fleet.start(name)
        self._consider_pods()

    def _consider_pods(self) -> None:
        for pod in self._pods:
            self._runner.consider(pod)

    async def remove_node(self, name: str) -> None:
        """Take a node away, and its disks with it."""
        await self.fleet.remove(name)
        shutil.rmtree(self._config.state_folder / "nodes" / name, ignore_errors=True)

    async def fail(self) -> None:
        """Wait; raises when one of the agent's parts ends, which none should."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        done.pop().result()

    async def stop(self) -> None:
        """End all pods' processes, then everything else."""
        if self._control is not None:
            await self._control.cleanup()
        for task in self._tasks:
            task.cancel()
        await self._runner.stop(self._config.stop_grace_s)
        self._service_network.close()

    def _begin(self, *parts: Coroutine[Any, Any, None]) -> None:
        self._tasks += [asyncio.create_task(part) for part in parts]

    def _surroundings(self, client: AsyncClient) -> Surroundings:
        config = self._config
        simulator = simulator_client(config.simulator_url) if config.simulator_url else None
        return Surroundings(
            client=client,
            fleet=self.fleet,
            networks=self._networks,
            addresses=AddressPool(config.bridge_address),
            sources=self._sources,
            services=self._services,
            factory=ContainerFactory(
                load(config.images),
                config.programs,
                pythons.prepare(config.state_folder, config.outside_authority, config.pod_environment),
                simulator,
                config.time_scale,
            ),
            recorder=Recorder(client),
            state_folder=config.state_folder,
            resolver=Resolver(config.dns_address, config.cluster_domain),
            probe_time_scale=config.probe_time_scale,
            back_off=BackOff(config.back_off.first_s, config.back_off.longest_s),
        )

    def _services_of(self, config: AgentConfig) -> ServiceNetwork:
        host, _, port = config.api_server.rpartition(":")
        api_service = Address(str(config.service_cidr.network_address + 1), _HTTPS)
        fixed = {api_service: Address(host, int(port))}
        outside = {name: Name((address,)) for name, address in config.outside_names.items()}
        lets_in = self._policing.lets_in
        return ServiceNetwork(self._services, self._slices, config.cluster_domain, fixed, outside, lets_in)


async def run(config: AgentConfig) -> None:
    """Run the agent until SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    agent = Agent(config)
    await agent.start()
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    waits = [asyncio.create_task(stopped.wait()), asyncio.create_task(agent.fail())]
    done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    await agent.stop()
    with suppress(asyncio.CancelledError):
        for each in done:
            each.result()


def main() -> int:
    """Read the configuration file named on the command line and run; 1 with a message when something is wrong."""
    parser = argparse.ArgumentParser(prog="llmd_oke.rehearsal.agent", description="The rehearsal's node agent.")
    parser.add_argument("--config", type=Path, required=True, help="JSON file, see AgentConfig")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    # Objects of the cluster are many and live long: collecting took a third of this program's time by the defaults.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    try:
        config = AgentConfig.model_validate_json(arguments.config.read_bytes())
        asyncio.run(run(config))
    except (KitError, OSError, ValidationError, ApiError, httpx2.HTTPError) as error:
        sys.stderr.write(f"node agent: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
