"""What is held against what, and what is left out with its reason."""

import pytest
from llmd_oke.results.row import Basis
from llmd_oke.tuning.fidelity.cases import Subject, held_against
from llmd_oke.tuning.fidelity.runs import Run
from llmd_oke.tuning.fidelity.standings import Known, Standing
from llmd_oke.tuning.measurements.hygiene import Finding, Inspection, Rule
from tuning_for_tests import FIGURES, MODEL, SHAPE, row

IMAGE = "vllm:1"


def measured(**changes):
    return row(**{"image": IMAGE, "requests": 64, "output_tokens_per_s": 4000.0, **changes})


def held(*rows, fitted=(), rehearsed=(), findings=()):
    subject = Subject(MODEL, SHAPE, Known(FIGURES.model_copy(update={"image": IMAGE}), fitted))
    inspection = Inspection((), tuple(findings))
    return held_against(subject, [Run(row=each) for each in rows], rehearsed, inspection)


def finding(row, rule):
    return Finding(row, rule, "rejected", "why")


def test_a_case_compares_the_simulation_with_the_measurement():
    (case,) = held(measured()).cases
    assert case.standing is Standing.HELD_OUT
    assert {each.metric.name: each.error for each in case.figures}["tpsg"] == pytest.approx(
        (case.simulated.tpsg or 0) / 2000 - 1
    )


def test_a_rehearsal_of_the_same_load_stands_beside_its_measurement():
    rehearsed = measured(basis=Basis.CALIBRATED, image="vllm:9", output_tokens_per_s=4400.0)
    (case,) = held(measured(), rehearsed=[rehearsed]).cases
    assert [each.error for each in case.rehearsed_figures] == pytest.approx([0.1, 0.1, 0.1])


def test_a_rehearsal_without_a_measurement_is_a_case_of_its_own():
    rehearsed = measured(basis=Basis.CALIBRATED, concurrency=8)
    cases = held(measured(), rehearsed=[rehearsed]).cases
    assert [case.standing for case in cases] == [Standing.HELD_OUT, Standing.REHEARSED]
    assert cases[1].rehearsed_figures == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"model": "llama"}, "it is of llama"), ({"basis": Basis.BOUND}, "a bound"), ({"arrival": "trace"}, "trace")],
)
def test_rehearsals_are_held_to_the_same_rules_as_measurements(changes, why):
    found = held(rehearsed=[measured(**{"basis": Basis.CALIBRATED, **changes})])
    assert found.cases == ()
    assert why in str(found.omitted[0])


def test_a_bound_stands_beside_no_measurement():
    (case,) = held(measured(), rehearsed=[measured(basis=Basis.BOUND)]).cases
    assert case.rehearsed is None


def test_a_measurement_too_long_to_be_simulated_whole_is_left_out():
    """A part of it is another load: under overload queues grow as long as it lasts."""
    found = held(measured(requests=60_000))
    assert found.cases == ()
    assert "60,000 requests would have to be simulated, at most 20,000 are" in str(found.omitted[0])


def test_points_of_the_fit_come_twice():
    rows = [measured(concurrency=level, output_tokens_per_s=60.0 * level) for level in (4, 16, 64, 128, 256)]
    standings = [case.standing for case in held(*rows, fitted=tuple(rows)).cases]
    assert standings == 5 * [Standing.IN_SAMPLE] + 5 * [Standing.LEFT_OUT]


def test_what_can_not_be_right_is_left_out():
    wrong = measured()
    found = held(wrong, findings=[finding(wrong, Rule.HARDWARE_BOUND)])
    assert found.cases == ()
    assert "above the hardware's bound" in str(found.omitted[0])


def test_requests_that_waited_are_simulated_waiting():
    waited = measured(concurrency=512, max_num_seqs=256)
    assert len(held(waited, findings=[finding(waited, Rule.MAX_NUM_SEQS)]).cases) == 1


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model": "llama"}, "it is of llama"),
        ({"basis": Basis.BOUND}, "a bound is no measurement"),
        ({"arrival": "trace"}, "trace"),
        ({"input_tokens": 1e8}, "doesn't fit its KV cache"),
    ],
)
def test_rows_that_can_not_be_compared_say_why(changes, why):
    found = held(measured(**changes))
    assert found.cases == ()
    assert why in str(found.omitted[0])
