"""Recipes of experiments: which deployments are measured under which loads. The data is in `values/recipes`, or in a
file of the user's.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from llmd_base.errors import InvalidStack, KitError, Problem
from llmd_bench.load.workload import ClosedLoop, ConstantRate, LoadShape, PoissonRate
from llmd_oke import config
from llmd_oke.config import shape_problems, yaml_files
from llmd_oke.config.base import ConfigPart, DnsLabel, Items
from llmd_oke.config.model import MAX_COPIES
from llmd_oke.values import names, values_folder
from pydantic import BaseModel, ConfigDict, Field, ValidationError

KIND = "recipes"

VERDICT = "the recipe can't be run"

Subject = Literal["end-to-end", "prefill-only", "decode-only"]
Arrival = Literal["closed", "constant", "poisson"]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]

DECODE_BENCH = '--kv-transfer-config={"kv_connector": "DecodeBenchConnector", "kv_role": "kv_both"}'
"""vLLM argument with which a server fills the KV cache of a prompt instead of computing it, so that it only decodes."""


class RecipeDeployment(ConfigPart):
    """Deployment that a recipe measures: its topology, and the vLLM settings that differ from the kit's."""

    name: DnsLabel | None = None
    """Name of the deployment's objects in the cluster and in results; made from the topology if left out."""

    model: str | None = None
    """Key of the model in the catalogue; the recipe's own model if left out."""

    topology: config.Topology
    """Servers of one unit, in short form (`8p-tp1-4d-tp2`, `agg-tp1-16r`) or in long form."""

    copies: Annotated[int, Field(ge=1, le=MAX_COPIES)] = 1
    """Number of units: copies of the topology, each behind its own router."""

    router: config.RouterConfig | None = None
    """Endpoint picker and proxy, or none. If left out, one in front of a whole deployment and none in front of servers
    that are measured by themselves."""

    engine: config.Engine = config.Engine()
    """vLLM settings of the servers."""

    subject: Subject = "end-to-end"
    """Servers under load: `end-to-end`, the whole deployment; `prefill-only`, servers that answer with one token;
    `decode-only`, servers whose prompts are filled in instead of computed (vLLM's DecodeBenchConnector).
    """

    loads: Annotated[Items[str], Field(min_length=1)] | None = None
    """Names of the loads under which the deployment is measured; all if left out."""

    @property
    def object_name(self) -> str:
        """Name of the deployment's Kubernetes objects: a topology in short form, prefixed with a letter as Kubernetes
        requires.
        """
        if self.name:
            return self.name
        topology = f"disagg-{self.topology}" if self.topology.disaggregated else str(self.topology)
        role = "" if self.subject == "end-to-end" else f"-{self.subject.removesuffix('-only')}"
        return f"{topology}{role}" + (f"-x{self.copies}" if self.copies > 1 else "")

    @property
    def gpus(self) -> int:
        """Number of GPUs of all servers in all units of the deployment."""
        return self.topology.gpus * self.copies


class RecipeLoad(ConfigPart):
    """Load with requests of one length at one or several levels: numbers of users of a closed loop, or rates of an open
    one.
    """

    name: DnsLabel
    """Name of the load in results."""

    arrival: Arrival
    """`closed`: a fixed number of requests in flight. `constant`: requests at even intervals. `poisson`: requests of
    independent users."""

    concurrencies: Items[Count] = ()
    """Levels of a closed loop: numbers of requests in flight."""

    requests_per_s: Items[Positive] = ()
    """Levels of an open loop: requests offered per second."""

    requests: Count | None = None
    """Minimum number of requests of each level."""

    duration_s: Positive | None = None
    """Minimum seconds of each level of an open loop."""

    requests_per_user: Count | None = None
    """Minimum number of requests of each user of a closed loop."""

    steady_state: bool = False
    """Whether only the part of a run counts in which all users of a closed loop were busy or, in an open loop, both
    requests were sent and answers arrived.
    """

    input_tokens: Count
    """Prompt length (ISL) in tokens."""

    output_tokens: Count
    """Output length (OSL) in tokens."""

    @property
    def levels(self) -> tuple[float, ...]:
        """Levels of the load: numbers of users of a closed loop, or requests per second of an open one."""
        return self.concurrencies if self.arrival == "closed" else self.requests_per_s

    def requests_at(self, level: float) -> int:
        """Return the number of requests to send at a level: enough for each minimum of the load, and at least one for
        each user.
        """
        per_level = (self.requests_per_user or 1) if self.arrival == "closed" else (self.duration_s or 0)
        return max(self.requests or 1, round(per_level * level))


