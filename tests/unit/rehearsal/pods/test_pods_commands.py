"""Expansion of $(NAME) and the choice of argv."""

import pytest
from llmd_oke.rehearsal.pods.expansion import expand, resolve_argv


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("x-$(A)-$(B)", "x-1-two"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$$(A)", "$(A)"),
        ("$$$$", "$$"),
        ("$A", "$A"),
        ("$(A", "$(A"),
        ("$(B)$(B)", "twotwo"),
    ],
)
def test_references_are_expanded_as_kubernetes_does(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "B": "two"}) == expected


@pytest.mark.parametrize(
    ("command", "arguments", "expected"),
    [
        (None, None, ["/ep", "1", "image-arg"]),
        (None, ["a"], ["/ep", "1", "a"]),
        (["c"], None, ["c"]),
        (["c"], ["$(A)"], ["c", "1"]),
    ],
)
def test_a_command_replaces_entrypoint_and_image_arguments(
    command: list[str] | None, arguments: list[str] | None, expected: list[str]
) -> None:
    assert resolve_argv(command, arguments, ["/ep", "$(A)"], ["image-arg"], {"A": "1"}) == expected
