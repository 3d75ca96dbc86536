"""What a pod's worker reports while its pod gets ready."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from llmd_oke.rehearsal.pods.etc_files import Resolver
from llmd_oke.rehearsal.pods.pod_worker import PodWorker
from llmd_oke.rehearsal.pods.surroundings import Surroundings
from pods_for_tests import FixedSources, make_pod

LIMIT_S = 10


class Statuses:
    """An API server's part: takes statuses and says when the wanted one has come."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.with_address = asyncio.Event()

    async def patch(self, resource: object, name: str, body: dict[str, Any], **options: Any) -> None:
        self.first.set()
        if "podIP" in body["status"]:
            self.with_address.set()


class SlowNetworks:
    """Networks that are made only after the first status has been written."""

    def __init__(self, statuses: Statuses) -> None:
        self._statuses = statuses

    async def attach(self, name: str, address: str, link: str) -> Path:
        await self._statuses.first.wait()
        return Path("/run/netns") / name

    async def detach(self, name: str, link: str) -> None:
        pass


def surroundings(statuses: Statuses, folder: Path) -> Surroundings:
    made = SimpleNamespace(
        client=statuses,
        state_folder=folder,
        networks=SlowNetworks(statuses),
        addresses=SimpleNamespace(take=lambda node, wanted: "10.244.3.7", give_back=lambda address: None),
        fleet=SimpleNamespace(
            index=lambda name: 2,
            address=lambda name: "10.244.0.12",
            config=lambda name: SimpleNamespace(capacity={}),
        ),
        sources=FixedSources(),
        factory=SimpleNamespace(is_simulated=lambda model: False),
        recorder=SimpleNamespace(warn=lambda pod, reason, message: None, forget=lambda uid: None),
        resolver=Resolver("10.96.0.10", "cluster.local"),
    )
    return cast("Surroundings", made)


async def test_a_pod_that_waits_for_a_config_map_shows_its_address_already(tmp_path: Path) -> None:
    statuses = Statuses()
    pod = make_pod(volumes=[{"name": "settings", "configMap": {"name": "missing"}}])
    worker = PodWorker(surroundings(statuses, tmp_path), pod)
    try:
        async with asyncio.timeout(LIMIT_S):
            await statuses.with_address.wait()
    finally:
        await worker.terminate(0)
