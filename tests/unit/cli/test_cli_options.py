"""Options: times are written one way, whatever the command, and the fields of a dataclass are options of several."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from llmd_oke.cli import options
from llmd_oke.cli.main import app
from llmd_oke.cli.options import with_option_groups
from typer.testing import CliRunner, Result

WIDE = {"COLUMNS": "200", "TERM": "dumb"}


def given(text: str | None) -> Result:
    command = typer.Typer()

    @command.command()
    def show(
        time: Annotated[float, options.time_option(about="A time", least_s=1, most_s=86_400, default_s=15)] = 15.0,
    ) -> None:
        typer.echo(time)

    return CliRunner().invoke(command, ["--time", text] if text else [], env=WIDE)


@pytest.mark.parametrize(
    ("text", "seconds"), [("15", 15), ("15s", 15), ("2.5", 2.5), ("1.5m", 90), ("24h", 86_400), (None, 15)]
)
def test_durations_are_accepted_with_or_without_units(text: str | None, seconds: float):
    assert float(given(text).stdout) == seconds


@pytest.mark.parametrize("text", ["0", "0.5s", "25h", "ten", "5 m", "-3s", "nan", "1h30m", "10d"])
def test_invalid_durations_are_refused_with_the_accepted_forms(text: str):
    refused = given(text)
    assert refused.exit_code == 2
    assert f"{text!r} is no time from 1s to 24h; accepted: 90s, 10m, 2h, or seconds." in refused.stderr


def test_infinite_durations_are_refused():
    refused = CliRunner().invoke(app, ["bench", "--limit", "9" * 400], env=WIDE)
    assert (refused.exit_code, "is no time" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("time_s", "text"), [(0, "0s"), (0.001, "0.001s"), (15, "15s"), (90, "90s"), (600, "10m"), (10_800, "3h")]
)
def test_a_duration_is_shown_in_its_largest_whole_unit(time_s: float, text: str):
    assert options.time_text(time_s) == text


@pytest.mark.parametrize(
    "option",
    [
        *("bench --duration", "bench --rest", "bench --limit", "bench --request-timeout", "eval --timeout"),
        *("tune watch --every", "tune watch --for", "tunnel --session"),
    ],
)
def test_every_option_that_is_a_duration_accepts_the_same_form(option: str):
    refused = CliRunner().invoke(app, [*option.split(), "soon"], env=WIDE)
    assert refused.exit_code == 2
    assert "accepted: 90s, 10m, 2h, or seconds." in refused.stderr


Size = Annotated[int, typer.Option("--size", "-n", help="How large.", min=1)]


@dataclass(frozen=True)
class Wanted:
    name: Annotated[str, typer.Option(help="What.")]
    size: Size = 3


@pytest.fixture
def order_app() -> typer.Typer:
    made = typer.Typer()

    @made.command()
    @with_option_groups
    def _order(where: Annotated[str, typer.Argument()], wanted: Wanted, again: bool = False) -> None:
        """Order something."""
        typer.echo(f"{where} {wanted} {again}")

    return made


@pytest.mark.parametrize("words", [["here"], ["here", "--name", "gpu", "--size", "0"]])
def test_missing_required_options_and_values_outside_limits_are_refused(order_app: typer.Typer, words: list[str]):
    assert CliRunner().invoke(order_app, words).exit_code == 2


def test_fields_of_an_options_class_are_options_with_defaults_short_names_and_help(order_app: typer.Typer):
    said = CliRunner().invoke(order_app, ["here", "--name", "gpu", "--again"])
    assert said.output == f"here {Wanted('gpu', 3)} True\n"
    assert "size=8" in CliRunner().invoke(order_app, ["here", "--name", "gpu", "-n", "8"]).output
    shown = CliRunner().invoke(order_app, ["--help"]).output
    assert all(text in shown for text in ("Order something.", "What.", "How large.", "--again"))
