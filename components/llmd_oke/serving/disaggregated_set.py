"""DisaggregatedSets: the prefill and decode servers of a unit as roles of one object, and a Job that waits for them.

The controller (that of LeaderWorkerSets, https://lws.sigs.k8s.io) makes a LeaderWorkerSet for each role and revision,
`<name>-<revision>-<role>`, and replaces those of older revisions in step over both roles. Up to LWS 0.10 it writes no
status of a DisaggregatedSet, and its revisions are known to itself alone, so that a Job waits for the sets that it
makes: those whose pods have the digest of what the stack declares.
"""

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import pulumi
from llmd_pods.disaggregated_set_program import TEMPLATES_LABEL

from llmd_oke.config import Role
from llmd_oke.kubernetes_types import ObjectMeta, PolicyRule, Toleration
from llmd_oke.objects import PART_OF, Manifest, mapped, resolve_shape, when_declared
from llmd_oke.serving import bench_program, labels, network_policies
from llmd_oke.serving.args import UnitArgs
from llmd_oke.serving.image_pull import SLACK_S
from llmd_oke.serving.manifests import (
    NAMESPACE_S,
    declare,
    object_metadata,
    role,
    role_binding,
    service_account,
    text_digest,
    timeouts,
    tolerations,
)

API_VERSION = "disaggregatedset.x-k8s.io/v1"
KIND = "DisaggregatedSet"

Roles = Mapping[Role, Manifest]
"""Role of a DisaggregatedSet, by name: `metadata` of its LeaderWorkerSets, with labels, and their `spec`."""


def declare_disaggregated_set(
    parent: pulumi.Resource, unit: str, args: UnitArgs, roles: Roles, limit_s: int, replaced: list[str]
) -> pulumi.Output[str]:
    """Declare the DisaggregatedSet of a unit and the Job that waits for its servers; return the unit's name,
    known once the Job has seen that all servers are ready.

    Args:
        parent: component of the unit.
        unit: name of the unit, and of the DisaggregatedSet.
        args: arguments of the unit.
        roles: roles of the DisaggregatedSet.
        limit_s: limit of the wait in seconds.
        replaced: property paths whose change replaces all servers at once, the old ones first, instead of rolling.
    """
    namespace = args["namespace"]
    templates = {name: item["spec"]["leaderWorkerTemplate"] for name, item in roles.items()}
    digest = pulumi.Output.json_dumps(templates, sort_keys=True).apply(text_digest)
    metadata = object_metadata(unit, namespace, labels.unit(args.get("model_label") or unit, unit))
    together = pulumi.ResourceOptions(
        parent=parent,
        custom_timeouts=timeouts(NAMESPACE_S),
        replace_on_changes=replaced,
        delete_before_replace=True,
    )
    needed = [
        declare(unit, disaggregated_set(metadata, roles, digest), together),
        *(
            declare(f"{unit}-wait-{manifest['kind'].lower()}", manifest, pulumi.ResourceOptions(parent=parent))
            for manifest in needed_by_job(unit, namespace, args.get("control_plane_cidrs"))
        ),
    ]
    limited = pulumi.ResourceOptions(
        parent=parent,
        depends_on=needed,
        delete_before_replace=True,
        custom_timeouts=timeouts(limit_s + SLACK_S),
    )
    tolerated = tolerations(resolve_shape(args["shape"]), args.get("node_taints"))
    manifest = job(unit, namespace, roles, digest, limit_s, tolerated)
    return when_declared(declare(f"{unit}-wait", manifest, limited), unit)


def disaggregated_set(metadata: ObjectMeta, roles: Roles, digest: pulumi.Input[str]) -> Manifest:
    """Return the DisaggregatedSet of these roles, whose pods have a label with the digest of their templates."""
    marked = ({"name": name, **item, "spec": _marked(item["spec"], digest)} for name, item in roles.items())
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": {"roles": [*marked]}}


def _marked(spec: Manifest, digest: pulumi.Input[str]) -> Manifest:
    template = spec["leaderWorkerTemplate"]
    pods = template["workerTemplate"]
    metadata = {**pods["metadata"], "labels": {**pods["metadata"]["labels"], TEMPLATES_LABEL: digest}}
    return {**spec, "leaderWorkerTemplate": {**template, "workerTemplate": {**pods, "metadata": metadata}}}


def needed_by_job(unit: str, namespace: pulumi.Input[str], control_plane: Sequence[str] | None) -> list[Manifest]:
    """Return the ServiceAccount, Role and RoleBinding of the Job's pod, which may list LeaderWorkerSets only, the
    NetworkPolicy by which it reaches the API server, and the ConfigMap with its program.
    """
    metadata = _metadata(unit, namespace)
    rules: list[PolicyRule] = [
        {"apiGroups": ["leaderworkerset.x-k8s.io"], "resources": ["leaderworkersets"], "verbs": ["list"]}
    ]
    return [
        service_account(metadata),
        role(metadata, rules),
        role_binding(metadata, metadata["name"]),
        network_policies.policy(metadata, _pod_labels(unit), [], [network_policies.api_server(control_plane)]),
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"wait.py": _program()}},
    ]


def job(
    unit: str,
    namespace: pulumi.Input[str],
    roles: Roles,
    digest: pulumi.Input[str],
    limit_s: int,
    tolerated: list[Toleration],
) -> Manifest:
    """Return the Job that waits, for at most `limit_s` seconds, until the servers of all roles are those of `digest`.
    Its name contains a digest of that, the numbers of servers and the program, so that a change of any of them starts
    a new Job.
    """
    metadata = _metadata(unit, namespace)
    counts = [f"--servers={name}={item['spec']['replicas']}" for name, item in roles.items()]
    own = [f"--name={unit}", *counts, f"--limit-s={limit_s}"]

    def name(templates: str) -> str:
        return f"{metadata['name']}-{text_digest(json.dumps([templates, *counts, _program()]))}"

    words: list[Any] = [*own, mapped(digest, lambda templates: f"--templates={templates}")]
    annotations = {"pulumi.com/replaceUnready": "true"}
    pod = {
        "metadata": {"labels": {**PART_OF, **_pod_labels(unit)}},
        "spec": bench_program.waiting_pod(metadata["name"], words, tolerated),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**metadata, "name": mapped(digest, name), "annotations": annotations},
        "spec": {"backoffLimit": 0, "activeDeadlineSeconds": limit_s + SLACK_S, "template": pod},
    }


def _metadata(unit: str, namespace: pulumi.Input[str]) -> ObjectMeta:
    return object_metadata(f"{unit}-wait", namespace, {labels.UNIT: unit})


def _pod_labels(unit: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "servers-wait", labels.UNIT: unit}


def _program() -> str:
    return (resources.files("llmd_pods") / "disaggregated_set_program.py").read_text(encoding="utf-8")
