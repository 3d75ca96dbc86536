"""Signatures as cosign keeps them in a real registry, by keys that tests make; publishers that sign by an identity."""

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from llmd_base.progress import SilentProgress
from llmd_oke.catalogue.container_images import ContainerImage, Publisher, Signatures, lock, parse_reference, signatures
from llmd_oke.cli.main import app
from llmd_oke.operations import signatures as operation
from llmd_oke.operations.findings import Finding, Verdict
from llmd_oke.operations.signatures import SIGNATURE, signature_findings
from llmd_oke.planning.container_images import UsedImage
from pydantic import ValidationError
from registry_for_tests import AMD64, ARM64
from registry_program import RegistryProgram
from stack_files import PROJECT
from typer.testing import CliRunner

REPOSITORY = "jetstack/controller"
PAYLOAD = "application/vnd.dev.cosign.simplesigning.v1+json"
CONFIG = ("application/vnd.oci.image.config.v1+json", b"{}")


class Signer:
    """A key, and how it signs."""

    def __init__(self, kind: str = "rsa") -> None:
        self._key = rsa.generate_private_key(65537, 2048) if kind == "rsa" else ec.generate_private_key(ec.SECP256R1())
        public = self._key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        self.pem = public.decode()

    def __call__(self, payload: bytes, digest: hashes.HashAlgorithm) -> bytes:
        if isinstance(self._key, rsa.RSAPrivateKey):
            return self._key.sign(payload, padding.PKCS1v15(), digest)
        return self._key.sign(payload, ec.ECDSA(digest))


@pytest.fixture(scope="module")
def signer() -> Signer:
    return Signer()


def payload(digest: str) -> bytes:
    """Return what cosign signs (SIGNATURE_SPEC.md)."""
    image, identity = {"docker-manifest-digest": digest}, {"docker-reference": "quay.io/jetstack/controller"}
    critical = {"identity": identity, "image": image, "type": "cosign container image signature"}
    return json.dumps({"critical": critical, "optional": None}).encode()


def attach(registry: RegistryProgram, digest: str, *signed: tuple[bytes, bytes]) -> None:
    """Put payloads and their signatures beside an image, as cosign does."""
    tag = f"{digest.replace(':', '-')}.sig"
    layers = [(PAYLOAD, content) for content, _ in signed]
    notes = [{SIGNATURE: base64.b64encode(signature).decode()} for _, signature in signed]
    registry.push_artifact(REPOSITORY, tag, CONFIG, layers, annotations=notes)


def by_sha512(signer: Signer, content: bytes) -> tuple[bytes, bytes]:
    """Return a payload with its signature."""
    return content, signer(content, hashes.SHA512())


@pytest.fixture
def look(registry: RegistryProgram, signer: Signer, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Finding]:
    """Return what is found of an image of that registry, whose publisher signs with a key."""

    def finding(tag: str, digest: str | None, key: str = signer.pem, algorithm: str = "sha512") -> Finding:
        publisher = Publisher(images=(f"{registry.address}/*",), source="a page", key=key, hash=algorithm)
        monkeypatch.setattr(operation, "signatures", lambda: Signatures(publishers=(publisher,), unsigned={}))
        image = ContainerImage(registry=registry.address, repository=REPOSITORY, tag=tag, digest=digest)
        (found,) = signature_findings([UsedImage(image, "cert-manager", "gpuStack")], SilentProgress())
        return found

    return finding


@pytest.mark.parametrize(("kind", "algorithm"), [("rsa", "sha512"), ("rsa", "sha256"), ("ec", "sha256")])
def test_an_image_with_its_publishers_signature_passes_verification(
    registry: RegistryProgram, look: Callable[..., Finding], kind: str, algorithm: str
):
    own = Signer(kind)
    digest = registry.push_index(
        REPOSITORY, f"{kind}-{algorithm}", AMD64, ARM64, bytes_each=ord(kind[0]) + len(algorithm)
    )
    content = payload(digest)
    attach(registry, digest, (content, own(content, {"sha256": hashes.SHA256(), "sha512": hashes.SHA512()}[algorithm])))
    found = look(f"{kind}-{algorithm}", digest, own.pem, algorithm)
    assert (found.verdict, found.path) == (Verdict.FINE, "gpuStack")
    assert found.value.endswith("is signed (a page)")


