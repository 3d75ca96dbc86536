"""What a Diff says of a property."""

import enum


class Change(enum.Enum):
    """What happens to a property; the names are the engine's."""

    ADD = enum.auto()
    UPDATE = enum.auto()
    DELETE = enum.auto()
