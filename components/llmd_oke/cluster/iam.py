"""Dynamic groups and policies: what a cluster's parts may do in OCI, and nothing beyond."""

import asyncio
import time
from collections.abc import Sequence
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
    """A defined tag."""

    name: str
    """`Namespace.Key`."""
    value: str
    """Its value."""


class IamArgs(TagArgs):
    """Arguments of dynamic groups and policies."""

    needs: list[str]
    """What is to be possible, by its key in `values/iam/policies.yaml`: `managed-compute-cluster`, for example."""
    compartment_id: pulumi.Input[str]
    """Compartment of the cluster."""
    tenancy_id: pulumi.Input[str]
    """Tenancy, in whose root compartment classic dynamic groups live."""
    style: NotRequired[str | None]
    """`identity-domain`, dynamic groups live in an identity domain, or `classic`; `identity-domain` if left out."""
    domain: NotRequired[str | None]
    """Name of the identity domain; `Default` if left out."""
    domain_url: NotRequired[pulumi.Input[str] | None]
    """URL of the identity domain; asked of OCI if left out."""
    region: NotRequired[str | None]
    """Region of the cluster. Where it is the home region, no other provider is made."""
    home_region: NotRequired[pulumi.Input[str] | None]
    """The tenancy's home region, in which all of this is created; asked of OCI if left out."""
    provider_is_home: NotRequired[bool | None]
    """Whether this component's own provider is for the home region already; false if left out."""
    cluster_id: NotRequired[pulumi.Input[str] | None]
    """OCID of the cluster, to which most rights are narrowed. It can be left out for what a cluster itself needs."""
    network_compartment_id: NotRequired[pulumi.Input[str] | None]
    """Compartment of the network; the cluster's if left out."""
    image_compartment_id: NotRequired[pulumi.Input[str] | None]
    """Compartment of images; the cluster's if left out."""
    key_compartment_id: NotRequired[pulumi.Input[str] | None]
    """Compartment of keys; the cluster's if left out."""
    reservation_compartment_id: NotRequired[pulumi.Input[str] | None]
    """Compartment of capacity reservations; the cluster's if left out."""
    dynamic_group_ids: NotRequired[dict[str, pulumi.Input[str]] | None]
    """Dynamic groups that are there already: `nodes` and `clusters`."""
    resource_ids: NotRequired[dict[str, pulumi.Input[list[str]]] | None]
    """What statements are repeated for: OCIDs (`cluster_key_id`, `boot_volume_key_id`, `managed_boot_volume_key_id`,
    `host_group_id`), and the names of namespaces of defined tags (`tag_namespace`)."""
    display_name: NotRequired[str | None]
    """Beginning of the names of groups and policies; the component's name if left out."""
    tag_namespace_compartment_id: NotRequired[pulumi.Input[str] | None]
    """Compartment of the namespaces of defined tags; the tenancy's root if left out."""
    node_tag: NotRequired[NodeTagArgs | None]
    """Defined tag that nodes have and nobody else: then they alone are in the group of nodes; if left out, all
    instances of the compartment are."""
    ignored_tags: NotRequired[list[str] | None]
    """Defined tags of others that updates leave alone, by `Namespace.Key`, for the provider of the home region."""


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
"""What OCI makes on its own account in the minutes after it accepted the request, when nobody tries again."""


