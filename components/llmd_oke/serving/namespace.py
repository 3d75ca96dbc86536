"""The namespace that models are served from, with what all of them share."""

from typing import NotRequired, TypedDict

import pulumi

from llmd_oke.objects import PART_OF, Manifest, inputs, register_outputs, when_declared
from llmd_oke.serving.args import DestinationArgs
from llmd_oke.serving.manifests import NAMESPACE_S, declare, object_metadata, timeouts
from llmd_oke.serving.network_policies import defaults
from llmd_oke.serving.vllm import HUGGING_FACE_SECRET, HUGGING_FACE_SECRET_KEY

SERVICE_ACCOUNT = "model-server"

_STEP = 1000
"""Of priorities by size: a server that needs many GPUs of one node is placed before those that fit anywhere.

Eight small servers spread over two nodes would otherwise keep a large one from starting, although GPUs are enough. It
is placed first among those that wait, and ends none that runs.
"""


class ServingNamespaceArgs(TypedDict):
    """Arguments of a serving namespace."""

    namespace: str
    """Name of the namespace."""
    tensor_parallel_sizes: list[int]
    """Numbers of GPUs of the servers that will run in it."""
    control_plane_cidrs: NotRequired[list[str] | None]
    """Addresses of the API server; pods that ask it may connect to any address if left out."""
    destinations: NotRequired[list[DestinationArgs] | None]
    """Addresses that every pod may connect to; none beside those that the kit's pods need if left out."""
    hugging_face_token: NotRequired[pulumi.Input[str] | None]
    """Token for gated models; kept as a Secret."""


class ServingNamespace(pulumi.ComponentResource):
    """A namespace, the model servers' account, their priorities by size, and the token for gated models."""

    name: pulumi.Output[str]
    """Name of the namespace."""
    service_account: pulumi.Output[str]
    """Account of the model servers. It has no rights."""

    def __init__(self, name: str, args: ServingNamespaceArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:ServingNamespace", name, inputs(self, args, "hugging_face_token"), opts)
        child = pulumi.ResourceOptions(parent=self)
        limited = pulumi.ResourceOptions(parent=self, custom_timeouts=timeouts(NAMESPACE_S))
        self.name = when_declared(declare(name, namespace(args["namespace"]), limited), args["namespace"])
        account = declare(f"{name}-service-account", service_account(self.name), child)
        self.service_account = when_declared(account, SERVICE_ACCOUNT)
        for policy in defaults(self.name, args.get("control_plane_cidrs"), args.get("destinations") or ()):
            declare(f"{name}-{policy['metadata']['name']}", policy, child)
        for size in args["tensor_parallel_sizes"]:
            declare(f"{name}-priority-tp{size}", priority_class(args["namespace"], size, PART_OF), child)
        token = args.get("hugging_face_token")
        if token is not None:
            declare(f"{name}-hugging-face-token", token_secret(self.name, token), child)
        register_outputs(self)


def namespace(name: str) -> Manifest:
    """The namespace. RDMA locks memory (IPC_LOCK), which pod security allows at its `privileged` level only."""
    levels = {"pod-security.kubernetes.io/enforce": "privileged"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {**PART_OF, **levels}}}


def service_account(namespace: pulumi.Input[str]) -> Manifest:
    """The account of the model servers, without a token in their pods."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": object_metadata(SERVICE_ACCOUNT, namespace),
        "automountServiceAccountToken": False,
    }


def token_secret(namespace: pulumi.Input[str], token: pulumi.Input[str]) -> Manifest:
    """The Secret that model servers read the Hugging Face token from, if it is there."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": object_metadata(HUGGING_FACE_SECRET, namespace),
        "stringData": {HUGGING_FACE_SECRET_KEY: pulumi.Output.secret(token)},
    }


def priority(gpus: int) -> int:
    """The priority of servers with that many GPUs. Pods without a class have 0."""
    return _STEP * gpus


def class_name(prefix: str, gpus: int) -> str:
    """The name says the value and the policy, because they can't be changed: another value is another class."""
    return f"{prefix}-non-preempting-{priority(gpus)}"


def priority_class(prefix: str, gpus: int, labels: dict[str, str]) -> dict[str, object]:
    """The class of servers with that many GPUs. Classes belong to no namespace, so the prefix should be one."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": class_name(prefix, gpus), "labels": labels},
        "value": priority(gpus),
        "preemptionPolicy": "Never",
        "description": f"Model servers with {gpus} GPUs: larger ones are placed before smaller ones.",
    }
