"""Values in nested documents, with their paths."""

from llmd_base.documents import leaves


def test_values_in_a_nested_document_are_listed_with_their_paths():
    document = {"a": {"b": [1, {"c": None}], "d": []}, "e": "f", 5: 0.5, "g": {}}
    assert list(leaves(document)) == [("a.b[0]", 1), ("a.b[1].c", None), ("e", "f"), ("5", 0.5)]
    assert list(leaves(3, "models[0]")) == [("models[0]", 3)]
    assert list(leaves("x")) == [("", "x")]
