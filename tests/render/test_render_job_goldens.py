"""Golden files of objects that commands create in a cluster, beside what stacks declare."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from llmd_oke.catalogue.benchmarks import bench_jobs, evals, inference_perf
from llmd_oke.objects import Manifest
from llmd_oke.serving import jobs
from load_jobs import PLACE, REQUEST
from render_support import recorded
from test_render_goldens import ACCEPT, UPDATE, compact, readable

GOLDEN = Path(__file__).parent / "golden" / "jobs"
LOAD = replace(REQUEST, parallelism=2)
EVALUATION = jobs.Evaluation("gpqa", evals().packages["gpqa"], "http://gpt", "openai/gpt-oss-120b", 64)
UID = "5b0c3f4e-0000-4000-8000-000000000000"

JOBS: dict[str, Sequence[Manifest]] = {
    "evaluation": [
        jobs.evaluation_job(PLACE, EVALUATION, bench_jobs(), 600),
        *jobs.evaluation_objects(PLACE, EVALUATION, UID),
    ],
    "inference-perf": [
        jobs.tool_job(PLACE, inference_perf(), bench_jobs(), 60),
        *jobs.tool_objects(PLACE, "load: {}", UID),
    ],
    "load": [
        jobs.load_job(PLACE, LOAD, bench_jobs()),
        *jobs.load_objects(PLACE, LOAD, UID),
        jobs.start_config_map(PLACE, LOAD, UID),
    ],
}


@pytest.mark.parametrize("name", JOBS)
def test_the_objects_of_a_job_that_a_command_creates_are_those_of_its_golden_file(name: str):
    text = "---\n".join(compact(readable(item)) for item in JOBS[name])
    assert recorded(GOLDEN / f"{name}.yaml", text, UPDATE) == text, ACCEPT
