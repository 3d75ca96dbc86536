"""What can go wrong with an operation, as the engine is told."""

from collections.abc import Sequence

from llmd_oke.rehearsal.plugin_protocol.trees import Tree


class Refusal(Exception):
    """An operation that failed and left nothing that the engine should record."""


class InitFailed(Exception):
    """An object that exists, but isn't what the program asked for (yet).

    The engine records `properties` (and `inputs`, from Read) and sends an Update next time, changed or not.
    """

    def __init__(
        self, id_: str, properties: dict[str, Tree], reasons: Sequence[str], inputs: dict[str, Tree] | None = None
    ) -> None:
        super().__init__(reasons[0])
        self.id = id_
        self.properties = properties
        self.reasons = list(reasons)
        self.inputs = inputs
