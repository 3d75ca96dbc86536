"""Namespace of the models, with the objects that all models share."""

from typing import NotRequired, TypedDict

import pulumi

from llmd_oke.objects import PART_OF, Manifest, inputs, register_outputs, when_declared
from llmd_oke.serving.args import DestinationArgs
from llmd_oke.serving.manifests import NAMESPACE_S, declare, object_metadata, timeouts
from llmd_oke.serving.network_policies import defaults
from llmd_oke.serving.vllm import HUGGING_FACE_SECRET, HUGGING_FACE_SECRET_KEY

SERVICE_ACCOUNT = "model-server"

_STEP = 1000
"""Difference of the priorities of servers whose number of GPUs differs by one: servers with more GPUs are scheduled
first.

Eight small servers, spread over two nodes, would otherwise keep a large server pending although enough GPUs are free.
The priority orders pending pods only; no running pod is preempted."""


class ServingNamespaceArgs(TypedDict):
    """Arguments of the models' namespace."""

    namespace: str
    """Name of the namespace."""
    tensor_parallel_sizes: list[int]
    """Numbers of GPUs of the servers that will run in the namespace; each gets a PriorityClass."""
    control_plane_cidrs: NotRequired[list[str] | None]
    """IP ranges (CIDR) of the API server; pods that need the API server may connect to any address if left out."""
    destinations: NotRequired[list[DestinationArgs] | None]
    """Addresses that every pod may connect to; only those that the kit's pods need if left out."""
    hugging_face_token: NotRequired[pulumi.Input[str] | None]
    """Hugging Face token for gated models; stored as a Secret."""


class ServingNamespace(pulumi.ComponentResource):
    """A namespace with the model servers' ServiceAccount, their PriorityClasses, network policies and the Hugging Face
    token.
    """

    name: pulumi.Output[str]
    """Name of the namespace that is created."""
    service_account: pulumi.Output[str]
    """ServiceAccount of the model servers. It has no rights."""

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
    """Return the Namespace. Its pod security level is `privileged`, since RDMA locks memory (IPC_LOCK)."""
    levels = {"pod-security.kubernetes.io/enforce": "privileged"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {**PART_OF, **levels}}}


def service_account(namespace: pulumi.Input[str]) -> Manifest:
    """Return the ServiceAccount of the model servers, whose token isn't mounted into pods."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": object_metadata(SERVICE_ACCOUNT, namespace),
        "automountServiceAccountToken": False,
    }


def token_secret(namespace: pulumi.Input[str], token: pulumi.Input[str]) -> Manifest:
    """Return the Secret with the Hugging Face token, which model servers read if it exists."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": object_metadata(HUGGING_FACE_SECRET, namespace),
        "stringData": {HUGGING_FACE_SECRET_KEY: pulumi.Output.secret(token)},
    }


def priority(gpus: int) -> int:
    """Return the priority of servers with `gpus` GPUs. Pods without a PriorityClass have priority 0."""
    return _STEP * gpus


def class_name(prefix: str, gpus: int) -> str:
    """Return the name of a PriorityClass. It contains the value and the preemption policy, because these are immutable:
    a changed value needs another PriorityClass.
    """
    return f"{prefix}-non-preempting-{priority(gpus)}"


def priority_class(prefix: str, gpus: int, labels: dict[str, str]) -> dict[str, object]:
    """Return the PriorityClass of servers with `gpus` GPUs. PriorityClasses have no namespace; `prefix` should
    therefore be the namespace's name.
    """
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": class_name(prefix, gpus), "labels": labels},
        "value": priority(gpus),
        "preemptionPolicy": "Never",
        "description": f"Model servers with {gpus} GPUs: larger ones are placed before smaller ones.",
    }
