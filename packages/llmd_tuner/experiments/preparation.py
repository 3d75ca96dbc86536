"""Preparation of an experiment from a recipe and a stack: its duration and price, or all problems that prevent it.

A closed loop ends when its requests are answered. Its duration is computed with the latency model, without queues at
the router: accurate enough for a bill, but no forecast of results.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from llmd_base.errors import InvalidStack, KitError, Problem
from llmd_oke import catalogue, config, planning
from llmd_oke.config import StackConfig
from llmd_oke.values import Entry, entry_reader

from llmd_tuner.experiments import deployer, recipes
from llmd_tuner.experiments.deployer import rehearsal
from llmd_tuner.experiments.recipes import Recipe, RecipeDeployment, RecipeStage, stages
from llmd_tuner.experiments.runs import RunSettings
from llmd_tuner.latency import LatencyModel
from llmd_tuner.latency_models import latency_model

Thing = TypeVar("Thing")


class Durations(Entry):
    """Content of `values/experiments/durations.yaml`: durations in seconds that are assumed until they are measured."""

    name: str
    deploy_s: float
    teardown_s: float
    settle_s: float
    rehearsed_deploy_s: float
    rehearsed_teardown_s: float


durations = entry_reader("experiments", "durations", Durations)
"""Return the assumed durations of `values/experiments/durations.yaml`."""


@dataclass(frozen=True)
class WallDuration:
    """Duration in seconds of wall time, and its basis: `measured`, `calibrated` or `assumed`."""

    seconds: float
    basis: str


@dataclass(frozen=True)
class ExperimentRound:
    """Deployments that are up at the same time and measured one after the other."""

    names: tuple[str, ...]
    gpus: int
    deploy: WallDuration
    bench: WallDuration
    teardown: WallDuration
    stages: int

    @property
    def seconds(self) -> float:
        """Duration of the round (deployment, measurements and teardown) in seconds of wall time."""
        return self.deploy.seconds + self.bench.seconds + self.teardown.seconds


@dataclass(frozen=True)
class Forecast:
    """Forecast of a run: its rounds, and the price of all its GPUs from the first deployment to the last teardown."""

    rounds: tuple[ExperimentRound, ...]
    gpus: int
    price_usd_per_gpu_hour: float
    rehearsed: bool

    @property
    def seconds(self) -> float:
        """Duration of all rounds in seconds of wall time."""
        return sum(round_.seconds for round_ in self.rounds)

    @property
    def gpu_hours(self) -> float:
        """Hours for which GPUs are occupied, summed over all GPUs; in a rehearsal, those of simulated GPUs."""
        return self.gpus * self.seconds / 3600

    @property
    def price_usd(self) -> float:
        """List price of all GPUs that the run occupies, for as long as it does, in US dollars."""
        return 0.0 if self.rehearsed else self.gpu_hours * self.price_usd_per_gpu_hour


def bench_duration(
    recipe: Recipe,
    deployment: RecipeDeployment,
    stages: Sequence[RecipeStage],
    shape: catalogue.Shape,
    time_scale: float,
) -> WallDuration:
    """Return the forecast duration of all measurements of a deployment: in a rehearsal, multiplied by its time
    scale.
    """
    latencies = server_latencies(deployment.model or recipe.model, shape)
    if latencies is None:
        known = all(stage.arrival != "closed" for stage in stages)
        seconds = sum(_open_s(stage) for stage in stages if stage.arrival != "closed")
        return WallDuration(seconds * time_scale, "assumed" if known else "at least, closed loops not counted")
    seconds = durations().settle_s + sum(latencies.stage_s(deployment, stage) for stage in stages)
    return WallDuration(seconds * time_scale, "calibrated")


@dataclass(frozen=True)
class ServerLatencies:
    """Latency model and data of a model's servers on nodes of a shape, from which durations of stages are forecast."""

    facts: catalogue.CatalogueModel
    shape: catalogue.Shape
    model: LatencyModel

    def stage_s(self, deployment: RecipeDeployment, stage: RecipeStage) -> float:
        """Return the forecast duration of a stage of load on real hardware, from its first request to its last token,
        in seconds.
        """
        return max(_open_s(stage), stage.requests * self._request_s(deployment, stage))

    def _request_s(self, deployment: RecipeDeployment, stage: RecipeStage) -> float:
        """Return the busiest ranks' time for one request: those of prefill one after the other, those of decode in
        batches.

        A closed loop also waits for its own users: a request takes a user the whole of its latency.
        """
        roles = list(deployment.topology.servers().values())
        first, last = (
            role.parallelism(expert_parallel=self.facts.expert_parallel, node_gpus=self.shape.gpus)
            for role in (roles[0], roles[-1])
        )
        prefilling = roles[0].replicas * first.data_parallel_size * deployment.copies
        decoding = roles[-1].replicas * last.data_parallel_size * deployment.copies
        computed = deployment.subject != "decode-only"
        prefill_s = self.model.prefill_s(stage.input_tokens, 0, first) if computed else 0.0
        users = stage.concurrency or stage.requests
        batch = max(1, min(users // decoding, deployment.engine.max_num_seqs))
        context = stage.input_tokens + stage.output_tokens / 2
        decode_s = stage.output_tokens * self.model.decode_step_s(batch, context, last)
        prefill_share_s, decode_share_s = prefill_s / prefilling, decode_s / batch / decoding
        if not deployment.topology.disaggregated:
            return prefill_share_s + decode_share_s
        return max(prefill_share_s, decode_share_s, (prefill_s + decode_s) / users)


def server_latencies(name: str, shape: catalogue.Shape) -> ServerLatencies | None:
    """Return the latencies of a model's servers by the kit's own figures; None where it has no figures for them."""
    facts = catalogue.model(name)
    model = latency_model(facts, shape) if facts else None
    return ServerLatencies(facts, shape, model) if facts and model else None


def _open_s(stage: RecipeStage) -> float:
    return 0.0 if stage.arrival == "closed" else stage.requests / stage.level


def of(seconds: Mapping[str, float], key: str, assumed_s: float) -> WallDuration:
    """Return the duration of a step (`key` is `deploy` or `teardown`): the longest measured one in `seconds`, or
    `assumed_s` where none was measured.
    """
    return WallDuration(seconds[key], "measured") if key in seconds else WallDuration(assumed_s, "assumed")


def pack(
    things: Sequence[Thing], size: Callable[[Thing], int], capacity: int, fits: Callable[[Sequence[Thing]], bool]
) -> list[list[Thing]]:
    """Group things so that the sizes in each group sum up to at most `capacity`, by first fit decreasing (at most 11/9
    of the fewest groups). `fits` decides in the end whether things may share a group; each thing must fit alone. Things
    of equal size keep their order.
    """
    groups: list[list[Thing]] = []
    for thing in sorted(things, key=size, reverse=True):
        for group in groups:
            if sum(map(size, group)) + size(thing) <= capacity and fits([*group, thing]):
                group.append(thing)
                break
        else:
            groups.append([thing])
    return groups


@dataclass(frozen=True)
class RunOptions:
    """Choices of a user for an experiment's run: GPUs, rehearsal, maximum number of requests of each stage, and names
    of the deployments to measure (all if empty). A choice that is None is left to the recipe.
    """

    gpus: int | None = None
    rehearsed: bool = False
    time_scale: float | None = None
    most_requests: int | None = None
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """Recipe with the stack from which its deployments are derived, checked so that it can be run."""

    project: Path
    name: str
    recipe: Recipe
    settings: RunSettings
    base: StackConfig
    shape: catalogue.Shape
    deployments: tuple[RecipeDeployment, ...]

    @property
    def nodes(self) -> int:
        """Number of nodes that have the GPUs of the experiment."""
        return -(-self.settings.gpus // self.shape.gpus)

    @property
    def price_usd_per_gpu_hour(self) -> float:
        """List price of one GPU of the experiment in US dollars per hour."""
        return self.shape.price_usd_per_hour / self.shape.gpus

    def rounds(self, names: Sequence[str]) -> list[list[RecipeDeployment]]:
        """Group the named deployments into rounds; all deployments of a round are in the cluster at the same time."""
        selected = [deployment for deployment in self.deployments if deployment.object_name in names]
        return pack(
            selected, lambda deployment: deployment.gpus, self.settings.gpus, lambda some: not list(self.problems(some))
        )

    def problems(self, together: Sequence[RecipeDeployment]) -> Iterator[Problem]:
        """Yield the problems that prevent these deployments from being deployed at the same time."""
        models = [self.recipe.model_of(deployment) for deployment in together]
        if self.settings.rehearsed:
            value = deployer.derive_rehearsed(self.base, self.settings.stack, models, self.nodes)
        else:
            value = deployer.derive(self.base, self.settings.stack, models)
        try:
            planning.plan(config.validate(value))
        except InvalidStack as refused:
            yield from refused.problems


def prepare(project: Path, name: str, stack: str, options: RunOptions) -> Experiment:
    """Prepare a run of a recipe, given by name or path, with a stack: select the deployments, and check that each fits.

    Raises:
        KitError: there is no such recipe or stack.
        InvalidStack: recipe or stack can't be used; carries every problem.
    """
    return prepare_recipe(project, name, recipes.load(name), stack, options)


def prepare_recipe(project: Path, name: str, recipe: Recipe, stack: str, options: RunOptions) -> Experiment:
    """Prepare a run of a recipe with a stack: select the deployments, and check that each fits. `name` is the name
    under which the runs are stored.

    Raises:
        KitError: there is no such stack.
        InvalidStack: recipe or stack can't be used; carries every problem.
    """
    base = config.load(project, stack)
    shape = catalogue.shape(base.gpu_pools[0].shape)
    if shape is None:
        raise KitError(f"The catalogue has no shape {base.gpu_pools[0].shape}.", f"See llmd-oke check --stack {stack}.")
    names = [deployment.object_name for deployment in recipe.deployments]
    if unknown := [only for only in options.only if only not in names]:
        raise KitError(f"The recipe has no deployment {', '.join(unknown)}.", f"It has {', '.join(names)}.")
    chosen = tuple(item for item in recipe.deployments if not options.only or item.object_name in options.only)
    gpus = options.gpus or _gpus(recipe, chosen, base, shape, rehearsed=options.rehearsed)
    time_scale = options.time_scale or recipe.rehearsal.time_scale
    settings = RunSettings(
        stack=stack,
        gpus=gpus,
        rehearsed=options.rehearsed,
        time_scale=(time_scale or _time_scale(recipe, chosen, shape, gpus)) if options.rehearsed else 1.0,
        most_requests=options.most_requests or (recipe.rehearsal.requests if options.rehearsed else None),
        only=options.only,
    )
    experiment = Experiment(project, name, recipe, settings, base, shape, chosen)
    if problems := {str(problem): problem for problem in _problems(experiment)}:
        raise InvalidStack(list(problems.values()), recipes.VERDICT)
    return experiment


def _time_scale(recipe: Recipe, chosen: Sequence[RecipeDeployment], shape: catalogue.Shape, gpus: int) -> float:
    """Return a time scale at which this machine keeps up with the heaviest load of all that is up at the same time."""
    latencies = server_latencies(recipe.model, shape)

    def tokens_per_s(deployment: RecipeDeployment, stage: RecipeStage) -> float:
        if latencies is None:
            return 0.0 if stage.arrival == "closed" else stage.level * stage.output_tokens
        return stage.requests * stage.output_tokens / latencies.stage_s(deployment, stage)

    together = pack(chosen, lambda deployment: deployment.gpus, gpus, lambda _: True)
    scales: list[float] = []
    for group in together:
        models = [recipe.model_of(deployment) for deployment in group]
        routed = [model for model in models if model.router.mode != "none"]
        pickers = sum(model.copies for model in routed)
        servers = sum(model.copies * role.replicas for model in routed for role in model.topology.servers().values())
        rate = max(tokens_per_s(deployment, stage) for deployment in group for stage in stages(recipe, deployment))
        scales.append(rehearsal().time_scale(pickers, servers, rate))
    return max(scales)


def _gpus(
    recipe: Recipe, chosen: Sequence[RecipeDeployment], base: StackConfig, shape: catalogue.Shape, *, rehearsed: bool
) -> int:
    """Return the recipe's own number of GPUs, or what its largest deployment needs; not more than the stack leaves
    free.
    """
    needed = max(recipe.gpus or 1, *(deployment.gpus for deployment in chosen))
    if rehearsed:
        return needed
    free = free_gpus(base, shape)
    if free < 1:
        remedy = "If they are not deployed, say how many GPUs are free: --gpus N."
        raise KitError("The stack's own models use all GPUs of its pools.", remedy)
    return min(needed, free)


def free_gpus(base: StackConfig, shape: catalogue.Shape) -> int:
    """Return the number of GPUs in the GPU pools of `base`, all of this shape, that its own models don't use."""
    own = sum(model.topology.gpus * model.copies for model in base.models)
    return sum(pool.size for pool in base.gpu_pools) * shape.gpus - own


def _problems(experiment: Experiment) -> Iterator[Problem]:
    limit = experiment.settings.gpus
    free = free_gpus(experiment.base, experiment.shape)
    for deployment in experiment.deployments:
        path = f"deployments[{experiment.recipe.deployments.index(deployment)}]"
        if deployment.gpus > limit:
            why = f"{deployment.gpus} GPUs are more than the {limit} of the experiment"
            if not experiment.settings.rehearsed and free < deployment.gpus:
                why += f"; the stack's own models leave {max(0, free)} of its pools"
            accepted = f"--gpus {deployment.gpus} or more, or --only without it"
            yield Problem(f"{path}.topology", str(deployment.topology), accepted, why)
            continue
        for problem in experiment.problems([deployment]):  # of the derived stack, in the words of the recipe
            of_model = problem.path.startswith("models[0]")
            own = problem.path.removeprefix("models[0]") if of_model else f" in the stack: {problem.path}"
            yield replace(problem, path=f"{path}{own}")


def forecast_of(experiment: Experiment, names: Sequence[str], measured: Mapping[str, float]) -> Forecast:
    """Forecast duration and price of the named deployments of an experiment, from the durations that the run has
    measured so far.
    """
    rounds = tuple(_round(experiment, group, measured) for group in experiment.rounds(names))
    settings = experiment.settings
    return Forecast(rounds, settings.gpus, experiment.price_usd_per_gpu_hour, settings.rehearsed)


def _round(experiment: Experiment, group: Sequence[RecipeDeployment], measured: Mapping[str, float]) -> ExperimentRound:
    assumed, settings = durations(), experiment.settings
    deploy_s = assumed.rehearsed_deploy_s if settings.rehearsed else assumed.deploy_s
    teardown_s = assumed.rehearsed_teardown_s if settings.rehearsed else assumed.teardown_s
    plans = [(deployment, stages(experiment.recipe, deployment, settings.most_requests)) for deployment in group]
    benches = [
        bench_duration(experiment.recipe, deployment, stages_, experiment.shape, settings.time_scale)
        for deployment, stages_ in plans
    ]
    return ExperimentRound(
        names=tuple(deployment.object_name for deployment in group),
        gpus=sum(deployment.gpus for deployment in group),
        deploy=of(measured, "deploy", deploy_s),
        bench=WallDuration(sum(deployment.seconds for deployment in benches), benches[0].basis),
        teardown=of(measured, "teardown", teardown_s),
        stages=sum(len(stages_) for _, stages_ in plans),
    )
