"""Runs inside of a local cluster: has OCI's stand-in make a pool and delete it, and prints the nodes after each."""

import json
import sys
from typing import Any

import grpc
from lightkube import Client
from lightkube.config.kubeconfig import KubeConfig
from lightkube.resources.core_v1 import Node
from llmd_rehearsal.plugin_protocol import Stub, decode, encode, provider

COMPARTMENT = "ocid1.compartment.oc1..aaaa"
DOMAIN = "Uocm:US-ASHBURN-AD-1"
POOL = "oci:ContainerEngine/nodePool:NodePool"


def create(stub: Any, type_: str, inputs: dict[str, Any]) -> str:
    """Makes a resource and gives its id."""
    urn = f"urn:pulumi:dev::cluster::{type_}::it"
    return stub.Create(provider.CreateRequest(urn=urn, type=type_, name="it", properties=encode(inputs))).id


def make_pool(stub: Any) -> str:
    """A pool of three nodes with everything around it."""
    vcn = create(stub, "oci:Core/vcn:Vcn", {"compartmentId": COMPARTMENT, "cidrBlocks": ["10.0.0.0/16"]})
    where = {"compartmentId": COMPARTMENT, "vcnId": vcn}
    subnet = create(stub, "oci:Core/subnet:Subnet", {**where, "cidrBlock": "10.0.0.0/19"})
    cluster = {**where, "name": "prod", "kubernetesVersion": "v1.34.2"}
    inputs = {
        "clusterId": create(stub, "oci:ContainerEngine/cluster:Cluster", cluster),
        "compartmentId": COMPARTMENT,
        "name": "gpu",
        "nodeShape": "BM.GPU.MI300X.8",
        "nodeConfigDetails": {"size": 3, "placementConfigs": [{"availabilityDomain": DOMAIN, "subnetId": subnet}]},
    }
    return create(stub, POOL, inputs)


def kubeconfig_server(stub: Any) -> str:
    """The API server that the function for kubeconfigs leads to."""
    token = "oci:ContainerEngine/getClusterKubeConfig:getClusterKubeConfig"
    answer = stub.Invoke(provider.InvokeRequest(tok=token, args=encode({"clusterId": "ocid1.cluster.oc1..a"})))
    content: Any = decode(getattr(answer, "return"))["content"]
    return next(line.split()[-1] for line in content.splitlines() if "server:" in line)


def main() -> None:
    """Prints the nodes after the pool was made and after it was deleted."""
    port, kubeconfig = sys.argv[1:]
    client = Client(config=KubeConfig.from_file(kubeconfig).get(), trust_env=False)
    answers: dict[str, Any] = {}
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = Stub(channel)
        pool = make_pool(stub)
        answers["made"] = [node.to_dict() for node in client.list(Node)]
        answers["server"] = kubeconfig_server(stub)
        stub.Delete(provider.DeleteRequest(id=pool, urn=f"urn:pulumi:dev::cluster::{POOL}::it", type=POOL))
        answers["deleted"] = [node.to_dict() for node in client.list(Node)]
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
