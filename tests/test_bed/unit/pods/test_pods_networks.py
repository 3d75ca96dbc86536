"""Networks of pods and nodes, with an `ip` that fails when it is told to."""

from ipaddress import IPv4Interface

import pytest
from llmd_base.errors import KitError
from llmd_rehearsal.pods import networks
from llmd_rehearsal.pods.networks import Networks


class Ip:
    """Answers for `ip`: what it was asked, and how many calls fail from now on."""

    def __init__(self, failing: int) -> None:
        self.failing = failing
        self.removed: list[str] = []

    async def checked(self, argv: list[str], *, stdin: str = "") -> str:
        if self.failing:
            self.failing -= 1
            raise KitError("RTNETLINK answers: Device or resource busy")
        return ""

    async def run(self, argv: list[str]) -> None:
        self.removed.append(argv[-1])


@pytest.fixture
def ip(monkeypatch: pytest.MonkeyPatch) -> Ip:
    ip = Ip(failing=1)
    monkeypatch.setattr(networks, "run_checked", ip.checked)
    monkeypatch.setattr(networks, "run", ip.run)
    return ip


def own_networks() -> Networks:
    return Networks(IPv4Interface("10.244.0.1/16"))


async def test_a_network_namespace_whose_setup_failed_is_removed(ip: Ip) -> None:
    with pytest.raises(KitError):
        await own_networks().attach("web", "10.244.1.1", "veth1")
    assert ip.removed == ["veth1"]


async def test_a_nodes_network_whose_setup_failed_is_set_up_again_for_the_next_pod(ip: Ip) -> None:
    created = own_networks()
    with pytest.raises(KitError):
        await created.attach_node("gpu-1", "10.244.0.11")
    assert (await created.attach_node("gpu-1", "10.244.0.11")).name == "pod-node-gpu-1"
