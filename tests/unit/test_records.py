"""Records made of other records."""

from dataclasses import dataclass

import pytest
from llmd_base.records import MissingSourceError, UnknownFieldError, document, record


@dataclass(frozen=True)
class _Node:
    kind: str
    size: int
    labels: tuple[str, ...] = ()


def test_a_record_takes_fields_from_values_then_sources_then_defaults():
    assert record(_Node, {"size": 2}, _Node("gpu", 1, ("a",)), kind="cpu") == _Node("cpu", 2, ("a",))
    assert record(_Node, {"size": 2}, kind="cpu") == _Node("cpu", 2)


def test_a_record_field_without_source_and_an_unknown_one_are_refused_by_name():
    with pytest.raises(MissingSourceError, match=r"^_Node: nothing given has size\.$"):
        record(_Node, kind="cpu")
    with pytest.raises(UnknownFieldError, match=r"^_Node has no colour\.$"):
        record(_Node, kind="cpu", size=1, colour="red")


def test_a_typed_dictionary_is_filled_from_values_and_sources_or_refused():
    made = document("size kind owner", _Node("gpu", 3), {"owner": "me"}, kind="cpu", extra=None)
    assert list(made.items()) == [("size", 3), ("kind", "cpu"), ("owner", "me"), ("extra", None)]
    with pytest.raises(MissingSourceError, match="nothing given has colour"):
        document("colour", _Node("gpu", 3))
