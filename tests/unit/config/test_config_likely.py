"""Which name a wrong one was meant to be."""

import pytest
from llmd_oke.config.likely import among

NAMES = ["BM.GPU.MI300X.8", "BM.GPU.H100.8", "llama-3.3-70b-instruct-fp8-dynamic-kv"]


@pytest.mark.parametrize(
    ("written", "first"),
    [("bm.gpu.mi300x.8", NAMES[0]), ("llama-3.3-70b", NAMES[2]), ("BM.GPU.H10O.8", NAMES[1])],
)
def test_the_likeliest_name_comes_first_and_once(written: str, first: str):
    found = among(written, NAMES)
    assert found.startswith(f"{first}? or another of ")
    assert found.count(first) == 1


def test_where_none_is_likely_all_are_named():
    assert among("x", NAMES) == f"one of {', '.join(NAMES)}"
