"""Choice of a rehearsal's time scale: as fast as this machine's processors can simulate the stack.

The choice depends on the stack and the number of processors, not on their present load, so that a stack always gets the
same scale on one machine.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from llmd_oke.catalogue.latency_figures import known_figures
from llmd_oke.planning import ModelPlan, Plan
from llmd_oke.values import Entry, entry_reader
from llmd_tuner.latency_models import latency_model_of

from llmd_rehearsal.rehearsal_settings import SLOWEST

RULE_TIME_SCALE = 1 / 60
"""Wall seconds for one second of alert rules' windows and `for` durations: a minute takes one second."""


class ProcessorWork(Entry):
    """Processor seconds that one scrape of a server, or one output token, takes: of all programs together (`all_s`),
    and of the simulated vLLM's thread alone (`simulator_s`).
    """

    all_s: float
    simulator_s: float


class Picker(Entry):
    """Processor cores that each endpoint picker keeps busy in addition to scrapes and tokens: `own` by the picker
    itself at time scale 1; `at_rest` at any time scale by the Envoys, sidecars and probes of the servers behind it.
    """

    own: float
    at_rest: float


class ProcessorFigures(Entry):
    """Content of `values/rehearsal/time_scale.yaml`, by which the time scale is chosen. `control_plane` is the number
    of cores that the control plane keeps busy, `busy_share` the share of all cores, and of the simulated vLLM's thread,
    that may be busy on average, and `least_share` the share that simulated work gets at least, however busy the cores
    are otherwise.
    """

    scrapes_per_s: float
    scrape: ProcessorWork
    token: ProcessorWork
    picker: Picker
    control_plane: float
    busy_share: float
    least_share: float
    scales: tuple[float, ...]


figures = entry_reader("rehearsal", "time_scale", ProcessorFigures)
"""Return the figures by which the time scale is chosen, from `values/rehearsal/time_scale.yaml`."""


@dataclass(frozen=True)
class ProcessorDemand:
    """Work that a rehearsed stack makes in each second on real hardware: endpoint pickers that scrape servers, and
    output tokens of the benchmark.

    At a larger time scale both are spread over more wall time, as the pickers' scrape intervals are scaled too. Each
    server is scraped by `readers` endpoint pickers: one, or a leader and its standbys.
    """

    pickers: int
    servers: int
    tokens_per_s: float
    readers: int = 1

    def __str__(self) -> str:
        pickers = f"{self.pickers} endpoint picker{'' if self.pickers == 1 else 's'} reading {self.servers} servers, "
        return f"{pickers if self.pickers else ''}a benchmark of {self.tokens_per_s:,.0f} tokens/s"

    @property
    def cores(self) -> float:
        """Processor cores that the stack's work keeps busy at time scale 1, in addition to `at_rest`."""
        pickers = self.pickers * figures().picker.own + self._scrapes_per_s * figures().scrape.all_s
        return pickers + self.tokens_per_s * figures().token.all_s

    @property
    def at_rest(self) -> float:
        """Processor cores that are busy at any time scale, even without requests: by control plane, Envoys, sidecars
        and probes.
        """
        return figures().control_plane + self.pickers * figures().picker.at_rest

    @property
    def simulator(self) -> float:
        """Fraction of one core that the simulated vLLM's thread takes at time scale 1."""
        return self._scrapes_per_s * figures().scrape.simulator_s + self.tokens_per_s * figures().token.simulator_s

    @property
    def _scrapes_per_s(self) -> float:
        return self.servers * self.readers * figures().scrapes_per_s


@dataclass(frozen=True)
class TimeScale:
    """Wall seconds that a rehearsal takes for one second on real hardware, and the reason for this scale."""

    scale: float
    because: str

    def __str__(self) -> str:
        return f"time scale {self.scale:g}: {self.because}"


def demand_of(plan: Plan) -> ProcessorDemand:
    """Return the processor demand of a rehearsed stack with the smoke benchmarks of all its models running."""
    routed = [model for model in plan.models if model.routed]
    readers = max((model.router_replicas for model in routed), default=1)
    return ProcessorDemand(
        pickers=sum(model.router_replicas * len(model.units) for model in routed),
        servers=sum(role.replicas for model in routed for unit in model.units for role in unit.roles),
        tokens_per_s=sum(_tokens_per_s(plan, model) for model in plan.models if plan.smoke.where != "none"),
        readers=readers,
    )


def choose_time_scale(demand: ProcessorDemand, cores: float) -> TimeScale:
    """Return the smallest time scale of a rehearsal at which neither the processors nor the simulated vLLM's thread are
    overloaded.
    """
    machine = figures()
    free_cores = max(machine.busy_share * cores - demand.at_rest, machine.least_share * cores)
    least_scale = max(demand.cores / free_cores, demand.simulator / machine.busy_share)
    scale = next((scale for scale in machine.scales if scale >= least_scale), SLOWEST)
    busy, free = demand.cores + demand.at_rest, 1 - machine.busy_share
    return TimeScale(
        scale,
        f"at 1 the stack keeps {busy:.1f} processors busy of {cores:g} (calibrated: {demand}), and {free:.0%} of them "
        "must stay free for simulated steps to end in time",
    )


def processors(root: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the number of processors that this process may use: its CPU affinity, limited by the control group's
    quota.
    """
    allowed = float(len(os.sched_getaffinity(0)))
    try:
        quota, period = (root / "cpu.max").read_text().split()
        return min(allowed, int(quota) / int(period))
    except (OSError, ValueError):
        return allowed


def _tokens_per_s(plan: Plan, model: ModelPlan) -> float:
    """Return the output tokens per second of model time of a model's smoke benchmark, by the latency model of its
    servers.
    """
    shape, roles = plan.pools[0].shape, model.units[0].roles
    latency = latency_model_of(known_figures(model.model, shape.gpu), model.model, shape)
    workload, users = model.workload, plan.smoke.concurrency
    first, last = roles[0], roles[-1]
    batch = max(1, round(users / (last.replicas * len(model.units))))
    prefill_s = latency.prefill_s(workload.input_tokens, 0, first.parallelism)
    step_s = latency.decode_step_s(batch, workload.input_tokens + workload.output_tokens / 2, last.parallelism)
    return users * workload.output_tokens / (prefill_s + workload.output_tokens * step_s)
