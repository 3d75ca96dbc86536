"""Kubernetes' own expansion of `$(NAME)`, and which argv a container runs."""

import re
from collections.abc import Mapping, Sequence

_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by its value; unknown names stay as they are and `$$` stands for `$`."""

    def replaced(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return values.get(match[1], match[0])

    return _REFERENCE.sub(replaced, text)


def resolve_argv(
    command: Sequence[str] | None,
    arguments: Sequence[str] | None,
    entrypoint: Sequence[str],
    image_arguments: Sequence[str],
    environment: Mapping[str, str],
) -> list[str]:
    """Give the argv: a command replaces the image's entry point and its arguments, arguments only the latter."""
    words = [*command, *(arguments or ())] if command else [*entrypoint, *(arguments or image_arguments)]
    return [expand(word, environment) for word in words]