def test_an_image_with_one_valid_signature_among_several_passes_verification(
    registry: RegistryProgram, signer: Signer, look: Callable[..., Finding]
):
    digest = registry.push(REPOSITORY, "several", 101)
    content = payload(digest)
    attach(registry, digest, by_sha512(Signer(), content), by_sha512(signer, content + b" "))
    assert look("several", digest).verdict is Verdict.FINE


def test_an_unsigned_image_of_a_publisher_that_signs_fails_verification(
    registry: RegistryProgram, look: Callable[..., Finding]
):
    digest = registry.push(REPOSITORY, "none", 102)
    found = look("none", digest)
    assert (found.verdict, found.remedy.startswith("Deploy nothing with it")) == (Verdict.PROBLEM, True)
    assert f"its publisher signs, and {digest} has no signature" in found.value


def test_an_image_signature_with_another_key_than_the_publishers_fails_verification(
    registry: RegistryProgram, look: Callable[..., Finding]
):
    digest = registry.push(REPOSITORY, "other-key", 103)
    attach(registry, digest, by_sha512(Signer(), payload(digest)))
    found = look("other-key", digest)
    assert (found.verdict, "it is of another key" in found.value) == (Verdict.PROBLEM, True)


def test_a_signature_copied_from_another_image_fails_verification(
    registry: RegistryProgram, signer: Signer, look: Callable[..., Finding]
):
    digest, other = registry.push(REPOSITORY, "swapped", 104), registry.push(REPOSITORY, "signed", 105)
    attach(registry, digest, by_sha512(signer, payload(other)))
    found = look("swapped", digest)
    assert (found.verdict, f"it is of {other}" in found.value) == (Verdict.PROBLEM, True)


@pytest.mark.parametrize("content", [b"no json", b"{}", b'{"critical": {"image": 1}}'])
def test_an_image_signature_over_a_malformed_payload_fails_verification(
    registry: RegistryProgram, signer: Signer, look: Callable[..., Finding], content: bytes
):
    tag = f"form-{len(content)}"
    digest = registry.push(REPOSITORY, tag, 200 + len(content))
    attach(registry, digest, by_sha512(signer, content))
    found = look(tag, digest)
    assert (found.verdict, "what is signed has another form" in found.value) == (Verdict.PROBLEM, True)


def test_an_image_signature_that_is_not_base64_fails_verification(
    registry: RegistryProgram, look: Callable[..., Finding]
):
    digest = registry.push(REPOSITORY, "text", 106)
    tag = f"{digest.replace(':', '-')}.sig"
    registry.push_artifact(REPOSITORY, tag, CONFIG, [(PAYLOAD, payload(digest))], annotations=[{SIGNATURE: "%"}])
    assert "it is no base64" in look("text", digest).value


def test_verification_reports_a_publishers_public_key_of_an_unsupported_type(
    registry: RegistryProgram, signer: Signer, look: Callable[..., Finding]
):
    digest = registry.push(REPOSITORY, "ed25519", 107)
    attach(registry, digest, by_sha512(signer, payload(digest)))
    public = ed25519.Ed25519PrivateKey.generate().public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    assert "neither RSA nor of an elliptic curve" in look("ed25519", digest, pem).value


def test_an_image_without_a_locked_digest_is_verified_by_its_current_digest(
    registry: RegistryProgram, signer: Signer, look: Callable[..., Finding]
):
    digest = registry.push(REPOSITORY, "today", 108)
    attach(registry, digest, by_sha512(signer, payload(digest)))
    found = look("today", None)
    assert (found.verdict, found.value.endswith(f"{digest} today")) == (Verdict.FINE, True)


