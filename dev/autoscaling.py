"""Benchmark of autoscaling by KEDA and the HPA controller, against a fixed size and an oracle that knows the load.

The stack is rehearsed: Prometheus, KEDA and the HPA controller are real, servers and the cluster autoscaler are
simulated. Each load profile is sent once to as many servers as its peak rate needs, and once to servers that are scaled
by load. Scaling and profile run `--scaling-speed` times faster than in reality, requests don't; so a queue that builds
up while servers start is shorter than in reality, but takes longer to drain relative to the profile.

The oracle has at each time the fewest servers that serve the rate within the latency targets, by the tuner's latency
figures. They are ready in time and occupy their GPUs from the beginning of their start. The oracle's result is a
forecast, not a measurement.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
from autoscaling_load import ROLES, AnswerTimes, Look, Order
from bench_projects import project_copy
from llmd_base.errors import KitError
from llmd_base.progress import PlainProgress, Progress
from llmd_base.row import Basis
from llmd_bench.load.workload import RateProfile
from llmd_bench.plots.charts import steps_svg
from llmd_bench.plots.drawing import ChartPoint, ChartSeries
from llmd_oke.catalogue.latency_figures import known_figures
from llmd_tuner.confidence import confine
from llmd_tuner.families import capacities_of, fleet_of_counts
from llmd_tuner.search import kind_named, search
from llmd_tuner.search_inputs import SearchInputs, known_model, known_shape, parse_targets, question_of
from llmd_tuner.stack_file_edit import RoleThresholds, thresholds
from llmd_tuner.workload import of_lengths

STACK, MODEL, SHAPE = "autoscaling", "gpt-oss-120b", "BM.GPU.MI300X.8"
INPUT_TOKENS, OUTPUT_TOKENS, MAX_NUM_SEQS = 8192, 128, 32
TTFT_MS, TPOT_MS = 3000.0, 14.0
GPUS, FAMILY = 12, "p-tp1-d-tp1"
"""Number of GPUs, and deployment family (tensor parallel sizes of prefill and decode servers), of the deployment of
fixed size; the GPUs fill one and a half nodes.
"""

STARTUP_S = 300.0
"""Start-up time of a server whose weights are on its node's disk, in seconds at scaling speed 1; assumed."""

LEAD_S = 900.0
"""Duration, in seconds at scaling speed 1, for which a load profile's first rate is sent before the measurement."""

LIMIT_S = 1500.0

SHARES: Mapping[str, Sequence[tuple[float, float]]] = {
    "ramp": ((0, 0.2), (600, 0.2), (2400, 1.0), (3000, 1.0), (4800, 0.2), (5400, 0.2)),
    "burst": ((0, 0.25), (900, 0.25), (930, 0.9), (2100, 0.9), (2130, 0.25), (5400, 0.25)),
    "night": ((0, 0.8), (900, 0.8), (1800, 0.1), (4200, 0.1), (5100, 0.8), (5400, 0.8)),
}
"""Load profiles by name: pairs of a time in seconds and a share of the peak rate that the thresholds of the fixed size
allow (0.2 is 20 %).
"""


@dataclass(frozen=True)
class Size:
    """Number of prefill and of decode servers of a deployment."""

    prefill: int
    decode: int

    @property
    def gpus(self) -> int:
        """Number of GPUs of the deployment, one per server."""
        return self.prefill + self.decode


@dataclass(frozen=True)
class SizingStep:
    """Servers (`servers`), GPUs of servers (`gpus`) and GPUs of nodes (`node_gpus`) that a sizing method had from
    `at_s` (seconds at scaling speed 1) until the next step.
    """

    at_s: float
    servers: Size
    gpus: float
    node_gpus: float


@dataclass(frozen=True)
class SizingOutcome:
    """Result of one sizing method (autoscaling, fixed size, oracle) on one load profile; `attained` is the share of
    requests that were answered within the latency targets, `gpu_hours` are those of servers and `node_gpu_hours` those
    of nodes.
    """

    profile: str
    way: str
    gpu_hours: float
    node_gpu_hours: float
    attained: float | None
    requests: int | None
    failed: int | None
    turns_per_hour: float
    basis: str


