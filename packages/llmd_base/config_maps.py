"""Results of pods on their way out of a cluster, in pieces that fit ConfigMaps."""

import base64
import gzip
import zlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from llmd_base.errors import KitError

LABEL = "llmd-oke/smoke"
"""A label of Job, pod and result; its value is the name of the model's objects."""

JOB_ANNOTATION = "llmd-oke/job"
"""Annotation of a result: the Job that wrote it."""

CHUNK_BYTES = 900_000
"""Bytes of a piece, since a ConfigMap may have 1 MiB."""

MAX_CHUNKS = 32
"""Most pieces of one pod: 29 MB compressed, about ten million token times. Whoever has more leaves something out."""

MAX_BYTES = 512 * 2**20
"""Most bytes of a pod's result, uncompressed."""

PART_LABEL = "llmd-oke/part-of-job"
"""Label whose value is the Job whose result a ConfigMap has a piece of."""

PART_KEY = "part"
COUNT_ANNOTATION = "llmd-oke/parts"
"""Annotation with the number of pieces of the pod's result."""

NO_ENTRIES: Mapping[str, str] = MappingProxyType({})


def pieces(content: bytes) -> list[bytes]:
    """Return the compressed content in pieces; at least one."""
    packed = gzip.compress(content, mtime=0)
    return [packed[start : start + CHUNK_BYTES] for start in range(0, max(len(packed), 1), CHUNK_BYTES)]


def join_pieces(parts: Iterable[bytes]) -> bytes:
    """Return the content of all pieces in their order.

    Raises:
        KitError: they are not what `pieces` makes.
    """
    content = gunzip(b"".join(parts), MAX_BYTES)
    if content is None:
        raise KitError(f"A pod's result is broken, or larger than {MAX_BYTES // 2**20} MiB.")
    return content


def gunzip(packed: bytes, most: int) -> bytes | None:
    """Return the content that `gzip` packed; None where `packed` is something else, not whole, or larger than `most`
    bytes.
    """
    reader = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        content = reader.decompress(packed, most)
    except zlib.error:
        return None
    return content if reader.eof and not reader.unused_data else None


def count_of(annotations: Mapping[str, str]) -> int:
    """Return the number of pieces that a pod's result has, as the annotations of one of its ConfigMaps say.

    Raises:
        KitError: it says no number, or more than a pod may have.
    """
    count = annotations.get(COUNT_ANNOTATION, "")
    if not count.isascii() or not count.isdigit() or not 1 <= int(count[:9]) <= MAX_CHUNKS:
        raise KitError(f"A pod's result says that it has {count[:40]!r} pieces; 1 to {MAX_CHUNKS} are possible.")
    return int(count)


def config_maps(
    parts: Sequence[bytes], names: Sequence[str], namespace: str, job: str, uid: str
) -> list[dict[str, Any]]:
    """Return a ConfigMap for each piece; they belong to the Job and go with it."""
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
    """Return the metadata of an object that belongs to a Job and goes with it."""
    return {
        "name": name,
        "namespace": namespace,
        "labels": {"app.kubernetes.io/part-of": "llmd-oke", **labels},
        **({"annotations": dict(annotations)} if annotations else {}),
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": uid}],
    }
