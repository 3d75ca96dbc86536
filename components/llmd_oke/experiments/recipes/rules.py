"""What a recipe must satisfy beside its shape. Each rule yields the problems that it finds."""

from collections.abc import Iterator, Sequence

from llmd_oke.errors import Problem
from llmd_oke.experiments.recipes.recipe import Deployment, Load, Recipe


def recipe_problems(recipe: Recipe) -> list[Problem]:
    """All problems of a recipe by itself, whatever stack it is for."""
    return [
        *_twice([load.name for load in recipe.loads], "loads"),
        *_twice([deployment.object_name for deployment in recipe.deployments], "deployments"),
        *_baseline(recipe),
        *(problem for i, load in enumerate(recipe.loads) for problem in _load(load, f"loads[{i}]")),
        *(problem for i, each in enumerate(recipe.deployments) for problem in _deployment(recipe, each, i)),
    ]


def _twice(names: Sequence[str], key: str) -> Iterator[Problem]:
    for i, name in enumerate(names):
        if (first := names.index(name)) < i:
            yield Problem(f"{key}[{i}].name", name, "a name of its own", f"{key}[{first}] has it already")


def _baseline(recipe: Recipe) -> Iterator[Problem]:
    names = [deployment.object_name for deployment in recipe.deployments]
    if recipe.baseline is not None and recipe.baseline not in names:
        yield Problem("baseline", recipe.baseline, "one of " + ", ".join(names), "there is no such deployment")


def _load(load: Load, path: str) -> Iterator[Problem]:
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


def _deployment(recipe: Recipe, deployment: Deployment, index: int) -> Iterator[Problem]:
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
    if deployment.subject == "prefill-only":
        yield from _longer_than_one_token(recipe, deployment, path)


def _longer_than_one_token(recipe: Recipe, deployment: Deployment, path: str) -> Iterator[Problem]:
    long = [load.name for load in recipe.loads_of(deployment) if load.output_tokens != 1]
    if long:
        accepted = "loads with outputTokens: 1"
        yield Problem(f"{path}.loads", ", ".join(long), accepted, "a prefill ends with the first token")
