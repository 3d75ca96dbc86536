"""OCI's time, which passes faster in a rehearsal."""

import threading
from typing import Final

from llmd_oke.rehearsal.oci_plugin.errors import WaitEnded
from llmd_oke.rehearsal.oci_plugin.region import lifecycles
from llmd_oke.rehearsal.oci_plugin.schemas import Resource

DEFAULT_TIME_SCALE: Final = 0.001
"""A cluster that OCI makes in seven minutes is there in less than half a second."""


class Clock:
    """Waits on behalf of OCI. `scale` is wall seconds for a second of OCI's."""

    def __init__(self, scale: float = DEFAULT_TIME_SCALE) -> None:
        self.scale = scale
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Ends all waits that nothing else can end."""
        self._cancelled.set()

    def wait(self, seconds: float, cancelled: threading.Event | None = None) -> None:
        """Waits so many of OCI's seconds. Raises WaitEnded when cancelled meanwhile."""
        if (cancelled or self._cancelled).wait(seconds * self.scale):
            raise WaitEnded("the operation was cancelled")

    def work(
        self,
        resource: Resource,
        operation: str,
        limit_s: float,
        cancelled: threading.Event | None = None,
        longer: float = 1.0,
    ) -> None:
        """Waits as long as an operation takes, or so many times as long. Raises WaitEnded where the engine's limit is
        shorter.
        """
        durations = lifecycles()["durations_s"]
        seconds = durations.get(resource.token, durations["default"])[operation] * longer
        if seconds > limit_s:
            raise WaitEnded(self.give_up(limit_s, cancelled))
        self.wait(seconds, cancelled)

    def give_up(self, limit_s: float, cancelled: threading.Event | None = None) -> str:
        """Waits until the limit is over, and gives the provider's words for that."""
        self.wait(limit_s, cancelled)
        return f"timeout while waiting for state to become 'SUCCEEDED' (timeout: {limit_s / 60:.0f}m0s)"
