"""Which endpoints stand behind which Service address."""

from llmd_oke.rehearsal.services.table import Address, forwardings
from slices_for_tests import make_service, make_slice

WEB = Address("10.96.0.20", 80)


def test_a_service_port_leads_to_the_port_of_its_name_on_every_ready_endpoint() -> None:
    slices = [make_slice("web", "10.244.1.1", "10.244.2.1"), make_slice("web", "10.244.3.1", port=9090)]
    assert forwardings([make_service("web")], slices) == {
        WEB: (Address("10.244.1.1", 8080), Address("10.244.2.1", 8080), Address("10.244.3.1", 9090))
    }


def test_endpoints_that_are_not_ready_get_no_traffic() -> None:
    slices = [
        make_slice("web", "10.244.1.1", conditions={"ready": False}),
        make_slice("web", "10.244.2.1", conditions={"ready": True}),
        make_slice("web", "10.244.3.1", conditions={}),
    ]
    assert forwardings([make_service("web")], slices)[WEB] == (Address("10.244.2.1", 8080), Address("10.244.3.1", 8080))


def test_a_service_without_ready_endpoints_is_not_listened_on() -> None:
    assert forwardings([make_service("web")], [make_slice("web", "10.244.1.1", conditions={"ready": False})]) == {}


def test_headless_services_and_other_protocols_have_no_address() -> None:
    services = [make_service("web", address="None"), make_service("dns", ports=[{"port": 53, "protocol": "UDP"}])]
    assert forwardings(services, [make_slice("web", "10.244.1.1"), make_slice("dns", "10.244.1.1", name="")]) == {}


def test_slices_of_other_services_and_ports_of_other_names_are_ignored() -> None:
    slices = [make_slice("other", "10.244.1.1"), make_slice("web", "10.244.2.1", name="metrics")]
    assert forwardings([make_service("web")], slices) == {}
