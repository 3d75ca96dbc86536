"""A release's own picker and sidecar, built by a module proxy of files: the public ones refuse their module.

`LLMD_OKE_ROUTER_SOURCE` names a git checkout of github.com/llm-d/llm-d-router with the release's tag. Other modules are
those that Go has on the machine already, else those of its own module proxies.
"""

import io
import os
import stat
import subprocess
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from llmd_base.errors import KitError
from llmd_base.progress import SilentProgress
from llmd_oke.catalogue.releases import default_release
from llmd_rehearsal import program_definitions, programs

pytestmark = [pytest.mark.rehearsal, pytest.mark.nightly, pytest.mark.timeout(1800)]

MODULE = "github.com/llm-d/llm-d-router"
VERSION = default_release().endpoint_picker.program.version


def git(*words: str) -> bytes:
    source = os.environ.get("LLMD_OKE_ROUTER_SOURCE")
    if source is None:
        pytest.skip("LLMD_OKE_ROUTER_SOURCE names no checkout of llm-d-router")
    return subprocess.run(["git", "-C", source, *words], check=True, capture_output=True).stdout


def module_archive() -> bytes:
    """The files of the tag as a module's archive has them: no links, and none of modules within it."""
    whole = zipfile.ZipFile(io.BytesIO(git("archive", "--format=zip", VERSION)))
    files = [item for item in whole.infolist() if not item.is_dir() and not stat.S_ISLNK(item.external_attr >> 16)]
    names = [item.filename for item in files]
    modules = {str(PurePosixPath(name).parent) for name in names if name.endswith("/go.mod")}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as module:
        for name in names:
            if modules.isdisjoint(map(str, PurePosixPath(name).parents)):
                module.writestr(f"{MODULE}@{VERSION}/{name}", whole.read(name))
    return archive.getvalue()


@pytest.fixture
def proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module proxy of files with that module; Go downloads into a folder of the test's own."""
    folder = tmp_path / "proxy" / MODULE / "@v"
    folder.mkdir(parents=True)
    (folder / f"{VERSION}.zip").write_bytes(module_archive())
    (folder / f"{VERSION}.mod").write_bytes(git("show", f"{VERSION}:go.mod"))
    (folder / f"{VERSION}.info").write_text(f'{{"Version": "{VERSION}"}}')
    asked = ["go", "env", "GOMODCACHE", "GOPROXY"]
    known, others = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()
    monkeypatch.setenv("GOPROXY", f"file://{tmp_path}/proxy,file://{known}/cache/download,{others}")
    monkeypatch.setenv("GONOSUMDB", MODULE)
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "modules"))
    monkeypatch.setenv("GOFLAGS", "-modcacherw")
    monkeypatch.setenv("LLMD_OKE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LLMD_OKE_PROGRAMS", raising=False)
    return folder


def test_llm_d_releases_picker_and_sidecar_are_built_if_a_go_module_proxy_has_them(proxy: Path):
    versions = {"epp": VERSION, "pd-sidecar": VERSION}
    assert [programs.why_unavailable(*item) for item in versions.items()] == [None, None]
    for name, program in programs.ensure(versions, SilentProgress(), versions).items():
        assert program.origin == "built from tools/"
        assert programs.program_version(program.path, program_definitions.program_definition(name)) == VERSION


def test_the_build_fails_for_a_go_module_with_another_checksum_than_in_go_sum(proxy: Path):
    with zipfile.ZipFile(proxy / f"{VERSION}.zip", "a") as module:
        module.writestr(f"{MODULE}@{VERSION}/cmd/epp/more.go", "package main\n")
    with pytest.raises(KitError, match=r"(?s)building llm-d-router failed.*checksum mismatch"):
        programs.build_programs(
            "llm-d-router", program_definitions.definitions().builds["llm-d-router"], SilentProgress()
        )
