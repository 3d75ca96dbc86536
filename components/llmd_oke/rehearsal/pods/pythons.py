"""The machine's own Python as programs in pods find it: a virtual environment, with or without packages."""

import shutil
import sys
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmd_oke.rehearsal.pods.sandboxes import Mount

FOLDER = "/opt/python"
EXECUTABLE = f"{FOLDER}/bin/python"

_BOUND_ALREADY = "/usr"
_AUTHORITY = "authority.pem"


@dataclass(frozen=True)
class Python:
    """An interpreter for pods. `environment` is what every program that it runs is told besides its own variables."""

    folder: Path
    environment: Mapping[str, str]

    def argv(self, words: Sequence[str]) -> list[str]:
        """The command line with this interpreter for the container's own, wherever its image has that."""
        return [EXECUTABLE, *words[1:]]

    def variables(self, values: Mapping[str, str]) -> dict[str, str]:
        """A container's variables, which win, with those of the interpreter: `python` is found on PATH."""
        merged = {**self.environment, **values}
        return {**merged, "PATH": f"{FOLDER}/bin:{merged.get('PATH', '')}"}

    def mounts(self, *, packages: bool) -> list[Mount]:
        """What the interpreter needs in the container; `packages` are those that the kit runs with."""
        mounts = [Mount(self.folder, FOLDER, read_only=True)]
        if sys.base_prefix != _BOUND_ALREADY:
            mounts.append(Mount(Path(sys.base_prefix), sys.base_prefix, read_only=True))
        if packages:
            within = Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
            mounts.append(Mount(Path(sysconfig.get_path("purelib")), f"{FOLDER}/{within}", read_only=True))
        return mounts


def prepare(state_folder: Path, authority: Path | None, environment: Mapping[str, str] | None = None) -> Python:
    """Makes the interpreter's folder, without packages; OSError when it can't be written.

    Programs trust the certificates that `authority`, a PEM file, has signed, and are told what `environment` says.
    """
    folder = state_folder / "python"
    venv.EnvBuilder(clear=True, symlinks=True, with_pip=False).create(folder)
    if authority is None:
        return Python(folder, dict(environment or {}))
    shutil.copyfile(authority, folder / _AUTHORITY)
    return Python(folder, {"SSL_CERT_FILE": f"{FOLDER}/{_AUTHORITY}", **(environment or {})})
