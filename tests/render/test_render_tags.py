"""The tags of a stack: on all that it creates in OCI, and on what OKE and OCI create for it."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from created_cluster import cluster_layer, created
from llmd_oke.catalogue.operations import oci_resources as oci_resources_of_the_catalogue
from llmd_oke.cluster.gpu_pool import Launch
from llmd_oke.testing import Declared, Rendered
from llmd_oke.values import read_yaml
from llmd_rehearsal.oci_plugin.bridge import compare
from llmd_rehearsal.oci_plugin.facts import resource_of
from llmd_rehearsal.plugin_values import is_list, is_map
from oci_contract import need_schema, oci_resources, require_known_arguments
from stack_files import created_pool, existing_cluster, ocid, stack

TAGS = {"freeform": {"team": "inference"}, "defined": {"Operations": {"CostCenter": "42"}}}
FREEFORM = {"llmd-oke/stack": "llmd-oke/test", "team": "inference"}
DEFINED = {"Operations.CostCenter": "42"}
CLUSTER = "oci:ContainerEngine/cluster:Cluster"
PROVIDER = "pulumi:providers:oci"


TAGGABLE: dict[str, list[str]] = read_yaml(Path(__file__).parents[1] / "data" / "taggable.yaml")
"""Where resources can have tags, by type."""


def untagged(resource: Declared) -> list[str]:
    """Return where a resource could have tags and has not those of the stack."""
    return [
        path or "the resource"
        for path in TAGGABLE[resource.type]
        for value in at(resource.inputs, path.split(".") if path else [])
        if not has_tags(value)
    ]


def at(value: Any, keys: Sequence[str]) -> Iterator[Any]:
    """Return what is at a path, whose lists end in `[]`; nothing where the path isn't there."""
    if not keys:
        yield value
        return
    first, *further = keys
    inner = value.get(first.removesuffix("[]"))
    if inner is None:
        return
    for item in inner if first.endswith("[]") else [inner]:
        yield from at(item, further)


def has_tags(value: Any) -> bool:
    """Tell whether the stack's tags are there, of both kinds."""
    return (value.get("freeformTags") or {}).items() >= FREEFORM.items() and value.get("definedTags") == DEFINED


def taggable(path: str, properties: Any, types: Any) -> Iterator[str]:
    """The paths of a schema's type that can have tags."""
    if is_map((properties.get("freeformTags") or {}).get("type")):
        yield path
    for key, entry in properties.items():
        kind, inner = entry.get("type"), f"{path}.{key}" if path else key
        while is_list(kind):
            kind, inner = kind[0], f"{inner}[]"
        if isinstance(kind, str) and kind.startswith("ref:"):
            yield from taggable(inner, types[kind.removeprefix("ref:")]["properties"], types)


def test_the_kits_list_of_taggable_resources_equals_the_oci_plug_ins_schema():
    schema = need_schema()
    unrecorded = ("oci:Budget/", "oci:Logging/unifiedAgentConfiguration:")
    recorded = {type_: places for type_, places in TAGGABLE.items() if not type_.startswith(unrecorded)}
    assert {
        type_: sorted(taggable("", schema["resources"][type_]["inputs"], schema["types"])) for type_ in recorded
    } == recorded


def tagged(rendered: Any, launch: Launch, **tags: Any) -> list[Declared]:
    """Return what a stack with tags, or with others, creates in OCI, with a bit of everything."""
    kind = "lustre" if launch is Launch.CLUSTER_NETWORK else "file-storage"
    changes: dict[str, Any] = {
        "rdma": "none" if launch is Launch.PLAIN else "sriov-vf",
        "storage": {"modelCache": {"kind": kind}},
        "cpuPools": [{"name": "routers", "size": 1}],
    }
    network = {"bastionService": {"clientCidrs": ["203.0.113.0/24"]}, "publicLoadBalancers": True}
    style = "classic" if launch is Launch.PLAIN else "identity-domain"
    cluster: dict[str, Any] = {"network": network, "iam": {"homeRegion": "us-phoenix-1", "style": style}}
    return oci_resources(
        rendered(cluster_layer(pool={"launch": launch}, cluster=cluster, **(tags or {"tags": TAGS}), **changes))
    )


@pytest.mark.parametrize("launch", list(Launch))
def test_every_taggable_resource_has_the_stacks_tags(rendered: Any, launch: Launch):
    for resource in tagged(rendered, launch):
        assert untagged(resource) == [], resource.name


@pytest.mark.parametrize("launch", list(Launch))
def test_both_supported_oci_plug_ins_accept_all_tags(rendered: Any, launch: Launch):
    require_known_arguments(tagged(rendered, launch))


@pytest.mark.parametrize("launch", list(Launch))
def test_oci_resources_that_the_recover_command_looks_up_by_tag_have_the_stacks_tag(rendered: Any, launch: Launch):
    types = oci_resources_of_the_catalogue().resources
    for resource in tagged(rendered, launch):
        if types[resource.type].tagged and not types[resource.type].again:
            assert resource.inputs["freeformTags"]["llmd-oke/stack"] == "llmd-oke/test", resource.name


