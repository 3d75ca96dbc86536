"""Names of what servers must have in common to work together."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

from llmd_oke.catalogue.handshake import handshake
from llmd_oke.serving import vllm
from llmd_oke.serving.vllm import ServerSpec

_LENGTH = 8


def version(spec: ServerSpec) -> str:
    """A short name of what servers must have in common to hand KV cache over: image, vLLM arguments and environment.

    Prefill and decode servers of one unit share it whatever their sizes are, so that a change of one role's size does
    not restart the other role. `kubectl get pods -L llmd-oke/version` shows it.
    """
    common = replace(spec, role="prefill" if spec.transfers_cache else spec.role, tensor_parallel_size=1)
    without = handshake().environment
    environment = [entry for entry in vllm.environment(common) if entry["name"] not in without]
    return _short([common.release.vllm.image.pinned, _arguments(vllm.arguments(common)), environment])


def revision(unit: str, release: str, versions: Mapping[str, str], sizes: Mapping[str, int]) -> str:
    """A short name of what can't change inside a unit that another may be made beside.

    Args:
        unit: name of the unit.
        release: name of the llm-d release whose endpoint picker and routing sidecar run; they belong together.
        versions: version of the servers of each role.
        sizes: tensor parallel size of each role.
    """
    return _short([unit, release, dict(versions), dict(sizes)])


def _arguments(words: Iterable[str]) -> dict[str, list[str]]:
    """What the handshake goes by, by name; the last of several wins, as with vLLM."""
    by_name: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("-"):
            name, _, value = word.partition("=")
            by_name[name] = [value] if value else []
        else:
            by_name.setdefault(name, []).append(word)
    return {name: values for name, values in by_name.items() if name not in handshake().arguments}


def _short(parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:_LENGTH]
