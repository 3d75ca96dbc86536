"""Directories for compiled code, which simulated servers claim on their nodes like real ones."""

import os
from collections.abc import Callable, Sequence

from llmd_pods.compiled_code import start

from llmd_rehearsal.vllm.startup import ContainerFiles

SIMULATED = "simulated"
"""Name of the empty file that stands for all code that a simulated server compiles."""


class CompiledCode:
    """Directory in which one simulated server keeps the code that it compiles, claimed with the functions of
    `llmd_pods.compiled_code.start` as in a real container.

    All methods do nothing for servers whose command doesn't run that program, `start.py`.
    """

    def __init__(self, argv: Sequence[str], files: ContainerFiles) -> None:
        self._options = start.options_of(argv)
        self._files = files
        self._place: start.Place | None = None

    def begin(self, say: Callable[[str], None]) -> None:
        """Claim a directory for the server's compiled code on its node, and mark there that a start has begun. The
        links to the code, which only containers have, aren't created.
        """
        if self._options is None:
            return
        folder = self._files.place(str(self._options.folder))
        try:
            if folder is None:
                raise FileNotFoundError(f"{self._options.folder} isn't mounted")
            self._place = start.claim(folder)
            self._place.start(())
            self._place.code.mkdir(exist_ok=True)
            (self._place.code / SIMULATED).touch()
        except OSError as error:
            say(f"compiled code is not kept: {error}")
            return
        say(f"compiled code in {self._options.folder}/{self._place.folder.name}: {self._place.state}")

    def confirm(self) -> None:
        """Mark in the claimed directory that the server became healthy with this code; otherwise the next server that
        claims the directory would remove the code.
        """
        if self._place is not None:
            self._place.confirm()

    def leave(self) -> None:
        """Release the claimed directory for other servers, as the end of the server's process would."""
        if self._place is not None:
            os.close(self._place.descriptor)
        self._place = None
