"""The programs of the bench as pods get them."""

import ast
import base64
import subprocess
import sys
from pathlib import Path

import pytest
from llmd_oke.catalogue.benchmarks import bench_jobs
from llmd_oke.serving import bench_program
from llmd_oke.serving.acceptance import LEADER_PROGRAM, NODE_PROGRAM
from llmd_oke.serving.jobs import FILES_PROGRAM, LOAD_PROGRAM
from llmd_oke.serving.smoke_benchmark import PROGRAM

MAX_BYTES = 700 * 2**10
"""A ConfigMap may have 1 MiB; in base64 a file takes a third more, and a request lies beside it."""

PROGRAMS = [PROGRAM, LOAD_PROGRAM, FILES_PROGRAM, NODE_PROGRAM, LEADER_PROGRAM]


def imported(program):
    """The names that a parser finds in the program's sources."""
    statements = [node for source in bench_program.modules(program).values() for node in ast.walk(ast.parse(source))]
    named = {alias.name for node in statements if isinstance(node, ast.Import) for alias in node.names}
    return named | {str(node.module) for node in statements if isinstance(node, ast.ImportFrom)}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_benchmark_program_fits_a_configmap_with_what_vllms_image_does_not_have(program):
    assert len(bench_program.archive(program)) <= MAX_BYTES
    names = imported(program)
    own = {name for name in names if name.partition(".")[0] in bench_program.PACKAGES}
    assert own <= bench_program.modules(program).keys()
    packages = {name.partition(".")[0] for name in names - own}
    assert packages - set(sys.stdlib_module_names) <= set(bench_jobs().packages)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_benchmark_program_finds_all_its_modules_in_its_archive(program, tmp_path: Path):
    file = tmp_path / bench_program.FILE
    file.write_bytes(base64.b64decode(bench_program.binary_data(program)[bench_program.FILE]))
    look = f"import sys; sys.path.insert(0, {str(file)!r}); import {program} as p; print(p.__file__)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=False)
    assert done.stdout.startswith(str(file)), done.stderr


def test_equal_sources_of_a_benchmark_program_give_equal_archives():
    assert bench_program.archive.__wrapped__(PROGRAM) == bench_program.archive.__wrapped__(PROGRAM)


def test_modules_imported_from_their_package_are_found_for_a_benchmark_program():
    assert "llmd_bench.report_format" in bench_program.modules(PROGRAM)


def test_packages_modules_and_other_names_imported_from_a_package_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    package = tmp_path / "made_programs"
    (package / "tools").mkdir(parents=True)
    for name in ("__init__", "tools/__init__", "report"):
        (package / f"{name}.py").touch()
    (package / "run.py").write_text("from made_programs import (\n    LIMIT,\n    report,\n    tools,\n)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(bench_program, "PACKAGES", ("made_programs",))
    parts = ["report", "run", "tools"]
    assert list(bench_program.modules("made_programs.run")) == ["made_programs", *(f"made_programs.{p}" for p in parts)]
