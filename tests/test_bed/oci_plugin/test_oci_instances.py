"""Provider instances: each connection of the engine is one of its own."""

from typing import Any

import grpc
from llmd_rehearsal.oci_plugin.server import start
from llmd_rehearsal.plugin_protocol import Empty, Stub, decode, encode, provider

COMPARTMENT = "ocid1.compartment.oc1..aaaa"
DOMAINS = "oci:Identity/getAvailabilityDomains:getAvailabilityDomains"
VCN = "oci:Core/vcn:Vcn"


def configured(channel: grpc.Channel, region: str) -> Any:
    stub = Stub(channel)
    stub.Configure(provider.ConfigureRequest(args=encode({"region": region})))
    return stub


def make(stub: Any) -> str:
    properties = encode({"compartmentId": COMPARTMENT, "cidrBlocks": ["10.0.0.0/16"]})
    urn = f"urn:pulumi:dev::p::{VCN}::it"
    return stub.Create(provider.CreateRequest(urn=urn, type=VCN, properties=properties)).id


def first_domain(stub: Any) -> str:
    request = provider.InvokeRequest(tok=DOMAINS, args=encode({"compartmentId": COMPARTMENT}))
    answer: Any = decode(getattr(stub.Invoke(request), "return"))
    return answer["availabilityDomains"][0]["name"]


def test_several_oci_stand_ins_each_have_their_own_region_and_stop_independently():
    server = start()
    address = f"127.0.0.1:{server.port}"
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(address, options) as one, grpc.insecure_channel(address, options) as other:
        ashburn, osaka = configured(one, "us-ashburn-1"), configured(other, "ap-osaka-1")
        assert first_domain(ashburn) == "Uocm:US-ASHBURN-AD-1"
        assert first_domain(osaka) == "Uocm:AP-OSAKA-1-AD-1"
        ashburn.Cancel(Empty())
        assert make(osaka).startswith("ocid1.vcn.oc1.kix.")
    server.stop()
