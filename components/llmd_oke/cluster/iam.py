"""Component for dynamic groups and IAM policies, with the least rights that a cluster's parts need in OCI."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

import pulumi
import pulumi_oci as oci
from llmd_base.errors import KitError

from llmd_oke.catalogue import cluster as facts
from llmd_oke.catalogue.cluster import Group, Need, Scope
from llmd_oke.cluster.provider import TagArgs, foreign_tags, home_provider, invoke, tag_args
from llmd_oke.objects import inputs, outputs, present
from llmd_oke.planning.iam import Variables, groups_of, matching_rule, statements

SCHEMA = "urn:ietf:params:scim:schemas:oracle:idcs:DynamicResourceGroup"
"""The SCIM schema of dynamic groups (oci-hpc-oke, terraform/iam.tf)."""


TAGS_SCHEMA = "urn:ietf:params:scim:schemas:oracle:idcs:extension:OCITags"
"""The SCIM schema of OCI's tags (terraform-provider-oci, identity_domains_dynamic_resource_group_test.go)."""


class NodeTagArgs(TypedDict):
    """Defined tag that identifies nodes."""

    name: str
    """Name of the tag, as `Namespace.Key`."""
    value: str
    """Value of the tag."""


class IamArgs(TagArgs):
    """Arguments of dynamic groups and IAM policies."""

    needs: list[str]
    """Purposes for which statements are created, as keys of `values/iam/policies.yaml`, such as
    `managed-compute-cluster`."""
    compartment_id: pulumi.Input[str]
    """Compartment of the cluster."""
    tenancy_id: pulumi.Input[str]
    """OCID of the tenancy, whose root compartment has the classic dynamic groups."""
    style: NotRequired[str | None]
    """Kind of dynamic groups: those of an identity domain (`identity-domain`), or of the tenancy's root compartment
    (`classic`); `identity-domain` if left out."""
    domain: NotRequired[str | None]
    """Name of the identity domain; `Default` if left out."""
    domain_url: NotRequired[pulumi.Input[str] | None]
    """URL of the identity domain; looked up in OCI if left out."""
    region: NotRequired[str | None]
    """Region of the cluster. If equal to `home_region`, the component declares no provider of its own."""
    home_region: NotRequired[pulumi.Input[str] | None]
    """The tenancy's home region, in which groups and policies are created; looked up in OCI if left out."""
    provider_is_home: NotRequired[bool | None]
    """Whether this component's own provider is for the home region already; false if left out."""
    cluster_id: NotRequired[pulumi.Input[str] | None]
    """OCID of the cluster, to which most statements are restricted. It can be left out for the needs of the cluster
    resource itself.
    """
    network_compartment_id: NotRequired[pulumi.Input[str] | None]
    """Compartment of the network; the cluster's if left out."""
    image_compartment_id: NotRequired[pulumi.Input[str] | None]
    """Compartment of images; the cluster's if left out."""
    key_compartment_id: NotRequired[pulumi.Input[str] | None]
    """Compartment of keys; the cluster's if left out."""
    reservation_compartment_id: NotRequired[pulumi.Input[str] | None]
    """Compartment of capacity reservations; the cluster's if left out."""
    dynamic_group_ids: NotRequired[dict[str, pulumi.Input[str]] | None]
    """OCIDs of existing dynamic groups, by `nodes` and `clusters`."""
    resource_ids: NotRequired[dict[str, pulumi.Input[list[str]]] | None]
    """Values for which a statement is repeated, by the statement's variable: OCIDs (`cluster_key_id`,
    `boot_volume_key_id`, `managed_boot_volume_key_id`, `host_group_id`), and names of tag namespaces
    (`tag_namespace`)."""
    display_name: NotRequired[str | None]
    """Prefix of the names of groups and policies; the component's name if left out."""
    tag_namespace_compartment_id: NotRequired[pulumi.Input[str] | None]
    """Compartment of the namespaces of defined tags; the tenancy's root if left out."""
    node_tag: NotRequired[NodeTagArgs | None]
    """Defined tag that only nodes have, by which the dynamic group `nodes` selects its members; if left out, all
    instances of the compartment are members."""
    ignored_tags: NotRequired[list[str] | None]
    """Defined tags, as `Namespace.Key`, that other programs set and updates don't change; for the provider of the home
    region."""


