"""One protocol for all containers, whatever runs in them."""

from typing import Protocol


class Container(Protocol):
    """One run of a container; a restart makes a new one."""

    @property
    def identity(self) -> str:
        """Give the `containerID` shown in the pod's status."""
        ...

    @property
    def probed(self) -> bool:
        """Whether there is something to probe; otherwise it counts as started and ready."""
        ...

    async def start(self) -> None:
        """Start; OSError or KitError when it can't be."""
        ...

    async def wait(self) -> int:
        """Give the exit code when it has ended."""
        ...

    async def stop(self, grace_s: float) -> None:
        """End it: politely first, by force after the grace period. Returns when it has ended."""
        ...

    async def execute(self, argv: list[str], timeout_s: float) -> tuple[int, str]:
        """Run a command in it; give exit code and output."""
        ...


class StartError(Exception):
    """A container that can't be started; `reason` as in a status, the message says why."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
