"""Keys, certificate and key set that are rotated at the real Envoy while requests flow."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from llmd_rehearsal import namespaces
from llmd_rehearsal.programs import locate

pytestmark = pytest.mark.rehearsal

MOST_GAP_S = 2.0
"""Time without an answer, also where others use the machine."""


@pytest.fixture(scope="module")
def cost(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    envoy = locate("envoy")
    if envoy is None:
        pytest.skip("there is no `envoy` in LLMD_OKE_PROGRAMS, in the cache or on PATH")
    log = tmp_path_factory.mktemp("rotations") / "envoy.log"
    script = Path(__file__).with_name("credential_rotations.py")
    argv = namespaces.create_command([sys.executable, str(script), str(envoy.path)], user_namespace=os.geteuid() != 0)
    with log.open("w") as errors:
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=180, check=False)
    if "unshare" in log.read_text():
        pytest.skip(f"no namespaces on this machine: {log.read_text().strip()}")
    assert done.returncode == 0, log.read_text()
    print(done.stdout)
    return json.loads(done.stdout)


@pytest.mark.parametrize("credential", ["keys", "certificate", "key_set"])
def test_no_request_fails_while_a_credential_is_rotated(cost: dict[str, Any], credential: str):
    told = cost[credential]
    assert told["failures"] == []
    assert told["sent"] > 80
    assert told["longest_gap_s"] < MOST_GAP_S


@pytest.mark.parametrize("credential", ["keys", "key_set"])
def test_during_a_rotation_the_old_and_the_new_credential_are_both_valid(cost: dict[str, Any], credential: str):
    assert cost[credential]["both"]


def test_during_a_rotation_a_client_has_the_same_name_with_both_keys(cost: dict[str, Any]):
    assert cost["keys"]["clients"] == ["alice"]
