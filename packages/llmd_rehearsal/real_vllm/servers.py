"""Command line, environment variables and files of vLLM's own servers in pods."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from llmd_base.errors import KitError
from pydantic import BaseModel, ConfigDict

from llmd_rehearsal.real_vllm.differences import environment_on_processor, on_processor, real_vllm_data
from llmd_rehearsal.real_vllm.environment import RealVllm

_AUTHORITY, _ENCODINGS = "/etc/llmd-oke-rehearsal/authority.pem", "/etc/llmd-oke-rehearsal/encodings"


class RealServers(BaseModel):
    """Settings of servers that run vLLM itself: folder of vLLM's Python environment, PEM file of the certificate
    authority of the stand-ins for hosts outside the cluster, folder of published vocabularies (`encodings`), empty
    folder (`empty`) that hides the machine's folders that vLLM isn't to see, and values of the placeholders `{…}` in
    vLLM's arguments by model repository.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: Path
    authority: Path
    encodings: Path | None = None
    empty: Path
    values: Mapping[str, Mapping[str, str]]

    @property
    def mounts(self) -> dict[str, Path]:
        """Files and folders of this machine that are mounted in the container of a vLLM server, by their paths in the
        container.
        """
        folders = (self.folder, RealVllm(self.folder).interpreter)
        encodings = {_ENCODINGS: self.encodings} if self.encodings else {}
        hidden = {real_vllm_data().hidden_folder.value: self.empty}
        return {**{str(folder): folder for folder in folders}, _AUTHORITY: self.authority, **encodings, **hidden}

    def argv(self, argv: Sequence[str]) -> list[str]:
        """Return the command line with which vLLM itself runs in place of a stack's server.

        Raises:
            KitError: `values` has no entry for the server's model.
        """
        known = [values for repository, values in self.values.items() if repository in argv]
        if not known:
            raise KitError(f"`{' '.join(argv)}` serves none of {', '.join(self.values)}.")
        return on_processor(argv, known[0])

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables of a vLLM server, with vLLM's Python environment on PATH."""
        values = {
            "authority": _AUTHORITY,
            "encodings": _ENCODINGS,
            "programs": str(RealVllm(self.folder).programs),
            "path": environment.get("PATH", ""),
        }
        return environment_on_processor(environment, values)
