"""From a recipe and a stack to an experiment that can be run, or to everything that is wrong with it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llmd_oke import catalogue, config, planning
from llmd_oke.config import StackConfig
from llmd_oke.errors import KitError, Problem, Refused
from llmd_oke.experiments.recipes import files
from llmd_oke.experiments.recipes.recipe import Deployment, Recipe
from llmd_oke.experiments.recipes.schedule import Stage, stages
from llmd_oke.experiments.runs import forecast, stack_file
from llmd_oke.experiments.runs.folders import Settings
from llmd_oke.experiments.runs.forecast import Duration, Forecast, Round, durations
from llmd_oke.experiments.runs.packing import pack
from llmd_oke.rehearsal.time_scale import Demand, processors
from llmd_oke.rehearsal.time_scale import chosen as suiting
from llmd_oke.tuning.servers.figures import latency_model


@dataclass(frozen=True)
class Asked:
    """What a user asks for beside recipe and stack; what is None is the recipe's."""

    gpus: int | None = None
    rehearsed: bool = False
    time_scale: float | None = None
    most_requests: int | None = None
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """A recipe that can be run with a stack."""

    project: Path
    name: str
    recipe: Recipe
    settings: Settings
    base: StackConfig
    shape: catalogue.Shape
    deployments: tuple[Deployment, ...]

    @property
    def nodes(self) -> int:
        """Nodes that hold the GPUs."""
        return -(-self.settings.gpus // self.shape.gpus)

    @property
    def price_usd_per_gpu_hour(self) -> float:
        """List price of one GPU."""
        return self.shape.price_usd_per_hour / self.shape.gpus

    def rounds(self, names: Sequence[str]) -> list[list[Deployment]]:
        """Which of these deployments are up at the same time."""
        wanted = [each for each in self.deployments if each.object_name in names]
        return pack(wanted, lambda each: each.gpus, self.settings.gpus, lambda some: not list(self.problems(some)))

    def problems(self, some: Sequence[Deployment]) -> Iterator[Problem]:
        """What is wrong with having these deployments up at the same time."""
        models = [self.recipe.model_of(each) for each in some]
        if self.settings.rehearsed:
            value = stack_file.derive_rehearsed(self.base, self.settings.stack, models, self.nodes)
        else:
            value = stack_file.derive(self.base, self.settings.stack, models)
        try:
            planning.plan(config.validate(value))
        except Refused as refused:
            yield from refused.problems


def prepare(project: Path, name: str, stack: str, asked: Asked) -> Experiment:
    """The experiment of a recipe's name or path.

    Raises:
        KitError: there is no such recipe or stack.
        Refused: recipe or stack can't be used; carries every problem.
    """
    return prepare_recipe(project, name, files.load(name), stack, asked)


def prepare_recipe(project: Path, name: str, recipe: Recipe, stack: str, asked: Asked) -> Experiment:
    """An experiment whose every deployment fits; `name` is what its runs are stored under.

    Raises:
        KitError: there is no such stack.
        Refused: recipe or stack can't be used; carries every problem.
    """
    base = config.load(project, stack)
    shape = catalogue.shape(base.gpu_pools[0].shape)
    if shape is None:
        raise KitError(f"The catalogue has no shape {base.gpu_pools[0].shape}.", f"See llmd-oke check --stack {stack}.")
    chosen = _chosen(recipe, asked.only)
    gpus = asked.gpus or _gpus(recipe, chosen, base, shape, rehearsed=asked.rehearsed)
    time_scale = asked.time_scale or recipe.rehearsal.time_scale
    settings = Settings(
        stack=stack,
        gpus=gpus,
        rehearsed=asked.rehearsed,
        time_scale=(time_scale or _time_scale(recipe, chosen, shape, gpus)) if asked.rehearsed else 1.0,
        most_requests=asked.most_requests or (recipe.rehearsal.requests if asked.rehearsed else None),
        only=asked.only,
    )
    experiment = Experiment(project, name, recipe, settings, base, shape, chosen)
    if problems := {str(problem): problem for problem in _problems(experiment)}:
        raise Refused(list(problems.values()), files.VERDICT)
    return experiment


def _chosen(recipe: Recipe, only: Sequence[str]) -> tuple[Deployment, ...]:
    names = [each.object_name for each in recipe.deployments]
    if unknown := [name for name in only if name not in names]:
        raise KitError(f"The recipe has no deployment {', '.join(unknown)}.", f"It has {', '.join(names)}.")
    return tuple(each for each in recipe.deployments if not only or each.object_name in only)


def _time_scale(recipe: Recipe, chosen: Sequence[Deployment], shape: catalogue.Shape, gpus: int) -> float:
    """One at which this machine keeps up with all that is up at the same time, under the heaviest load."""
    facts = catalogue.model(recipe.model)
    latency = latency_model(facts, shape) if facts else None

    def tokens_per_s(deployment: Deployment, stage: Stage) -> float:
        if latency is None:
            return 0.0 if stage.arrival == "closed" else stage.level * stage.output_tokens
        return stage.requests * stage.output_tokens / forecast.stage_s(latency, deployment, stage)

    together = pack(chosen, lambda each: each.gpus, gpus, lambda _: True)
    scales: list[float] = []
    for some in together:
        models = [recipe.model_of(each) for each in some]
        routed = [model for model in models if model.router.mode != "none"]
        demand = Demand(
            pickers=sum(model.copies for model in routed),
            servers=sum(model.copies * role.replicas for model in routed for role in model.topology.servers().values()),
            tokens_per_s=max(tokens_per_s(each, stage) for each in some for stage in stages(recipe, each)),
        )
        scales.append(suiting(demand, processors()).scale)
    return max(scales)


def _gpus(
    recipe: Recipe, chosen: Sequence[Deployment], base: StackConfig, shape: catalogue.Shape, *, rehearsed: bool
) -> int:
    """The recipe's own number, or what its largest deployment needs; not more than the stack leaves free."""
    wanted = max(recipe.gpus or 1, *(each.gpus for each in chosen))
    if rehearsed:
        return wanted
    free = free_gpus(base, shape)
    if free < 1:
        remedy = "If they are not deployed, say how many GPUs are free: --gpus N."
        raise KitError("The stack's own models use all GPUs of its pools.", remedy)
    return min(wanted, free)


def free_gpus(base: StackConfig, shape: catalogue.Shape) -> int:
    """GPUs of the stack's pools that its own models don't use."""
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
        else:
            yield from (_of_deployment(problem, path) for problem in experiment.problems([deployment]))


def _of_deployment(problem: Problem, path: str) -> Problem:
    """The problem of a derived stack in the words of the recipe."""
    if problem.path.startswith("models[0]"):
        return replace(problem, path=path + problem.path.removeprefix("models[0]"))
    return replace(problem, path=f"{path} in the stack: {problem.path}")


def forecast_of(experiment: Experiment, names: Sequence[str], measured: Mapping[str, float]) -> Forecast:
    """What is left to do, with what was measured on the way."""
    rounds = tuple(_round(experiment, group, measured) for group in experiment.rounds(names))
    settings = experiment.settings
    return Forecast(rounds, settings.gpus, experiment.price_usd_per_gpu_hour, settings.rehearsed)


def _round(experiment: Experiment, group: Sequence[Deployment], measured: Mapping[str, float]) -> Round:
    assumed, settings = durations(), experiment.settings
    deploy_s = assumed.rehearsed_deploy_s if settings.rehearsed else assumed.deploy_s
    teardown_s = assumed.rehearsed_teardown_s if settings.rehearsed else assumed.teardown_s
    plans = [(each, stages(experiment.recipe, each, settings.most_requests)) for each in group]
    benches = [
        forecast.bench_duration(experiment.recipe, each, wanted, experiment.shape, settings.time_scale)
        for each, wanted in plans
    ]
    return Round(
        names=tuple(each.object_name for each in group),
        gpus=sum(each.gpus for each in group),
        deploy=forecast.of(measured, "deploy", deploy_s),
        bench=Duration(sum(each.seconds for each in benches), benches[0].basis),
        teardown=forecast.of(measured, "teardown", teardown_s),
        stages=sum(len(wanted) for _, wanted in plans),
    )
