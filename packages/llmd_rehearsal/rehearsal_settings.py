"""Options of a rehearsal, and those of one that runs."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from llmd_rehearsal.running_rehearsals import cluster_record

DEFAULT_STACK = "rehearsal"
"""Stack of `llmd-oke rehearse` without `--stack`."""

SLOWEST = 100.0
"""Largest time scale of a rehearsal (wall seconds for one second on real hardware), also the limit of
`--time-scale`.
"""

DOWNLOAD_GIB, DISK_GIB, INSTALL_MINUTES = 3, 9, "two to four"
"""Size and duration of an installation of vLLM: download in GiB, disk space in GiB while it lasts, and minutes.

Measured: 2.9 GiB of wheels (mostly CUDA's, which PyTorch of PyPI imports) beside the 5.8 GiB that stay, 113 s (0.26)
and four minutes (0.30) on two processors.
"""

EFFORT = f"{DOWNLOAD_GIB} GiB to download, {DISK_GIB} GiB on disk until it is done (6 stay), {INSTALL_MINUTES} minutes"
"""What the installation of a version of vLLM takes, for messages and help."""

PROGRAMS = "programs"
"""Key, in `ClusterSpec.facts`, of the names and versions of the programs that run in pods."""

SECONDS_TO_START, USUAL = "seconds_to_start", "usual"
"""Key, in `ClusterSpec.facts`, of the simulated servers' start time in seconds, and its value if no start time was
set.
"""

MEMORY_GIB = "memory_gib"
"""Key, in `ClusterSpec.facts`, of the memory in GiB that all programs of the rehearsal together may take, for which the
stack's servers were reduced in number; set only in rehearsals with vLLM itself.
"""

SCALING_SPEED = "scaling_speed"
"""Key, in `ClusterSpec.facts`, of the scaling speed (seconds of scaling for each wall second); set only if the stack is
scaled by load.
"""


class PluginChoice(StrEnum):
    """Choice of Pulumi's Kubernetes plug-in or its stand-in; `auto` is the real plug-in if it is available and supports
    the whole stack.
    """

    AUTO = "auto"
    REAL = "real"
    STAND_IN = "stand-in"


class VllmChoice(StrEnum):
    """Choice of a rehearsal's model servers: simulated, or vLLM itself."""

    SIMULATED = "simulated"
    REAL = "real"


@dataclass(frozen=True)
class RehearsalSettings:
    """Options of a rehearsal.

    `time_scale` is the wall seconds that simulated servers take for one second of work on real hardware; None keeps the
    scale of a running rehearsal, or else chooses one for the stack and this machine. `probe_time_scale` is wall seconds
    for one second of probes' durations. `startup_s` is the wall time in seconds that each simulated server takes to
    start; None is about one second. `scaling_speed` is seconds of scaling by load in one second of wall time; None
    keeps the speed of a running rehearsal, or else is the default. If `vllm` chooses vLLM itself, servers and probes
    run in wall time, and `memory_gib` is the memory that was available at the start. `after` is another project, whose
    stack of the same name is deployed first.
    """

    time_scale: float | None = None
    probe_time_scale: float = 0.1
    plugin: PluginChoice = PluginChoice.AUTO
    startup_s: float | None = None
    scaling_speed: float | None = None
    vllm: VllmChoice = VllmChoice.SIMULATED
    memory_gib: int | None = None
    after: Path | None = None


def running_settings(project: Path, stack: str) -> RehearsalSettings:
    """Return the settings of a stack's running local cluster; the defaults if there is none."""
    record = cluster_record(project, stack)
    if record is None:
        return RehearsalSettings()
    names = ("time_scale", "probe_time_scale", SCALING_SPEED)
    scales = {name: float(record.facts[name]) for name in names if name in record.facts}
    plugin, _, _version = record.facts.get("kubernetes_plugin", PluginChoice.AUTO).partition(" ")
    start = record.facts.get(SECONDS_TO_START, USUAL)
    return RehearsalSettings(
        **scales,
        plugin=PluginChoice(plugin),
        startup_s=None if start == USUAL else float(start),
        vllm=VllmChoice.REAL if MEMORY_GIB in record.facts else VllmChoice.SIMULATED,
        memory_gib=int(record.facts[MEMORY_GIB]) if MEMORY_GIB in record.facts else None,
        after=None,
    )
