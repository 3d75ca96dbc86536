import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from llmd_base.errors import KitError
from llmd_oke.cli.loading import load
from llmd_oke.cli.main import _Commands, app
from typer.testing import CliRunner

HEAVY = "numpy matplotlib plotext pulumi pulumi_kubernetes pulumi_oci lightkube httpx httpx2 aiohttp jinja2 requests"


@pytest.mark.parametrize("module", ["llmd_oke.cli.main", "llmd_oke.cli.check"])
def test_check_imports_no_modules_of_other_commands(module: str) -> None:
    program = f"import {module}, sys; print(sorted(sys.modules.keys() & {HEAVY.split()!r}))"
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "[]"


def test_a_misspelt_command_is_answered_with_the_nearest_one() -> None:
    result = CliRunner().invoke(app, ["chek"])
    assert "'check'" in result.output
    assert result.exit_code == 2


@pytest.mark.parametrize(("group", "command"), [("experiment", "run"), ("rehearse", "status"), ("tune", "rank")])
def test_a_command_group_lists_its_own_commands(group: str, command: str) -> None:
    assert command in CliRunner().invoke(app, [group, "--help"]).output


def test_help_lists_commands_under_headings() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    places = [shown.index(f"─ {item} ─") for item in ("Plan", "Deploy", "Measure what is deployed", "Compare and tune")]
    assert places == sorted(places)


def test_the_option_version_prints_the_name_and_version_of_the_kit() -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"llmd-oke {metadata.version('llmd-oke')}\n"


@pytest.mark.parametrize(
    ("module", "unused"),
    [
        ("llmd_tuner.cli.tune_rank", {"pulumi", "httpx", "httpx2"}),
        ("llmd_rehearsal.stack_commands", {"pulumi", "lightkube", "httpx2"}),
        ("llmd_rehearsal.cli", {"llmd_oke.config", "llmd_oke.planning"}),
    ],
)
def test_commands_import_no_packages_that_they_do_not_use(module: str, unused: set[str]) -> None:
    program = f"import {module}, sys; print(sorted(sys.modules.keys() & {unused}))"
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "[]"


def test_help_of_the_kit_does_not_import_planning() -> None:
    program = (
        "import sys; sys.argv[1:] = ['--help']\n"
        "from llmd_oke.cli.main import app\n"
        "try: app()\n"
        "finally: print('llmd_oke.planning' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert run.stdout.strip().endswith("False")


def test_every_command_entry_point_has_a_heading_in_help() -> None:
    assert {entry.name for entry in metadata.entry_points(group="llmd_oke.commands")} == set(_Commands.panels)


def test_a_command_without_its_optional_extra_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_an_extra.py").write_text("import not_installed\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(KitError) as refused:
        load(metadata.EntryPoint("tune", "needs_an_extra:app [analysis]", "llmd_oke.commands"), "`tune`")
    assert refused.value.message == "`tune` needs not_installed, which is not installed."
    assert refused.value.remedy == "Install llmd-oke[analysis]."
