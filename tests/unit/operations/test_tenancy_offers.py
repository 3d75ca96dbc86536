"""Offers of a tenancy to a new stack."""

from typing import Any

from llmd_oke.access.oci_client import OciError
from llmd_oke.operations.tenancy_offers import TenancyOffers
from oci_for_tests import FakeOci, Sequence

SHAPE = "BM.GPU.MI300X.8"
REPORT = "POST compute /computeCapacityReports"


def report(status: str, count: int | None) -> dict[str, Any]:
    return {"shapeAvailabilities": [{"availabilityStatus": status, "availableCount": count}]}


def test_the_availability_domain_with_most_gpu_capacity_is_offered_first():
    client = FakeOci(
        {
            "identity /availabilityDomains": [{"name": "AD-1"}, {"name": "AD-2"}],
            REPORT: Sequence([report("OUT_OF_HOST_CAPACITY", None), report("AVAILABLE", 4)]),
            "limits /services/compute/limits/gpu-mi300x-count/resourceAvailability": {"available": 32},
        }
    )
    first, second = TenancyOffers(client, "tenancy").availability_domains(SHAPE)
    assert (first.value, first.label) == ("AD-2", f"4 x {SHAPE} free, limit leaves 32 GPUs")
    assert "OUT_OF_HOST_CAPACITY" in second.label


def test_shapes_with_capacity_are_offered_once_with_the_best_availability_domain():
    def rows(*counts: int) -> dict[str, Any]:
        names = ("BM.GPU.MI300X.8", "BM.GPU.MI355X-v1.8")
        return {
            "shapeAvailabilities": [
                {"instanceShape": name, "availabilityStatus": "AVAILABLE" if count else "OUT", "availableCount": count}
                for name, count in zip(names, counts, strict=True)
            ]
        }

    domains = [{"name": "AD-1"}, {"name": "AD-2"}]
    client = FakeOci({"identity /availabilityDomains": domains, REPORT: Sequence([rows(2, 0), rows(5, 1)])})
    found = TenancyOffers(client, "tenancy").shapes()
    assert [(offer.value, offer.label) for offer in found] == [
        ("BM.GPU.MI300X.8", "5 free in AD-2"),
        ("BM.GPU.MI355X-v1.8", "1 free in AD-2"),
    ]


def test_offered_node_images_are_those_of_the_compartment_that_nodes_can_boot():
    rows = [("a", "AVAILABLE", "mine"), ("b", "AVAILABLE", None), ("c", "IMPORTING", "mine")]
    keys = ("id", "lifecycleState", "compartmentId")
    images = [{"displayName": "gpu", **dict(zip(keys, row, strict=True))} for row in rows]
    client = FakeOci({"compute /images": images})
    assert [offer.value for offer in TenancyOffers(client, "tenancy").images("mine", SHAPE)] == ["a"]


def test_resources_that_oci_refuses_to_list_are_not_offered():
    client = FakeOci({"containerengine /clusterOptions/all": {"kubernetesVersions": ["v1.9.3", "v1.34.2"]}})
    known = TenancyOffers(client, "tenancy")
    assert known.compartments() == []
    assert [offer.value for offer in known.kubernetes_versions("mine")] == ["v1.34.2", "v1.9.3"]
    assert len(known.refusals) == 1


def test_after_an_unanswered_query_of_oci_no_other_offer_is_queried():
    client = FakeOci({"identity /compartments": OciError(0, "NoAnswer", "nobody answers")})
    known = TenancyOffers(client, "tenancy")
    assert [known.compartments(), known.clusters("mine"), known.availability_domains(SHAPE)] == [[], [], []]
    assert known.refusals == ["nobody answers"]
    assert len(client.asked) == 1
