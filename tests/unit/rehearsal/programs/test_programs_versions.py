import pytest
from llmd_oke.rehearsal.programs.definitions import definitions
from llmd_oke.rehearsal.programs.versions import ask, will_do


@pytest.mark.parametrize(
    ("accepts", "found", "serves"),
    [
        ("exact", "v1.34.2", True),
        ("exact", "1.34.2", True),
        ("exact", "v1.34.3", False),
        ("patch", "v1.34.3", True),
        ("patch", "v1.34.1", False),
        ("patch", "v1.35.0", False),
        ("minor", "v1.35.0", True),
        ("minor", "v1.33.9", False),
        ("minor", "v2.0.0", False),
        ("minor", "v1.35.0-alpha.1", False),
        ("later", "v6.1", True),
        ("later", "v1", False),
    ],
)
def test_which_other_versions_serve(accepts, found, serves):
    assert will_do(found, "v1.34.2", accepts) is serves


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
def test_the_version_is_read_from_each_programs_own_answer(script, name, answer, version):
    program = script(name, f"/bin/cat <<'END'\n{answer}\nEND")
    assert ask(program, definitions().programs[name]) == version


def test_a_program_that_cannot_be_run_has_no_version(tmp_path):
    assert ask(tmp_path / "etcd", definitions().programs["etcd"]) is None
