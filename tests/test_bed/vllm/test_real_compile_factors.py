"""Releases whose servers keep compiled code, held to what vLLM itself hashes (`scripts/real-vllm`)."""

import pytest
from llmd_oke import catalogue
from llmd_oke.values import names
from real_vllm_for_tests import answered

pytestmark = pytest.mark.rehearsal

RELEASES = [found for name in names("releases") if (found := catalogue.release(name)) and found.vllm.compiled_code]


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_environment_variables_of_a_pods_address_are_not_in_vllms_compile_hash(release: catalogue.Release) -> None:
    connectors = release.vllm.kv_connector.hand_over.values()
    learned = {name for way in connectors for name in way.pod_ip_variables}
    places = set(release.vllm.compiled_code)
    assert learned
    counted = answered("compile_factors.py", sorted({*learned, *places, "VLLM_ROCM_USE_AITER"}), _version(release))
    assert counted == ["VLLM_ROCM_USE_AITER"]


def _version(release: catalogue.Release) -> str:
    return release.vllm.image.tag[1:]
