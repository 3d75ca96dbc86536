"""The real engine, attached to the stand-in."""

from typing import Any

import httpx2
import pulumi
import pytest
from kubernetes_control_plane import ControlPlane
from kubernetes_engine import Program, Run
from kubernetes_pods import patch_node
from llmd_oke.catalogue.operations import remedy_for
from llmd_oke.catalogue.releases import crd_manifests
from llmd_oke.catalogue.serving import scaling
from llmd_oke.values import module_folder
from pulumi import automation

pytestmark = [pytest.mark.rehearsal, pytest.mark.engine]


def test_pulumi_creates_changes_and_deletes_objects_through_the_kubernetes_stand_in(run: Run):
    import pulumi_kubernetes as k8s  # noqa: PLC0415 - a second of import time

    def app(replicas: int) -> Program:
        def program_(options: pulumi.ResourceOptions) -> None:
            namespace = k8s.core.v1.Namespace("ns", metadata={"name": "engine"}, opts=options)
            where = {"namespace": namespace.metadata["name"]}
            k8s.core.v1.Secret("s", metadata=where, string_data={"k": pulumi.Output.secret("v")}, opts=options)
            limits = {"cpu": "1000m", "memory": "2048Mi"}
            pod = {"host_network": False, "containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}]}
            template = {"metadata": {"labels": {"app": "d"}}, "spec": pod}
            spec = {"replicas": replicas, "selector": {"match_labels": {"app": "d"}}, "template": template}
            deployment = k8s.apps.v1.Deployment("d", metadata={"name": "d", **where}, spec=spec, opts=options)
            pulumi.export("ready", deployment.status["ready_replicas"])

        return program_

    result, changes = run("up", app(1))
    assert (changes, result.outputs["ready"].value) == ({"create": 5}, 1)
    assert run("up", app(1))[1] == {"same": 5}
    scaled, changes = run("up", app(2))
    assert (changes, scaled.outputs["ready"].value) == ({"same": 4, "update": 1}, 2)
    assert run("destroy", app(2))[1] == {"delete": 5}


def test_the_error_for_a_kubernetes_kind_missing_in_rehearsals_names_the_kind(run: Run):
    import pulumi_kubernetes as k8s  # noqa: PLC0415 - a second of import time

    def program_(options: pulumi.ResourceOptions) -> None:
        k8s.networking.v1.IngressClass("i", spec={"controller": "c.example/c"}, opts=options)

    with pytest.raises(automation.CommandError, match="IngressClass is not in this rehearsal"):
        run("preview", program_)


def test_switching_autoscaling_on_or_off_keeps_the_current_number_of_replicas(run: Run, control_plane: ControlPlane):
    """Turning scaling on, scaling by somebody else, and an update of the pods: none of them ends a server. Turning
    it off doesn't either where the provider doesn't force, because the number is somebody else's by then.
    """
    definitions = crd_definitions()
    with control_plane.client() as client:
        player_with_gpus(client)
        for definition in definitions:
            client.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", json=definition)
        run("up", scaled_unit(replicas=2, autoscaled=False))
        _, changes = run("up", scaled_unit(replicas=3, autoscaled=True))
        assert (changes["create"], replicas(client)) == (2, 2)
        client.put(SCALE, json=with_replicas(client.get(SCALE).json(), 3)).raise_for_status()
        before = deployment_version(client)
        run("up", scaled_unit(replicas=2, autoscaled=True))
        assert (deployment_version(client), replicas(client)) == (before, 3)
        run("up", scaled_unit(replicas=2, autoscaled=True, max_num_seqs=64))
        assert (deployment_version(client), replicas(client)) == (before + 1, 3)
        with pytest.raises(automation.CommandError) as refused:
            run("up", scaled_unit(replicas=2, autoscaled=False, max_num_seqs=64))
        assert "spec.replicas" in (remedy_for(str(refused.value)) or "")
        assert replicas(client) == 3
        client.delete("/api/v1/namespaces/scaled").raise_for_status()


SCALE = "/apis/apps/v1/namespaces/scaled/deployments/m-aggregated/scale"


def deployment_version(client: httpx2.Client) -> int:
    """The generation of the servers' Deployment, which each change of its spec raises."""
    return client.get(SCALE.removesuffix("/scale")).json()["metadata"]["generation"]


def crd_definitions() -> list[dict[str, Any]]:
    source = scaling().definitions
    if not module_folder(source.module, source.version).is_dir():
        pytest.skip(f"{source.module} is not in the cache")
    return crd_manifests(source)


def player_with_gpus(client: httpx2.Client) -> None:
    """The node that plays pods, with what model servers ask for."""
    labels = {"node.kubernetes.io/instance-type": "BM.GPU.MI300X.8", "amd.com/gpu": "true"}
    patch_node(client, "player", {"metadata": {"labels": labels}})
    room = {"amd.com/gpu": "64", "memory": "20000Gi", "ephemeral-storage": "20000Gi"}
    patch_node(client, "player/status", {"status": {"capacity": room, "allocatable": room}})


def scaled_unit(replicas: int, *, autoscaled: bool, max_num_seqs: int = 256) -> Program:
    """An aggregated unit, with its ScaledObject where it is scaled."""

    def program_(options: pulumi.ResourceOptions) -> None:
        import pulumi_kubernetes as k8s  # noqa: PLC0415 - a second of import time
        from llmd_oke import AggregatedUnit, ModelScaling  # noqa: PLC0415 - the same

        namespace = k8s.core.v1.Namespace("ns", metadata={"name": "scaled"}, opts=options)
        inside = pulumi.ResourceOptions.merge(options, pulumi.ResourceOptions(depends_on=[namespace]))
        unit = AggregatedUnit(
            "m",
            {
                "release": "llm-d-0.9.0",
                "model": "gpt-oss-120b",
                "shape": "BM.GPU.MI300X.8",
                "namespace": "scaled",
                "service_account": "default",
                "rdma": False,
                "engine": {"max_num_seqs": max_num_seqs},
                "servers": {
                    "replicas": replicas,
                    "tensor_parallel_size": 1,
                    "max_surge": 2,
                    "max_unavailable": 0,
                    "autoscaled": autoscaled,
                },
            },
            inside,
        )
        if autoscaled:
            servers = {"aggregated": {"min_replicas": 1, "max_replicas": 4, "requests": 40.0}}
            after = pulumi.ResourceOptions.merge(inside, pulumi.ResourceOptions(depends_on=[unit]))
            ModelScaling("m-scaling", {"namespace": "scaled", "unit": "m", "servers": servers}, after)

    return program_


def replicas(client: httpx2.Client) -> int:
    return client.get(SCALE).json()["spec"]["replicas"]


def with_replicas(scale: dict[str, Any], count: int) -> dict[str, Any]:
    return {**scale, "spec": {"replicas": count}}
