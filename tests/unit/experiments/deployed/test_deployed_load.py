from dataclasses import replace
from pathlib import Path

import pytest
from llmd_oke import planning
from llmd_oke.config.node_pools import Taint
from llmd_oke.errors import KitError, Refused
from llmd_oke.experiments.deployed import load
from llmd_oke.experiments.deployed.kept_loads import Keeping
from llmd_oke.experiments.deployed.load import Asked, load_request, manifests, place_of
from llmd_oke.progress import SilentProgress
from llmd_oke.results.reading import Hints

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


class Untouched:
    """A cluster in which nothing may happen."""

    def __init__(self, *_: object) -> None:
        self.client = None

    def send(self, *_: object) -> None:
        raise AssertionError("a load was sent")

    run_tool = send


@pytest.mark.parametrize("send", [load.in_cluster, load.with_tool])
def test_a_folder_that_can_not_be_made_is_refused_before_anything_is_sent(plan, tmp_path, monkeypatch, send):
    monkeypatch.setattr(load, "ClusterAccess", Untouched)
    monkeypatch.setattr(load, "LoadJobs", Untouched)
    (tmp_path / "file").write_text("")
    keeping = Keeping(tmp_path / "file" / "bench", Hints())
    with pytest.raises(KitError, match="can't be made"):
        send(plan, plan.models[0], RATE, keeping, SilentProgress())


def test_a_refused_load_leaves_no_folder(plan, tmp_path):
    with pytest.raises(Refused):
        load.in_cluster(plan, plan.models[0], Asked(("closed:4",)), Keeping(tmp_path / "x", Hints()), SilentProgress())
    assert not (tmp_path / "x").exists()
