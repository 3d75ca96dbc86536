"""Availability domains are in the cluster's region, as far as their names tell."""

import pytest
from created_stacks import gpu_pool, refusals
from llmd_oke.planning.availability_domains import region_words


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Uocm:US-ASHBURN-AD-1", "us-ashburn"),
        ("TGjA:CA-TORONTO-1-AD-1", "ca-toronto-1"),
        ("Uocm:PHX-AD-3", "us-phoenix"),
        ("Uocm:XYZ-AD-1", None),
        ("AD-1", None),
    ],
)
def test_a_name_tells_the_words_of_its_region_or_nothing(name: str, told: str | None):
    assert region_words(name) == told


def test_a_pool_in_another_region_is_refused():
    found = refusals(gpu_pool(availabilityDomain="Uocm:PHX-AD-1"))
    assert list(found) == ["gpuPools[0].availabilityDomain"]
    assert "us-phoenix" in found["gpuPools[0].availabilityDomain"]


def test_every_place_of_an_availability_domain_is_judged():
    other = ["Uocm:EU-FRANKFURT-1-AD-1"]
    found = refusals(
        stack_changes={
            "systemPool": {"availabilityDomains": ["Uocm:US-ASHBURN-AD-2", *other]},
            "cpuPools": [{"name": "more", "availabilityDomains": other}],
            "storage": {"modelCache": {"kind": "file-storage", "availabilityDomain": other[0]}},
        },
        given={"availabilityDomains": other},
    )
    assert {
        "systemPool.availabilityDomains[1]",
        "cpuPools[0].availabilityDomains[0]",
        "cluster.given.availabilityDomains[0]",
        "storage.modelCache.availabilityDomain",
    } <= set(found)


@pytest.mark.parametrize(
    ("region", "name"),
    [("us-phoenix-1", "Uocm:PHX-AD-1"), ("ap-singapore-2", "x:AP-SINGAPORE-2-AD-1"), ("us-ashburn-1", "x:IAD-AD-1")],
)
def test_what_is_of_the_region_or_says_nothing_is_accepted(region: str, name: str):
    assert refusals(gpu_pool(availabilityDomain=name), region=region) == {}
