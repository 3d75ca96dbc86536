"""What a program does only where the engine changes things."""

import pulumi
from pulumi.runtime import mocks
from pulumi.runtime.settings import get_monitor


def is_update() -> bool:
    """Whether things are really changed: not in previews, nor under Pulumi's mocks."""
    return not pulumi.runtime.is_dry_run() and not isinstance(get_monitor(), mocks.MockMonitor)
