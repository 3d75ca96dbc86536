"""Verification of publishers' signatures of images and charts.

Signatures by a publisher's key are verified here, in the form that cosign stores beside an image (cosign,
SIGNATURE_SPEC.md). Keyless signatures, by an identity in a Sigstore certificate, need Sigstore's log and root
certificates, and are verified by the program `cosign` if it is on PATH.
"""

import base64
import binascii
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from llmd_base.errors import KitError
from llmd_base.progress import Progress
from pydantic import BaseModel, Field, ValidationError

from llmd_oke.access.registry import Refusal, RegistryClient, RegistryError, query_registries
from llmd_oke.catalogue.container_images import ContainerImage, Publisher, signatures
from llmd_oke.operations.findings import Finding, Verdict
from llmd_oke.operations.registries import refused
from llmd_oke.planning.container_images import UsedImage

CHECK = "signature"
SIGNATURE = "dev.cosignproject.cosign/signature"
COSIGN = "cosign"
COSIGN_S = 120
"""Timeout of cosign for one image in seconds: it queries the registry and Sigstore's log."""

_HASHES = {"sha256": hashes.SHA256, "sha512": hashes.SHA512}
_UNSIGNED = "Its digest alone says what it is."
_OTHER = "Deploy nothing with it: somebody else may have published it."


class _Image(BaseModel):
    digest: str = Field(alias="docker-manifest-digest")


class _Critical(BaseModel):
    image: _Image


class _Payload(BaseModel):
    """Payload of a signature (Red Hat's simple signing, which cosign writes)."""

    critical: _Critical


class SignatureError(KitError):
    """Error for an image without a valid signature of its publisher."""


def signature_findings(images: Sequence[UsedImage], progress: Progress) -> list[Finding]:
    """Return a finding for each image: a problem if the publisher signs images and this one has no valid signature;
    fine, with a remark, if the publisher doesn't sign.
    """
    findings = query_registries([used.image for used in images], _finding, progress)
    return [replace(findings[used.image.reference], path=used.path) for used in images]


def _finding(client: RegistryClient, image: ContainerImage) -> Finding:
    publisher = signatures().publisher(image)
    if not isinstance(publisher, Publisher):
        known = publisher or "nothing is known of who signs it (values/container-images/signatures.yaml)"
        return Finding(CHECK, "", Verdict.FINE, f"{image.reference} is not signed: {known}", _UNSIGNED)
    try:
        digest = image.digest or client.stored(image).digest
        if publisher.key is not None:
            verify_by_key(client, image, digest, publisher.key, publisher.hash)
        else:
            verify_by_identity(image, digest, publisher)
    except RegistryError as error:
        return refused(image, error, "")
    except SignatureError as error:
        return Finding(CHECK, "", Verdict.PROBLEM, f"{image.reference}: {error.message}", _OTHER)
    except KitError as error:
        return Finding(CHECK, "", Verdict.UNKNOWN, f"{image.reference}: {error.message}", error.remedy or "")
    today = "" if image.digest else f", {digest} today"
    return Finding(CHECK, "", Verdict.FINE, f"{image.reference} is signed ({publisher.source}){today}")


def verify_by_key(client: RegistryClient, image: ContainerImage, digest: str, pem: str, algorithm: str) -> None:
    """Verify that an image has at least one signature of its digest by a key.

    Args:
        client: client of the image's registry.
        image: the image.
        digest: the digest that must be signed.
        pem: the public key as PEM, RSA or elliptic curve.
        algorithm: hash function, `sha256` or `sha512`.

    Raises:
        SignatureError: no signature is valid.
        RegistryError: the registry doesn't answer, or refuses.
    """
    tag = f"{digest.replace(':', '-')}.sig"
    try:
        layers = client.layers(image.model_copy(update={"tag": tag, "digest": None}))
    except RegistryError as error:
        if error.refusal is not Refusal.NOT_FOUND:
            raise
        raise SignatureError(f"its publisher signs, and {digest} has no signature") from error
    reasons: list[str] = []
    for layer in layers:
        try:
            payload = client.blob(image, layer.digest)
            _verify(payload, layer.annotations.get(SIGNATURE, ""), pem, algorithm)
            _require(payload, digest)
        except (ValueError, InvalidSignature, UnsupportedAlgorithm) as error:
            reasons.append(str(error) or "it is of another key")
            continue
        return
    raise SignatureError(f"no signature of {digest} is its publisher's: {'; '.join(dict.fromkeys(reasons)) or 'none'}")


def _verify(payload: bytes, signature: str, pem: str, algorithm: str) -> None:
    """Verify a signature (base64) of a payload by a key.

    Raises:
        InvalidSignature: the signature isn't that key's.
        ValueError: the signature isn't base64, or the key is neither RSA nor elliptic curve.
    """
    try:
        signed = base64.b64decode(signature, validate=True)
    except binascii.Error as error:
        raise ValueError("it is no base64") from error
    key, digest = load_pem_public_key(pem.encode()), _HASHES[algorithm]()
    match key:
        case rsa.RSAPublicKey():
            key.verify(signed, payload, padding.PKCS1v15(), digest)
        case ec.EllipticCurvePublicKey():
            key.verify(signed, payload, ec.ECDSA(digest))
        case _:
            raise ValueError("the publisher's key is neither RSA nor of an elliptic curve")


def _require(payload: bytes, digest: str) -> None:
    """Require that a signed payload names the digest. The image's name in the payload is ignored, since copies in other
    registries have other names.

    Raises:
        ValueError: the payload names another digest, or has another form.
    """
    try:
        critical = _Payload.model_validate_json(payload).critical
    except ValidationError as error:
        raise ValueError("what is signed has another form") from error
    if critical.image.digest != digest:
        raise ValueError(f"it is of {critical.image.digest}")


def verify_by_identity(image: ContainerImage, digest: str, publisher: Publisher) -> None:
    """Verify with cosign that an image has a signature by the publisher's identity in a Sigstore certificate.

    Raises:
        SignatureError: cosign finds no such signature.
        KitError: cosign isn't on PATH, fails, or doesn't end within `COSIGN_S`.
    """
    program = shutil.which(COSIGN)
    if program is None:
        remedy = "Install cosign (docs.sigstore.dev): it verifies by Sigstore's log and roots."
        raise KitError(f"no {COSIGN} on PATH, and its publisher signs without a key", remedy)
    identity = (publisher.identity or "").replace("<tag>", image.tag)
    reference = f"{image.registry}/{image.repository}@{digest}"
    who = [f"--certificate-identity={identity}", f"--certificate-oidc-issuer={publisher.issuer}"]
    try:
        argv = [program, "verify", *who, "--output=json", reference]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=COSIGN_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KitError(f"{COSIGN} gives no answer: {error}", "Try again.") from error
    if done.returncode:
        words = done.stderr.strip().splitlines()
        last = "".join(filter(str.isprintable, words[-1]))[:300] if words else f"exit code {done.returncode}"
        if any(text in done.stderr for text in _NO_MATCH):
            raise SignatureError(f"{COSIGN} finds no signature of {identity}: {last}")
        raise KitError(f"{COSIGN} could not verify: {last}", "Try again, from a machine with a way to Sigstore.")


_NO_MATCH = ("no matching signatures", "no signatures found", "none of the expected identities matched")
"""Error messages of cosign for an image without a matching signature (cosign, pkg/cosign/errors.go)."""