@dataclass(frozen=True)
class SizingRun:
    """Result of one sizing method on one load profile, with its steps for the plot."""

    outcome: SizingOutcome
    steps: Sequence[SizingStep]
    failures: Sequence[str] = ()


def profile_of(name: str, peak_per_s: float, minutes: float | None = None) -> RateProfile:
    """Return the load profile with this name in seconds at scaling speed 1, compressed or stretched to `minutes` if
    given.
    """
    profile = RateProfile(name, tuple((at_s, share * peak_per_s) for at_s, share in SHARES[name]))
    return profile.faster(profile.duration_s / 60 / minutes) if minutes else profile


def with_lead(profile: RateProfile, lead_s: float) -> RateProfile:
    """Return the load profile preceded by its first rate for `lead_s` seconds."""
    first = profile.points[0][1]
    return RateProfile(profile.name, ((0.0, first), *((at_s + lead_s, rate) for at_s, rate in profile.points)))


def hours(steps: Sequence[SizingStep], end_s: float, amount: Callable[[SizingStep], float]) -> float:
    """Return the sum, in hours, of an amount of each step multiplied by the step's duration, such as GPU-hours for an
    amount in GPUs.
    """
    ends = [*(step.at_s for step in steps[1:]), end_s]
    return sum(amount(step) * max(0.0, end - step.at_s) for step, end in zip(steps, ends, strict=True)) / 3600


def turns(counts: Iterable[int]) -> int:
    """Return how often a series of counts turns from rising to falling or the reverse."""
    changes = [after - before for before, after in pairwise(counts) if after != before]
    return sum((before > 0) != (after > 0) for before, after in pairwise(changes))


def turns_per_hour(steps: Sequence[SizingStep], end_s: float) -> float:
    """Return how often per hour (at scaling speed 1) the number of prefill servers and that of decode servers turn from
    rising to falling or the reverse, both together, whether due to the load or to flapping.
    """
    roles = ([step.servers.prefill for step in steps], [step.servers.decode for step in steps])
    return sum(map(turns, roles)) / ((end_s - steps[0].at_s) / 3600)


def attained(answers: Sequence[AnswerTimes], ttft_ms: float = TTFT_MS, tpot_ms: float = TPOT_MS) -> float:
    """Return the share of requests that were answered within both latency targets; a failed request wasn't."""
    answered = [answer for answer in answers if answer.failure is None]
    in_time = [item for item in answered if item.ttft_ms is not None and item.ttft_ms <= ttft_ms]
    return sum(item.tpot_ms is not None and item.tpot_ms <= tpot_ms for item in in_time) / len(answers)


def steps_of(looks: Sequence[Look], lead_s: float, speed: float) -> list[SizingStep]:
    """Convert observations of the servers into steps in seconds at scaling speed 1.

    Servers terminate in wall time, so the GPUs of terminating servers are divided by `speed`.
    """
    return [
        SizingStep(
            look.at_s * speed - lead_s,
            Size(look.replicas["prefill"], look.replicas["decode"]),
            look.gpus - look.ending_gpus + look.ending_gpus / speed,
            look.node_gpus,
        )
        for look in looks
        if look.at_s * speed >= lead_s
    ]


class Capacities:
    """Maximum load that each number of servers serves within the latency targets, by the tuner's latency figures."""

    def __init__(self, question: SearchInputs, most: Size) -> None:
        family, kind = kind_named(question, FAMILY)
        sizes = [Size(*counts) for counts in product(range(1, most.prefill + 1), range(1, most.decode + 1))]
        fleet = fleet_of_counts(((size.prefill, size.decode, 1) for size in sizes), kind)
        capacities = capacities_of(question, family, fleet)
        carried = [(size, float(capacity)) for size, capacity in zip(sizes, capacities, strict=True)]
        self._fewest_first = sorted(carried, key=lambda item: (item[0].gpus, -item[1]))
        self._most = most

    def fewest(self, requests_per_s: float) -> Size:
        """Return the fewest servers that serve a rate of requests within the latency targets; the maximum number of
        servers if none do.
        """
        return next((size for size, most_per_s in self._fewest_first if most_per_s >= requests_per_s), self._most)


