import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from llmd_base.errors import KitError
from llmd_oke.operations.pulumi_cli import CommandResult, PulumiCli
from llmd_oke.operations.state_archives import StateArchive, compare, pack, read

URN = "urn:pulumi:prod::llmd-oke::oci:Core/vcn:Vcn::{}"
MARK = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270"}
PROVIDER = {"urn": URN.format("oci"), "type": "pulumi:providers:oci", "id": "p", "inputs": {"version": "4.20.0"}}


def network(name: str = "network", **inputs: Any) -> dict[str, Any]:
    return {"urn": URN.format(name), "type": "oci:Core/vcn:Vcn", "id": f"ocid1.vcn.{name}", "inputs": inputs}


def state(*resources: dict[str, Any], time: str = "2026-11-02T10:00:00.123456789Z", **more: Any) -> dict[str, Any]:
    manifest = {"time": time, "version": "v3.250.0"}
    provider = {"type": "passphrase", "state": {"salt": "v1:a:b"}}
    deployment = {"manifest": manifest, "secrets_providers": provider, "resources": list(resources), **more}
    return {"version": 3, "deployment": deployment}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "stacks").mkdir()
    (tmp_path / "Pulumi.yaml").write_text("name: llmd-oke\nruntime: python\n")
    (tmp_path / "stacks" / "Pulumi.prod.yaml").write_text("encryptionsalt: v1:a:b\n")
    return tmp_path


def packed(project: Path, document: dict[str, Any]) -> StateArchive:
    def run(argv: Any, capture: bool) -> CommandResult:
        return CommandResult(0, json.dumps({"url": "s3://states"} if "whoami" in argv else document))

    return pack(PulumiCli(project, "prod", "pulumi", run))


@pytest.fixture
def archive(project: Path) -> Path:
    file = project / "prod.tar.gz"
    packed(project, state(PROVIDER, network())).write(file)
    return file


def rewritten(file: Path, **changed: bytes | None) -> Path:
    """The archive with files that somebody changed or left out."""
    with tarfile.open(file) as archive:
        content = {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]
    content |= {f"{name}.json": text for name, text in changed.items() if text is not None}
    for name in [f"{name}.json" for name, text in changed.items() if text is None]:
        del content[name]
    with tarfile.open(file, "w:gz") as archive:
        for name, text in content.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
    return file


def manifest_of(file: Path) -> dict[str, Any]:
    with tarfile.open(file) as archive:
        return json.load(archive.extractfile("manifest.json"))  # type: ignore[arg-type]


def test_the_manifest_of_a_state_has_times_versions_checksums_and_pending_operations(project: Path, archive: Path):
    manifest = read(archive).manifest
    assert (manifest.project, manifest.stack, manifest.backend) == ("llmd-oke", "prod", "s3://states")
    assert manifest.written == "2026-11-02T10:00:00.123456+00:00"
    assert manifest.versions["plug-in oci"] == "4.20.0"
    assert manifest.versions["pulumi"] == "v3.250.0"
    assert manifest.files.keys() == {"state.json", "stack.yaml", "project.yaml"}
    begun = [{"resource": network(), "type": "creating"}]
    assert packed(project, state(pending_operations=begun)).manifest.pending == ("creating Vcn network",)


def test_a_state_with_a_secret_in_plain_text_is_not_archived(project: Path):
    with pytest.raises(KitError, match="a secret in plain text"):
        packed(project, state(network(tags=[{**MARK, "plaintext": '"hidden"'}])))


def test_a_truncated_state_archive_is_refused(archive: Path):
    content = archive.read_bytes()
    for length in range(0, len(content), 41):
        archive.write_bytes(content[:length])
        with pytest.raises(KitError, match=r"no whole archive of a state|is damaged"):
            read(archive)


def test_the_error_for_a_damaged_state_archive_names_the_file_whose_checksum_differs(archive: Path):
    with pytest.raises(KitError, match=r"is damaged: state\.json differs from its checksum"):
        read(rewritten(archive, state=json.dumps(state()).encode()))


@pytest.mark.parametrize("content", [b"", b"not an archive", b"\x1f\x8b\x08\x00", b'{"version": 3, "deployment": {}}'])
def test_a_file_that_is_no_state_archive_is_refused(tmp_path: Path, content: bytes):
    file = tmp_path / "other"
    file.write_bytes(content)
    with pytest.raises(KitError, match="is no whole archive of a state"):
        read(file)


def test_a_state_archive_of_a_later_format_or_without_a_valid_manifest_is_refused(archive: Path):
    later = {**manifest_of(archive), "format": "llmd-oke state 2", "versions": {"llmd-oke": "3.1"}}
    with pytest.raises(KitError, match="llmd-oke state 2") as refusal:
        read(rewritten(archive, manifest=json.dumps(later).encode()))
    assert "3.1" in (refusal.value.remedy or "")
    with pytest.raises(KitError, match=r"its manifest\.json is none of a state"):
        read(rewritten(archive, manifest=b'{"files": []}'))
    with pytest.raises(KitError, match=r"it has no manifest\.json"):
        read(rewritten(archive, manifest=None))


@pytest.mark.parametrize("text", ["[]", "{}", '{"deployment": {"resources": [1]}}', "no JSON"])
def test_a_state_archive_whose_state_file_is_no_pulumi_state_is_refused(archive: Path, text: str):
    manifest = manifest_of(archive)
    manifest["files"]["state.json"] = hashlib.sha256(text.encode()).hexdigest()
    with pytest.raises(KitError, match="has no state of a stack in it"):
        read(rewritten(archive, state=text.encode(), manifest=json.dumps(manifest).encode()))


def test_a_state_archive_with_resources_of_another_stack_is_refused(archive: Path):
    foreign = json.dumps(state({**network(), "urn": "urn:pulumi:dev::llmd-oke::oci:Core/vcn:Vcn::network"})).encode()
    manifest = manifest_of(archive)
    manifest["files"]["state.json"] = hashlib.sha256(foreign).hexdigest()
    with pytest.raises(KitError, match="resources of another stack"):
        read(rewritten(archive, state=foreign, manifest=json.dumps(manifest).encode()))


@pytest.mark.parametrize(("project_name", "stack"), [("other", "prod"), ("llmd-oke", "dev")])
def test_a_state_archive_of_another_project_or_stack_is_refused(archive: Path, project_name: str, stack: str):
    with pytest.raises(KitError, match=rf"has the state of llmd-oke/prod, not of {project_name}/{stack}"):
        read(archive).require(project_name, stack)


def test_a_state_is_compared_with_its_archive_by_resources_but_not_by_encryption(project: Path):
    before = packed(project, state(network(), network("old"), network("changed", size=1)))
    after = state(network(), network("new"), network("changed", size=2), time="2026-11-02T11:00:00+01:00")
    difference = compare(before, after)
    assert (difference.only_in_backend, difference.only_in_archive) == (("Vcn new",), ("Vcn old",))
    assert difference.changed == ("Vcn changed",)
    assert not difference.newer
    assert compare(before, state(time="2026-11-02T10:00:00.2Z")).newer
    before = packed(project, state(network(tag={**MARK, "ciphertext": "v1:one"})))
    assert not compare(before, state(network(tag={**MARK, "ciphertext": "v1:two"})))
