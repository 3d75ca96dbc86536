"""Options that a dataclass gives several commands."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from llmd_oke.cli.gathering import gathered
from typer.testing import CliRunner

Size = Annotated[int, typer.Option("--size", "-n", help="How large.", min=1)]


@dataclass(frozen=True)
class Wanted:
    name: Annotated[str, typer.Option(help="What.")]
    size: Size = 3


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()

    @made.command()
    @gathered
    def _order(where: Annotated[str, typer.Argument()], wanted: Wanted, again: bool = False) -> None:
        """Order something."""
        typer.echo(f"{where} {wanted} {again}")

    return made


def test_each_field_is_an_option_with_its_own_default(app: typer.Typer) -> None:
    said = CliRunner().invoke(app, ["here", "--name", "gpu", "--again"])
    assert said.output == f"here {Wanted('gpu', 3)} True\n"


def test_fields_have_their_short_names_too(app: typer.Typer) -> None:
    assert "size=8" in CliRunner().invoke(app, ["here", "--name", "gpu", "-n", "8"]).output


@pytest.mark.parametrize("words", [["here"], ["here", "--name", "gpu", "--size", "0"]])
def test_a_field_without_default_is_required_and_limits_hold(app: typer.Typer, words: list[str]) -> None:
    assert CliRunner().invoke(app, words).exit_code == 2


def test_help_shows_the_texts_of_fields_and_of_the_command(app: typer.Typer) -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    assert all(text in shown for text in ("Order something.", "What.", "How large.", "--again"))
