import pytest
from llmd_base.errors import KitError
from llmd_oke.access.addresses import host_and_port


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("https://127.0.0.1:6443", ("127.0.0.1", 6443)),
        ("https://localhost", ("localhost", 443)),
        ("https://[::1]:6443/", ("::1", 6443)),
    ],
)
def test_an_api_servers_address_is_parsed_as_in_kubeconfigs(address: str, expected: tuple[str, int]):
    assert host_and_port(address) == expected


@pytest.mark.parametrize(
    "address", ["127.0.0.1:6443", "http://127.0.0.1:6443", "https://", "https://a:b", "https://a:70000"]
)
def test_an_invalid_address_of_an_api_server_is_refused_with_an_example(address: str):
    with pytest.raises(KitError, match="is no address of an API server") as refused:
        host_and_port(address)
    assert "https://127.0.0.1:6443" in (refused.value.remedy or "")
