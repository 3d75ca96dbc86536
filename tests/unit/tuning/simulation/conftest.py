"""Deployments to simulate."""

from dataclasses import replace

import pytest
from llmd_oke.catalogue import model, shape
from llmd_tuner.figures import latency_model
from llmd_tuner.simulation.deployment import deployment


@pytest.fixture(name="latency", scope="session")
def latency_fixture():
    """The latency model of gpt-oss-120b on MI300X."""
    return latency_model(model("gpt-oss-120b"), shape("BM.GPU.MI300X.8"))


@pytest.fixture(name="deploy", scope="session")
def deploy_fixture():
    """Makes deployments of gpt-oss-120b from short forms; `limits` change those of every server."""

    def deploy(topology, *, copies=1, policy="queue", **limits):
        made = deployment(model("gpt-oss-120b"), shape("BM.GPU.MI300X.8"), topology, copies=copies, policy=policy)
        return replace(made, limits={role: replace(limit, **limits) for role, limit in made.limits.items()})

    return deploy
