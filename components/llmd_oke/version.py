"""Version of the wheel and of the component package that Pulumi runs from a checkout, and the order of versions."""

import re

__version__ = "0.1.0"


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version such as `0.3.0` or `v1.34.2`, by which versions of one form are ordered."""
    return tuple(map(int, re.findall(r"\d+", version)))
