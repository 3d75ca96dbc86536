"""IAM permissions that a created cluster needs for the stack's settings, and the policy statements that grant them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Template
from typing import get_args

from llmd_base.errors import KitError, Problem
from llmd_base.records import record

from llmd_oke.catalogue import cluster as facts
from llmd_oke.catalogue.cluster import Group, IamStatement, Need, Phase, Scope
from llmd_oke.config import CreateCluster, Lustre, StackConfig
from llmd_oke.config.gateway import CreatedGateway
from llmd_oke.planning.cluster_plan import IamNeeds, IamPlan, NodeTag
from llmd_oke.planning.network import ocids
from llmd_oke.planning.pools import SELF_MANAGED_LAUNCHES, autoscaled_pools
from llmd_oke.planning.tags import planned_tags, unique_name


@dataclass(frozen=True)
class Variables:
    """Values of the placeholders in policy statements: OCIDs, names of the dynamic groups, and OCIDs for which
    statements are repeated.
    """

    values: Mapping[str, str]
    groups: Mapping[Group, str]
    resource_ids: Mapping[str, Sequence[str]]


def iam_needs(config: StackConfig, cluster: CreateCluster) -> IamNeeds:
    """Return the keys of the IAM permissions that a stack's settings need, before its cluster and before its pools;
    none if an administrator grants them.
    """
    if not cluster.iam.create:
        return IamNeeds((), ())
    pools = [pool for pool in config.gpu_pools if pool.pool_id is None]
    managed = [pool for pool in pools if pool.launch not in SELF_MANAGED_LAUNCHES]
    cpu_images = [pool.image for pool in (config.system_pool, *config.cpu_pools)]
    elsewhere = cluster.network.compartment_id not in (None, cluster.compartment_id)
    autoscaled = bool(autoscaled_pools(config))
    tags = planned_tags(config)
    tags_elsewhere = bool(tags.defined) and tags.namespace_compartment_id != cluster.compartment_id
    by_choice: dict[Need, bool] = {
        "cluster-encryption": cluster.kms_key_id is not None,
        "self-managed-nodes": len(managed) < len(pools),
        "managed-compute-cluster": any(pool.launch == "managed-compute-cluster" for pool in managed),
        "host-groups": any(pool.host_group_id for pool in pools),
        "capacity-reservations": any(pool.capacity_reservation_id for pool in managed),
        "custom-images": bool(managed) or any(image is not None for image in cpu_images),
        "boot-volume-encryption": any(pool.boot_volume_kms_key_id for pool in pools),
        "boot-volume-encryption-of-managed-pools": any(pool.boot_volume_kms_key_id for pool in managed),
        "load-balancer-security-groups": _has_load_balancer(config),
        "network-elsewhere": elsewhere,
        "cluster-autoscaler": autoscaled,
        "cluster-autoscaler-network-elsewhere": elsewhere
        and (autoscaled or "cluster-autoscaler" in cluster.iam.grants),
        "oci-logs": config.sends_pod_logs,
        "node-repair": cluster.node_repair == "on-request" and bool(config.gpu_pools),
        "lustre": isinstance(config.storage.model_cache, Lustre),
        "defined-tags": tags_elsewhere,
        "defined-tags-of-cluster-networks": tags_elsewhere and any(pool.launch == "cluster-network" for pool in pools),
    }
    needs = {*cluster.iam.grants, *(need for need, needed in by_choice.items() if needed)}
    phases: dict[Phase, tuple[Need, ...]] = {
        phase: tuple(need for need, row in facts.policies().needs.items() if row.phase == phase and need in needs)
        for phase in get_args(Phase)
    }
    ocids: dict[str, list[str | None]] = {
        "cluster_key_id": [cluster.kms_key_id],
        "boot_volume_key_id": [pool.boot_volume_kms_key_id for pool in pools],
        "managed_boot_volume_key_id": [pool.boot_volume_kms_key_id for pool in managed],
        "host_group_id": [pool.host_group_id for pool in pools],
        "tag_namespace": [name.partition(".")[0] for name in tags.defined],
    }
    repeated = {name: tuple(dict.fromkeys(ocid for ocid in values if ocid)) for name, values in ocids.items()}
    return IamNeeds(phases["cluster"], phases["nodes"], {name: values for name, values in repeated.items() if values})


def planned_iam(config: StackConfig, cluster: CreateCluster) -> IamPlan:
    """Return the dynamic groups and policies of the cluster that a stack creates."""
    tags, node_tag = planned_tags(config), cluster.iam.node_tag
    return record(
        IamPlan,
        iam_needs(config, cluster),
        cluster.iam,
        unique_name=unique_name(cluster),
        dynamic_group_ids=ocids(cluster.iam.dynamic_groups),
        node_tag=None if node_tag is None else NodeTag(node_tag, tags.defined[node_tag]),
        ignored_tags=tags.ignored,
        tag_namespace_compartment_id=tags.namespace_compartment_id,
        network_compartment_id=cluster.network.compartment_id,
    )


def _has_load_balancer(config: StackConfig) -> bool:
    """Tell whether a front door or Gateway of the stack has a load balancer with security groups."""
    door = config.front_door is not None and config.front_door.exposure != "cluster"
    return door or (isinstance(config.gateway, CreatedGateway) and config.gateway.exposure != "cluster")


def statements(needs: Iterable[Need], variables: Variables) -> dict[Scope, list[str]]:
    """Return the policy statements that grant these permissions, by the compartment that their policy is attached to.

    Raises:
        KitError: a placeholder of a statement has no value, such as the cluster's OCID.
    """
    by_scope: dict[Scope, list[str]] = {}
    for need in needs:
        for statement in facts.policies().needs[need].statements:
            by_scope.setdefault(statement.scope, []).extend(_statement_texts(statement, need, variables))
    return {scope: list(dict.fromkeys(texts)) for scope, texts in by_scope.items()}


def groups_of(needs: Iterable[Need]) -> list[Group]:
    """Return the dynamic groups that the policy statements for these permissions name."""
    texts = [statement.text for need in needs for statement in facts.policies().needs[need].statements]
    return [group for group in facts.policies().groups if any(f"${group} " in text for text in texts)]


def matching_rule(group: Group, compartment_id: str, node_tag: tuple[str, str] | None = None) -> str:
    """Return the matching rule of a dynamic group; `node_tag` is the key, as `Namespace.Key`, and value of the defined
    tag of nodes.
    """
    rules = facts.policies().groups[group]
    if node_tag is None or rules.tagged_rule is None:
        return Template(rules.matching_rule).substitute(compartment_id=compartment_id)
    tag, value = node_tag
    return Template(rules.tagged_rule).substitute(compartment_id=compartment_id, tag=tag, tag_value=value)


def iam_problems(config: StackConfig) -> Iterator[Problem]:
    """Yield the problems of dynamic groups and policies, if this stack creates the cluster."""
    cluster = config.created_cluster
    if cluster is None:
        return
    iam = cluster.iam
    if iam.style == "classic":
        for key, value, usual in (("domainUrl", iam.domain_url, None), ("domain", iam.domain, "Default")):
            if value != usual:
                why = "a classic tenancy has no identity domains"
                yield Problem(f"cluster.iam.{key}", value, "nothing, or style: identity-domain", why)
    if not iam.create:
        for key, ocid in iam.dynamic_groups.model_dump(by_alias=True, exclude_none=True).items():
            why = "nothing is granted to it, because no policies are created"
            yield Problem(f"cluster.iam.dynamicGroups.{key}", ocid, "nothing, or create: true", why)
        if iam.grants:
            why = "no policies are created"
            yield Problem("cluster.iam.grants", iam.grants, "nothing, or create: true", why)


def _statement_texts(statement: IamStatement, need: Need, variables: Variables) -> Iterator[str]:
    names = {group: f"dynamic-group {name}" for group, name in variables.groups.items()}
    values = {**variables.values, **names}
    text = Template(statement.text).safe_substitute(facts.policies().principals)
    repeated = variables.resource_ids.get(statement.variable, ()) if statement.variable else [""]
    if not repeated:
        name = statement.variable
        raise KitError(f"The IAM policy for {need} needs a value for {name}.", f"Pass at least one {name}.")
    for ocid in repeated:
        try:
            yield Template(text).substitute({**values, **({statement.variable: ocid} if statement.variable else {})})
        except KeyError as missing:
            name = missing.args[0]
            raise KitError(f"The IAM policy for {need} needs a value for {name}.", f"Pass {name}.") from missing
