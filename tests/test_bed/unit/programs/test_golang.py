"""The Go tool, version numbers and the build information of Go's programs."""

import pytest
from llmd_rehearsal import golang
from llmd_rehearsal.golang import module_version, version_satisfies
from llmd_rehearsal.program_definitions import tools_folder

SCHEDULER = "github.com/llm-d/llm-d-inference-scheduler"
DEPENDENCY = f"path\tx/epp\nmod\tx\t(devel)\t\ndep\tother\tv9.9.9\th1:a=\ndep\t{SCHEDULER}\tv0.7.1\th1:b=\n"
MAIN_MODULE = f"path\t{SCHEDULER}/cmd/epp\nmod\t{SCHEDULER}\tv0.8.0\th1:b=\n"
CHECKOUT = f"mod\t{SCHEDULER}\t(devel)\t\n"


@pytest.mark.parametrize(
    ("modules", "version"),
    [
        pytest.param(DEPENDENCY, "v0.7.1", id="a dependency"),
        pytest.param(MAIN_MODULE, "v0.8.0", id="the main module"),
        pytest.param(f'{CHECKOUT}build\t-ldflags="-X gaie/version.BuildRef=v0.8.0 -X a=b"\n', "v0.8.0", id="a stamp"),
        pytest.param(CHECKOUT, None, id="no stamp of a checkout"),
        pytest.param("mod\tother\tv1.0.0\t\n", None, id="another module"),
    ],
)
def test_a_go_programs_version_is_that_of_its_module_or_the_stamp_of_its_build(go_program, modules, version):
    assert module_version(go_program(modules), [SCHEDULER]) == version


def test_a_file_that_is_no_go_program_has_no_version(tmp_path):
    (tmp_path / "script").write_text("#!/bin/sh\n")
    (tmp_path / "empty").touch()
    assert module_version(tmp_path / "script", [SCHEDULER]) is None
    assert module_version(tmp_path / "empty", [SCHEDULER]) is None
    assert module_version(tmp_path / "missing", [SCHEDULER]) is None


@pytest.mark.parametrize(
    ("accepts", "served", "refused"),
    [
        ("exact", ["v1.34.2", "1.34.2"], ["v1.34.3"]),
        ("patch", ["v1.34.3"], ["v1.34.1", "v1.35.0"]),
        ("minor", ["v1.35.0"], ["v1.33.9", "v2.0.0", "v1.35.0-alpha.1"]),
        ("later", ["v6.1"], ["v1"]),
    ],
)
def test_exact_patch_minor_and_later_rules_decide_which_program_versions_pass(accepts, served, refused):
    assert [version for version in (*served, *refused) if version_satisfies(version, "v1.34.2", accepts)] == served


@pytest.fixture
def packaged_go(tmp_path, script):
    """Put a shell script where the Python package has its Go."""
    return lambda body: script("packaged-go", body, tmp_path)


TOO_OLD = "echo 'go: go.mod requires go >= 1.24.0 (running go 1.19; GOTOOLCHAIN=local)' >&2; exit 1"
FITS = "echo go1.27.3"


@pytest.mark.parametrize("on_path", [None, TOO_OLD, "echo go1.19.8", "exit 127"])
def test_the_go_of_the_python_package_is_used_if_none_on_path_is_suitable(cache, script, packaged_go, on_path):
    if on_path is not None:
        script("go", on_path)
    expected = packaged_go('[ "$GOTOOLCHAIN" = local ] && [ -z "$GOROOT" ] && ' + FITS)
    assert golang.find_go(tools_folder() / "etcd", expected, "") == expected


def test_go_on_path_is_preferred_to_the_python_packages(cache, script, packaged_go):
    packaged, on_path = packaged_go(FITS), script("go", FITS)
    assert golang.find_go(tools_folder() / "etcd", packaged, "") == on_path


def test_the_go_script_of_a_python_package_on_path_is_not_used_as_go(cache, script, path, packaged_go, monkeypatch):
    script("go", FITS)
    monkeypatch.setattr(golang.sysconfig, "get_path", lambda _: str(path))
    expected = packaged_go(FITS)
    assert golang.find_go(tools_folder() / "etcd", expected, "") == expected


def test_builds_ignore_the_goroot_of_another_go_in_the_environment(monkeypatch):
    monkeypatch.setenv("GOROOT", "/usr/lib/go-1.19")
    monkeypatch.setenv("GOTOOLCHAIN", "auto")
    assert "GOROOT" not in golang.environment()
    assert golang.environment()["GOTOOLCHAIN"] == "local"
