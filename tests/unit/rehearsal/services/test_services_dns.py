"""Answers of the cluster's DNS."""

import dns.message
import dns.rcode
import pytest
from llmd_oke.rehearsal.services.dns import answer
from llmd_oke.rehearsal.services.names import names
from slices_for_tests import make_service, make_slice

DOMAIN = "cluster.local"
ZONE = names(
    [
        make_service("router"),
        make_service("decode", address="None"),
        make_service("outside", type="ExternalName", externalName="api.example.com", address=""),
    ],
    [
        make_slice("decode", "10.244.1.1", hostname="decode-0"),
        make_slice("decode", "10.244.2.1"),
        make_slice("decode", "10.244.3.1", conditions={"ready": False}),
    ],
    DOMAIN,
)


def ask(name: str, kind: str = "A") -> tuple[str, list[str]]:
    wire = answer(dns.message.make_query(name, kind).to_wire(), ZONE, DOMAIN)
    assert wire is not None
    message = dns.message.from_wire(wire)
    return dns.rcode.to_text(message.rcode()), [item.to_text() for each in message.answer for item in each]


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("router.serving.svc.cluster.local.", "A", ["10.96.0.20"]),
        ("ROUTER.serving.svc.cluster.local.", "A", ["10.96.0.20"]),
        ("router.serving.svc.cluster.local.", "AAAA", []),
        ("decode.serving.svc.cluster.local.", "A", ["10.244.1.1", "10.244.2.1"]),
        ("decode-0.decode.serving.svc.cluster.local.", "A", ["10.244.1.1"]),
        ("outside.serving.svc.cluster.local.", "A", ["api.example.com."]),
        ("10-244-1-1.serving.pod.cluster.local.", "A", ["10.244.1.1"]),
        ("_http._tcp.router.serving.svc.cluster.local.", "SRV", ["0 100 80 router.serving.svc.cluster.local."]),
        ("serving.svc.cluster.local.", "A", []),
    ],
)
def test_names_of_the_cluster(name: str, kind: str, expected: list[str]) -> None:
    code, found = ask(name, kind)
    assert code == "NOERROR"
    assert sorted(found) == expected


@pytest.mark.parametrize(
    "name",
    [
        "nothing.serving.svc.cluster.local.",
        "router.other.svc.cluster.local.",
        "example.com.",
        "x-1.a.pod.cluster.local.",
    ],
)
def test_other_names_do_not_exist(name: str) -> None:
    assert ask(name) == ("NXDOMAIN", [])


def test_what_is_no_query_gets_no_answer() -> None:
    assert answer(b"nonsense", ZONE, DOMAIN) is None
