"""What a node learns at boot that decides how it joins: user data, and kubelet's arguments in it."""

import base64
import binascii
import email
import gzip
import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from llmd_oke.rehearsal.nodes.config import Taint

_JOINING: Final = re.compile(r"\boke bootstrap\b|\boke[-_]init\b|\boke-install\.sh\b")
_JOINING_ALONE: Final = (
    re.compile(r"\boke bootstrap\b.* --apiserver-host "),
    re.compile(r"\boke bootstrap\b.* --ca "),
    re.compile(r"(>|path:)\s*/etc/oke/oke-apiserver\b"),
    re.compile(r"(>|path:)\s*/etc/kubernetes/ca\.crt\b"),
)
"""What a self-managed node's script has (OCI documentation, Running Ubuntu on Worker Nodes Using Custom Images)."""
_ARGUMENT: Final = r"--{}[= ]+[\"']?([^\s\"']+)"
_TAINT: Final = re.compile(r"(?P<key>[^=:]+)(=(?P<value>[^:]*))?:(?P<effect>NoSchedule|PreferNoSchedule|NoExecute)")
_ENCODED: Final = re.compile(r"[A-Za-z0-9+/=]{64,}")


@dataclass(frozen=True)
class Boot:
    """How a node registers. `joins` says whether its boot script does what makes it join at all."""

    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    taints: tuple[Taint, ...] = ()
    joins: bool = True


def read_boot(metadata: Mapping[str, Any], *, self_managed: bool = False) -> Boot:
    """What an instance's metadata make of it.

    A node of a pool is told by OKE where its cluster is, and runs OKE's own script if it has no user data. A
    self-managed node knows nothing but what its metadata and its script say.
    """
    user_data = metadata.get("user_data") or ""
    text = "\n".join((*_texts(user_data), str(metadata.get("kubelet-extra-args") or "")))
    labels = _pairs(metadata.get("oke-initial-node-labels") or "")
    for found in re.findall(_ARGUMENT.format("node-labels"), text):
        labels |= _pairs(found)
    taints = [taint for found in re.findall(_ARGUMENT.format("register-with-taints"), text) for taint in _taints(found)]
    joins = _joins_alone(metadata, text) if self_managed else not user_data or _JOINING.search(text) is not None
    return Boot(labels, tuple(dict.fromkeys(taints)), joins=joins)


def _joins_alone(metadata: Mapping[str, Any], text: str) -> bool:
    knows = _is_address(str(metadata.get("apiserver_host"))) and _is_authority(str(metadata.get("cluster_ca_cert")))
    return knows and all(part.search(text) for part in _JOINING_ALONE)


def _is_address(text: str) -> bool:
    """Whether it is an address alone: OKE's programs put the ports behind it."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_authority(text: str) -> bool:
    return (_decoded(text) or "").startswith("-----BEGIN CERTIFICATE-----")


def _pairs(text: str) -> dict[str, str]:
    return {key: value for key, _, value in (pair.partition("=") for pair in text.split(",")) if key}


def _taints(text: str) -> Iterator[Taint]:
    for each in text.split(","):
        found = _TAINT.fullmatch(each)
        if found is not None:
            yield Taint.model_validate({**found.groupdict(), "value": found["value"] or None})


def _texts(encoded: str) -> Iterator[str]:
    """All that is written in user data: the parts of a MIME archive, and files that a part carries encoded."""
    plain = _decoded(encoded)
    if plain is None:
        return
    message = email.message_from_string(plain)
    for part in message.walk() if message.is_multipart() else ():
        payload = part.get_payload(decode=True)
        if isinstance(payload, bytes):
            yield from _with_files(_unzipped(payload))
    if not message.is_multipart():
        yield from _with_files(plain)


def _with_files(text: str) -> Iterator[str]:
    yield text
    for found in _ENCODED.findall(text):
        inner = _decoded(found)
        if inner is not None:
            yield inner


def _decoded(text: str) -> str | None:
    try:
        return _unzipped(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return None


def _unzipped(data: bytes) -> str:
    plain = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    return plain.decode(errors="replace")
