import fcntl
import threading

import pytest
from listener import Listener
from llmd_oke.errors import KitError
from llmd_oke.rehearsal import programs
from llmd_oke.rehearsal.programs import golang
from llmd_oke.rehearsal.programs.definitions import definitions, tools_folder

FAKE_GO = """
[ "$1" = env ] && echo go1.26.8 && exit 0
echo "$@" >> {calls}
while [ "$1" != -o ]; do shift; done
if [ -d "$2" ]; then
  target="$2"; shift 2
  for package in "$@"; do echo built > "$target/${{package##*/}}"; done
else
  echo built > "$2"
fi
"""


@pytest.fixture
def calls(tmp_path, script):
    """A Go that builds nothing, and what it was asked."""
    file = tmp_path / "calls"
    script("go", FAKE_GO.format(calls=file))
    return file


def test_a_missing_program_is_built_into_the_cache_and_found_there_afterwards(cache, calls):
    first, again = Listener(), Listener()
    etcd = programs.ensure(["etcd"], first)["etcd"]
    assert etcd.path.read_text() == "built\n"
    assert etcd.path.is_relative_to(cache / "programs/etcd")
    assert first.steps == ["building etcd (about 1 minute the first time)"]
    assert programs.ensure(["etcd"], again)["etcd"] == etcd
    assert again.steps == []
    assert len(calls.read_text().splitlines()) == 1


def test_one_build_makes_all_programs_of_kubernetes(cache, calls):
    names = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"]
    assert list(programs.ensure(names, Listener())) == names
    (call,) = calls.read_text().splitlines()
    assert "-mod=readonly" in call
    assert "-X k8s.io/component-base/version.gitVersion=v1.34.2" in call


def test_nothing_half_made_is_left_when_a_build_fails(cache, script):
    script("go", '[ "$1" = env ] && echo go1.26.8 && exit 0; echo "main.go:7: undefined: x"; exit 1')
    with pytest.raises(KitError, match=r"(?s)building etcd failed; the end of .*etcd\.log.*undefined: x"):
        programs.ensure(["etcd"], Listener())
    assert list((cache / "unfinished").iterdir()) == []
    assert not (cache / "programs").exists()