def test_load_balancers_and_volumes_that_oke_creates_get_the_stacks_tags(rendered: Any):
    (cluster,) = (item for item in oci_resources(rendered(created(tags=TAGS))) if item.type == CLUSTER)
    expected = {"freeformTags": FREEFORM, "definedTags": DEFINED}
    assert cluster.inputs["options"]["serviceLbConfig"] == expected
    assert cluster.inputs["options"]["persistentVolumeConfig"] == expected


def test_a_dynamic_group_in_an_identity_domain_is_tagged_by_the_domains_schema(rendered: Any):
    made = rendered(cluster_layer(pool={"launch": "cluster-network"}, tags=TAGS))
    (group,) = (item for item in oci_resources(made) if item.type.endswith(":DomainsDynamicResourceGroup"))
    assert group.inputs["urnietfparamsscimschemasoracleidcsextensionOciTags"] == {
        "freeformTags": [{"key": key, "value": value} for key, value in FREEFORM.items()],
        "definedTags": [{"namespace": "Operations", "key": "CostCenter", "value": "42"}],
    }


def provider_of(made: Rendered) -> list[Any]:
    return [item.inputs.get("ignoreDefinedTags") for item in made.resources if item.type == PROVIDER]


def test_the_oci_provider_ignores_oracles_tags_and_those_the_stack_file_lists(rendered: Any):
    ignoring = {**TAGS, "ignored": ["Audit.Owner"]}
    plain, own = rendered(cluster_layer()), rendered(cluster_layer(tags=ignoring))
    untouched = tagged(rendered, Launch.PLAIN, tags={})
    assert all("definedTags" not in resource.inputs for resource in untouched)
    assert provider_of(plain) == [None]
    assert [json.loads(tags) for tags in provider_of(own)] == [
        ["Oracle-Tags.CreatedBy", "Oracle-Tags.CreatedOn", "Audit.Owner"]
    ]
    elsewhere = {"iam": {"homeRegion": "us-phoenix-1", "style": "classic"}}  # its providers are two more
    home = rendered(cluster_layer(cluster=elsewhere, tags=ignoring))
    assert provider_of(home) == 3 * provider_of(own)


@pytest.mark.parametrize("launch", list(Launch))
def test_changed_tags_are_updated_in_place(rendered: Any, launch: Launch):
    stacks = (tagged(rendered, launch, tags={}), tagged(rendered, launch))
    before, after = ({item.urn: item for item in made} for made in stacks)
    replaced = {
        item.name: compare(resource_of(item.type), item.inputs, after[urn].inputs, set()).replaces
        for urn, item in before.items()
        if not item.type.endswith(":InstanceConfiguration")  # the cluster network takes another one in place
    }
    assert {name: paths for name, paths in replaced.items() if paths} == {}


def test_a_load_balancer_in_another_stacks_cluster_gets_this_stacks_tags(rendered: Any):
    door = {"exposure": "internal"}
    made = rendered(stack(cluster=existing_cluster(identifier=ocid("cluster")), frontDoor=door, tags=TAGS))
    (service,) = (item for item in made.resources if item.inputs.get("spec", {}).get("type") == "LoadBalancer")
    annotations, prefix = service.inputs["metadata"]["annotations"], "oci-network-load-balancer.oraclecloud.com"
    assert json.loads(annotations[f"{prefix}/initial-freeform-tags-override"]) == FREEFORM
    assert json.loads(annotations[f"{prefix}/initial-defined-tags-override"]) == {"Operations": {"CostCenter": "42"}}


@pytest.mark.parametrize(
    ("tags", "kinds"), [({}, set()), ({"freeform": TAGS["freeform"]}, {"freeform"}), (TAGS, {"freeform", "defined"})]
)
def test_a_load_balancer_keeps_its_clusters_tags_unless_the_stack_has_tags(
    rendered: Any, tags: dict[str, Any], kinds: set[str]
):
    cluster = existing_cluster(identifier=ocid("cluster"))
    made = rendered(stack(cluster=cluster, frontDoor={"exposure": "internal"}, tags=tags))
    annotations = made.kubernetes("Service", "front-door")["metadata"]["annotations"]
    overrides = re.findall(r"initial-([a-z]+)-tags-override", " ".join(annotations))
    assert set(overrides) == kinds


@pytest.mark.parametrize("style", ["classic", "identity-domain"])
def test_only_instances_with_the_stacks_tag_are_in_the_dynamic_group_that_may_join(rendered: Any, style: str):
    iam = {"homeRegion": "us-ashburn-1", "style": style, "nodeTag": "Operations.Cluster"}
    pools = [created_pool(name=launch, launch=launch) for launch in ("cluster-network", "compute-cluster-instances")]
    made = oci_resources(rendered({**cluster_layer(cluster={"iam": iam}), "gpuPools": pools}))
    (group,) = (item for item in made if "ynamic" in item.type)
    rule = re.fullmatch(
        r"ALL \{instance.compartment.id = '.+', tag.Operations.Cluster.value = '(prod-us-ashburn-1-[0-9a-f]{6})'\}",
        group.inputs["matchingRule"],
    )
    assert rule is not None
    launched = [item.inputs for item in made if item.type == "oci:Core/instance:Instance"]
    assert launched
    (configuration,) = (item for item in made if item.type == "oci:Core/instanceConfiguration:InstanceConfiguration")
    launched.append(configuration.inputs["instanceDetails"]["launchDetails"])
    assert {inputs["definedTags"]["Operations.Cluster"] for inputs in launched} == {rule[1]}
