"""OCIDs of an example that nobody has put their own in place of."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from llmd_oke.config import StackConfig
from llmd_oke.planning.plan import Advice

_PLACEHOLDER = re.compile(r"ocid1\..*\.example[0-9]*")


def placeholder_advice(config: StackConfig) -> Iterator[Advice]:
    """One piece of advice for all of them, at the first."""
    paths = list(_paths(config.model_dump(mode="json", by_alias=True), ""))
    if paths:
        others = f", as at {' and '.join(paths[1:])}" if paths[1:] else ""
        yield Advice(paths[0], f"the OCID is an example's{others}: a rehearsal takes it, OCI has no such thing")


def _paths(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, str):
        if _PLACEHOLDER.fullmatch(value):
            yield path
    elif isinstance(value, Mapping):
        for key, inner in cast("Mapping[str, Any]", value).items():
            yield from _paths(inner, f"{path}.{key}".removeprefix("."))
    elif isinstance(value, list):
        for index, inner in enumerate(cast("list[Any]", value)):
            yield from _paths(inner, f"{path}[{index}]")