_GRANTS = frozenset(
    {
        "oci:Identity/policy:Policy",
        "oci:Identity/dynamicGroup:DynamicGroup",
        "oci:Identity/domainsDynamicResourceGroup:DomainsDynamicResourceGroup",
    }
)

_NEEDS_GRANTS = frozenset(
    {
        "oci:ContainerEngine/cluster:Cluster",
        "oci:ContainerEngine/nodePool:NodePool",
        "oci:Core/clusterNetwork:ClusterNetwork",
        "oci:Core/instance:Instance",
        "oci:Lustre/fileStorageLustreFileSystem:FileStorageLustreFileSystem",
    }
)
"""Resource types whose work request fails for good if a policy isn't effective yet; the provider doesn't retry it."""


def wait_for_policies(delay_s: float | None = None) -> pulumi.ResourceTransformation:
    """Return a transformation that delays the creation or change of resources that need rights, until OCI applies the
    dynamic groups and policies that the same update created or changed.

    The delay ends `delay_s` seconds after the last of these changes; the catalogue's figure if left out. Hooks run in
    updates only, not in previews, and don't wait if the delay is over already.
    """
    delay = facts.policies().delay_s if delay_s is None else delay_s
    granted_at_s = [-delay]

    def granted(_: pulumi.ResourceHookArgs) -> None:
        granted_at_s[0] = time.monotonic()

    async def wait(args: pulumi.ResourceHookArgs) -> None:
        rest_s = granted_at_s[0] + delay - time.monotonic()
        if rest_s > 0:
            pulumi.log.info(f"{args.name} waits {rest_s:.0f} s until OCI acts on the policies that were changed")
            await asyncio.sleep(rest_s)

    after_grant = pulumi.ResourceHook("policy-granted", granted)
    before_use = pulumi.ResourceHook("wait-for-policies", wait)
    grants = pulumi.ResourceHookBinding(after_create=[after_grant], after_update=[after_grant])
    waits = pulumi.ResourceHookBinding(before_create=[before_use], before_update=[before_use])
    bindings = {**dict.fromkeys(_GRANTS, grants), **dict.fromkeys(_NEEDS_GRANTS, waits)}

    def transform(args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
        hooks = bindings.get(args.type_)
        if hooks is None:
            return None
        opts = pulumi.ResourceOptions.merge(args.opts, pulumi.ResourceOptions(hooks=hooks))
        return pulumi.ResourceTransformationResult(args.props, opts)

    return transform


class Iam(pulumi.ComponentResource):
    """Dynamic groups and IAM policies for the purposes in `needs`, created in the tenancy's home region.

    OCI takes up to a minute to apply a policy. So a stack has one `Iam` before the cluster, for statements without the
    cluster's OCID, and another `Iam` before the pools, for statements with that OCID. The kit's own program delays
    resources that need rights until policies of the same update apply (`wait_for_policies`). A Pulumi program that
    imports this component must wait by itself, or be updated again: until the policies apply, the creation of a
    reservation, a compute cluster, an instance or a Lustre file system fails.
    """

    policy_ids: pulumi.Output[list[str]]
    """OCIDs of the policies."""
    statements: pulumi.Output[list[str]]
    """All statements of the policies."""
    group_ids: pulumi.Output[dict[str, str]]
    """OCIDs of the dynamic groups that the statements name, by `nodes` and `clusters`."""

    def __init__(self, name: str, args: IamArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:Iam", name, inputs(self, args), opts)
        known = facts.policies().needs
        if unknown := [need for need in args["needs"] if need not in known]:
            raise KitError(f"{unknown[0]!r} is no need that statements are known for.", f"Known: {', '.join(known)}.")
        needs: list[Need] = [need for need in known if need in args["needs"]]
        provider = home_provider(self, name, args) if needs else None
        child = pulumi.ResourceOptions(parent=self, provider=provider, ignore_changes=foreign_tags(args))
        label, places = args.get("display_name") or name, _places(args)
        existing = args.get("dynamic_group_ids") or {}
        groups: dict[Group, _GroupNames] = {
            group: _GroupNames(pulumi.Output.concat("id ", existing[group]), pulumi.Output.from_input(existing[group]))
            if group in existing
            else _dynamic_group(name, args, group, child)
            for group in groups_of(needs)
        }
        texts = _statements(args, needs, {group: names.in_statements for group, names in groups.items()})
        # The scopes that get a policy need no OCID, so that previews show the policies.
        scopes = {_policy_scope(args, text.scope) for need in needs for text in known[need].statements}
        policies = [
            oci.identity.Policy(
                f"{name}-{_suffix(scope)}",
                compartment_id=places[scope],
                name=f"{label}-{_suffix(scope)}",
                description=f"What {label} needs: {', '.join(args['needs'])}"[:400],
                statements=texts.apply(lambda by_scope, scope=scope: by_scope[scope]),
                **tag_args(args),
                opts=child,
            )
            for scope in places
            if scope in scopes
        ]
        unresolved: Any = {group: names.ocid for group, names in groups.items()}
        self.group_ids = pulumi.Output.from_input(unresolved)
        self.policy_ids = pulumi.Output.all(*(policy.id for policy in policies)).apply(list)
        self.statements = texts.apply(lambda by_scope: [text for scoped in by_scope.values() for text in scoped])
        self.register_outputs(outputs(self))


def _has_tags(args: IamArgs) -> bool:
    return bool(args.get("freeform_tags") or args.get("defined_tags"))


def _domain_tags(args: IamArgs) -> Any:
    """Return the OCI tags of a resource of an identity domain, in the form of the SCIM extension `OCITags`."""
    defined: list[Any] = []
    for name, value in (args.get("defined_tags") or {}).items():
        space, _, key = name.partition(".")
        defined.append({"namespace": space, "key": key, "value": value})
    freeform = [{"key": key, "value": value} for key, value in tag_args(args)["freeform_tags"].items()]
    return present({"freeform_tags": freeform, "defined_tags": defined or None})


def _places(args: IamArgs) -> dict[Scope, pulumi.Input[str]]:
    """Return the compartment's OCID for each scope."""
    own = args["compartment_id"]
    network, images, keys, reservations = (
        own if compartment_id is None else compartment_id
        for compartment_id in (
            args.get("network_compartment_id"),
            args.get("image_compartment_id"),
            args.get("key_compartment_id"),
            args.get("reservation_compartment_id"),
        )
    )
    tenancy = args["tenancy_id"]
    tags = args.get("tag_namespace_compartment_id") or tenancy
    return {
        "compartment": own,
        "network": network,
        "images": images,
        "keys": keys,
        "reservations": reservations,
        "tags": tags,
        "tenancy": tenancy,
    }


def _policy_scope(args: IamArgs, scope: Scope) -> Scope:
    """Return the scope whose policy contains the statements of `scope`: `compartment` if the compartments are known to
    be equal, otherwise `scope` itself.
    """
    places = _places(args)
    return "compartment" if places[scope] == places["compartment"] else scope


def _suffix(scope: Scope) -> str:
    return "policy" if scope == "compartment" else f"{scope}-policy"


def _statements(
    args: IamArgs, needs: Sequence[Need], groups: dict[Group, pulumi.Output[str]]
) -> pulumi.Output[dict[Scope, list[str]]]:
    """Return the statements of each policy, by the policy's scope."""
    places, cluster_id = _places(args), args.get("cluster_id")
    spaces = args.get("tag_namespace_compartment_id")
    values: dict[str, pulumi.Input[str]] = {
        "compartment_id": places["compartment"],
        "network_compartment_id": places["network"],
        "image_compartment_id": places["images"],
        "key_compartment_id": places["keys"],
        "reservation_compartment_id": places["reservations"],
        "tenancy_id": places["tenancy"],
        "tag_namespaces": "tenancy" if spaces is None else pulumi.Output.concat("compartment id ", spaces),
    }
    if cluster_id is not None:
        values["cluster_id"] = cluster_id

    def fill_in(resolved: Any) -> dict[Scope, list[str]]:
        variables = Variables(resolved["values"], resolved["groups"], resolved["resource_ids"])
        by_policy: dict[Scope, list[str]] = {}
        for scope, texts in statements(needs, variables).items():
            by_policy.setdefault(_policy_scope(args, scope), []).extend(texts)
        return by_policy

    unresolved: Any = {"values": values, "groups": groups, "resource_ids": args.get("resource_ids") or {}}
    return pulumi.Output.from_input(unresolved).apply(fill_in)


@dataclass(frozen=True)
class _GroupNames:
    """Name of a dynamic group in policy statements, and its OCID."""

    in_statements: pulumi.Output[str]
    ocid: pulumi.Output[str]


def _dynamic_group(name: str, args: IamArgs, group: Group, opts: pulumi.ResourceOptions) -> _GroupNames:
    """Declare a dynamic group, in an identity domain or (style `classic`) in the root compartment; return its names.

    `schemas` and `tags` are ignored in updates, because identity domains return other values than were sent: a schema
    for tags is added, and tags are returned only on request (terraform-provider-oci, issue 2418 and the test of this
    resource).
    """
    cluster, tags = args.get("display_name") or name, tag_args(args)
    label, description = f"{cluster}-{group}", f"{facts.policies().groups[group].description} of {cluster}"
    tag = args.get("node_tag")
    node_tag = None if tag is None else (tag["name"], tag["value"])
    rule = pulumi.Output.from_input(args["compartment_id"]).apply(lambda ocid: matching_rule(group, ocid, node_tag))
    if args.get("style") == "classic":
        classic = oci.identity.DynamicGroup(
            f"{name}-{group}",
            compartment_id=args["tenancy_id"],
            name=label,
            description=description,
            matching_rule=rule,
            **tags,
            opts=opts,
        )
        return _GroupNames(classic.name, classic.id)
    domain, domain_url = args.get("domain") or "Default", args.get("domain_url")
    if domain_url is None:
        domains = invoke(
            "oci:Identity/getDomains:getDomains",
            {"compartmentId": args["tenancy_id"], "displayName": domain},
            pulumi.InvokeOutputOptions(parent=opts.parent, provider=opts.provider),
        )
        domain_url = domains.apply(lambda answer: str(answer["domains"][0]["url"]))
    unanswered = pulumi.ResourceOptions(ignore_changes=["schemas", "tags"])
    resource = oci.identity.DomainsDynamicResourceGroup(
        f"{name}-{group}",
        idcs_endpoint=domain_url,
        display_name=label,
        description=description,
        matching_rule=rule,
        schemas=[SCHEMA, TAGS_SCHEMA] if _has_tags(args) else [SCHEMA],
        tags=[{"key": key, "value": value} for key, value in tags["freeform_tags"].items()],
        urnietfparamsscimschemasoracleidcsextension_oci_tags=_domain_tags(args) if _has_tags(args) else None,
        opts=pulumi.ResourceOptions.merge(opts, unanswered),
    )
    in_statements = resource.display_name.apply(lambda display_name: f"'{domain}'/'{display_name}'")
    return _GroupNames(in_statements, resource.ocid)