class RehearsalScale(ConfigPart):
    """Scale at which one machine can rehearse a recipe."""

    time_scale: Annotated[float, Field(ge=0.01, le=100)] | None = None
    """Wall seconds for each simulated second; if left out, as many as the machine needs to keep up with the loads."""

    requests: Count | None = None
    """Maximum number of requests of each level."""


class Recipe(ConfigPart):
    """List of deployments, and list of loads under which each of them is measured."""

    description: str
    """Purpose of the recipe."""

    source: str = ""
    """Source of the recipe's figures."""

    model: str
    """Key in the catalogue of the model that the deployments serve."""

    gpus: Count | None = None
    """Number of GPUs that the recipe was made for; those of the stack if left out."""

    deployments: Annotated[Items[RecipeDeployment], Field(min_length=1)]
    """Deployments that are measured, one after the other."""

    baseline: str | None = None
    """Name of the deployment that the others are compared with; the first if left out."""

    loads: Annotated[Items[RecipeLoad], Field(min_length=1)]
    """Loads under which each deployment is measured."""

    seeds: Annotated[Items[int], Field(min_length=1)] = (0,)
    """Random seeds: every level is measured once with each, and several show how much results vary."""

    slo: config.Slo = config.Slo()
    """Latency targets that decide which requests count as good."""

    rehearsal: RehearsalScale = RehearsalScale()
    """Scale at which the recipe is rehearsed."""

    def loads_of(self, deployment: RecipeDeployment) -> tuple[RecipeLoad, ...]:
        """Return the loads under which a deployment is measured."""
        return tuple(load for load in self.loads if deployment.loads is None or load.name in deployment.loads)

    def named(self, name: str) -> RecipeDeployment:
        """Return the recipe's deployment with a name, which must exist."""
        return next(deployment for deployment in self.deployments if deployment.object_name == name)

    def model_of(self, deployment: RecipeDeployment) -> config.ModelConfig:
        """Return the model entry of a stack file that declares a deployment of the recipe."""
        loads, engine = self.loads_of(deployment), deployment.engine
        alone = deployment.subject != "end-to-end"
        if deployment.subject == "decode-only":
            engine = engine.model_copy(update={"extra_args": (*engine.extra_args, DECODE_BENCH)})
        return config.ModelConfig(
            model=deployment.model or self.model,
            name=deployment.object_name,
            topology=deployment.topology,
            copies=deployment.copies,
            router=deployment.router or config.RouterConfig(mode="none" if alone else "standalone"),
            workload=config.WorkloadConfig(
                input_tokens=max(load.input_tokens for load in loads),
                output_tokens=max(load.output_tokens for load in loads),
            ),
            engine=engine,
        )


class RecipeStage(BaseModel):
    """Measurement of one deployment under one level of a load with one seed. `name` is the name of the folder with its
    results; rates are requests per second as on real hardware, also in a slower rehearsal.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    arrival: Arrival
    level: float
    """Number of users of a closed loop, or requests per second of an open one."""
    seed: int
    requests: int
    recipe_requests: int
    """Requests that the recipe asks for; more than `requests` where the run has a limit."""
    input_tokens: int
    output_tokens: int
    steady_state: bool = False

    @property
    def shape(self) -> LoadShape:
        """Pattern in which the stage's requests are sent: closed loop, constant rate or Poisson arrivals."""
        match self.arrival:
            case "closed":
                return ClosedLoop(int(self.level))
            case "constant":
                return ConstantRate(self.level)
            case "poisson":
                return PoissonRate(self.level, self.seed)

    @property
    def concurrency(self) -> int | None:
        """Number of users of a closed loop; None for an open loop."""
        return int(self.level) if self.arrival == "closed" else None


def stages(recipe: Recipe, deployment: RecipeDeployment, most_requests: int | None = None) -> tuple[RecipeStage, ...]:
    """Return the measurements of a deployment in their order, each with at most `most_requests` requests, but at least
    one for each user of a closed loop.
    """
    return tuple(
        _stage(load, level, seed, most_requests)
        for load in recipe.loads_of(deployment)
        for level in load.levels
        for seed in recipe.seeds
    )


def _stage(load: RecipeLoad, level: float, seed: int, most_requests: int | None) -> RecipeStage:
    requests = load.requests_at(level)
    users = int(level) if load.arrival == "closed" else 1
    return RecipeStage(
        name=f"{load.name}-{'c' if load.arrival == 'closed' else 'r'}{level:g}-s{seed}",
        arrival=load.arrival,
        level=level,
        seed=seed,
        requests=requests if most_requests is None else min(requests, max(most_requests, users)),
        recipe_requests=requests,
        input_tokens=load.input_tokens,
        output_tokens=load.output_tokens,
        steady_state=load.steady_state,
    )


