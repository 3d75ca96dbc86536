"""The one address of a model without routers."""

from typing import NotRequired, TypedDict

import pulumi

from llmd_oke.objects import PART_OF, Manifest
from llmd_oke.serving import labels
from llmd_oke.serving.manifests import declare
from llmd_oke.serving.timeouts import timeouts
from llmd_oke.serving.vllm import SERVER_PORT

DEFAULT_READY_TIMEOUT_S = 600


class ModelEndpointArgs(TypedDict):
    """What a model's endpoint needs."""

    namespace: pulumi.Input[str]
    """Namespace of the model."""
    model: str
    """Name that the model's objects carry as label, and name of the Service."""
    ready_timeout_s: NotRequired[int]
    """Limit of the wait for what stands behind the Service to be ready, in seconds; 600 if left out."""


class ModelEndpoint(pulumi.ComponentResource):
    """A Service that spreads connections over the servers of all units of a model, as the published baseline does.

    Declare it beside the units, not after them: the Kubernetes plug-in gives every Service ten seconds to settle.
    """

    url: pulumi.Output[str]
    """Base URL inside the cluster, without `/v1`."""

    def __init__(self, name: str, args: ModelEndpointArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:ModelEndpoint", name, None, opts)
        limits = timeouts(args.get("ready_timeout_s", DEFAULT_READY_TIMEOUT_S))
        declared = declare(name, service(args), pulumi.ResourceOptions(parent=self, custom_timeouts=limits))
        namespace = pulumi.Output.all(args["namespace"], declared.urn).apply(lambda both: both[0])
        self.url = pulumi.Output.concat("http://", args["model"], ".", namespace, ".svc.cluster.local")
        self.register_outputs({"url": self.url})


def service(args: ModelEndpointArgs) -> Manifest:
    """The Service."""
    model = args["model"]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": model,
            "namespace": args["namespace"],
            "labels": {**PART_OF, labels.MODEL: model},
        },
        "spec": {
            "type": "ClusterIP",
            "selector": labels.model_selector(model),
            "ports": [{"name": "http", "port": 80, "targetPort": SERVER_PORT, "protocol": "TCP"}],
        },
    }
