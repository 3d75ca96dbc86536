"""The rows of a run by deployment and load level."""

from collections.abc import Sequence
from itertools import groupby

from llmd_oke.results.row import Row

Levels = dict[tuple[str, str], list[Row]]
"""The rows of each deployment and level: one for each seed."""


def deployment_of(row: Row) -> str:
    """The name of the deployment that a row of a run is about."""
    return (row.origin.file or "").split("/")[0]


def level_of(row: Row) -> str:
    """The name of the load level, the same for all seeds and deployments."""
    return (row.origin.file or "").split("/")[1].rsplit("-s", 1)[0]


def levels_of(rows: Sequence[Row]) -> Levels:
    """Groups rows that are in the order of a recipe."""

    def key(row: Row) -> tuple[str, str]:
        return deployment_of(row), level_of(row)

    return {name: list(group) for name, group in groupby(rows, key)}
