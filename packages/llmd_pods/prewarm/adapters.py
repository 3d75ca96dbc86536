"""Installation of LoRA adapters beside a model, each in a directory with the name that requests use.

vLLM's resolver accepts an adapter only if the `base_model_name_or_path` of its `adapter_config.json` is the model as
the server was given it, which offline is the path of the model's snapshot
(vllm/plugins/lora_resolvers/filesystem_resolver.py). The directory therefore contains a changed `adapter_config.json`;
all other files are symbolic links to the downloaded files.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import PrewarmError, say
from .places import ADAPTERS, CacheFolder, inside, relative

CONFIG = "adapter_config.json"


@dataclass(frozen=True)
class AdapterFiles:
    """Name of an adapter in requests, with the source of its files."""

    served_name: str
    repository: str
    revision: str


@dataclass(frozen=True)
class AdapterRoom:
    """Adapters of a model: `name` of their directory, the largest rank that servers accept, and the adapters."""

    name: str
    max_rank: int
    adapters: tuple[AdapterFiles, ...]


def read_room(text: str) -> AdapterRoom:
    """Parse the adapters from JSON text, or from a JSON file whose path follows an `@`."""
    facts: dict[str, Any] = json.loads(Path(text[1:]).read_text() if text.startswith("@") else text)
    adapters = tuple(
        AdapterFiles(item["servedName"], item["repository"], item["revision"]) for item in facts["adapters"]
    )
    return AdapterRoom(facts["name"], facts["maxRank"], adapters)


def folder(base: CacheFolder, room: AdapterRoom) -> Path:
    """Create the directory of a model's adapters unless it exists, and return it: if it is missing, vLLM fails at its
    start.
    """
    path = inside(base.cache, f"{ADAPTERS}/{room.name}@{base.revision}")
    path.mkdir(parents=True, exist_ok=True)
    return path


def is_placed(base: CacheFolder, room: AdapterRoom, adapter: AdapterFiles) -> bool:
    """Return whether the adapter is installed for the model's current snapshot."""
    try:
        config = json.loads((folder(base, room) / adapter.served_name / CONFIG).read_text())
    except (OSError, ValueError):
        return False
    return config.get("base_model_name_or_path") == str(base.snapshot(base.commit))


def place(base: CacheFolder, room: AdapterRoom, adapter: AdapterFiles) -> None:
    """Install an adapter whose files are in the cache; servers see either the whole adapter or nothing.

    Raises:
        PrewarmError: vLLM would not load or not apply the adapter.
    """
    source = CacheFolder(base.cache, adapter.repository, adapter.revision)
    snapshot = source.snapshot(source.commit)
    try:
        config: dict[str, Any] = json.loads((snapshot / CONFIG).read_text())
    except (OSError, ValueError) as error:
        raise PrewarmError(f"{adapter.repository} at {adapter.revision} is no adapter: {CONFIG}: {error}") from error
    _check(adapter, room, config)
    target = inside(folder(base, room), str(relative(adapter.served_name)), base.cache)
    partial = target.with_name(f".{target.name}.{os.urandom(8).hex()}")
    partial.mkdir()
    for file in sorted(snapshot.iterdir()):
        if file.is_file() and file.name != CONFIG:
            (partial / file.name).symlink_to(os.path.relpath(file, partial))
    own = {**config, "base_model_name_or_path": str(base.snapshot(base.commit))}
    (partial / CONFIG).write_text(json.dumps(own, indent=1))
    try:
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    except OSError:  # another pod has installed the adapter meanwhile
        shutil.rmtree(partial, ignore_errors=True)
        if not is_placed(base, room, adapter):
            raise
    say(f"{adapter.served_name}: adapter of {adapter.repository}, rank {config['r']}, in {target}")


def _check(adapter: AdapterFiles, room: AdapterRoom, config: Mapping[str, Any]) -> None:
    """Check that vLLM loads and applies the adapter (vllm/lora/peft_helper.py).

    Raises:
        PrewarmError: vLLM doesn't; the message has all reasons.
    """
    rank = config.get("r")
    reasons = {
        f"peft_type is {config.get('peft_type')}, not LORA": config.get("peft_type") != "LORA",
        f"its rank is {rank}, and servers take {room.max_rank} at most (engine.adapters.maxRank)": not isinstance(
            rank, int
        )
        or not 0 < rank <= room.max_rank,
        "it has DoRA, which vLLM does not": bool(config.get("use_dora")),
        "it has whole modules beside its matrices (modules_to_save), which vLLM does not take": bool(
            config.get("modules_to_save")
        ),
        f"it has a bias ({config.get('bias')}), which vLLM does not take": config.get("bias", "none") != "none",
    }
    if wrong := [reason for reason, applies in reasons.items() if applies]:
        raise PrewarmError(f"{adapter.repository} at {adapter.revision} can't be served: {'; '.join(wrong)}")
