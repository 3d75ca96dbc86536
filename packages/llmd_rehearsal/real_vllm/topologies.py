"""Reduction of a stack's topologies to the servers that fit this machine's memory."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmd_base.errors import KitError
from llmd_oke.config import ModelConfig, Role, StackConfig, Topology

from llmd_rehearsal.real_vllm.differences import real_vllm_data

_GPUS_PER_PROCESSOR = 2.0
"""Number of GPUs per processor up to which servers are added beyond one of each role: if more servers started together,
NIXL's handshake would exceed its limit of 5 s.
"""

_SMOKE_REQUESTS, _SMOKE_CONCURRENCY = 4, 2
"""Limits of the smoke benchmark's requests and concurrency, because a processor is slower than GPUs."""


@dataclass(frozen=True)
class CutStack:
    """Stack with so few servers that vLLM itself can run all of them at once in `memory_gib` GiB of memory, and the
    original stack (`asked`).
    """

    config: StackConfig
    asked: StackConfig
    memory_gib: int

    def __str__(self) -> str:
        """Return a text on the remaining servers of each model and the smoke benchmark."""
        pairs = zip(self.config.models, self.asked.models, strict=True)
        left = [
            f"{model.model}: {model.topology} of {before.topology}"
            + (f", {before.copies} times" if before.copies > 1 else "")
            for model, before in pairs
        ]
        smoke = self.config.smoke
        return f"{'; '.join(left)}; smoke benchmark of {smoke.requests} requests, {smoke.concurrency} at a time"

    def written_into(self, stack: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of a stack file's content in which each model has as few servers, and the smoke benchmark as
        few requests, as the reduced stack.
        """
        models: list[dict[str, Any]] = []
        for written, model in zip(stack["models"], self.config.models, strict=True):
            kept = {key: value for key, value in written.items() if key != "copies"}
            models.append({**kept, "topology": _document(model.topology)})
        return {**stack, "models": models, "smoke": _document(self.config.smoke)}


def cut(config: StackConfig, memory_gib: int, processors: float) -> CutStack:
    """Return a stack with one copy of each model, at least one server of each role, and as many further servers of the
    original stack as vLLM itself can run at once on this machine.

    Args:
        config: the stack file's config.
        memory_gib: available memory of this machine in GiB, for all servers and the rest of the rehearsal together.
        processors: number of processors of this machine, which limits how many servers there are beyond one of each
            role.

    Raises:
        KitError: one server of each role doesn't fit.
    """
    models = [_with_replicas(model, dict.fromkeys(model.topology.servers(), 1)) for model in config.models]
    room_gib = memory_gib - real_vllm_data().memory.rest
    if (needed_gib := sum(map(_memory_gib, models))) > room_gib:
        servers = "; ".join(f"{model.model} {model.topology}" for model in models)
        raise KitError(
            f"vLLM itself needs {needed_gib:.1f} GiB for the least of this stack ({servers}), and "
            f"{max(room_gib, 0):.1f} GiB are available beside the rest of the rehearsal.",
            "Rehearse with fewer models or smaller tensor parallel sizes, or with simulated servers.",
        )
    most_gpus = processors * _GPUS_PER_PROCESSOR
    while more := _one_more(models, config.models, room_gib, most_gpus):
        models = more
    smoke = config.smoke.model_copy(
        update={
            "requests": min(config.smoke.requests, _SMOKE_REQUESTS),
            "concurrency": min(config.smoke.concurrency, _SMOKE_CONCURRENCY),
            "thresholds": config.smoke.thresholds.model_copy(
                update=dict.fromkeys(("max_ttft_p95_ms", "max_itl_p95_ms", "max_e2e_p95_ms", "min_output_tokens_per_s"))
            ),
        }
    )
    return CutStack(config.model_copy(update={"models": tuple(models), "smoke": smoke}), config, memory_gib)


def available_gib(meminfo: Path = Path("/proc/meminfo"), control_group: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the available memory in whole GiB: this machine's, or what the control group's limit leaves, if that is
    less, as in a container.
    """
    facts = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    available = int(facts["MemAvailable"].split()[0]) * 2**10
    with suppress(OSError, ValueError):  # without a limit, `memory.max` isn't there, or is no number
        limit, used = (int((control_group / name).read_text()) for name in ("memory.max", "memory.current"))
        kinds = dict(line.split() for line in (control_group / "memory.stat").read_text().splitlines())
        available = min(available, limit - used + int(kinds["inactive_file"]))  # pages of files that can be dropped
    return available // 2**30


def _document(part: Any) -> Any:
    return part.model_dump(by_alias=True, exclude_none=True)


def _with_replicas(model: ModelConfig, replicas: Mapping[Role, int]) -> ModelConfig:
    """Return the model with this number of servers of each role, in one unit."""
    servers = model.topology.servers().items()
    changed = {role: part.model_copy(update={"replicas": replicas[role]}) for role, part in servers}
    return model.model_copy(update={"topology": Topology.model_validate(changed), "copies": 1})


def _memory_gib(model: ModelConfig) -> float:
    memory = real_vllm_data().memory
    servers = model.topology.servers().values()
    return sum(part.replicas * (memory.server + memory.gpu * part.gpus) for part in servers)


def _one_more(
    models: Sequence[ModelConfig], asked: Sequence[ModelConfig], room_gib: float, most_gpus: float
) -> list[ModelConfig] | None:
    """Return the models with one more server, of the role with the smallest share of the requested number; None if no
    further server fits.
    """
    for index, role in _by_share(models, asked):
        servers = models[index].topology.servers()
        replicas: dict[Role, int] = {name: part.replicas for name, part in servers.items()}
        grown = _with_replicas(models[index], {**replicas, role: replicas[role] + 1})
        changed = [*models[:index], grown, *models[index + 1 :]]
        fits = sum(map(_memory_gib, changed)) <= room_gib
        if fits and sum(model.topology.gpus for model in changed) <= most_gpus:
            return changed
    return None


def _by_share(models: Sequence[ModelConfig], asked: Sequence[ModelConfig]) -> Iterator[tuple[int, Role]]:
    """Yield model index and role of the servers that are fewer than requested, those with the smallest share first."""
    shares: list[tuple[float, int, Role]] = [
        (models[index].topology.servers()[role].replicas / servers.replicas, index, role)
        for index, model in enumerate(asked)
        for role, servers in model.topology.servers().items()
    ]
    for share, index, role in sorted(shares, key=lambda item: item[:2]):
        if share < 1:
            yield index, role
