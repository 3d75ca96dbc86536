import asyncio
from typing import Any, cast

from lightkube.core.async_client import AsyncClient
from llmd_rehearsal.pods.status import StatusWriter, gather_s
from llmd_rehearsal.watches import ObjectIdentity

LIMIT_S = 10


class Pod:
    """A pod whose status changes, and the API server that it is written to."""

    def __init__(self, gathered_s: float = 10 * LIMIT_S, *, serves: bool = True) -> None:
        self.ready, self.phase = False, "Pending"
        self.annotations: list[object] = []
        self.written: list[tuple[bool, str]] = []
        self.writes = asyncio.Event()
        client = cast("AsyncClient", self)
        self.writer = StatusWriter(
            client, ObjectIdentity("n", "p", "u"), self.status,
            annotations={"simulated": "vllm"}, gather_s=lambda: gathered_s, serves=serves,
        )  # fmt: skip
        self.running = asyncio.create_task(self.writer.run())

    def status(self) -> dict[str, Any]:
        return {"phase": self.phase, "conditions": [{"type": "Ready", "status": str(self.ready)}]}

    async def patch(self, _: object, __: str, body: dict[str, Any], **___: object) -> None:
        self.annotations.append(body["metadata"]["annotations"])
        self.written.append((self.ready, self.phase))
        self.writes.set()

    async def written_after(self, **changes: object) -> list[tuple[bool, str]]:
        """Return what was written until the next write after these changes."""
        self.__dict__.update(changes)
        self.writer.changed()
        async with asyncio.timeout(LIMIT_S):
            await self.writes.wait()
        self.writes.clear()
        return self.written


async def test_changes_of_a_pods_readiness_and_its_end_are_written_to_the_api_at_once():
    pod = Pod()
    pod.writer.changed()
    pod.phase = "Running"
    pod.writer.changed()
    assert await pod.written_after(ready=True) == [(True, "Running")]
    assert await pod.written_after(ready=False) == [(True, "Running"), (False, "Running")]
    assert await pod.written_after(phase="Succeeded") == [(True, "Running"), (False, "Running"), (False, "Succeeded")]


async def test_no_readiness_is_written_before_its_end_for_a_pod_behind_no_service():
    pod = Pod(serves=False)
    pod.ready, pod.phase = True, "Running"
    pod.writer.changed()
    await asyncio.sleep(0)
    assert await pod.written_after(ready=False, phase="Succeeded") == [(False, "Succeeded")]


async def test_status_changes_but_readiness_are_written_with_annotations_after_a_delay():
    pod = Pod(gathered_s=0.02)
    assert await pod.written_after(phase="Running") == [(False, "Running")]
    assert pod.annotations == [{"simulated": "vllm"}]


def test_the_delay_of_pod_status_writes_grows_with_the_number_of_pods():
    assert [gather_s(pods) for pods in (0, 100, 500, 5000)] == [0.01, 0.01, 1.0, 2.0]
