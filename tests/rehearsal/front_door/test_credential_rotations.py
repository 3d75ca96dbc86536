"""Keys, certificate and key set that are rotated at the real Envoy while requests flow."""

from typing import Any

import pytest

pytestmark = pytest.mark.rehearsal

PROGRAM = "credential_rotations.py"

MOST_GAP_S = 2.0
"""Time without an answer, also where others use the machine."""


@pytest.mark.parametrize("credential", ["keys", "certificate", "key_set"])
def test_no_request_fails_while_a_credential_is_rotated(seen: dict[str, Any], credential: str):
    told = seen[credential]
    assert told["failures"] == []
    assert told["sent"] > 80
    assert told["longest_gap_s"] < MOST_GAP_S


@pytest.mark.parametrize("credential", ["keys", "key_set"])
def test_during_a_rotation_the_old_and_the_new_credential_are_both_valid(seen: dict[str, Any], credential: str):
    assert seen[credential]["both"]


def test_during_a_rotation_a_client_has_the_same_name_with_both_keys(seen: dict[str, Any]):
    assert seen["keys"]["clients"] == ["alice"]