def recipe_problems(recipe: Recipe) -> list[Problem]:
    """Return all problems of a recipe that are independent of the stack it is run with."""
    names = [deployment.object_name for deployment in recipe.deployments]
    baseline = "one of " + ", ".join(names), "there is no such deployment"
    return [
        *_twice([load.name for load in recipe.loads], "loads"),
        *_twice(names, "deployments"),
        *([] if recipe.baseline in {None, *names} else [Problem("baseline", recipe.baseline, *baseline)]),
        *(problem for i, load in enumerate(recipe.loads) for problem in _load(load, f"loads[{i}]")),
        *(problem for i, deployment in enumerate(recipe.deployments) for problem in _deployment(recipe, deployment, i)),
    ]


def _twice(names: Sequence[str], key: str) -> Iterator[Problem]:
    for i, name in enumerate(names):
        if (first := names.index(name)) < i:
            yield Problem(f"{key}[{i}].name", name, "a name of its own", f"{key}[{first}] has it already")


def _load(load: RecipeLoad, path: str) -> Iterator[Problem]:
    closed = load.arrival == "closed"
    levels, other_levels = ("concurrencies", "requestsPerS") if closed else ("requestsPerS", "concurrencies")
    enough, other_enough = ("requestsPerUser", "durationS") if closed else ("durationS", "requestsPerUser")
    given = load.model_dump(by_alias=True, exclude_defaults=True)
    loop = f"a load that arrives {load.arrival}"
    if levels not in given:
        yield Problem(f"{path}.{levels}", None, "a list of levels", f"{loop} needs them")
    if not given.keys() & {"requests", enough}:
        yield Problem(f"{path}.{enough}", None, f"{enough}, requests, or both", f"{loop} must end")
    for key in sorted(given.keys() & {other_levels, other_enough}):
        yield Problem(f"{path}.{key}", given[key], f"nothing, or {levels} and {enough}", f"{loop} has no such thing")


def _deployment(recipe: Recipe, deployment: RecipeDeployment, index: int) -> Iterator[Problem]:
    path = f"deployments[{index}]"
    known = [load.name for load in recipe.loads]
    for i, name in enumerate(deployment.loads or ()):
        if name not in known:
            yield Problem(f"{path}.loads[{i}]", name, "one of " + ", ".join(known), "there is no such load")
    if deployment.subject == "end-to-end":
        return
    if deployment.topology.disaggregated:
        why = f"{deployment.subject} measures servers of one kind by themselves"
        yield Problem(f"{path}.topology", str(deployment.topology), "an aggregated topology, as agg-tp1-1r", why)
    long = [load.name for load in recipe.loads_of(deployment) if load.output_tokens != 1]
    if deployment.subject == "prefill-only" and long:
        accepted = "loads with outputTokens: 1"
        yield Problem(f"{path}.loads", ", ".join(long), accepted, "a prefill ends with the first token")


def find(name: str) -> Path:
    """Return the path of a recipe's file; `name` is the name of one of the kit's recipes, or a path that ends in .yaml
    or .yml.

    Raises:
        KitError: there is no such recipe.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else values_folder() / KIND / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(names(KIND))
        raise KitError(f"There is no recipe {name}.", f"Recipes here: {known}; or give the path of a file in YAML.")
    return path


def load(name: str) -> Recipe:
    """Read a recipe; `name` is the name of one of the kit's recipes, or the path of a YAML file.

    Raises:
        KitError: there is no such recipe, or it is not YAML.
        InvalidStack: the recipe is invalid; carries every problem.
    """
    content = yaml_files.read(find(name))
    if problems := list(content.problems()):
        raise InvalidStack(problems, VERDICT)
    return validate(content.value)


def validate(value: Any) -> Recipe:
    """Validate the content of a recipe's file, and return it as a recipe.

    Raises:
        InvalidStack: the recipe is invalid; carries every problem.
    """
    try:
        recipe = Recipe.model_validate(value, by_alias=True, by_name=False)
    except ValidationError as error:
        raise InvalidStack(shape_problems.problems(error.errors(include_url=False), value, Recipe), VERDICT) from error
    if problems := recipe_problems(recipe):
        raise InvalidStack(problems, VERDICT)
    return recipe
