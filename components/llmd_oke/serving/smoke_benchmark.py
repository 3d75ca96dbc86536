"""Smoke benchmark of a model as part of its deployment: a Job in the cluster that fails if thresholds are missed."""

import pulumi
from llmd_base.config_maps import LABEL as SMOKE

from llmd_oke.catalogue.benchmarks import JobFacts, bench_jobs
from llmd_oke.kubernetes_types import Container, ObjectMeta, PodSpec, PolicyRule
from llmd_oke.objects import PART_OF, Manifest, inputs, pod_security, register_outputs, resolve_shape, when_declared
from llmd_oke.serving import bench_program
from llmd_oke.serving.args import BenchPodArgs
from llmd_oke.serving.manifests import (
    declare,
    object_metadata,
    role,
    role_binding,
    service_account,
    timeouts,
    tolerations,
)

PROGRAM = "llmd_bench.jobs.smoke"
REQUEST_FILE = "request.json"
FACTS_FILE = "facts.json"
FACTS_FOLDER = "/etc/llmd-oke"

MEASURED = "llmd-oke/measured"
"""Annotation of the pod with a digest of the deployment. A changed deployment changes the pod template, and so the Job
is replaced."""

STARTING_S = 600
"""Seconds that the pod may take to be scheduled and to pull its image, which the servers' nodes already have."""


class SmokeBenchmarkArgs(BenchPodArgs):
    """Arguments of a smoke benchmark."""

    request: str
    """Loads and thresholds, as the JSON text of `llmd_bench.smoke_request.SmokeRequest`."""
    facts: str
    """JSON text of further content for the report. It doesn't affect the measurement, so that a change doesn't repeat
    the benchmark."""
    measured: str
    """Digest of everything that serves the model; a changed digest repeats the benchmark."""
    timeout_s: int
    """Limit of the benchmark in seconds, from its first request on."""


class SmokeBenchmark(pulumi.ComponentResource):
    """Benchmark of a model from inside its cluster. The update fails if the model misses the thresholds.

    Declare it after everything that serves the model, and nothing after it. The benchmark is repeated when the
    deployment or the request has changed, and after a failure.
    """

    result: pulumi.Output[str]
    """Name of the ConfigMap with the benchmark's result, known once it exists."""

    def __init__(self, name: str, args: SmokeBenchmarkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:SmokeBenchmark", name, inputs(self, args), opts)
        child = pulumi.ResourceOptions(parent=self)
        # After a failed update the program before it would still be there, and the way back would fail to create it.
        replaced = pulumi.ResourceOptions(parent=self, delete_before_replace=True)
        needed: list[pulumi.Resource] = [
            declare(f"{name}-{part}", manifest, own)
            for part, manifest, own in (
                ("service-account", service_account(_metadata(args)), child),
                ("role", role(_metadata(args), rules(args)), child),
                ("role-binding", role_binding(_metadata(args), object_name(args)), child),
                ("program", program(args), replaced),
                ("facts", facts(args), child),
            )
        ]
        limit_s = deadline_s(args)
        limited = pulumi.ResourceOptions(parent=self, depends_on=needed, custom_timeouts=timeouts(limit_s + STARTING_S))
        self.result = when_declared(declare(name, job(args, bench_jobs()), limited), object_name(args))
        register_outputs(self)


def object_name(args: SmokeBenchmarkArgs) -> str:
    """Return the name of the benchmark's objects, and of its result."""
    return f"smoke-{args['model']}"


def deadline_s(args: SmokeBenchmarkArgs) -> int:
    """Return the limit of the benchmark's Job in seconds, from its creation on."""
    return args["timeout_s"] + STARTING_S


def rules(args: SmokeBenchmarkArgs) -> list[PolicyRule]:
    """Return the rules of the Job's Role: it may list pods and write the ConfigMap of its result. Since the Job creates
    the ConfigMap by server-side apply, whose requests contain the name, the right to create is limited to this name
    too.
    """
    result: PolicyRule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [object_name(args)]}
    return [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
        {**result, "verbs": ["create", "patch"]},
    ]


def program(args: SmokeBenchmarkArgs) -> Manifest:
    """Return the ConfigMap with the program and its request, whose name contains a digest of both."""
    metadata = {**_metadata(args), "name": program_name(args)}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {REQUEST_FILE: args["request"]},
        "binaryData": bench_program.binary_data(PROGRAM),
    }


def program_name(args: SmokeBenchmarkArgs) -> str:
    """Return the name of the program's ConfigMap, which contains a digest of program and request."""
    return f"{object_name(args)}-{bench_program.digest([bench_program.archive(PROGRAM), args['request']])}"


def facts(args: SmokeBenchmarkArgs) -> Manifest:
    """Return the ConfigMap with the facts that the report contains besides the measurements."""
    metadata = {**_metadata(args), "name": f"{object_name(args)}-facts"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {FACTS_FILE: args["facts"]}}


def job(args: SmokeBenchmarkArgs, settings: JobFacts) -> Manifest:
    """Return the Job without a name, since Pulumi generates a new one for each. A finished Job is kept for its logs and
    termination message.
    """
    own = {**PART_OF, "app.kubernetes.io/name": "smoke-benchmark", SMOKE: args["model"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "namespace": args["namespace"],
            "labels": own,
            "annotations": {"pulumi.com/replaceUnready": "true"},
        },
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": deadline_s(args),
            "template": {
                "metadata": {"labels": own, "annotations": {MEASURED: args["measured"]}},
                "spec": _pod(args, settings),
            },
        },
    }


def _pod(args: SmokeBenchmarkArgs, settings: JobFacts) -> PodSpec:
    shape = resolve_shape(args["shape"])
    return {
        "serviceAccountName": object_name(args),
        "automountServiceAccountToken": True,
        "restartPolicy": "Never",
        "securityContext": pod_security(settings.user_id),
        "affinity": bench_program.rather_on(shape.name),
        "tolerations": tolerations(shape, args.get("node_taints")),
        "containers": [_container(args, settings)],
        "volumes": [
            bench_program.volume(program_name(args)),
            {"name": "facts", "configMap": {"name": f"{object_name(args)}-facts"}},
        ],
    }


def _container(args: SmokeBenchmarkArgs, settings: JobFacts) -> Container:
    return bench_program.container(
        name="smoke",
        image=args["image"],
        command=bench_program.command(),
        args=[f"{bench_program.FOLDER}/{REQUEST_FILE}", f"{FACTS_FOLDER}/{FACTS_FILE}"],
        env=[*bench_program.identity(), {"name": "RESULT_NAME", "value": object_name(args)}],
        resources=bench_program.resources(settings.smoke),
        volumeMounts=[bench_program.mount(), {"name": "facts", "mountPath": FACTS_FOLDER, "readOnly": True}],
    )


def _metadata(args: SmokeBenchmarkArgs) -> ObjectMeta:
    return object_metadata(object_name(args), args["namespace"], {SMOKE: args["model"]})
