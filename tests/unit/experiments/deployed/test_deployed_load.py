from dataclasses import replace
from pathlib import Path

import pytest
from llmd_oke import planning
from llmd_oke.bench.deployment.circumstances import Circumstances
from llmd_oke.bench.load.stages import Stage, StageResult
from llmd_oke.bench.records.health import Health
from llmd_oke.bench.records.lines import read_file
from llmd_oke.bench.records.request import RequestRecord
from llmd_oke.bench.records.windows import Window
from llmd_oke.bench.reporting.rows import stage_row
from llmd_oke.bench.workload.shapes import ConstantRate
from llmd_oke.config.node_pools import Taint
from llmd_oke.errors import KitError, Refused
from llmd_oke.experiments.deployed.load import Asked, Measured, hints, keep, load_request, manifests, place_of
from llmd_oke.results.files import read_rows
from llmd_oke.results.row import Basis

PROJECT = Path(__file__).parents[4]
RATE = Asked(("constant:4",), duration_s=5.0)


@pytest.fixture(scope="module")
def plan():
    return planning.plan_stack_file(PROJECT, "guide")


def test_what_was_asked_reaches_the_pods(plan):
    asked = Asked(("constant:4",), duration_s=5.0, input_tokens="normal:64,8", parallelism=3, request_timeout_s=20.0)
    request = load_request(plan, plan.models[0], asked, "load-x")
    assert (request.input_tokens, request.parallelism, request.request_timeout_s) == ("normal:64,8", 3, 20.0)
    assert request.output_tokens == str(plan.models[0].workload.output_tokens)


def test_a_load_without_end_is_refused(plan):
    with pytest.raises(Refused, match="it would never end"):
        load_request(plan, plan.models[0], Asked(("closed:4",)), "load-x")


def test_a_trace_is_refused_because_pods_do_not_have_its_file(plan):
    with pytest.raises(KitError, match="trace"):
        load_request(plan, plan.models[0], Asked(("trace:file.jsonl",)), "load-x")


@pytest.mark.parametrize("tool", ["own", "inference-perf"])
def test_the_manifests_begin_with_the_job_that_all_others_belong_to(plan, tool):
    job, *others = manifests(plan, plan.models[0], RATE, tool)
    owners = {owner["name"] for each in others for owner in each["metadata"]["ownerReferences"]}
    assert (job["kind"], owners) == ("Job", {job["metadata"]["name"]})


def test_pods_tolerate_the_taints_that_the_stack_file_gives_its_pools(plan):
    taint = Taint(key="team", value="search")
    pools = tuple(pool.model_copy(update={"taints": (taint,)}) for pool in plan.config.gpu_pools)
    place = place_of(replace(plan, config=plan.config.model_copy(update={"gpu_pools": pools})), "load-x")
    assert {"key": "team", "operator": "Equal", "value": "search", "effect": "NoSchedule"} in place.tolerations()


def test_rows_and_requests_of_each_stage_are_kept(plan, tmp_path):
    record = RequestRecord(0, 0.0, 1.0, (0.5, 1.0), 100, 2, due_s=0.0)
    stage = StageResult(Stage(ConstantRate(1), 1), (record,), Health(), Window(0.0, 1.0))
    row = stage_row(stage, model="m", gpu="MI300X", gpus_counted=1)
    keep(Measured((row,), (stage, stage)), tmp_path, hints(plan, plan.models[0], Circumstances(basis=Basis.CALIBRATED)))
    assert read_rows(tmp_path / "rows.jsonl") == [row]
    assert [number for number, _ in read_file(tmp_path / "requests.jsonl")] == [0, 1]
