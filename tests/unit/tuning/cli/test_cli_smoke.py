"""The circumstances that `llmd-oke smoke` gives its figures, and questions that `eval` refuses."""

import pytest
from llmd_oke.cli.main import app
from llmd_pods.errors import KitError
from llmd_pods.row import Basis
from llmd_tuner.cli.smoke import circumstances
from typer.testing import CliRunner


def test_simulated_servers_make_figures_calibrated():
    how = circumstances(0.5, ("vLLM",), ["epp=v0.7.1"])
    assert (how.basis, how.ran) == (Basis.CALIBRATED, {"epp": "v0.7.1"})
    assert circumstances(1.0, (), []).basis is Basis.MEASURED


def test_a_program_without_a_version_is_refused():
    with pytest.raises(KitError, match="no version"):
        circumstances(1.0, (), ["epp"])


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--set", "none"], "no set of questions"), (["--set", "gsm8k", "--rehearse"], "not run in a rehearsal")],
)
def test_questions_that_can_not_be_asked_are_refused(words: list[str], said: str):
    assert said in str(CliRunner().invoke(app, ["eval", "--stack", "s", *words]).exception)
