"""Stretches of decode steps in closed form, against steps that are added up one by one."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llmd_oke.catalogue import model, shape
from llmd_oke.tuning.servers.figures import latency_model
from llmd_oke.tuning.simulation.decode_run import DecodeRun

SERVER = latency_model(model("gpt-oss-120b"), shape("BM.GPU.MI300X.8")).server(2)
batches = st.integers(1, 256)
contexts = st.integers(200, 20_000)


def ends_s(batch, context, steps):
    """The end of each step, where contexts grow by a token at each."""
    return list(itertools.accumulate(SERVER.decode_step_s(batch, context + step) for step in range(steps)))


@given(batches, contexts, st.integers(1, 200))
@settings(max_examples=50)
def test_a_run_ends_when_its_steps_have_been_taken(batch, context, steps):
    run = DecodeRun(SERVER, 0.0, batch, batch * context, steps)
    assert run.end_s == pytest.approx(ends_s(batch, context, steps)[-1])


@given(batches, contexts, st.floats(0, 0.999))
@settings(max_examples=50)
def test_a_moment_within_a_run_lies_in_the_step_that_is_found(batch, context, part):
    run = DecodeRun(SERVER, 0.0, batch, batch * context, 100)
    moment_s = part * run.end_s
    ends = ends_s(batch, context, 100)
    expected = next(step for step, end_s in enumerate(ends, 1) if end_s >= moment_s - 1e-12)
    assert run.steps_until(moment_s) in {expected, expected + 1}  # a moment on an edge may round either way
    assert run.boundary_s(moment_s) >= moment_s


def test_contexts_that_outgrow_a_window_are_within_a_percent():
    """The model bends there; a run takes the straight line between its ends."""
    run = DecodeRun(SERVER, 0.0, 64, 64 * 2, 256)
    assert run.end_s == pytest.approx(ends_s(64, 2, 256)[-1], rel=0.01)
