"""The node agent: one process of a rehearsal's local cluster that plays the kubelets of all simulated nodes, runs their
pods, answers for their logs, and serves the cluster's Services and DNS.

Run by `python -m llmd_rehearsal.agent --config FILE` inside the local cluster's namespaces. Once the agent answers DNS
queries, all nodes are registered and all Services are served; the agent then writes `node agent ready` to standard
output. SIGTERM ends the agent and all of its pods.
"""

import argparse
import asyncio
import gc
import logging
import shutil
import signal
import sys
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import httpx2
from aiohttp import web
from lightkube import generic_resource
from lightkube.codecs import from_dict
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.async_client import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition
from lightkube.resources.core_v1 import ConfigMap, Namespace, Node, Pod, Secret, Service
from lightkube.resources.discovery_v1 import EndpointSlice
from lightkube.resources.networking_v1 import NetworkPolicy
from llmd_base.errors import KitError
from pydantic import ValidationError

from llmd_rehearsal.agent_config import AgentConfig, NodeConfig
from llmd_rehearsal.cluster_spec import POLICIES_FILE
from llmd_rehearsal.devices import DeviceProvider
from llmd_rehearsal.nodes import Change, ChangeNode, NodeControl, NodeFleet, serve_control
from llmd_rehearsal.oci_plugin.faults import Faults
from llmd_rehearsal.pods import images, packet_filters
from llmd_rehearsal.pods.container_worker import BackOff, Starts
from llmd_rehearsal.pods.image_pulls import ImagePuller
from llmd_rehearsal.pods.images import ContainerFactory, load
from llmd_rehearsal.pods.logs import LogServer
from llmd_rehearsal.pods.network_policies import NetworkPolicyFilter
from llmd_rehearsal.pods.networks import AddressPool, Networks
from llmd_rehearsal.pods.pod_sandbox import AgentContext, Resolver, StoredSources
from llmd_rehearsal.pods.pod_worker import PodRunner
from llmd_rehearsal.pods.probes import ProbeCount
from llmd_rehearsal.pods.processes import run_checked
from llmd_rehearsal.pods.status import EventRecorder
from llmd_rehearsal.running_time import RunningLoop
from llmd_rehearsal.services import DNS_PORT, DnsName, ServiceNetwork, SocketAddress
from llmd_rehearsal.user_secrets import SecretCreator
from llmd_rehearsal.watches import ObjectStore, status_code

_log = logging.getLogger(__name__)
READY = "node agent ready"
_HTTPS = 443
CONFLICT = 409
NOT_FOUND = 404
_ANSWER_S = 60.0
"""Limit in seconds of an answer of the API server: large definitions took longer than 10 s on two busy processors."""
_ESTABLISHED_ATTEMPTS, _ESTABLISHED_PAUSE_S = 60, 0.5


_generic: Any = generic_resource
_MAKERS = {"Namespaced": _generic.create_namespaced_resource, "Cluster": _generic.create_global_resource}
"""Functions of lightkube that make the class of a custom resource, by the scope of the custom resource definition."""


