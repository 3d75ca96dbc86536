"""The router's objects against what the upstream chart of the same release renders."""

import os

import pytest
from router_contract import CHARTS, differences, matches, page, page_file, rows

by_release = pytest.mark.parametrize("release", CHARTS)


@by_release
def test_each_difference_from_the_upstream_router_chart_is_listed_with_its_reason(release: str):
    known = rows(release)
    unlisted = {
        path: values
        for path, values in differences(release).items()
        if not any(matches(pattern, path) for pattern, _ in known)
    }
    assert unlisted == {}


@by_release
def test_each_listed_difference_from_the_upstream_router_chart_still_exists(release: str):
    paths = differences(release)
    gone = [pattern for pattern, _ in rows(release) if not any(matches(pattern, path) for path in paths)]
    assert gone == []


def test_the_router_contract_page_equals_what_is_generated_from_the_tables():
    """`LLMD_OKE_UPDATE_GOLDEN=1` writes it anew."""
    if os.environ.get("LLMD_OKE_UPDATE_GOLDEN"):
        page_file().write_text(page())
    assert page_file().read_text() == page()
