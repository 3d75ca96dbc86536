"""The single measurements of a recipe: one load level with one seed at one deployment."""

from pydantic import BaseModel, ConfigDict

from llmd_oke.bench.workload.shapes import ClosedLoop, ConstantRate, LoadShape, PoissonRate
from llmd_oke.experiments.recipes.recipe import Arrival, Deployment, Load, Recipe


class Stage(BaseModel):
    """One measurement of one deployment; `name` is its folder. Rates are in model time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    arrival: Arrival
    level: float
    """Users of a closed loop, requests per second of an open one."""
    seed: int
    requests: int
    recipe_requests: int
    """Requests that the recipe asks for; more than `requests` where the run has a limit."""
    input_tokens: int
    output_tokens: int
    steady_state: bool = False

    @property
    def shape(self) -> LoadShape:
        """When its requests are sent."""
        match self.arrival:
            case "closed":
                return ClosedLoop(int(self.level))
            case "constant":
                return ConstantRate(self.level)
            case "poisson":
                return PoissonRate(self.level, self.seed)

    @property
    def concurrency(self) -> int | None:
        """Users of a closed loop."""
        return int(self.level) if self.arrival == "closed" else None


def stages(recipe: Recipe, deployment: Deployment, most_requests: int | None = None) -> tuple[Stage, ...]:
    """The measurements of a deployment in their order, none with more than `most_requests` requests.

    A closed loop keeps at least one request for each user.
    """
    return tuple(
        _stage(load, level, seed, most_requests)
        for load in recipe.loads_of(deployment)
        for level in load.levels
        for seed in recipe.seeds
    )


def _stage(load: Load, level: float, seed: int, most_requests: int | None) -> Stage:
    wanted = load.requests_at(level)
    users = int(level) if load.arrival == "closed" else 1
    return Stage(
        name=f"{load.name}-{'c' if load.arrival == 'closed' else 'r'}{level:g}-s{seed}",
        arrival=load.arrival,
        level=level,
        seed=seed,
        requests=wanted if most_requests is None else min(wanted, max(most_requests, users)),
        recipe_requests=wanted,
        input_tokens=load.input_tokens,
        output_tokens=load.output_tokens,
        steady_state=load.steady_state,
    )
