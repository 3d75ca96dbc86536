"""Have OCI's stand-in make, scale and delete a pool from inside a local cluster, and print its nodes."""

import json
import sys
import time
from typing import Any, cast

import grpc
from lightkube import Client
from lightkube.config.kubeconfig import KubeConfig
from lightkube.resources.core_v1 import ConfigMap, Event, Node, Pod
from llmd_oke.operations.objects import metadata
from llmd_rehearsal.plugin_protocol import Stub, decode, encode, provider

COMPARTMENT = "ocid1.compartment.oc1..aaaa"
DOMAIN = "Uocm:US-ASHBURN-AD-1"
LIMIT_S = 60
POOL = "oci:ContainerEngine/nodePool:NodePool"


def create(stub: Any, type_: str, inputs: dict[str, Any]) -> str:
    """Make a resource and give its id."""
    urn = f"urn:pulumi:dev::cluster::{type_}::it"
    return stub.Create(provider.CreateRequest(urn=urn, type=type_, name="it", properties=encode(inputs))).id


def make_pool(stub: Any) -> str:
    """A pool of three nodes with everything around it."""
    vcn = create(stub, "oci:Core/vcn:Vcn", {"compartmentId": COMPARTMENT, "cidrBlocks": ["10.0.0.0/16"]})
    where = {"compartmentId": COMPARTMENT, "vcnId": vcn}
    subnet = create(stub, "oci:Core/subnet:Subnet", {**where, "cidrBlock": "10.0.0.0/19"})
    cluster = {**where, "name": "prod", "kubernetesVersion": "v1.34.2", "type": "ENHANCED_CLUSTER"}
    inputs = {
        "clusterId": create(stub, "oci:ContainerEngine/cluster:Cluster", cluster),
        "compartmentId": COMPARTMENT,
        "name": "gpu",
        "nodeShape": "BM.GPU.MI300X.8",
        "nodeConfigDetails": {"size": 3, "placementConfigs": [{"availabilityDomain": DOMAIN, "subnetId": subnet}]},
    }
    return create(stub, POOL, inputs)


def add_autoscaler(stub: Any, pool: str) -> None:
    """OKE's add-on, for a pool of at least three nodes and at most four."""
    state: Any = decode(
        stub.Read(provider.ReadRequest(id=pool, urn=f"urn:pulumi:dev::cluster::{POOL}::it", type=POOL)).properties
    )
    inputs = {
        "clusterId": state["clusterId"],
        "addonName": "ClusterAutoscaler",
        "removeAddonResourcesOnDelete": True,
        "configurations": [{"key": "nodes", "value": f"3:4:{pool}"}],
    }
    create(stub, "oci:ContainerEngine/addon:Addon", inputs)


def fill(client: Client, pods: int) -> None:
    """Pods of which a node has room for one."""
    for number in range(pods):
        container = {"name": "c", "image": "nothing", "resources": {"requests": {"cpu": "150"}}}
        spec = {"containers": [container], "tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 0}
        name = {"name": f"pod-{number}", "namespace": "default"}
        client.create(cast("Pod", Pod.from_dict({"metadata": name, "spec": spec})))


def after(client: Client, nodes: int) -> list[str | None]:
    """The names of the nodes, once there are so many; as they are where they don't come in time."""
    end_s = time.monotonic() + LIMIT_S
    while len(names := [metadata(node).name for node in client.list(Node)]) != nodes and time.monotonic() < end_s:
        time.sleep(0.2)
    return names


def kubeconfig_server(stub: Any) -> str:
    """The API server that the function for kubeconfigs leads to."""
    token = "oci:ContainerEngine/getClusterKubeConfig:getClusterKubeConfig"
    answer = stub.Invoke(provider.InvokeRequest(tok=token, args=encode({"clusterId": "ocid1.cluster.oc1..a"})))
    content: Any = decode(getattr(answer, "return"))["content"]
    return next(line.split()[-1] for line in content.splitlines() if "server:" in line)


def main() -> None:
    """Print the nodes after the pool was made, grown, shrunk and deleted."""
    port, kubeconfig = sys.argv[1:]
    client = Client(config=KubeConfig.from_file(kubeconfig).get(), trust_env=False)
    answers: dict[str, Any] = {}
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = Stub(channel)
        pool = make_pool(stub)
        answers["made"] = [node.to_dict() for node in client.list(Node)]
        answers["server"] = kubeconfig_server(stub)
        add_autoscaler(stub, pool)
        fill(client, 4)
        answers["grown"] = after(client, 4)
        answers["told"] = [event.message for event in client.list(Event) if event.reason == "TriggeredScaleUp"]
        for number in range(4):
            client.delete(Pod, f"pod-{number}")
        answers["shrunk"] = after(client, 3)
        answers["status"] = client.get(ConfigMap, "cluster-autoscaler-status", namespace="kube-system").data
        stub.Delete(provider.DeleteRequest(id=pool, urn=f"urn:pulumi:dev::cluster::{POOL}::it", type=POOL))
        answers["deleted"] = [node.to_dict() for node in client.list(Node)]
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
