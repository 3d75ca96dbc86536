"""Topologies for a stack file that is still to be written."""

import pytest
from llmd_base.errors import KitError
from llmd_base.row import Basis
from llmd_oke.cli.topology_search import ServingNeeds
from llmd_tuner import first_topologies
from llmd_tuner.first_topologies import topologies

NEEDS = {"model": "gpt-oss-120b", "shape": "BM.GPU.MI300X.8", "input_tokens": 4096, "output_tokens": 256}


def test_a_request_rate_gets_the_fewest_nodes_that_serve_it():
    few = topologies(ServingNeeds(**NEEDS, requests_per_s=20)).topologies[0]
    many = topologies(ServingNeeds(**NEEDS, requests_per_s=90)).topologies[0]
    assert few.gpus == 8 < many.gpus
    assert (few.requests_per_s, many.requests_per_s) >= (20, 90)


def test_given_gpus_get_the_topology_with_the_highest_rate_within_latency_limits():
    found = topologies(ServingNeeds(**NEEDS, gpus=16, ttft_ms=2000, itl_ms=50))
    assert found.topologies[0].gpus == 16
    assert found.topologies[0].requests_per_s == max(item.requests_per_s for item in found.topologies)
    assert found.basis is Basis.CALIBRATED


def test_a_request_rate_that_no_topology_serves_is_refused_with_a_possible_one(monkeypatch):
    monkeypatch.setattr(first_topologies, "MOST_GPUS", 16)
    with pytest.raises(KitError, match="don't serve gpt-oss-120b") as refused:
        topologies(ServingNeeds(**NEEDS, requests_per_s=1e6))
    assert "with --load 1e+06" in refused.value.message
    assert "--load " in (refused.value.remedy or "")
    assert "qps=" not in str(refused.value.remedy)