def wait_for_policies(delay_s: float | None = None) -> pulumi.ResourceTransformation:
    """A transformation by which nothing that needs rights is created or changed before OCI acts on the groups and
    policies that this update has created or changed: `delay_s` after the last of them, the catalogue's if left out.

    Hooks run in updates alone. Where minutes have gone by, as with a new cluster, they wait for nothing.
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
    """The dynamic groups and policies that serve some needs, created in the tenancy's home region.

    OCI takes up to a minute to act on a policy. So a stack has one of these components before the cluster, for all that
    does not name it, and another one before the pools, for what does. The kit's own program has what needs rights wait
    for policies that the same update changes. A program with components of the package waits by itself, or is updated
    again: a reservation, a compute cluster, an instance or a Lustre file system fails in between.
    """

    policy_ids: pulumi.Output[list[str]]
    """OCIDs of the policies."""
    statements: pulumi.Output[list[str]]
    """All statements of the policies."""

    def __init__(self, name: str, args: IamArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:Iam", name, inputs(self, args), opts)
        needs = _needs(args)
        provider = home_provider(self, name, args) if needs else None
        child = pulumi.ResourceOptions(parent=self, provider=provider, ignore_changes=foreign_tags(args))
        label, places = args.get("display_name") or name, _places(args)
        existing = args.get("dynamic_group_ids") or {}
        groups: dict[Group, pulumi.Output[str]] = {
            group: pulumi.Output.concat("id ", existing[group])
            if group in existing
            else _dynamic_group(name, args, group, child)
            for group in groups_of(needs)
        }
        texts = _statements(args, needs, groups)
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
            for scope in _scopes(args, needs)
        ]
        self.policy_ids = pulumi.Output.all(*(policy.id for policy in policies)).apply(list)
        self.statements = texts.apply(lambda by_scope: [text for scoped in by_scope.values() for text in scoped])
        self.register_outputs(outputs(self))


def _has_tags(args: IamArgs) -> bool:
    return bool(args.get("freeform_tags") or args.get("defined_tags"))


def _domain_tags(args: IamArgs) -> Any:
    """OCI's tags of what lies in an identity domain, beside the domain's own."""
    defined: list[Any] = []
    for name, value in (args.get("defined_tags") or {}).items():
        space, _, key = name.partition(".")
        defined.append({"namespace": space, "key": key, "value": value})
    freeform = [{"key": key, "value": value} for key, value in tag_args(args)["freeform_tags"].items()]
    return present({"freeform_tags": freeform, "defined_tags": defined or None})


def _needs(args: IamArgs) -> list[Need]:
    known = facts.policies().needs
    unknown = [need for need in args["needs"] if need not in known]
    if unknown:
        raise KitError(f"{unknown[0]!r} is no need that statements are known for.", f"Known: {', '.join(known)}.")
    return [need for need in known if need in args["needs"]]


def _places(args: IamArgs) -> dict[Scope, pulumi.Input[str]]:
    """The compartment of each scope."""
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
    """The scope whose policy has the statements: the cluster's own where the compartment is known to be the same."""
    places = _places(args)
    return "compartment" if places[scope] is places["compartment"] or places[scope] == args["compartment_id"] else scope


def _scopes(args: IamArgs, needs: Sequence[Need]) -> list[Scope]:
    """Return the policies' scopes, which are known before any OCID is, so that a preview shows them."""
    scopes = {_policy_scope(args, text.scope) for need in needs for text in facts.policies().needs[need].statements}
    return [scope for scope in _places(args) if scope in scopes]


def _suffix(scope: Scope) -> str:
    return "policy" if scope == "compartment" else f"{scope}-policy"


def _statements(
    args: IamArgs, needs: Sequence[Need], groups: dict[Group, pulumi.Output[str]]
) -> pulumi.Output[dict[Scope, list[str]]]:
    """The statements by the policy that has them."""
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


def _dynamic_group(name: str, args: IamArgs, group: Group, opts: pulumi.ResourceOptions) -> pulumi.Output[str]:
    """Declare a dynamic group, in an identity domain or, in older tenancies, in the root compartment; return how
    policies name it.

    What the domain answers otherwise than it was told is left alone: it adds a schema of its own for tags, and returns
    tags only when asked for them (terraform-provider-oci, issue 2418 and the test of this resource).
    """
    cluster, tags = args.get("display_name") or name, tag_args(args)
    label, description = f"{cluster}-{group}", f"{facts.policies().groups[group].description} of {cluster}"
    tag = args.get("node_tag")
    node_tag = None if tag is None else (tag["name"], tag["value"])
    rule = pulumi.Output.from_input(args["compartment_id"]).apply(lambda ocid: matching_rule(group, ocid, node_tag))
    if args.get("style") == "classic":
        return oci.identity.DynamicGroup(
            f"{name}-{group}",
            compartment_id=args["tenancy_id"],
            name=label,
            description=description,
            matching_rule=rule,
            **tags,
            opts=opts,
        ).name
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
    return resource.display_name.apply(lambda display_name: f"'{domain}'/'{display_name}'")
