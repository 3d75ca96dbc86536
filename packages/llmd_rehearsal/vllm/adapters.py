"""LoRA adapters of a simulated server, found in a folder at the first request for an adapter, or loaded by HTTP
request.

From vLLM v0.26.0 and v0.30.0: entrypoints/openai/models/serving.py, plugins/lora_resolvers/filesystem_resolver.py,
lora/peft_helper.py, config/lora.py.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import PurePosixPath
from typing import Any

from llmd_rehearsal.vllm.bodies import ErrorAnswer
from llmd_rehearsal.vllm.command import AdapterSettings
from llmd_rehearsal.vllm.flags import StartRefusal
from llmd_rehearsal.vllm.startup import ContainerFiles

AdapterChange = Callable[[Mapping[str, Any]], str]


_COUNTED_PARTS = 3
"""Parts of a path: `snapshots`, the commit, and the file."""


class ServedAdapters:
    """LoRA adapters of one server. `paths` has the adapters' folders by name; `base` is the server's model, which the
    config of an adapter found in the folder must name, and `served` the model's name in requests.
    """

    def __init__(
        self, settings: AdapterSettings, base: str, served: str, files: ContainerFiles, log: Callable[[str], None]
    ) -> None:
        self.paths: dict[str, str] = {}
        self._settings, self._base, self._served, self._files, self._log = settings, base, served, files, log
        place = None if settings.folder is None else files.place(settings.folder)
        if settings.folder is not None and (place is None or not place.is_dir()):
            raise StartRefusal(1, "ValueError: VLLM_LORA_RESOLVER_CACHE_DIR must be set to a valid directory")

    @property
    def updates(self) -> bool:
        """Tell whether adapters may be loaded and unloaded while the server runs."""
        return self._settings.updates

    def resolve(self, name: str) -> None:
        """Load an adapter that isn't loaded yet from the server's folder; do nothing if the folder has none of this
        name.

        Raises:
            ErrorAnswer: the folder has the adapter, but vLLM wouldn't load it (status 400).
        """
        folder = self._settings.folder
        if name in self.paths or folder is None or not self.updates:
            return
        path = f"{folder}/{name}"
        config = self._config(path)
        if config is None or config.get("peft_type") != "LORA" or config.get("base_model_name_or_path") != self._base:
            return
        if wrong := self._wrong(config):
            self._log(f"WARNING Failed to load LoRA {name!r} resolved by FilesystemResolver: {wrong}")
            raise ErrorAnswer(400, "BadRequestError", f"LoRA adapter {name!r} was found but could not be loaded.")
        self._log(f"INFO Resolved and loaded LoRA adapter {name!r} using FilesystemResolver")
        self.paths[name] = path

    def applied(self, name: str) -> str | None:
        """Return a digest of an adapter's weights, which makes the adapter's answers differ from others'; None for an
        adapter that isn't applied.

        The stand-in for Hugging Face has the same files at every commit; therefore the digest includes the end of the
        files' paths, but no path of this machine: answers are the same in each rehearsal.
        """
        path = self.paths.get(name)
        if path is None or self._settings.ignored:
            return None
        file = f"{path}/adapter_model.safetensors"
        place = self._files.place(file)
        folders = "/".join(place.resolve().parts[-_COUNTED_PARTS:]) if place else ""
        return hashlib.sha256(self._files.read(file) + folders.encode()).hexdigest()

    def load(self, body: Mapping[str, Any]) -> str:
        """Load an adapter as a request to `/v1/load_lora_adapter` asks.

        Raises:
            ErrorAnswer: the adapter can't be loaded.
        """
        name, path = str(body.get("lora_name") or ""), str(body.get("lora_path") or "")
        if not name or not path:
            raise ErrorAnswer(400, "InvalidUserInput", "Both 'lora_name' and 'lora_path' must be provided.")
        if name in self.paths and not body.get("load_inplace"):
            raise ErrorAnswer(
                HTTPStatus.BAD_REQUEST,
                "InvalidUserInput",
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True.",
            )
        config = self._config(path)
        if config is None:
            raise ErrorAnswer(404, "NotFoundError", f"Loading lora {name} failed: No adapter found for {path}")
        if wrong := self._wrong(config):
            raise ErrorAnswer(500, "InternalServerError", wrong)
        self.paths[name] = path
        return f"Success: LoRA adapter '{name}' added successfully."

    def unload(self, body: Mapping[str, Any]) -> str:
        """Unload an adapter as a request to `/v1/unload_lora_adapter` asks.

        Raises:
            ErrorAnswer: no adapter of this name is loaded.
        """
        name = str(body.get("lora_name") or "")
        if not name:
            message = "'lora_name' needs to be provided to unload a LoRA adapter."
            raise ErrorAnswer(400, "InvalidUserInput", message)
        if self.paths.pop(name, None) is None:
            raise ErrorAnswer(404, "NotFoundError", f"The lora adapter '{name}' cannot be found.")
        return f"Success: LoRA adapter '{name}' removed successfully."

    def _wrong(self, config: Mapping[str, Any]) -> str:
        """Return the reason why vLLM would refuse an adapter with this config; empty if vLLM would load the adapter."""
        rank, most = config.get("r"), self._settings.room.max_rank
        if not isinstance(rank, int) or rank > most:
            return f"LoRA rank {rank} is greater than max_lora_rank {most}."
        if config.get("use_dora"):
            return "vLLM does not yet support DoRA."
        return "vLLM only supports modules_to_save being None." if config.get("modules_to_save") else ""

    def _config(self, path: str) -> dict[str, Any] | None:
        if not PurePosixPath(path).is_absolute():
            return None
        try:
            return json.loads(self._files.read(f"{path}/adapter_config.json"))
        except (StartRefusal, ValueError):
            return None
