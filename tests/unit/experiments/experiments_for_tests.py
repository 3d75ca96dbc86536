"""Recipes, stacks and a deployer for tests, without cluster and rehearsal."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx2
import yaml
from lightkube.core.exceptions import ApiError
from llmd_base.errors import KitError
from llmd_base.progress import Progress
from llmd_base.row import Origin, Quantiles, Row
from llmd_oke import config
from llmd_tuner.experiments import preparation, recipes
from llmd_tuner.experiments.deployer import Deployed
from llmd_tuner.experiments.preparation import Experiment, RunOptions
from llmd_tuner.experiments.recipes import Recipe, RecipeStage
from llmd_tuner.experiments.runs import RunFolder
from rows_for_tests import known_row
from stack_files import StackObject, model, stack, write

REHEARSED = RunOptions(rehearsed=True)

CLOSED = {
    "name": "users",
    "arrival": "closed",
    "concurrencies": [2, 4],
    "requests": 8,
    "inputTokens": 1024,
    "outputTokens": 16,
}
OPEN = {
    "name": "rate",
    "arrival": "constant",
    "requestsPerS": [2.0],
    "durationS": 4.0,
    "inputTokens": 64,
    "outputTokens": 8,
}


def recipe_object(**changes: object) -> dict[str, object]:
    return {
        "description": "two tiny deployments",
        "model": "gpt-oss-120b",
        "deployments": [{"topology": "1p-tp1-1d-tp1"}, {"topology": "agg-tp1-2r"}],
        "loads": [CLOSED],
        **changes,
    }


def recipe(**changes: object) -> Recipe:
    return recipes.validate(recipe_object(**changes))


def small_model(topology: str = "agg-tp1-1r", **changes: object) -> StackObject:
    """A model of 64 tokens in and 8 out."""
    return model(topology, workload={"inputTokens": 64, "outputTokens": 8}, **changes)


def project(folder: Path, **changes: object) -> Path:
    """A project with the stack `s` of one node, whose own model uses one GPU."""
    own = {**stack(small_model(), nodes=1), **changes}
    write(folder, "s", own, {"llmd-oke:other": "kept"}, encryptionsalt="v1:salt")
    return folder


def experiment(folder: Path, asked: RunOptions = REHEARSED, **changes: object) -> Experiment:
    file = folder / "tiny.yaml"
    file.write_text(yaml.safe_dump(recipe_object(**changes)))
    return preparation.prepare(project(folder), str(file), "s", asked)


def row(deployment: str, stage: RecipeStage, **changes: object) -> Row:
    values: dict[str, object] = {
        "origin": Origin(tool="test", file=f"{deployment}/{stage.name}/row.json"),
        "input_tokens": stage.input_tokens,
        "output_tokens": stage.output_tokens,
        "arrival": stage.arrival,
        "concurrency": stage.level,
        "achieved_requests_per_s": 2.0,
        "ttft_ms": Quantiles(mean=100.0, p95=200.0),
        "requests": stage.requests,
    }
    return known_row(**{**values, **changes})


def fill(folder: RunFolder, deployment: str, stage: RecipeStage, **changes: object) -> None:
    """Store a measurement as `measuring` does."""
    with folder.making(deployment, stage.name) as unfinished:
        (unfinished / "row.json").write_text(row(deployment, stage, **changes).model_dump_json(exclude_defaults=True))
        request = {"first_token_s": 0.1, "token_times_s": [0.1, 0.109, 0.12], "failure": None}
        (unfinished / "requests.jsonl").write_text(json.dumps(request) + "\n")


def api_error(status: int, message: str) -> ApiError:
    """Return the error that lightkube raises if an API server refuses a request."""
    answer = {"code": status, "message": message}
    return ApiError(response=httpx2.Response(status, json=answer, request=httpx2.Request("GET", "http://a")))


Measure = Callable[[str, RunFolder], int]


class FakeDeployer:
    """A deployer that notes its calls; `broken` deployments can't come up, `measure` stands for the measurement."""

    def __init__(self, folder: RunFolder, measure: Measure, broken: Sequence[str] = ()) -> None:
        self.calls: list[str] = []
        self._folder = folder
        self._measure = measure
        self._broken = broken

    def deploy(self, models: Sequence[config.ModelConfig], progress: Progress) -> Deployed:
        names = [model.object_name for model in models]
        self.calls.append(f"deploy {' '.join(names)}")
        if wrong := [name for name in names if name in self._broken]:
            raise KitError(f"{wrong[0]} does not start")
        return Deployed("llm-d-0.9.0", ("vLLM",))

    def run(self, argv: Sequence[str]) -> int:
        assignment = Path(argv[-1])
        self.calls.append(f"measure {assignment.parent.name}")
        return self._measure(assignment.parent.name, self._folder)

    def teardown(self, progress: Progress) -> None:
        self.calls.append("teardown")

    def close(self, progress: Progress) -> None:
        self.calls.append("close")


def measure_all(deployment: str, folder: RunFolder) -> int:
    for stage in folder.left(deployment):
        fill(folder, deployment, stage)
    return 0