def test_an_image_signature_is_left_unverified_if_the_registry_does_not_answer(
    registry: RegistryProgram, look: Callable[..., Finding]
):
    registry.private.add(REPOSITORY)
    assert "gives jetstack/controller to nobody" in look("v1", None).value


def found_of(reference: str) -> Finding:
    (found,) = signature_findings([UsedImage(parse_reference(reference), "x", "release")], SilentProgress())
    return found


def test_an_image_of_a_publisher_that_signs_nothing_is_reported_without_failing():
    found = found_of("docker.io/grafana/grafana:13.1.0")
    assert found.verdict is Verdict.FINE
    assert "is not signed: no Grafana product signs its images" in found.value
    assert found_of("example.com/own/vllm:1").value.startswith("example.com/own/vllm:1 is not signed: nothing is known")


DIGEST = f"sha256:{'1' * 64}"
OPERATOR = f"quay.io/prometheus-operator/prometheus-operator:v0.92.0@{DIGEST}"


def test_without_cosign_a_keyless_signature_is_left_unverified(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    found = found_of(OPERATOR)
    assert (found.verdict, "no cosign on PATH" in found.value) == (Verdict.UNKNOWN, True)
    assert found.remedy.startswith("Install cosign")


@pytest.mark.parametrize(
    ("script", "verdict"),
    [
        ("exit 0", Verdict.FINE),
        ("echo 'Error: no matching signatures: none of the expected identities matched' >&2; exit 10", Verdict.PROBLEM),
        ("echo 'Error: no signatures found' >&2; exit 10", Verdict.PROBLEM),
        ("echo 'Error: getting Rekor public keys: no such host' >&2; exit 1", Verdict.UNKNOWN),
    ],
)
def test_cosign_is_called_with_the_publishers_identity_and_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, verdict: Verdict
):
    cosign = tmp_path / "cosign"
    cosign.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/asked\n{script}\n')
    cosign.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert found_of(OPERATOR).verdict is verdict
    workflow = "https://github.com/prometheus-operator/prometheus-operator/.github/workflows/publish.yaml"
    assert (tmp_path / "asked").read_text().splitlines() == [
        "verify",
        f"--certificate-identity={workflow}@refs/tags/v0.92.0",
        "--certificate-oidc-issuer=https://token.actions.githubusercontent.com",
        "--output=json",
        f"quay.io/prometheus-operator/prometheus-operator@{DIGEST}",
    ]


def test_every_locked_image_has_a_publisher_or_the_reason_why_nobody_signs_it():
    known = {reference: signatures().publisher(parse_reference(reference)) for reference in lock().images}
    assert [reference for reference, publisher in known.items() if publisher is None] == []
    assert sum(isinstance(publisher, Publisher) for publisher in known.values()) >= 10


def test_every_publishers_public_key_can_be_parsed():
    keys = [load_pem_public_key(item.key.encode()) for item in signatures().publishers if item.key]
    assert [key.key_size for key in keys if isinstance(key, rsa.RSAPublicKey)] == [4096]
    assert len(keys) == 1


@pytest.mark.parametrize(
    "fields", [{}, {"key": "k", "identity": "i", "issuer": "x"}, {"identity": "i"}, {"key": "k", "issuer": "x"}]
)
def test_a_publisher_must_sign_with_either_a_key_or_an_identity(fields: dict[str, str]):
    with pytest.raises(ValidationError, match="signs with a key, or as an identity"):
        Publisher(images=("a",), source="s", **fields)


def test_the_verify_command_reports_each_images_signature_and_fails_for_a_problem(monkeypatch: pytest.MonkeyPatch):
    def found(images: list[UsedImage], _: object) -> list[Finding]:
        return [Finding("signature", used.path, Verdict.PROBLEM, used.image.reference) for used in images]

    monkeypatch.setattr(operation, "signature_findings", found)
    result = CliRunner().invoke(app, ["images", "verify", "--stack", "rehearsal", "--project", str(PROJECT), "--json"])
    assert result.exit_code == 1
    assert {item["check"] for item in json.loads(result.stdout)["findings"]} == {"signature"}
