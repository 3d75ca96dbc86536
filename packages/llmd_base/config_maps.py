"""Results of pods, compressed and split over ConfigMaps, by which they leave the cluster."""

import base64
import gzip
import zlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from llmd_base.errors import KitError

LABEL = "llmd-oke/smoke"
"""Label of a smoke benchmark's Job, pod and result ConfigMap; the value is the name that the model's objects share."""

JOB_ANNOTATION = "llmd-oke/job"
"""Annotation of a result ConfigMap; the value is the name of the Job that wrote the result."""

CHUNK_BYTES = 900_000
"""Maximum size of a piece in bytes; a ConfigMap is limited to 1 MiB."""

MAX_CHUNKS = 32
"""Maximum number of pieces of one pod's result: 29 MB compressed, about ten million token times. Programs with larger
results must leave out parts.
"""

MAX_BYTES = 512 * 2**20
"""Maximum size of a pod's uncompressed result in bytes."""

PART_LABEL = "llmd-oke/part-of-job"
"""Label of a ConfigMap that holds a piece of a result; the value is the name of the Job that made the result."""

PART_KEY = "part"
COUNT_ANNOTATION = "llmd-oke/parts"
"""Annotation with the number of pieces of the pod's whole result."""

NO_ENTRIES: Mapping[str, str] = MappingProxyType({})


def pieces(content: bytes) -> list[bytes]:
    """Compress the content with gzip and return the compressed bytes in pieces of at most `CHUNK_BYTES`; at least one
    piece.
    """
    packed = gzip.compress(content, mtime=0)
    return [packed[start : start + CHUNK_BYTES] for start in range(0, max(len(packed), 1), CHUNK_BYTES)]


def join_pieces(parts: Iterable[bytes]) -> bytes:
    """Return the uncompressed content of pieces that `pieces` made, given in their order.

    Raises:
        KitError: the pieces are incomplete, are not gzip, or hold more than `MAX_BYTES`.
    """
    content = gunzip(b"".join(parts), MAX_BYTES)
    if content is None:
        raise KitError(f"A pod's result is broken, or larger than {MAX_BYTES // 2**20} MiB.")
    return content


def gunzip(packed: bytes, most: int) -> bytes | None:
    """Return the uncompressed content of a gzip stream; None if `packed` is not a complete gzip stream or its content
    is larger than `most` bytes.
    """
    reader = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        content = reader.decompress(packed, most)
    except zlib.error:
        return None
    return content if reader.eof and not reader.unused_data else None


def count_of(annotations: Mapping[str, str]) -> int:
    """Return the number of pieces of a pod's result, from the annotations of one of the result's ConfigMaps.

    Raises:
        KitError: the annotation is missing, no number, or not between 1 and `MAX_CHUNKS`.
    """
    count = annotations.get(COUNT_ANNOTATION, "")
    if not count.isascii() or not count.isdigit() or not 1 <= int(count[:9]) <= MAX_CHUNKS:
        raise KitError(f"A pod's result says that it has {count[:40]!r} pieces; 1 to {MAX_CHUNKS} are possible.")
    return int(count)


def config_maps(
    parts: Sequence[bytes], names: Sequence[str], namespace: str, job: str, uid: str
) -> list[dict[str, Any]]:
    """Return a ConfigMap for each piece of a result, with the name at the same position in `names`. The Job `job` owns
    the ConfigMaps: Kubernetes deletes them with the Job.
    """
    labels, annotations = {PART_LABEL: job}, {COUNT_ANNOTATION: str(len(parts))}
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": owned_metadata(name, namespace, job, uid, labels, annotations),
            "binaryData": {PART_KEY: base64.b64encode(part).decode()},
        }
        for name, part in zip(names, parts, strict=False)
    ]


def owned_metadata(
    name: str,
    namespace: str,
    job: str,
    uid: str,
    labels: Mapping[str, str] = NO_ENTRIES,
    annotations: Mapping[str, str] = NO_ENTRIES,
) -> dict[str, Any]:
    """Return the metadata of an object that a Job owns and that Kubernetes deletes with the Job."""
    return {
        "name": name,
        "namespace": namespace,
        "labels": {"app.kubernetes.io/part-of": "llmd-oke", **labels},
        **({"annotations": dict(annotations)} if annotations else {}),
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": uid}],
    }
