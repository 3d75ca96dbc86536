"""The code that a simulated server would have compiled, in the folder of its node."""

import os
from collections.abc import Callable, Sequence

from llmd_pods.compiled_code import start

from llmd_rehearsal.vllm.startup import ContainerFiles

SIMULATED = "simulated"
"""Name of the file that stands for all compiled code."""


class CompiledCode:
    """A server's place, by the functions of the program that takes it in a container (`llmd_pods.compiled_code.start`);
    nothing for servers without that program.
    """

    def __init__(self, argv: Sequence[str], files: ContainerFiles) -> None:
        self._options = start.options_of(argv)
        self._files = files
        self._place: start.Place | None = None

    def begin(self, say: Callable[[str], None]) -> None:
        """Take a place and note that a start has begun; leave out the links, which only a container has."""
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
        """Note that the server is healthy."""
        if self._place is not None:
            self._place.confirm()

    def leave(self) -> None:
        """Give the place back, as the end of the server's process does."""
        if self._place is not None:
            os.close(self._place.descriptor)
        self._place = None
