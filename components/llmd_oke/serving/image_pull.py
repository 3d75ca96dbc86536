"""Pull of the servers' image on each GPU node before servers start, while weights are downloaded and old servers still
run.
"""

from importlib import resources
from typing import NotRequired, TypedDict

import pulumi

from llmd_oke.catalogue.shapes import INSTANCE_TYPE_LABEL
from llmd_oke.kubernetes_types import ObjectMeta, PodSpec, PolicyRule
from llmd_oke.objects import (
    NON_ROOT_USER_ID,
    PART_OF,
    RESTRICTED_CONTAINER,
    Manifest,
    ShapeRef,
    inputs,
    pod_security,
    register_outputs,
    resolve_shape,
    when_declared,
)
from llmd_oke.serving import bench_program
from llmd_oke.serving.args import NodeTaintArgs
from llmd_oke.serving.manifests import (
    declare,
    object_metadata,
    role,
    role_binding,
    service_account,
    text_digest,
    timeouts,
    tolerations,
)

NAME = "image-pull"
WAIT = f"{NAME}-wait"
IMAGE = "llmd-oke/image"
LIMIT_S = 2700
"""Limit in seconds of the wait for nodes that still pull; chosen by this project. A ROCm image of 22 GB takes about 15
minutes (vllm issue 8336)."""
SLACK_S = 600
"""Seconds that the pod which waits for the nodes may itself take to be scheduled and to pull its own image."""
_KEEPS_RUNNING = ["python3", "-c", "import signal; signal.pause()"]


class ImagePullArgs(TypedDict):
    """Arguments of the image pull: the image, and the nodes that pull it."""

    namespace: pulumi.Input[str]
    """Namespace of the model servers."""
    image: str
    """Image of the servers, which contains Python."""
    shape: ShapeRef
    """OCI shape of the nodes, from the catalogue."""
    node_taints: NotRequired[list[NodeTaintArgs] | None]
    """Taints of the nodes beyond those of their shape; none if left out."""
    nodes: int
    """Number of nodes to wait for. Further nodes pull the image too; missing nodes aren't waited for."""


class ImagePull(pulumi.ComponentResource):
    """A DaemonSet by which each node of a shape pulls and keeps an image, without using a GPU, and a Job that waits for
    the nodes. Declare units after it.

    Missing or unresponsive nodes don't delay the Job, and no node delays it by more than 45 minutes. All nodes pull a
    new image before the first server is replaced.
    """

    pulled: pulumi.Output[str]
    """Image of the servers as an output, known once the nodes have pulled it."""

    def __init__(self, name: str, args: ImagePullArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:ImagePull", name, inputs(self, args), opts)
        child = pulumi.ResourceOptions(parent=self)
        needed = [
            declare(f"{name}-{manifest['kind'].lower()}", manifest, child)
            for manifest in (daemon_set(args), *rights(args), program(args))
        ]
        limited = pulumi.ResourceOptions(
            parent=self,
            depends_on=needed,
            delete_before_replace=True,
            custom_timeouts=timeouts(LIMIT_S + SLACK_S),
        )
        self.pulled = when_declared(declare(f"{name}-job", job(args), limited), args["image"])
        register_outputs(self)


def daemon_set(args: ImagePullArgs) -> Manifest:
    """Return the DaemonSet whose idle pods keep the kubelet from deleting the image. Pulumi doesn't wait for it, since
    an unresponsive node would block the update.
    """
    own = {**PART_OF, "app.kubernetes.io/name": NAME}
    nodes = resolve_shape(args["shape"])
    pod: PodSpec = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": pod_security(NON_ROOT_USER_ID),
        "nodeSelector": {INSTANCE_TYPE_LABEL: nodes.name},
        "tolerations": tolerations(nodes, args.get("node_taints")),
        "containers": [
            {
                "name": NAME,
                "image": args["image"],
                "imagePullPolicy": "IfNotPresent",
                "command": _KEEPS_RUNNING,
                "resources": {"requests": {"cpu": "1m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
                "securityContext": RESTRICTED_CONTAINER,
            }
        ],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {**_metadata(args), "annotations": {"pulumi.com/skipAwait": "true"}},
        "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/name": NAME}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
            "template": {"metadata": {"labels": {**own, IMAGE: text_digest(args["image"])}}, "spec": pod},
        },
    }


def rights(args: ImagePullArgs) -> list[Manifest]:
    """Return ServiceAccount, Role and RoleBinding of the pod that waits for the nodes, which may list pods only."""
    metadata = _metadata(args)
    rules: list[PolicyRule] = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    return [service_account(metadata), role(metadata, rules), role_binding(metadata, NAME)]


def program(args: ImagePullArgs) -> Manifest:
    """Return the ConfigMap with the program that waits until the nodes have pulled the image."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(args), "data": {"wait.py": _program()}}


def job(args: ImagePullArgs) -> Manifest:
    """Return the Job that waits. Its name contains a digest of the image, the number of nodes and the program, so that
    a change of any of them starts a new Job.
    """
    own = {**PART_OF, "app.kubernetes.io/name": WAIT}
    waited_for = f"{args['image']} {args['nodes']} {_program()}"
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            **_metadata(args),
            "name": f"{NAME}-{text_digest(waited_for)}",
            "annotations": {"pulumi.com/replaceUnready": "true"},
        },
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": LIMIT_S + SLACK_S,
            "template": {"metadata": {"labels": own}, "spec": _pod(args)},
        },
    }


def _pod(args: ImagePullArgs) -> PodSpec:
    words = [
        f"--selector={IMAGE}={text_digest(args['image'])}",
        f"--nodes={args['nodes']}",
        f"--limit-s={LIMIT_S}",
    ]
    return bench_program.waiting_pod(NAME, words, tolerations(resolve_shape(args["shape"]), args.get("node_taints")))


def _metadata(args: ImagePullArgs) -> ObjectMeta:
    return object_metadata(NAME, args["namespace"], {"app.kubernetes.io/name": NAME})


def _program() -> str:
    return (resources.files("llmd_pods") / "image_pull_program.py").read_text(encoding="utf-8")
