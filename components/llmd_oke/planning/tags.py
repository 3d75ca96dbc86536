"""Plan and checks of the OCI tags of a stack's resources."""

import hashlib
import json
from collections.abc import Iterator

from llmd_base.errors import Described, Problem

from llmd_oke.catalogue.operations import tag_limits
from llmd_oke.config import CreateCluster, StackConfig
from llmd_oke.config.tags import Tags
from llmd_oke.planning.cluster_plan import TagsPlan
from llmd_oke.planning.plan import Advice, Plan

STACK_TAG = "llmd-oke/stack"
"""Free-form tag of all resources that the kit creates in OCI; the value is the project's and the stack's name:
`llmd-oke/prod`.
"""

CHECKSUM_TAG = "llmd-oke-checksum"
"""Free-form tag of imported images; the value is the checksum of the imported file."""


def planned_tags(config: StackConfig) -> TagsPlan:
    """Return the tags of a stack, defined ones as `Namespace.Key`, including the tag that identifies its nodes."""
    tags, cluster = config.tags or Tags(), config.created_cluster
    defined = {f"{space}.{key}": value for space, keys in tags.defined.items() for key, value in keys.items()}
    if cluster is not None and cluster.iam.node_tag is not None:
        defined[cluster.iam.node_tag] = unique_name(cluster)
    ignored = (*tag_limits().automatic, *tags.ignored) if defined else ()
    return TagsPlan(tags.freeform, defined, ignored, tags.namespace_compartment_id)


def unique_name(cluster: CreateCluster) -> str:
    """Return a name that is unique among clusters of all regions and compartments of the tenancy."""
    compartment = hashlib.sha256(cluster.compartment_id.encode()).hexdigest()[:6]
    return f"{cluster.name}-{cluster.region}-{compartment}"


def tag_problems(config: StackConfig) -> Iterator[Problem]:
    """Yield a problem for tags that OCI refuses or sets itself, for the kit's own, and for more than a resource can
    have.
    """
    tags, limits = config.tags or Tags(), tag_limits()
    yield from _node_tag_problems(config, tags)
    for key in tags.freeform:
        if key in {STACK_TAG, CHECKSUM_TAG}:
            yield Problem(f"tags.freeform.{key}", tags.freeform[key], "another key", "the kit sets this tag itself")
    for space in tags.defined:
        if space.lower() in limits.reserved_namespaces:
            why = "OCI sets the tags of this one itself"
            yield Problem(f"tags.defined.{space}", tags.defined[space], "another namespace", why)
        if not tags.defined[space]:
            yield Problem(f"tags.defined.{space}", {}, "a key and its value", "a namespace alone tags nothing")
    named: dict[str, object] = dict(tags.defined)
    named |= {f"{space}.{key}": value for space, keys in tags.defined.items() for key, value in keys.items()}
    for name, value in named.items():
        if other := next((other for other in named if other != name and other.lower() == name.lower()), None):
            why = f"{name!r} differs from {other!r} only in upper and lower case, and OCI takes the two for the same"
            yield Problem(f"tags.defined.{name}", value, "each namespace and key once", why)
    planned = planned_tags(config)
    yield from _limit_problems(tags, planned)
    for i, name in enumerate(tags.ignored):
        if name.lower() in {own.lower() for own in planned.defined}:
            why = "the stack file gives it a value, which updates would never write again"
            yield Problem(f"tags.ignored[{i}]", name, "tags that others set", why)
        if not planned.defined:
            why = "without defined tags updates leave those of others alone"
            yield Problem(f"tags.ignored[{i}]", name, "nothing, or defined tags beside it", why)


def _node_tag_problems(config: StackConfig, tags: Tags) -> Iterator[Problem]:
    """Yield a problem if the tag that identifies nodes is one that OCI sets itself, or has a different value in the
    stack file.
    """
    node_tag = config.created_cluster.iam.node_tag if config.created_cluster else None
    if node_tag is None:
        return
    space, _, key = node_tag.partition(".")
    if space.lower() in tag_limits().reserved_namespaces:
        why = "OCI sets the tags of this namespace itself"
        yield Problem("cluster.iam.nodeTag", node_tag, "a tag of another namespace", why)
    given = {f"{other}.{name}".lower() for other, keys in tags.defined.items() for name in keys}
    if node_tag.lower() in given:
        why = "cluster.iam.nodeTag is the same, and the kit gives it its value"
        yield Problem(f"tags.defined.{space}.{key}", node_tag, "nothing", why)


def _limit_problems(tags: Tags, planned: TagsPlan) -> Iterator[Problem]:
    """Yield a problem for more tags than a resource can have."""
    limits = tag_limits()
    counts = {
        "freeform": (len(planned.freeform), limits.freeform - limits.own_freeform),
        "defined": (len(planned.defined), limits.defined - limits.own_defined),
    }
    for key, (count, most) in counts.items():
        if count > most:
            why = "OCI takes no more on one resource, beside those of the kit and of OCI"
            yield Problem(f"tags.{key}", Described(f"{count} tags"), f"at most {most}", why)
    size, most = len(json.dumps([tags.freeform, tags.defined], ensure_ascii=False).encode()), limits.bytes
    if size > most - limits.own_bytes:
        why = f"OCI takes {most} bytes of tags on one resource, with those of the kit and of OCI"
        yield Problem("tags", Described(f"{size} bytes"), f"at most {most - limits.own_bytes} bytes as JSON", why)


def tag_advice(plan: Plan) -> Iterator[Advice]:
    """Yield advice on tags in a stack that creates few resources in OCI, or none."""
    doors = (plan.front_door, plan.gateway and plan.gateway.created)
    balanced = any(door is not None and door.exposure != "cluster" for door in doors)
    if plan.config.tags is None or plan.created is not None:
        return
    if balanced:
        yield Advice(
            "tags", "of what this stack creates in OCI its load balancers alone get them, once they are created"
        )
    else:
        yield Advice("tags", "this stack creates nothing in OCI that could have them: not a cluster, no load balancer")
