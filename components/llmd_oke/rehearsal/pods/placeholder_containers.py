"""A container whose image has no program on this machine: shown as running, or as done where that is its purpose."""

import asyncio
from uuid import uuid4


class PlaceholderContainer:
    """Nothing runs; `completes` is true for containers that are expected to end, such as a Job's."""

    probed = False

    def __init__(self, *, completes: bool) -> None:
        self._ended = asyncio.Event()
        if completes:
            self._ended.set()
        self.identity = f"simulated://{uuid4().hex}"

    async def start(self) -> None:
        """Do nothing."""

    async def wait(self) -> int:
        """Give 0 when it has been stopped, at once if it completes by itself."""
        await self._ended.wait()
        return 0

    async def stop(self, grace_s: float) -> None:  # noqa: ARG002
        """End it."""
        self._ended.set()

    async def execute(self, argv: list[str], timeout_s: float) -> tuple[int, str]:  # noqa: ARG002
        """Do nothing, successfully."""
        return 0, ""
