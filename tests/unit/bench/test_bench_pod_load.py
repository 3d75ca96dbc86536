from array import array
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import load_jobs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmd_base.config_maps import join_pieces
from llmd_base.errors import KitError
from llmd_bench.load import pod_load
from llmd_bench.load.pod_load import from_json, merge, notes, pack, unpack
from llmd_bench.load.records import Delay, Failure, Health, RequestRecord, window_of
from llmd_bench.load.stages import LoadStage, StageResult
from llmd_bench.load.workload import ConstantRate
from llmd_bench.rows import stage_row
from llmd_bench.run_context import RunContext

ONE_STAGE = replace(load_jobs.REQUEST, input_tokens="normal:64,8", output_tokens="lognormal:8,2", seed=3, parallelism=2)
REQUEST = replace(ONE_STAGE, shapes=("constant:4", "poisson:8"))
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
HEALTHY = Health(Delay(0.1, 0.1, 0.2, 0.3), Delay(0.1, 0.1, 0.4, 0.5), (0.3,), 2.0, 2.0)


def record(index: int, **changes) -> RequestRecord:
    given = {"started_s": index / 4, "latency_s": 0.5, "event_times_s": (0.1, 0.2, 0.45), "output_tokens": 3}
    return RequestRecord(index=index, due_s=index / 4, **{**given, **changes})


def stage(*records: RequestRecord, began: datetime = BEGAN, health: Health = HEALTHY) -> StageResult:
    shape = ConstantRate(4)
    return StageResult(
        LoadStage(shape), records, health, window_of(records, shape, pod_load.read_trim("none")), started=began
    )


def travelled(*stages: StageResult, how: RunContext = RunContext()) -> pod_load.PodResult:  # noqa: B008 - frozen
    return unpack(join_pieces(pack(how, stages)))


def test_a_load_request_is_read_back_from_its_file():
    assert from_json(REQUEST.to_json()) == REQUEST


def test_each_value_in_the_notation_of_a_load_shape_is_a_load_stage():
    stages = replace(REQUEST, shapes=("constant:4,8", "closed:2")).stages()
    assert [item.name for item in stages] == ["constant:4", "constant:8", "closed:2"]


def test_each_load_pod_has_its_own_share_of_requests_and_its_own_configmap_names():
    assert [REQUEST.conditions(pod, 1.0, None).share.index for pod in range(2)] == [0, 1]
    assert len({REQUEST.ready_name(0), REQUEST.ready_name(1), REQUEST.part_name(0, 0), REQUEST.start_name}) == 4


def test_a_load_merged_from_several_pods_has_all_requests_in_order(monkeypatch):
    monkeypatch.setattr("llmd_base.config_maps.CHUNK_BYTES", 100)
    pods = [travelled(stage(record(0), record(2))), travelled(stage(record(1), record(3)))]
    (merged,) = merge(ONE_STAGE, pods)
    assert ([item.index for item in merged.records], merged.shortfall) == ([0, 1, 2, 3], None)
    assert merged.requests_per_s == stage(*map(record, range(4))).requests_per_s


def test_request_times_of_a_pod_that_started_later_are_shifted_and_noted():
    pods = [travelled(stage(record(0))), travelled(stage(record(1), began=BEGAN + timedelta(seconds=2)))]
    (merged,) = merge(ONE_STAGE, pods)
    assert [item.started_s for item in merged.records] == [0.0, 2.25]
    assert merged.records[1].slip_s == 0
    assert list(notes(pods)) == ["pods began stage 1 within 2.0 s of each other"]


def test_one_load_pod_that_could_not_keep_up_makes_the_whole_load_invalid():
    slow = replace(HEALTHY, spoiled="the load generator was too slow: it was")
    (merged,) = merge(ONE_STAGE, [travelled(stage(record(0))), travelled(stage(record(1), health=slow))])
    assert "too slow" in merged.health.spoiled
    assert merged.health.cpu_share == (0.3, 0.3)
    assert merged.health.offered_requests_per_s == 4.0


def test_the_share_of_a_load_whose_pod_left_no_result_is_reported_as_missing():
    first, second = merge(REQUEST, [travelled(stage(record(0), record(2)), stage(record(0)))])
    assert first.shortfall == second.shortfall == "1 of 2 pods left no result: 50% of the load is missing"
    assert [item.index for item in first.records] == [0, 2]


def test_a_load_stage_that_pods_did_not_reach_is_reported_as_incomplete():
    ended_early = travelled(replace(stage(record(0)), interrupted=True, shortfall="interrupted"))
    first, second = merge(REQUEST, [ended_early, travelled(stage(record(1)), stage(record(1)))])
    assert (first.interrupted, first.shortfall) == (True, "interrupted")
    assert second.shortfall == "not reached by 1 of 2 pods"
    *_, last = merge(REQUEST, [travelled(stage(record(0))), travelled(stage(record(1)))])
    assert (last.records, last.shortfall) == ((), "not reached by 2 of 2 pods")


def test_failed_requests_merged_from_several_load_pods_keep_their_kind():
    failed = record(0, failure=Failure.STATUS, error="HTTP 429", status=429, retry_after_s=2.0, event_times_s=())
    (merged,) = merge(ONE_STAGE, [travelled(stage(failed))])
    assert merged.records[0] == replace(failed, event_times_s=array("d"))


@given(st.lists(st.floats(0, 100), max_size=50))
def test_merged_token_times_are_exact_to_the_microsecond(times):
    sent = record(0, event_times_s=sorted(times))
    (part,) = travelled(stage(sent)).parts
    assert list(part.records[0].event_times_s) == pytest.approx(sorted(times), abs=1e-6)


def test_a_load_result_too_large_for_configmaps_is_published_without_token_times(monkeypatch):
    monkeypatch.setattr(pod_load, "MAX_CHUNKS", 1)
    monkeypatch.setattr("llmd_base.config_maps.CHUNK_BYTES", 3000)
    random = Random(1)  # noqa: S311 - noise
    many = [record(i, event_times_s=sorted(random.random() for _ in range(200))) for i in range(20)]
    result = travelled(stage(*many))
    (merged,) = merge(ONE_STAGE, [result])
    found_row = stage_row(merged, model="m", gpu="MI300X", gpus_counted=1)
    assert {len(item.event_times_s) for item in merged.records} == {2}
    assert (found_row.itl_ms.mean, found_row.ttft_ms.mean is None) == (None, False)
    assert list(notes([result])) == ["times of single tokens were left out: too many for ConfigMaps"]


def test_a_load_result_too_large_even_without_token_times_is_refused(monkeypatch):
    monkeypatch.setattr(pod_load, "MAX_CHUNKS", 0)
    with pytest.raises(KitError, match="too many"):
        pack(RunContext(), [stage(record(0))])
