import json

import pytest
from llmd_oke.errors import KitError
from llmd_oke.rehearsal import programs
from llmd_oke.rehearsal.programs.definitions import modules, tools_folder

GAIE = "sigs.k8s.io/gateway-api-inference-extension"


@pytest.fixture
def go(tmp_path, script):
    """A Go whose module cache has one read-only module, answering with the given checksum."""
    source = tmp_path / "module"
    (source / "config/crd/bases").mkdir(parents=True)
    (source / "config/crd/bases/pools.yaml").write_text("kind: CustomResourceDefinition")
    (source / "config/charts/standalone").mkdir(parents=True)
    (source / "config/charts/standalone/Chart.yaml").write_text("name: standalone")
    (source / "main.go").write_text("package main")
    (source / "config/crd/bases").chmod(0o555)

    def put(checksum, status=0):
        answer = json.dumps({"Dir": str(source), "Sum": checksum} if status == 0 else {"Error": "no such host"})
        script("go", f"[ \"$1\" = env ] && echo go1.26.8 && exit 0; echo '{answer}'; exit {status}")

    return put


def test_the_definitions_of_a_module_are_kept_and_nothing_else(cache, go):
    go(modules()[GAIE].versions["v1.5.0"])
    folder = programs.module_folder(GAIE, "v1.5.0")
    assert folder == cache / f"modules/{GAIE}@v1.5.0"
    kept = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    assert kept == ["config/crd/bases/pools.yaml"]
    assert (folder / "config/crd/bases").stat().st_mode & 0o200


def test_a_module_is_downloaded_once(cache, go, path):
    go(modules()[GAIE].versions["v1.5.0"])
    first = programs.module_folder(GAIE, "v1.5.0")
    (path / "go").unlink()
    assert programs.module_folder(GAIE, "v1.5.0") == first


def test_a_module_with_another_checksum_is_refused(cache, go):
    go("h1:changed=")
    with pytest.raises(KitError, match=r"has the checksum h1:changed=, pinned is h1:w9Aw"):
        programs.module_folder(GAIE, "v1.5.0")
    assert not (cache / "modules").exists()


def test_a_failed_download_says_why(cache, go):
    go("", status=1)
    with pytest.raises(KitError, match="no such host"):
        programs.module_folder(GAIE, "v1.5.0")


def test_a_version_that_is_not_pinned_is_refused(cache):
    with pytest.raises(KitError, match=r"v9\.9\.9 is not one of the pinned modules"):
        programs.module_folder(GAIE, "v9.9.9")


def test_the_checksum_is_that_of_the_module_that_epp_is_built_from():
    lines = (tools_folder() / "llm-d/go.sum").read_text().splitlines()
    assert f"{GAIE} v1.4.0 {modules()[GAIE].versions['v1.4.0']}" in lines