def test_a_second_program_that_builds_the_same_waits_and_takes_what_was_made(cache, calls):
    listener = Listener()
    (cache / "locks").mkdir(parents=True)
    with (cache / "locks/etcd.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        told = threading.Event()
        listener.detail = lambda text: (listener.details.append(text), told.set())
        waiting = threading.Thread(target=programs.ensure, args=(["etcd"], listener))
        waiting.start()
        assert told.wait(10)
    waiting.join(10)
    assert listener.details == ["another program is making etcd, waiting for it, 0 s"]
    assert programs.locate("etcd") is not None


@pytest.fixture
def packaged_go(tmp_path, monkeypatch):
    """Sets what the Python package of Go has: a shell script, or nothing."""

    def put(body):
        file = tmp_path / "packaged-go"
        if body is not None:
            file.write_text(f"#!/bin/sh\n{body}\n")
            file.chmod(0o755)
        monkeypatch.setattr(golang, "packaged_file", lambda _: file if body is not None else None)
        return file

    return put


TOO_OLD = "echo 'go: go.mod requires go >= 1.24.0 (running go 1.19; GOTOOLCHAIN=local)' >&2; exit 1"
FITS = "echo go1.27.3"


def test_without_any_go_the_command_that_installs_it_is_shown(cache, path, packaged_go):
    packaged_go(None)
    with pytest.raises(KitError, match=r"(?s)Go 1\.25\.11 or later is needed.*there is none.*llmd-oke\[rehearsal\]"):
        programs.ensure(["etcd"], Listener())


@pytest.mark.parametrize("too_old", [TOO_OLD, "echo go1.19.8"])
def test_a_go_that_is_too_old_is_quoted_where_there_is_no_other(cache, script, packaged_go, too_old):
    script("go", too_old)
    packaged_go(None)
    with pytest.raises(KitError, match=r"path/go says: .*go 1\.19|Go 1\.19"):
        programs.ensure(["etcd"], Listener())


@pytest.mark.parametrize("on_path", [None, TOO_OLD, "echo go1.19.8", "exit 127"])
def test_go_of_the_python_package_builds_where_none_on_path_will_do(cache, path, script, packaged_go, on_path):
    if on_path is not None:
        script("go", on_path)
    expected = packaged_go('[ "$GOTOOLCHAIN" = local ] && [ -z "$GOROOT" ] && ' + FITS)
    assert golang.find_go(tools_folder() / "etcd") == expected


def test_go_on_path_is_taken_before_the_packages_own(cache, script, packaged_go):
    packaged_go(FITS)
    on_path = script("go", FITS)
    assert golang.find_go(tools_folder() / "etcd") == on_path


def test_the_script_that_the_python_package_puts_on_path_is_no_go_of_the_machine(
    cache, script, path, packaged_go, monkeypatch
):
    script("go", FITS)
    monkeypatch.setattr(golang.sysconfig, "get_path", lambda _: str(path))
    expected = packaged_go(FITS)
    assert golang.find_go(tools_folder() / "etcd") == expected


def test_a_root_of_another_go_is_not_handed_on(monkeypatch):
    monkeypatch.setenv("GOROOT", "/usr/lib/go-1.19")
    monkeypatch.setenv("GOTOOLCHAIN", "auto")
    assert "GOROOT" not in golang.environment()
    assert golang.environment()["GOTOOLCHAIN"] == "local"


def test_what_cannot_be_had_is_all_named_before_anything_is_built(cache, calls, monkeypatch):
    monkeypatch.setattr(programs.finding, "SYSTEM_PATH", "")
    with pytest.raises(KitError, match=r"epp, bwrap can't be found") as refused:
        programs.ensure(["etcd", "epp", "bwrap"], Listener(), {"epp": "v0.8.0"})
    assert "epp v0.8.0: put it on PATH; what can be built here is v0.7.1" in str(refused.value)
    assert "bubblewrap" in str(refused.value)
    assert not calls.exists()


@pytest.mark.parametrize(
    ("os_release", "command"),
    [
        ("ID=ubuntu\nID_LIKE=debian\n", "sudo apt-get install iproute2"),
        ('ID="ol"\nID_LIKE="fedora"\n', "sudo dnf install iproute"),
        ("ID=plan9\n", "install the package iproute2"),
        (None, "install the package iproute2"),
    ],
)
def test_the_command_that_installs_a_package_is_the_distributions_own(tmp_path, os_release, command):
    file = tmp_path / "os-release"
    if os_release is not None:
        file.write_text(os_release)
    package = definitions().programs["ip"].source.package
    assert programs.ensuring.install_command(package, file) == command


def test_every_build_makes_known_programs_from_a_module_with_checksums():
    for name, build in definitions().builds.items():
        assert (tools_folder() / build.module / "go.sum").is_file()
        for program in build.packages:
            assert definitions().programs[program].source.build == name


def test_a_build_of_several_programs_names_them_as_their_packages_are_named():
    for build in definitions().builds.values():
        if len(build.packages) > 1:
            assert [package.rpartition("/")[2] for package in build.packages.values()] == list(build.packages)


@pytest.mark.parametrize(
    "name", ["etcd", "kube-apiserver", "pulumi", "helm", "epp", "pd-sidecar", "llm-d-inference-sim", "actionlint"]
)
def test_the_pinned_version_is_the_one_in_go_mod(name):
    modules = {
        "etcd": "go.etcd.io/etcd/server/v3",
        "kube-apiserver": "k8s.io/kubernetes",
        "pulumi": "github.com/pulumi/pulumi/pkg/v3",
        "helm": "helm.sh/helm/v3",
        "epp": "github.com/llm-d/llm-d-inference-scheduler",
        "pd-sidecar": "github.com/llm-d/llm-d-inference-scheduler",
        "llm-d-inference-sim": "github.com/llm-d/llm-d-inference-sim",
        "actionlint": "github.com/rhysd/actionlint",
    }
    definition = definitions().programs[name]
    go_mod = (tools_folder() / definitions().builds[definition.source.build].module / "go.mod").read_text()
    assert f"{modules[name]} {definition.version}" in go_mod
