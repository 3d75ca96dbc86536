"""The run_context that `llmd-oke smoke` gives its figures, and questions that `eval` refuses."""

import pytest
from llmd_base.errors import KitError
from llmd_base.row import Basis
from llmd_oke.cli.main import app
from llmd_oke.cli.smoke import run_context
from stack_files import model, plan
from typer.testing import CliRunner

GPT, LLAMA = "openai/gpt-oss-120b", "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic"


def test_results_have_the_basis_calibrated_if_vllm_is_simulated_else_measured():
    how = run_context(plan(), 0.5, ("vLLM",), ["epp=v0.7.1"])
    assert (how.basis_of(GPT), how.ran) == (Basis.CALIBRATED, {"epp": "v0.7.1"})
    assert run_context(plan(), 1.0, (), []).basis_of(GPT) is Basis.MEASURED


def test_the_basis_of_results_of_servers_simulated_without_fitted_latencies_is_bound():
    two = plan(model("agg-tp1-1r"), model("agg-tp2-1r", model="llama-3.3-70b-instruct-fp8-dynamic"))
    how = run_context(two, 0.5, ("vLLM",), [])
    assert (how.basis_of(GPT), how.basis_of(LLAMA)) == (Basis.CALIBRATED, Basis.BOUND)
    assert run_context(two, 1.0, (), []).basis_of(LLAMA) is Basis.MEASURED


def test_smoke_refuses_a_rehearsed_program_that_is_given_without_its_version():
    with pytest.raises(KitError, match="no version"):
        run_context(plan(), 1.0, (), ["epp"])


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--set", "none"], "no set of questions"), (["--set", "gsm8k", "--rehearse"], "not run in a rehearsal")],
)
def test_eval_refuses_unknown_question_sets_and_sets_that_rehearsals_do_not_run(words: list[str], said: str):
    assert said in str(CliRunner().invoke(app, ["eval", "--stack", "s", *words]).exception)
