"""Dynamic groups and policies: what a cluster's parts may do in OCI, and nothing beyond."""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import pulumi
import pulumi_oci as oci

from llmd_oke.catalogue import iam as facts
from llmd_oke.catalogue.iam import Group, Need, Scope
from llmd_oke.cluster.iam_groups import GroupSubject, dynamic_group
from llmd_oke.cluster.iam_home import home_provider
from llmd_oke.cluster.tags import stack_tags
from llmd_oke.errors import KitError
from llmd_oke.planning.iam_statements import Variables, groups_of, statements


class IamArgs(TypedDict):
    """What dynamic groups and policies need."""

    needs: list[str]
    """What is to be possible, by its key in `values/iam/policies.yaml`: `managed-compute-cluster`, for example."""
    compartment_id: pulumi.Input[str]
    """Compartment of the cluster."""
    tenancy_id: pulumi.Input[str]
    """Tenancy, in whose root compartment classic dynamic groups live."""
    style: NotRequired[str]
    """`identity-domain`, dynamic groups live in an identity domain, or `classic`; `identity-domain` if left out."""
    domain: NotRequired[str]
    """Name of the identity domain; `Default` if left out."""
    domain_url: NotRequired[pulumi.Input[str]]
    """URL of the identity domain; asked of OCI if left out."""
    region: NotRequired[str]
    """Region of the cluster. Where it is the home region, no other provider is made."""
    home_region: NotRequired[pulumi.Input[str]]
    """The tenancy's home region, in which all of this is created; asked of OCI if left out."""
    provider_is_home: NotRequired[bool]
    """Whether this component's own provider is for the home region already; false if left out."""
    cluster_id: NotRequired[pulumi.Input[str]]
    """OCID of the cluster, to which most rights are narrowed. It can be left out for what a cluster itself needs."""
    network_compartment_id: NotRequired[pulumi.Input[str]]
    """Compartment of the network; the cluster's if left out."""
    image_compartment_id: NotRequired[pulumi.Input[str]]
    """Compartment of images; the cluster's if left out."""
    key_compartment_id: NotRequired[pulumi.Input[str]]
    """Compartment of keys; the cluster's if left out."""
    dynamic_group_ids: NotRequired[dict[str, pulumi.Input[str]]]
    """Dynamic groups that are there already: `nodes` and `clusters`."""
    each: NotRequired[dict[str, list[str]]]
    """OCIDs that statements are repeated for: `cluster_key_id`, `boot_volume_key_id`, `managed_boot_volume_key_id`,
    `host_group_id`."""
    display_name: NotRequired[str]
    """Beginning of the names of groups and policies; the component's name if left out."""
    freeform_tags: NotRequired[dict[str, pulumi.Input[str]]]
    """Further freeform tags."""


