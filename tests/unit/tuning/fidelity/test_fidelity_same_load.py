"""A measured load is simulated as it was measured."""

import pytest
from llmd_oke.errors import KitError
from llmd_oke.results.row import Basis
from llmd_oke.tuning.fidelity.same_load import Simulator, simulated, unsuitable
from tuning_for_tests import LATENCY, MODEL, SHAPE, row, unloaded_prefill_s

SIMULATOR = Simulator(MODEL, SHAPE, LATENCY)


def prefill(**changes):
    return row("prefill", input_tokens=4096, output_tokens=1, concurrency=1, **{"requests": 10, **changes})


def open_loop(**changes):
    told = {"topology": "1p-tp1-1d-tp2", "tensor_parallel_size": None, "gpus_counted": 3, "concurrency": None}
    load = {"arrival": "constant", "offered_requests_per_s": 2.0, "input_tokens": 4096, "output_tokens": 16}
    return row("end-to-end", **{**told, **load, "requests": 40, **changes})


def test_a_prompt_alone_takes_what_the_latency_model_says():
    assert simulated(prefill(), SIMULATOR).ttft_ms.mean == pytest.approx(1000 * unloaded_prefill_s(LATENCY, 4096, 2))


def test_prompts_that_a_cache_answered_are_cached_in_the_simulation():
    whole, half = (simulated(prefill(prefix_cache_hit_share=share, requests=200), SIMULATOR) for share in (None, 0.5))
    least = LATENCY.factors.prefill_overhead_s * 1000
    assert half.ttft_ms.mean < least + 0.7 * (whole.ttft_ms.mean - least)


def test_prompts_of_decode_measurements_cost_no_prefill():
    found = simulated(row(input_tokens=4096, concurrency=1, requests=1), SIMULATOR)
    steps_s = [LATENCY.decode_step_s(1, 4096 + place, 2) for place in range(1, 256)]
    assert found.tpot_ms.mean == pytest.approx(1000 * sum(steps_s) / 255, rel=1e-3)
    assert found.ttft_ms.mean < 1000 * LATENCY.factors.prefill_overhead_s + 20


def test_as_many_requests_are_sent_as_were_measured():
    found = simulated(open_loop(), SIMULATOR)
    assert (found.requests, found.offered_requests_per_s, found.topology) == (3 * 40, 2.0, "1p-tp1-1d-tp2")


def test_only_the_steady_part_counts_where_a_row_says_so():
    found = simulated(open_loop(notes=("counted: all users busy",)), SIMULATOR)
    assert "the middle 60 % of the sending time" in found.notes


def test_a_closed_loop_without_a_number_of_requests_runs_a_minute():
    found = simulated(row(concurrency=512, max_num_seqs=256), SIMULATOR)
    assert found.duration_s is not None
    assert found.duration_s > 55


def test_a_simulation_has_the_basis_of_its_figures():
    bound = Simulator(MODEL, SHAPE, LATENCY, Basis.BOUND)
    assert {simulated(each, bound).basis for each in (prefill(), row(requests=None))} == {Basis.BOUND}


@pytest.mark.parametrize(
    ("measured", "why"),
    [
        (open_loop(arrival="trace"), "trace"),
        (open_loop(offered_requests_per_s=None), "rate"),
        (open_loop(topology=None), "topology"),
        (row(concurrency=None), "concurrency"),
        (row(tensor_parallel_size=None), "tensor parallel size"),
        (open_loop(requests=20_001), "20,001 requests"),
        (open_loop(requests=12_001, notes=("counted: all users busy",)), "20,002 requests"),
    ],
)
def test_a_load_that_is_not_told_is_not_guessed(measured, why):
    assert why in str(unsuitable(measured))


def test_the_longest_load_that_can_be_simulated_is():
    assert unsuitable(open_loop(requests=20_000)) is None


def test_a_request_that_fits_no_server_is_refused():
    with pytest.raises(KitError):
        simulated(row(input_tokens=100_000_000, requests=1), SIMULATOR)
