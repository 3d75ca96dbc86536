"""Whether nodes can pull every container image of a stack, which they do without credentials."""

from collections.abc import Sequence

from llmd_oke.access.registry import Refusal, RegistryClient, RegistryError, ask_all
from llmd_oke.catalogue.container_images import ContainerImage
from llmd_oke.operations.findings import Finding, Verdict
from llmd_oke.planning.container_images import UsedImage
from llmd_oke.progress import Progress

CHECK = "pull"

OCI_REGISTRY = ".ocir.io"
"""How the names of OCI's registries end, for which nodes sign in with rights of their own."""

_REMEDIES = {
    Refusal.UNREACHABLE: "Try again, or from a machine with a way to it. Whether nodes have one is not known either.",
    Refusal.BUSY: "Try again later. Nodes behind one address share its limit: a mirror in OCI's registry has none.",
    Refusal.UNSOUND: "Is there a proxy between here and the registry that changes answers?",
    Refusal.DENIED: "A public copy, or a release whose images are there: nodes pull without credentials.",
    Refusal.NOT_FOUND: "A tag that the registry has.",
    Refusal.OTHER_PLATFORM: "An image for linux/amd64.",
}
_UNKNOWN = {Refusal.UNREACHABLE, Refusal.BUSY, Refusal.UNSOUND}


def registry_findings(images: Sequence[UsedImage], progress: Progress) -> list[Finding]:
    """A finding for each image. Registries are asked for manifests only; nothing is pulled."""
    findings = ask_all([used.image for used in images], _looked_for, progress)
    return [_placed(used, findings[used.image.reference]) for used in images]


def _placed(used: UsedImage, finding: Finding) -> Finding:
    return Finding(CHECK, used.path, finding.verdict, f"{used.used_by}: {finding.value}", finding.remedy)


def _looked_for(client: RegistryClient, image: ContainerImage) -> Finding:
    """What there is to say of an image, wherever the stack file brings it from."""
    try:
        if image.digest is not None:
            return _pinned(client, image, image.digest)
        return _fine(f"{image.reference} can be pulled, {client.stored(image).digest} today")
    except RegistryError as error:
        return _refused(image, error)


def _pinned(client: RegistryClient, image: ContainerImage, digest: str) -> Finding:
    """A locked image: what counts is its digest. A tag that moved says that somebody published something else."""
    gone: RegistryError | None = None
    try:
        client.stored(image, by_digest=True)
    except RegistryError as error:
        if error.refusal is not Refusal.NOT_FOUND:
            raise
        gone = error
    now = client.stored(image).digest
    differs = f"{image.reference} is {now} now, the lock has {digest}"
    if gone is not None:
        remedy = "`llmd-oke images update --moved`, if that is meant to be."
        return Finding(CHECK, "", Verdict.PROBLEM, f"{differs}, which the registry has no more", remedy)
    if now != digest:
        remedy = "Nodes pull the locked one. `llmd-oke images update --moved` takes the other, if that is meant to be."
        return Finding(CHECK, "", Verdict.FINE, differs, remedy)
    return _fine(f"{image.reference} can be pulled as it is locked")


def _refused(image: ContainerImage, error: RegistryError) -> Finding:
    if error.refusal is Refusal.DENIED and image.registry.endswith(OCI_REGISTRY):
        remedy = "Nodes sign in with their own rights (cluster.iam.grants: ocir), which can't be tried from here."
        return Finding(CHECK, "", Verdict.UNKNOWN, error.message, remedy)
    verdict = Verdict.UNKNOWN if error.refusal in _UNKNOWN else Verdict.PROBLEM
    return Finding(CHECK, "", verdict, error.message, _REMEDIES[error.refusal])


def _fine(value: str) -> Finding:
    return Finding(CHECK, "", Verdict.FINE, value)