def oracle_steps(
    profile: RateProfile, fewest: Callable[[float], Size], startup_s: float, gpus_per_node: int, interval_s: float = 10
) -> list[SizingStep]:
    """Return the steps of an oracle that knows the load: at each time the maximum of the servers needed then and within
    one start-up time later.
    """
    moments = np.arange(0.0, profile.duration_s, interval_s)
    needed = [
        fewest(profile.rate_per_s(float(at_s))) for at_s in np.arange(0.0, profile.duration_s + startup_s, interval_s)
    ]
    ahead = round(startup_s / interval_s) + 1
    steps: list[SizingStep] = []
    for place, at_s in enumerate(moments):
        window = needed[place : place + ahead]
        size = Size(max(item.prefill for item in window), max(item.decode for item in window))
        nodes = -(-size.gpus // gpus_per_node)
        steps.append(SizingStep(float(at_s), size, size.gpus, nodes * gpus_per_node))
    return steps


@dataclass(frozen=True)
class Scene:
    """Setup of the autoscaling benchmark: search inputs, fixed size, minimum size, peak rate, and scaling
    thresholds.
    """

    question: SearchInputs
    fixed: Size
    least: Size
    peak_per_s: float
    by_role: Mapping[str, RoleThresholds]
    basis: str


def usual_scene() -> Scene:
    """Return the setup of the benchmark: the tuner's best deployment of `GPUS` GPUs as fixed size, and the peak rate
    that follows from its scaling thresholds.
    """
    model, shape = known_model(MODEL), known_shape(SHAPE)
    figures = known_figures(model, shape.gpu)
    targets = parse_targets(f"ttft={TTFT_MS:g},itl={TPOT_MS:g}")
    workload = of_lengths(INPUT_TOKENS, OUTPUT_TOKENS)
    question = question_of(model, shape, figures, workload, targets, GPUS, max_num_seqs=MAX_NUM_SEQS)
    question, confidence = confine(question, figures, allow_extrapolation=True)
    deployments = search(question).deployments()
    best = next(item for item in deployments if (item.family, item.copies, item.gpus) == (FAMILY, 1, GPUS))
    by_role = thresholds(question, best, confidence.tag)
    prompts = next(item.value for item in by_role["prefill"].thresholds if item.key == "promptTokensPerS")
    smaller = min(best.prefill, best.decode)
    least = Size(round(best.prefill / smaller), round(best.decode / smaller))
    peak_per_s = prompts * best.prefill / INPUT_TOKENS
    return Scene(question, Size(best.prefill, best.decode), least, peak_per_s, by_role, confidence.tag)


def stack_of(scene: Scene, *, scaled: bool) -> dict[str, Any]:
    """Return a stack that creates its cluster, with GPU nodes that the cluster autoscaler adds and removes.

    If not `scaled`, the number of servers is fixed: the minimum of replicas equals the maximum.
    """
    counts = {"prefill": (scene.least.prefill, scene.fixed.prefill), "decode": (scene.least.decode, scene.fixed.decode)}
    scaling = {
        role: {
            "minReplicas": least if scaled else most,
            "maxReplicas": most,
            **{item.key: item.value for item in scene.by_role[role].thresholds},
        }
        for role, (least, most) in counts.items()
    }
    model = {
        "model": MODEL,
        "topology": f"{scene.fixed.prefill}p-tp1-{scene.fixed.decode}d-tp1",
        "workload": {"inputTokens": INPUT_TOKENS, "outputTokens": OUTPUT_TOKENS},
        "slo": {"ttftMs": TTFT_MS, "itlMs": TPOT_MS},
        "engine": {"maxNumSeqs": MAX_NUM_SEQS},
        "scaling": scaling,
    }
    pool = {
        "name": "mi300x",
        "shape": SHAPE,
        "size": 2,
        "availabilityDomain": "Uocm:US-ASHBURN-AD-1",
        "image": {"ocid": "ocid1.image.oc1.iad.example"},
        "scaling": {"mode": "cluster-autoscaler", "minSize": 1, "maxSize": 2},
    }
    cluster = {
        "mode": "create",
        "name": STACK,
        "region": "us-ashburn-1",
        "compartmentId": "ocid1.compartment.oc1..example",
        "tenancyId": "ocid1.tenancy.oc1..example",
        "kubernetesVersion": "v1.34.2",
    }
    return {
        "cluster": cluster,
        "gpuPools": [pool],
        "systemPool": {"shape": "VM.Standard.E5.Flex", "ocpus": 16, "memoryGib": 64, "size": 1},
        "release": "llm-d-0.9.0",
        "models": [model],
        "smoke": {"where": "none"},
    }


class AutoscalingBenchmark:
    """Rehearsed stack in a Pulumi project of its own, to which load profiles are sent."""

    def __init__(
        self, source: Path, folder: Path, scene: Scene, speed: float, time_scale: float, progress: Progress
    ) -> None:
        self.folder, self.scene, self.speed, self.time_scale = folder, scene, speed, time_scale
        self.progress = progress
        self._project = project_copy(source, folder, STACK)
        self.command = partial(self._project.command, limit_s=LIMIT_S)

    def deploy(self, *, scaled: bool) -> None:
        """Deploy the stack in a rehearsal, or update it; `scaled` tells whether its servers follow the load."""
        self.progress.step(f"deploying servers that are {'scaled by load' if scaled else 'as many as the peak needs'}")
        self._project.write_stack(stack_of(self.scene, scaled=scaled))
        times = ("--time-scale", f"{self.time_scale:g}", "--scaling-speed", f"{self.speed:g}")
        start = ("--startup-seconds", f"{STARTUP_S / self.speed:g}")
        self.command("rehearse", "--stack", STACK, "--no-benchmark", *times, *start)

    def run(self, profile: RateProfile, way: str) -> SizingRun:
        """Send a load profile to the stack, and return the measurement of the requests and servers; `way` names the
        sizing method.
        """
        whole = with_lead(profile, LEAD_S).faster(self.speed * self.time_scale)
        self.progress.step(f"{profile.name}, {way}: {whole.duration_s * self.time_scale:.0f} s of load")
        order = Order(
            f"http://{MODEL}.llm-d.svc.cluster.local",
            known_model(MODEL).repository,
            "llm-d",
            known_shape(SHAPE).gpu.resource,
            f"{way}-{profile.name}",
            whole.points,
            INPUT_TOKENS,
            OUTPUT_TOKENS,
            self.time_scale,
        )
        file = self.folder / f"{order.name}.json"
        file.write_text(json.dumps(asdict(order)))
        load = Path(__file__).with_name("autoscaling_load.py")
        self.command("rehearse", "run", "--stack", STACK, "--", sys.executable, str(load), str(file))
        result = json.loads(file.with_suffix(".result.json").read_text())
        answers = [AnswerTimes(**item) for item in result["answers"] if item["due_s"] * self.speed >= LEAD_S]
        steps = steps_of([Look(**item) for item in result["looks"]], LEAD_S, self.speed)
        return measured_run(profile, way, answers, [step for step in steps if step.at_s < profile.duration_s])


def measured_run(
    profile: RateProfile, way: str, answers: Sequence[AnswerTimes], steps: Sequence[SizingStep]
) -> SizingRun:
    """Return the result of a load that was sent to a rehearsed stack; its latencies are those of simulated servers."""
    end_s, failures = profile.duration_s, [answer.failure for answer in answers if answer.failure]
    outcome = SizingOutcome(
        profile.name,
        way,
        hours(steps, end_s, lambda step: step.gpus),
        hours(steps, end_s, lambda step: step.node_gpus),
        attained(answers),
        len(answers),
        len(failures),
        turns_per_hour(steps, end_s),
        "measured; latencies calibrated",
    )
    return SizingRun(outcome, steps, sorted(set(failures)))


def oracle_run(profile: RateProfile, scene: Scene) -> SizingRun:
    """Return the forecast of the result that an oracle which knows the load would have."""
    fewest = Capacities(scene.question, scene.fixed).fewest
    steps = oracle_steps(profile, fewest, STARTUP_S, known_shape(SHAPE).gpus)
    end_s = profile.duration_s
    gpu_hours = hours(steps, end_s, lambda step: step.gpus)
    node_gpu_hours = hours(steps, end_s, lambda step: step.node_gpus)
    turned = turns_per_hour(steps, end_s)
    return SizingRun(
        SizingOutcome(profile.name, "oracle", gpu_hours, node_gpu_hours, None, None, None, turned, scene.basis), steps
    )


HEADINGS = ("profile", "servers", "GPU-hours", "of nodes", "within SLO", "failed", "turns/h", "basis")


def table(outcomes: Sequence[SizingOutcome]) -> str:
    """Return a Markdown table of results with one row for each sizing method and load profile."""
    rows = [HEADINGS, tuple("---" for _ in HEADINGS), *map(_cells, outcomes)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cells(outcome: SizingOutcome) -> tuple[str, ...]:
    within = "by forecast" if outcome.attained is None else f"{outcome.attained:.1%}"
    failed = "-" if outcome.failed is None else f"{outcome.failed} of {outcome.requests}"
    hours_text = (f"{outcome.gpu_hours:.1f}", f"{outcome.node_gpu_hours:.1f}")
    return (outcome.profile, outcome.way, *hours_text, within, failed, f"{outcome.turns_per_hour:.1f}", outcome.basis)


def plot(profile: RateProfile, runs: Sequence[SizingRun]) -> str:
    """Return an SVG chart of the load and of the servers of both roles over time in minutes at scaling speed 1."""
    moments = np.linspace(0, profile.duration_s, 200)
    load = [ChartPoint(float(at_s) / 60, profile.rate_per_s(float(at_s))) for at_s in moments]
    panels = {"Requests/s": [ChartSeries("load", load, Basis.MEASURED)]}
    for role in ROLES:
        panels[f"{role.title()} servers"] = [
            ChartSeries(
                run.outcome.way,
                [ChartPoint(step.at_s / 60, getattr(step.servers, role)) for step in run.steps],
                Basis.MEASURED if run.outcome.requests else Basis.CALIBRATED,
            )
            for run in runs
        ]
    return steps_svg(panels, title=f"{MODEL}: {profile.name}", x_label="Minutes of scaling time")


def main() -> None:
    """Run the autoscaling benchmark, print the table of its results, and write one plot for each load profile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--project", type=Path, required=True)
    parser.add_argument("--profile", choices=(*SHARES, "all"), default="all")
    parser.add_argument("--minutes", type=float, help="of scaling time that a profile lasts; 90 if left out")
    parser.add_argument("--scaling-speed", type=float, default=15.0, help="seconds of scaling in one of wall time")
    parser.add_argument("--time-scale", type=float, default=3.0, help="wall seconds for one of the simulated servers")
    parser.add_argument("--plots", type=Path, help="folder for plots, autoscaling-PROFILE.svg")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.scaling_speed < 1 or options.time_scale <= 0 or (options.minutes is not None and options.minutes <= 0):
        sys.exit("error --scaling-speed is at least 1, --time-scale and --minutes are above 0")
    names = list(SHARES) if options.profile == "all" else [options.profile]
    scene = usual_scene()
    profiles = [profile_of(name, scene.peak_per_s, options.minutes) for name in names]
    output = sys.stderr if options.json else sys.stdout
    print(
        f"times of scaling and of profiles are divided by {options.scaling_speed:g}, those of requests are not; "
        f"simulated servers take {options.time_scale:g} times their time; peak {scene.peak_per_s:.1f} requests/s",
        file=output,
    )
    with tempfile.TemporaryDirectory() as folder:
        benchmark = AutoscalingBenchmark(
            options.project,
            Path(folder) / "project",
            scene,
            options.scaling_speed,
            options.time_scale,
            PlainProgress(sys.stderr),
        )
        runs: dict[str, list[SizingRun]] = {}
        try:
            for profile in profiles:
                benchmark.deploy(scaled=False)
                fixed = benchmark.run(profile, "fixed")
                benchmark.deploy(scaled=True)
                runs[profile.name] = [fixed, benchmark.run(profile, "scaled"), oracle_run(profile, scene)]
        except KitError as error:
            sys.exit(f"error {error}")
        finally:
            benchmark.command("rehearse", "down", "--stack", STACK)
    for profile in profiles:
        for failure in (reason for run in runs[profile.name] for reason in run.failures):
            print(f"failed  {failure}", file=sys.stderr)
        if options.plots:
            (options.plots / f"autoscaling-{profile.name}.svg").write_text(plot(profile, runs[profile.name]))
    outcomes = [run.outcome for name in names for run in runs[name]]
    print(json.dumps([asdict(item) for item in outcomes], indent=2) if options.json else table(outcomes))


if __name__ == "__main__":
    main()
