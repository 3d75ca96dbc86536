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


IMPORTED = {
    "llmd_oke.cli.main": f"{HEAVY} llmd_oke.planning",
    "llmd_rehearsal.cli": f"{HEAVY} llmd_oke.config llmd_oke.planning",
    "llmd_oke.cli.check": HEAVY,
    "llmd_tuner.cli.tune_rank": "pulumi httpx httpx2",
    "llmd_rehearsal.stack_commands": "pulumi lightkube httpx2",
}
"""Modules of commands, in the order in which they are imported, with what they mustn't import."""

PROGRAM = f"""
import contextlib, importlib, io, json, sys
for name, heavy in {IMPORTED!r}.items():
    module = importlib.import_module(name)
    if name == "llmd_oke.cli.main":
        sys.argv[1:] = ["--help"]
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as shown:
            module.app()
        assert "Deploy" in shown.getvalue()
    print(name, *sorted(sys.modules.keys() & {{*heavy.split()}}))
"""


def test_commands_and_help_import_no_heavy_modules_of_other_commands():
    run = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    assert run.stdout.splitlines() == list(IMPORTED)


def test_a_misspelt_command_is_answered_with_the_nearest_one():
    result = CliRunner().invoke(app, ["chek"])
    assert "'check'" in result.output
    assert result.exit_code == 2


def test_the_option_version_prints_the_name_and_version_of_the_kit():
    assert CliRunner().invoke(app, ["--version"]).output == f"llmd-oke {metadata.version('llmd-oke')}\n"


def test_help_lists_commands_under_headings_of_which_every_entry_point_has_one():
    shown = CliRunner().invoke(app, ["--help"]).output
    places = [shown.index(f"─ {item} ─") for item in ("Plan", "Deploy", "Measure what is deployed", "Compare and tune")]
    assert places == sorted(places)
    assert {entry.name for entry in metadata.entry_points(group="llmd_oke.commands")} == set(_Commands.panels)


def test_a_command_without_its_optional_extra_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "needs_an_extra.py").write_text("import not_installed\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(KitError) as refused:
        load(metadata.EntryPoint("tune", "needs_an_extra:app [analysis]", "llmd_oke.commands"), "`tune`")
    assert refused.value.message == "`tune` needs not_installed, which is not installed."
    assert refused.value.remedy == "Install llmd-oke[analysis]."
