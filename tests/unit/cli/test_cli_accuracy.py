"""`llmd-oke eval`: what is refused before anything is asked."""

import pytest
from llmd_oke.cli.main import app
from typer.testing import CliRunner


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--set", "none"], "no set of questions"), (["--set", "gsm8k", "--rehearse"], "not run in a rehearsal")],
)
def test_questions_that_can_not_be_asked_are_refused(words: list[str], said: str):
    assert said in str(CliRunner().invoke(app, ["eval", "--stack", "s", *words]).exception)
