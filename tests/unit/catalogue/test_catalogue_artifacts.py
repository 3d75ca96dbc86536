"""Files of a release: from its Go module, from the cache, or over HTTP, and never others than the release names."""

import hashlib
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from llmd_oke.catalogue import artifacts, cache, release, release_names
from llmd_oke.catalogue.releases import Crds
from llmd_oke.errors import KitError

TEXT = "kind: CustomResourceDefinition\nmetadata: {name: a}\n"


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("LLMD_OKE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def server(tmp_path):
    """A folder that is served on loopback, and its address."""
    root = tmp_path / "served"
    root.mkdir()

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(root))

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield root, f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


def crds(repository="http://127.0.0.1:1", text=TEXT):
    files = {"a.yaml": hashlib.sha256(text.encode()).hexdigest()}
    return Crds(module="example.org/m", version="v1", repository=repository, folder="crd", files=files)


def put(path: Path, text=TEXT):
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_definitions_come_from_the_module_where_that_is_there(folder):
    put(folder / "modules" / "example.org/m@v1" / "crd" / "a.yaml")
    assert artifacts.crd_manifests(crds())[0]["metadata"]["name"] == "a"


def test_definitions_are_downloaded_once(folder, server):
    root, address = server
    put(root / "v1" / "crd" / "a.yaml")
    assert artifacts.crd_manifests(crds(address))
    (root / "v1" / "crd" / "a.yaml").unlink()
    assert artifacts.crd_manifests(crds(address))
    assert [path.name for path in (folder / "crds").rglob("*") if path.is_file()] == ["a.yaml"]


def test_a_file_that_is_not_the_one_named_is_refused(folder):
    put(folder / "modules" / "example.org/m@v1" / "crd" / "a.yaml", TEXT + "# changed\n")
    with pytest.raises(KitError, match="SHA-256"):
        artifacts.crd_manifests(crds())


def test_a_file_that_cant_be_had_says_where_to_put_it(folder, server):
    with pytest.raises(KitError, match="404") as error:
        artifacts.crd_manifests(crds(server[1]))
    assert str(folder / "crds" / "v1" / "a.yaml") in error.value.remedy


def test_the_cache_is_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.delenv("LLMD_OKE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / "llmd-oke"
    monkeypatch.setenv("LLMD_OKE_CACHE", str(tmp_path / "own"))
    assert cache.cache_folder() == tmp_path / "own"


@pytest.mark.parametrize("name", release_names())
def test_every_release_pins_its_definitions(name):
    assert all(len(digest) == 64 for digest in release(name).crds.files.values())
