"""Records made of other records."""

from dataclasses import dataclass

import pytest
from llmd_base.records import MissingSourceError, UnknownFieldError, document, record


@dataclass(frozen=True)
class _Node:
    kind: str
    size: int
    labels: tuple[str, ...] = ()


def test_a_field_is_computed_or_the_first_sources_or_its_default():
    assert record(_Node, {"size": 2}, _Node("gpu", 1, ("a",)), kind="cpu") == _Node("cpu", 2, ("a",))
    assert record(_Node, {"size": 2}, kind="cpu") == _Node("cpu", 2)


def test_a_field_without_source_and_default_is_refused_by_name():
    with pytest.raises(MissingSourceError, match=r"^_Node: nothing given has size\.$"):
        record(_Node, kind="cpu")


def test_a_value_for_a_field_that_is_not_there_is_refused_by_name():
    with pytest.raises(UnknownFieldError, match=r"^_Node has no colour\.$"):
        record(_Node, kind="cpu", size=1, colour="red")


def test_a_document_has_its_keys_in_their_order_from_values_then_sources():
    made = document("size kind owner", _Node("gpu", 3), {"owner": "me"}, kind="cpu", extra=None)
    assert list(made.items()) == [("size", 3), ("kind", "cpu"), ("owner", "me"), ("extra", None)]


def test_a_document_without_a_source_for_a_key_is_refused():
    with pytest.raises(MissingSourceError, match="nothing given has colour"):
        document("colour", _Node("gpu", 3))
