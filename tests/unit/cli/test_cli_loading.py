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
def test_checking_a_stack_file_loads_nothing_of_other_commands(module: str) -> None:
    program = f"import {module}, sys; print(sorted(sys.modules.keys() & {HEAVY.split()!r}))"
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "[]"


def test_a_misspelt_command_is_answered_with_the_nearest_one() -> None:
    result = CliRunner().invoke(app, ["chek"])
    assert "'check'" in result.output
    assert result.exit_code == 2


@pytest.mark.parametrize(("group", "command"), [("experiment", "run"), ("rehearse", "status"), ("tune", "rank")])
def test_a_group_has_its_own_commands(group: str, command: str) -> None:
    assert command in CliRunner().invoke(app, [group, "--help"]).output


def test_commands_stand_under_headings() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    places = [shown.index(f"─ {item} ─") for item in ("Plan", "Deploy", "Measure what is deployed", "Compare and tune")]
    assert places == sorted(places)


def test_the_version_is_told() -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"llmd-oke {metadata.version('llmd-oke')}\n"


def test_a_command_of_the_tuner_loads_no_other() -> None:
    program = "import llmd_tuner.cli.tune_rank, sys; print(sorted(sys.modules.keys() & {'pulumi', 'httpx', 'httpx2'}))"
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "[]"


def test_rehearsals_load_neither_pulumi_nor_clients_of_a_cluster() -> None:
    program = "import llmd_rehearsal.cli, sys; print(sorted(sys.modules.keys() & {'pulumi', 'lightkube', 'httpx2'}))"
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "[]"


def test_help_loads_no_command() -> None:
    program = (
        "import sys; sys.argv[1:] = ['--help']\n"
        "from llmd_oke.cli.main import app\n"
        "try: app()\n"
        "finally: print('llmd_oke.planning' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert run.stdout.strip().endswith("False")


def test_every_entry_point_of_this_package_has_a_heading() -> None:
    assert {entry.name for entry in metadata.entry_points(group="llmd_oke.commands")} == set(_Commands.panels)


def test_a_command_whose_extra_is_missing_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_an_extra.py").write_text("import not_installed\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(KitError) as refused:
        load(metadata.EntryPoint("tune", "needs_an_extra:app [analysis]", "llmd_oke.commands"), "`tune`")
    assert refused.value.message == "`tune` needs not_installed, which is not installed."
    assert refused.value.remedy == "Install llmd-oke[analysis]."