class Iam(pulumi.ComponentResource):
    """The dynamic groups and policies that serve some needs, created in the tenancy's home region.

    OCI takes up to a minute to act on a policy. So a stack has one of these components before the cluster, for all that
    does not name it, and another one before the pools, for what does.
    """

    policy_ids: pulumi.Output[list[str]]
    """OCIDs of the policies."""
    statements: pulumi.Output[list[str]]
    """All statements of the policies."""

    def __init__(self, name: str, args: IamArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:Iam", name, None, opts)
        needs = _needs(args)
        provider = home_provider(self, name, args) if needs else None
        child = pulumi.ResourceOptions(parent=self, provider=provider, ignore_changes=["definedTags"])
        groups = self._groups(name, args, needs, child)
        texts = _texts(args, needs, groups)
        policies = [self._policy(name, args, scope, texts, child) for scope in _scopes(args, needs)]
        self.policy_ids = pulumi.Output.all(*(policy.id for policy in policies)).apply(list)
        self.statements = texts.apply(lambda by_scope: [text for each in by_scope.values() for text in each])
        self.register_outputs({"policy_ids": self.policy_ids, "statements": self.statements})

    def _groups(
        self, name: str, args: IamArgs, needs: Sequence[Need], opts: pulumi.ResourceOptions
    ) -> dict[Group, pulumi.Output[str]]:
        """How policies name the dynamic groups that they speak of."""
        existing = args.get("dynamic_group_ids", {})
        subject = GroupSubject(
            name=name,
            display_name=args.get("display_name", name),
            compartment_id=args["compartment_id"],
            tenancy_id=args["tenancy_id"],
            classic=args.get("style", "identity-domain") == "classic",
            domain=args.get("domain", "Default"),
            domain_url=args.get("domain_url"),
            tags=_tags(args),
            opts=opts,
        )
        return {
            group: pulumi.Output.concat("id ", existing[group]) if group in existing else dynamic_group(subject, group)
            for group in groups_of(needs)
        }

    def _policy(
        self,
        name: str,
        args: IamArgs,
        scope: Scope,
        texts: pulumi.Output[dict[str, list[str]]],
        opts: pulumi.ResourceOptions,
    ) -> oci.identity.Policy:
        suffix = "policy" if scope == "compartment" else f"{scope}-policy"
        label = args.get("display_name", name)
        return oci.identity.Policy(
            f"{name}-{suffix}",
            compartment_id=_places(args)[scope],
            name=f"{label}-{suffix}",
            description=f"What {label} needs: {', '.join(args['needs'])}"[:400],
            statements=texts.apply(lambda by_scope: by_scope[scope]),
            freeform_tags=_tags(args),
            opts=opts,
        )


def _needs(args: IamArgs) -> list[Need]:
    known = facts.policies().needs
    unknown = [need for need in args["needs"] if need not in known]
    if unknown:
        raise KitError(f"{unknown[0]!r} is no need that statements are known for.", f"Known: {', '.join(known)}.")
    return [need for need in known if need in args["needs"]]


def _places(args: IamArgs) -> dict[Scope, pulumi.Input[str]]:
    """The compartment of each scope."""
    own = args["compartment_id"]
    return {
        "compartment": own,
        "network": args.get("network_compartment_id", own),
        "images": args.get("image_compartment_id", own),
        "keys": args.get("key_compartment_id", own),
        "tenancy": args["tenancy_id"],
    }


def _attached(args: IamArgs, scope: Scope) -> Scope:
    """The scope whose policy has the statements: the cluster's own where the compartment is known to be the same."""
    places = _places(args)
    return "compartment" if places[scope] is places["compartment"] or places[scope] == args["compartment_id"] else scope


def _texts(
    args: IamArgs, needs: Sequence[Need], groups: Mapping[Group, pulumi.Output[str]]
) -> pulumi.Output[dict[str, list[str]]]:
    """The statements by the policy that has them."""
    places = _places(args)
    values: dict[str, pulumi.Input[str]] = {
        "compartment_id": places["compartment"],
        "network_compartment_id": places["network"],
        "image_compartment_id": places["images"],
        "key_compartment_id": places["keys"],
        "tenancy_id": places["tenancy"],
    }
    if "cluster_id" in args:
        values["cluster_id"] = args["cluster_id"]

    def fill_in(resolved: Any) -> dict[str, list[str]]:
        variables = Variables(resolved["values"], resolved["groups"], args.get("each", {}))
        found: dict[str, list[str]] = {}
        for scope, texts in statements(needs, variables).items():
            found.setdefault(_attached(args, scope), []).extend(texts)
        return found

    return pulumi.Output.from_input({"values": values, "groups": dict(groups)}).apply(fill_in)


def _scopes(args: IamArgs, needs: Sequence[Need]) -> list[Scope]:
    """Which policies there are; known before any OCID is, so that a preview shows them."""
    found = {_attached(args, text.scope) for need in needs for text in facts.policies().needs[need].statements}
    return [scope for scope in _places(args) if scope in found]


def _tags(args: IamArgs) -> dict[str, pulumi.Input[str]]:
    return stack_tags(args.get("freeform_tags"))
