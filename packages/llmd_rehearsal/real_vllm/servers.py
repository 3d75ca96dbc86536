"""Servers of vLLM itself in pods: their command line, variables and files."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from llmd_base.errors import KitError
from pydantic import BaseModel, ConfigDict

from llmd_rehearsal.real_vllm.differences import environment_on_processor, on_processor
from llmd_rehearsal.real_vllm.environment import RealVllm

_AUTHORITY, _ENCODINGS = "/etc/llmd-oke-rehearsal/authority.pem", "/etc/llmd-oke-rehearsal/encodings"


class RealServers(BaseModel):
    """Servers of vLLM itself: the folder of its environment, the PEM file of what signs the certificates of hosts
    outside, a folder of published vocabularies, and the values of `{…}` by repository of the model.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: Path
    authority: Path
    encodings: Path | None = None
    values: Mapping[str, Mapping[str, str]]

    @property
    def mounts(self) -> dict[str, Path]:
        """Files and folders of this machine that a server's container has, by their paths there."""
        folders = (self.folder, Path(sys.base_prefix))
        encodings = {_ENCODINGS: self.encodings} if self.encodings else {}
        return {**{str(folder): folder for folder in folders}, _AUTHORITY: self.authority, **encodings}

    def argv(self, argv: Sequence[str]) -> list[str]:
        """Return the command line of a server.

        Raises:
            KitError: its model is none that there are values for.
        """
        known = [values for repository, values in self.values.items() if repository in argv]
        if not known:
            raise KitError(f"`{' '.join(argv)}` serves none of {', '.join(self.values)}.")
        return on_processor(argv, known[0])

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a server; `vllm` is found on PATH."""
        changed = environment_on_processor(environment, {"authority": _AUTHORITY, "encodings": _ENCODINGS})
        return {**changed, "PATH": f"{RealVllm(self.folder).programs}:{changed.get('PATH', '')}"}
