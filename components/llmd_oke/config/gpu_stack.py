"""Who gives nodes their GPUs."""

from typing import Literal

GpuStack = Literal["helm-operator", "oke-plugin", "oke-operator-addon", "present"]
"""One choice, not switches: two owners of `amd.com/gpu` would take turns."""
