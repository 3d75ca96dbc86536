"""Remedies by the words of a failure."""

import pytest
from llmd_oke.catalogue.remedies import remedy_for


@pytest.mark.parametrize(
    ("failure", "remedy"),
    [
        ("(500, InternalError, false) Out of host capacity.", "no free machine"),
        ("2 node(s) register timeout", "did not join"),
        ("[Error] after 60 s: 0 of 1 nodes have joined", "console history"),
        ("429-TooManyRequests, Too many requests for the user", "Wait some minutes"),
        ("500-InternalError, Internal server error", "request's id"),
        ("Work Request error", "work request"),
        ("404-NotAuthorizedOrNotFound, Authorization failed or requested resource not found", "pulumi up --refresh"),
    ],
)
def test_known_failures_have_a_remedy_of_their_own(failure: str, remedy: str) -> None:
    assert remedy in (remedy_for(failure) or "")


def test_a_failure_that_is_not_known_has_none() -> None:
    assert remedy_for("the moon is full") is None
