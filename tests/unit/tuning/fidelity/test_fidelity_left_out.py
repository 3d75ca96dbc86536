"""Models that have not seen a point predict it."""

from dataclasses import replace

import pytest
from llmd_oke.tuning.fidelity.left_out import unseen
from tuning_for_tests import LATENCY, row, unloaded_prefill_s


def exact(size, concurrency):
    """What a server of the latency model would measure."""
    step_s = LATENCY.decode_step_s(concurrency, 130, size)
    return row(tensor_parallel_size=size, concurrency=concurrency, output_tokens_per_s=concurrency / step_s)


LOADS = (4, 16, 64, 128, 256)
ROWS = [exact(size, concurrency) for size in (1, 2) for concurrency in LOADS]


def test_a_point_that_was_left_out_does_not_bend_its_own_model():
    wrong = ROWS[0].model_copy(update={"output_tokens_per_s": 10 * (ROWS[0].output_tokens_per_s or 0)})
    found = dict(unseen([wrong, *ROWS[1:]], LATENCY))
    assert found[wrong].decode_step_s(4, 130, 1) == pytest.approx(LATENCY.decode_step_s(4, 130, 1), rel=0.01)
    assert found[ROWS[1]].decode_step_s(4, 130, 1) < 0.8 * LATENCY.decode_step_s(4, 130, 1)


def test_each_row_comes_back_once():
    assert [row for row, _ in unseen(ROWS, LATENCY)] == ROWS


def test_too_few_points_give_no_model():
    assert list(unseen(ROWS[:3], LATENCY)) == []


def test_points_of_one_load_are_left_out_by_size():
    def prefill(size):
        return row(
            "prefill",
            tensor_parallel_size=size,
            concurrency=1,
            input_tokens=4096,
            output_tokens=1,
            achieved_requests_per_s=1 / unloaded_prefill_s(LATENCY, 4096, size),
        )

    base = replace(LATENCY, factors=replace(LATENCY.factors, prefill_overhead_s=1.0))
    found = {each.tensor_parallel_size: model for each, model in unseen([prefill(size) for size in (1, 2, 4, 8)], base)}
    assert unloaded_prefill_s(found[8], 4096, 8) == pytest.approx(unloaded_prefill_s(LATENCY, 4096, 8), rel=0.01)
