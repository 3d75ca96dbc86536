import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from llmd_rehearsal.pods.pod_sandbox import AgentContext, PodSandbox, Resolver
from llmd_rehearsal.pods.pod_worker import PodWorker
from pods_for_tests import FixedSources, make_pod

LIMIT_S = 10


class Witness:
    """A stand-in for the API server, the networks and the recorder of warnings, with what came."""

    def __init__(self) -> None:
        self.warned = asyncio.Event()
        self.attached: list[str] = []

    async def patch(self, resource: object, name: str, body: dict[str, Any], **options: Any) -> None:
        pass

    async def attach(self, name: str, address: str, link: str, owner: str = "") -> Path:
        self.attached.append(name)
        return Path("/run/netns") / name

    async def detach(self, name: str, link: str) -> None:
        pass

    def warn(self, pod: object, reason: str, message: str) -> None:
        if reason == "FailedMount" and "missing" in message:
            self.warned.set()

    def forget(self, uid: str) -> None:
        pass


def agent_context(witness: Witness, folder: Path, simulated: bool = False) -> AgentContext:
    context = SimpleNamespace(
        client=witness,
        networks=witness,
        recorder=witness,
        state_folder=folder,
        addresses=SimpleNamespace(take=lambda node, preferred: "10.244.3.7", give_back=lambda address: None),
        fleet=SimpleNamespace(
            index=lambda name: 2,
            address=lambda name: "10.244.0.12",
            config=lambda name: SimpleNamespace(capacity={}),
        ),
        sources=FixedSources(),
        factory=SimpleNamespace(is_simulated=lambda model: simulated, needs_process=lambda model: not simulated),
        resolver=Resolver("10.96.0.10", "cluster.local"),
    )
    return cast("AgentContext", context)


async def test_a_pod_that_waits_for_a_configmap_has_no_network_namespace(tmp_path: Path) -> None:
    witness = Witness()
    pod = make_pod(volumes=[{"name": "settings", "configMap": {"name": "missing"}}])
    worker = PodWorker(agent_context(witness, tmp_path), pod, lambda: 1)
    try:
        async with asyncio.timeout(LIMIT_S):
            await witness.warned.wait()
        assert not witness.attached
    finally:
        await worker.terminate(0)


@pytest.mark.parametrize(("simulated", "networks"), [(True, 0), (False, 1)])
async def test_pods_without_running_containers_have_no_network(tmp_path: Path, simulated: bool, networks: int) -> None:
    witness = Witness()
    sandbox = PodSandbox(agent_context(witness, tmp_path, simulated), make_pod())
    async with asyncio.timeout(LIMIT_S):
        await sandbox.create(make_pod(), lambda reason, message: None)
    assert len(witness.attached) == networks
    await sandbox.remove()