class Agent:
    """The node agent: creates nodes, pod runner, Service network, NetworkPolicy filter and control API from
    `AgentConfig`.
    """

    def __init__(self, config: AgentConfig) -> None:
        timeout = httpx2.Timeout(_ANSWER_S)
        client = AsyncClient(KubeConfig.from_file(config.kubeconfig).get(), timeout=timeout, trust_env=False)
        self._config = config
        self._client = client
        self._pods = ObjectStore(client, Pod)
        self._services = ObjectStore(client, Service)
        self._slices = ObjectStore(client, EndpointSlice)
        self._sources = StoredSources(ObjectStore(client, ConfigMap), ObjectStore(client, Secret))
        self._puller = ImagePuller(config.registry, self._sources.secrets)
        self._networks = Networks(config.pod_network)
        self.fleet = NodeFleet(client, config.pod_network)
        self._nodes = ObjectStore(client, Node)
        self._devices = DeviceProvider(client, self.fleet, self._pods, self._nodes)
        self._runner = PodRunner(self._context(client), self._pods)
        self._policies = ObjectStore(client, NetworkPolicy)
        self._namespaces = ObjectStore(client, Namespace)
        self._policy_filter = NetworkPolicyFilter(
            self._pods, self._policies, self._namespaces, self._networks, config.pod_network, config.service_cidr
        )
        self._unsupported_policies = packet_filters.unsupported()
        host, _, port = config.api_server.rpartition(":")
        api_service = SocketAddress(str(config.service_cidr.network_address + 1), _HTTPS)
        self._service_network = ServiceNetwork(
            self._services,
            self._slices,
            config.cluster_domain,
            {api_service: SocketAddress(host, int(port))},
            {
                **{name: DnsName((address,)) for name, address in config.outside_names.items()},
                **{name: DnsName(alias=target) for name, target in config.outside_aliases.items()},
            },
            self._policy_filter.allows,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._servers: list[web.AppRunner] = []

    async def start(self) -> None:
        """Register the nodes, serve the Services and start pods; answer DNS queries last, which shows that the agent is
        ready.
        """
        config = self._config
        (config.state_folder / POLICIES_FILE).write_text(self._unsupported_policies or "")
        await self._networks.sweep()
        shutil.rmtree(config.state_folder / "pods", ignore_errors=True)  # left by an agent that was killed
        # All Service addresses are routed to this network namespace, so that the Service proxy can listen on each.
        await run_checked(["ip", "route", "replace", "local", str(config.service_cidr), "dev", "lo"])
        await self.fleet.await_api_server()
        await install_crds(self._client, config.definitions)
        await install_objects(self._client, config.objects)
        await self.fleet.add(config.nodes)
        sources = (self._services, self._slices, self._sources.config_maps, self._sources.secrets)
        self._begin(self._service_network.run(), self.fleet.run(), *(store.run() for store in sources))
        await asyncio.gather(*(store.synced() for store in sources))
        self._begin(self._pods.run(), self._nodes.run(), self._devices.run(), self._namespaces.run())
        self._begin(SecretCreator(self._client, self._namespaces, config.user_secrets).run())
        await self._pods.synced()
        if self._unsupported_policies is None:
            self._begin(self._policies.run(), self._policy_filter.run())
        if config.control_port is not None:
            changes: dict[Change, ChangeNode] = {
                "remove": self.remove_node,
                "stop": self.stop_node,
                "start": self.start_node,
            }
            control = NodeControl(self.fleet, self.add_nodes, changes)
            self._servers.append(await serve_control(control, config.control_port))
        if config.certificate is not None:
            logs = LogServer(config.state_folder / "logs" / "pods", self._runner.write_log)
            self._servers.append(await logs.serve(*config.certificate))
        await self._service_network.names.start(config.dns_address, DNS_PORT)

    async def add_nodes(self, configs: Iterable[NodeConfig]) -> None:
        """Register more nodes while the agent runs, and start the pods that are already bound to those nodes."""
        await self.fleet.add(configs)
        self._consider_pods()

    async def stop_node(self, name: str) -> None:
        """Kill all processes of a node's pods and stop the node's heartbeat, as a loss of power does; no API object is
        changed.
        """
        self.fleet.stop(name)
        await self._runner.cut_off(name)

    async def start_node(self, name: str) -> None:
        """Resume the heartbeat of a stopped node and start the pods that are still bound to the node."""
        await self.fleet.start(name)
        self._consider_pods()

    def _consider_pods(self) -> None:
        for pod in self._pods:
            self._runner.pod_changed(pod, exists=True)

    async def remove_node(self, name: str) -> None:
        """Delete a Node object and the folder with the node's disks; the controller manager deletes the node's pods."""
        await self.fleet.remove(name)
        shutil.rmtree(self._config.state_folder / "nodes" / name, ignore_errors=True)
        self._puller.forget(name)

    async def fail(self) -> None:
        """Wait until one of the agent's tasks ends, which is always a fault, and raise the exception of that task."""
        finished, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        finished.pop().result()

    async def stop(self) -> None:
        """End the processes of all pods within the grace period that `AgentConfig` sets, and stop serving nodes and
        Services.
        """
        for server in self._servers:
            await server.cleanup()
        for task in self._tasks:
            task.cancel()
        await self._runner.stop(self._config.stop_grace_s)
        self._service_network.close()

    def _begin(self, *parts: Coroutine[Any, Any, None]) -> None:
        self._tasks += [asyncio.create_task(part) for part in parts]

    def _context(self, client: AsyncClient) -> AgentContext:
        config = self._config
        simulator = None
        if config.simulator_url:  # each simulated server keeps one connection, on which its end is awaited
            unlimited = httpx2.Limits(max_connections=None)
            simulator = httpx2.AsyncClient(base_url=config.simulator_url, limits=unlimited, trust_env=False)
        return AgentContext(
            client=client,
            fleet=self.fleet,
            networks=self._networks,
            addresses=AddressPool(config.pod_network),
            sources=self._sources,
            services=self._services,
            factory=ContainerFactory(
                load(config.images),
                config.programs,
                images.prepare(config.state_folder, config.outside_authority, config.pod_environment),
                simulator,
                config.time_scale,
                config.certificate,
                config.real_vllm,
            ),
            recorder=EventRecorder(client),
            state_folder=config.state_folder,
            resolver=Resolver(config.dns_address, config.cluster_domain),
            probes=ProbeCount(),
            starts=Starts(),
            probe_time_scale=config.probe_time_scale,
            faults=Faults(config.faults),
            back_off=BackOff(config.back_off.first_s, config.back_off.longest_s),
            puller=self._puller,
        )


async def install_crds(client: AsyncClient, definitions: Iterable[Mapping[str, Any]]) -> None:
    """Create CustomResourceDefinitions in the local cluster and register a lightkube class for each version; leave
    existing definitions unchanged.
    """
    for manifest in definitions:
        try:
            await client.create(cast("CustomResourceDefinition", CustomResourceDefinition.from_dict(dict(manifest))))
        except ApiError as error:
            if error.status.code != CONFLICT:
                raise
        spec = manifest["spec"]
        for version in spec["versions"]:
            _MAKERS[spec["scope"]](spec["group"], version["name"], spec["names"]["kind"], spec["names"]["plural"])


async def install_objects(client: AsyncClient, objects: Iterable[Mapping[str, Any]]) -> None:
    """Create Kubernetes objects in the local cluster; leave existing objects unchanged. Retry for up to 30 s while the
    API server doesn't serve a kind yet.

    Raises:
        KitError: the API server doesn't serve the kind of an object within that time.
    """
    for manifest in objects:
        resource = from_dict({**manifest})
        for _ in range(_ESTABLISHED_ATTEMPTS):
            try:
                await client.create(resource)
                break
            except httpx2.HTTPStatusError as error:
                if status_code(error) == CONFLICT:
                    break
                if status_code(error) != NOT_FOUND:
                    raise
                await asyncio.sleep(_ESTABLISHED_PAUSE_S)
        else:
            raise KitError(f"the cluster doesn't know {manifest['kind']} {manifest['metadata']['name']}")


async def run(config: AgentConfig) -> None:
    """Run the node agent until SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    agent = Agent(config)
    await agent.start()
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    waits = [asyncio.create_task(stopped.wait()), asyncio.create_task(agent.fail())]
    finished, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    await agent.stop()
    with suppress(asyncio.CancelledError):
        for task in finished:
            task.result()


def main() -> int:
    """Run the node agent with the configuration file that the command line names; return 1, with a message on standard
    error, if the configuration is invalid or the agent fails.
    """
    parser = argparse.ArgumentParser(prog="llmd_rehearsal.agent", description="The rehearsal's node agent.")
    parser.add_argument("--config", type=Path, required=True, help="JSON file, see AgentConfig")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    # The stores hold many long-lived objects: garbage collection took a third of the CPU time with default thresholds.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    try:
        config = AgentConfig.model_validate_json(arguments.config.read_bytes())
        with asyncio.Runner(loop_factory=RunningLoop) as runner:
            runner.run(run(config))
    except (KitError, OSError, ValidationError, ApiError, httpx2.HTTPError) as error:
        sys.stderr.write(f"node agent: {str(error) or type(error).__name__}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
