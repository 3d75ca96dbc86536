"""Canary of a model: a pod that sends known prompts to each of the model's servers at regular intervals."""

import pulumi
from llmd_base.config_maps import PART_LABEL
from llmd_bench.canary_request import METRICS_PORT

from llmd_oke.catalogue.benchmarks import CanaryFacts, bench_jobs, canaries
from llmd_oke.kubernetes_types import PodSpec, PolicyRule, Probe
from llmd_oke.objects import Manifest, inputs, pod_security, register_outputs, resolve_shape, when_declared
from llmd_oke.serving import bench_program, labels
from llmd_oke.serving.args import BenchPodArgs
from llmd_oke.serving.manifests import (
    ROUTER_S,
    declare,
    object_metadata,
    role,
    role_binding,
    service_account,
    timeouts,
    tolerations,
)

PROGRAM = "llmd_bench.jobs.canary"
REQUEST_FILE = "request.json"


class CanaryArgs(BenchPodArgs):
    """Arguments of a model's canary."""

    request: str
    """Prompts and servers, as the JSON text of `llmd_bench.canary_request.CanaryRequest`."""


class Canary(pulumi.ComponentResource):
    """Canary of one model: a pod that sends known prompts to each of the model's servers and exports metrics of the
    differences between the answers and the first answers. Declare it after the servers; the alerts on these metrics
    belong to the stack's monitoring.
    """

    name: pulumi.Output[str]
    """Name of the canary's Deployment."""

    def __init__(self, name: str, args: CanaryArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:Canary", name, inputs(self, args), opts)
        child = pulumi.ResourceOptions(parent=self, custom_timeouts=timeouts(ROUTER_S))
        declared = [
            declare(f"{name}-{manifest['kind'].lower()}", manifest, child) for manifest in canary_manifests(args)
        ]
        self.name = when_declared(declared[-1], object_name(args))
        register_outputs(self)


def object_name(args: CanaryArgs) -> str:
    """Return the name of all objects of a canary."""
    return f"canary-{args['model']}"


def canary_manifests(args: CanaryArgs) -> list[Manifest]:
    """Return all objects of a canary; the Deployment is the last of them."""
    metadata, known = object_metadata(object_name(args), args["namespace"], _labels(args)), canaries()
    program = bench_program.digest([bench_program.archive(PROGRAM), args["request"]])
    rules: list[PolicyRule] = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]
    return [
        service_account(metadata),
        role(metadata, rules),
        role_binding(metadata, object_name(args)),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {REQUEST_FILE: args["request"]},
            "binaryData": bench_program.binary_data(PROGRAM),
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {
                "replicas": 1,
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": labels.canary_selector(args["model"])},
                "template": {
                    "metadata": {"labels": _labels(args), "annotations": {"llmd-oke/program": program}},
                    "spec": _pod(args, known),
                },
            },
        },
    ]


def _labels(args: CanaryArgs) -> dict[str, str]:
    """Return the labels of the pod. Network policies admit the pod to servers by the label of measuring pods."""
    return {**labels.canary(args["model"]), PART_LABEL: object_name(args)}


def _pod(args: CanaryArgs, known: CanaryFacts) -> PodSpec:
    shape = resolve_shape(args["shape"])
    probe: Probe = {"httpGet": {"path": "/metrics", "port": "metrics"}, "periodSeconds": 10}
    container = bench_program.container(
        name="canary",
        image=args["image"],
        command=bench_program.command(),
        args=[f"{bench_program.FOLDER}/{REQUEST_FILE}"],
        ports=[{"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"}],
        readinessProbe=probe,
        livenessProbe={**probe, "failureThreshold": 6},
        resources=bench_program.resources(known.resources),
        volumeMounts=[bench_program.mount()],
    )
    return {
        "serviceAccountName": object_name(args),
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "securityContext": pod_security(bench_jobs().user_id),
        "affinity": bench_program.rather_on(shape.name),
        "tolerations": tolerations(shape, args.get("node_taints")),
        "containers": [container],
        "volumes": [bench_program.volume(object_name(args))],
    }
