"""The functions of the plug-in that a kit like this calls."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from llmd_oke.rehearsal.oci_plugin.records import Record, Records
from llmd_oke.rehearsal.oci_plugin.region import Region, image_id, region_facts
from llmd_oke.rehearsal.oci_plugin.schemas import Resource, resource_of
from llmd_oke.rehearsal.plugin_protocol.errors import Refusal
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject, is_list, is_map


@dataclass(frozen=True)
class Question:
    """A function call. `kubeconfig` is the file of the rehearsal's cluster."""

    arguments: JsonObject
    region: str
    records: Records
    kubeconfig: Path | None = None

    @property
    def facts(self) -> Region:
        """What is fixed in the region."""
        return region_facts()

    @property
    def key(self) -> str:
        """The region's key, such as `IAD`."""
        return self.facts.key(self.region)


def invoke(token: str, question: Question) -> JsonObject:
    """The answer to a function call, with the arguments in it as the real plug-in has them.

    Raises:
        Refusal: the function isn't on the list, which the message gives.
    """
    name = token.rpartition(":")[2]
    function = _FUNCTIONS.get(name)
    if function is None:
        raise Refusal(f"{token} is not in this rehearsal; its stand-in OCI plug-in answers {', '.join(_FUNCTIONS)}")
    found = function(question)
    filters: list[JsonObject] = question.arguments.get("filters") or []
    kept = {key: _filtered(value, filters) if is_list(value) else value for key, value in found.items()}
    return {"id": f"{name}-{question.region}", **question.arguments, **kept}


def _filtered(items: list[Any], filters: list[JsonObject]) -> list[Any]:
    """The items that all filters let pass."""
    return [item for item in items if not is_map(item) or all(_passes(item, each) for each in filters)]


def _passes(item: JsonObject, filter_: JsonObject) -> bool:
    name = "".join(part.title() if index else part for index, part in enumerate(filter_["name"].split("_")))
    value = str(item.get(name, ""))
    if filter_.get("regex"):
        return any(re.search(pattern, value) for pattern in filter_["values"])
    return value in filter_["values"]


def _availability_domains(question: Question) -> JsonObject:
    place = question.arguments["compartmentId"]
    names = question.facts.domains(question.region)
    return {"availabilityDomains": [{"compartmentId": place, "id": f"ocid1.ad..{n}", "name": n} for n in names]}


def _fault_domains(question: Question) -> JsonObject:
    domain = question.arguments["availabilityDomain"]
    names = question.facts.fault_domains
    return {"faultDomains": [{"availabilityDomain": domain, "id": f"ocid1.fd..{n}", "name": n} for n in names]}


def _services(question: Question) -> JsonObject:
    key = question.key
    services = [
        {
            "cidrBlock": service.label.format(key=key.lower(), KEY=key),
            "description": service.name.format(key=key.lower(), KEY=key),
            "id": f"ocid1.service.oc1.{key.lower()}.aaaaaaaa{index}",
            "name": service.name.format(key=key.lower(), KEY=key),
        }
        for index, service in enumerate(question.facts.services)
    ]
    return {"services": services}


def _images(question: Question) -> JsonObject:
    asked, found = question.arguments, [_platform_image(question, image.name) for image in question.facts.images]
    found += [{**record.state, "displayName": record.display_name} for record in question.records.all_of("Image")]
    vendor = question.facts.vendor(asked["shape"]) if asked.get("shape") else None
    of_shape = [image for image in found if vendor is None or _vendor(question, image["displayName"]) == vendor]
    keys = ("operatingSystem", "operatingSystemVersion", "displayName")
    return {"images": [image for image in of_shape if all(image[key] == asked[key] for key in keys if asked.get(key))]}


def _platform_image(question: Question, name: str) -> JsonObject:
    image = next(each for each in question.facts.images if each.name == name)
    return {
        "compartmentId": "",
        "displayName": name,
        "id": image_id(name, question.key),
        "operatingSystem": image.os,
        "operatingSystemVersion": image.os_version,
        "state": "AVAILABLE",
    }


def _vendor(question: Question, name: str) -> str:
    known = next((image.gpu for image in question.facts.images if image.name == name), None)
    return known if known is not None else ("AMD" if "AMD-ROCM" in name else "")


def _shapes(question: Question) -> JsonObject:
    wanted = question.arguments.get("shape")
    shapes = [
        {
            "name": name,
            "ocpus": float(shape.ocpus),
            "memoryInGbs": float(shape.memory_gib),
            "isFlexible": shape.flexible,
        }
        for name, shape in question.facts.shapes.items()
        if wanted in {None, name}
    ]
    return {"shapes": shapes}


def _node_pool_option(question: Question) -> JsonObject:
    facts = question.facts
    sources = [
        {"imageId": image_id(image.name, question.key), "sourceName": image.name, "sourceType": "IMAGE"}
        for image in facts.images
        if "OKE" in image.name
    ]
    versions, shapes = list(facts.kubernetes_versions), list(facts.shapes)
    return {"images": [], "kubernetesVersions": versions, "shapes": shapes, "sources": sources}


def _cluster_option(question: Question) -> JsonObject:
    networks = [{"cniType": "FLANNEL_OVERLAY"}, {"cniType": "OCI_VCN_IP_NATIVE"}]
    versions = list(question.facts.kubernetes_versions)
    return {"kubernetesVersions": versions, "clusterPodNetworkOptions": networks}


def _addon_options(question: Question) -> JsonObject:
    wanted = question.arguments.get("addonName")
    options: list[JsonObject] = [
        {"name": name, "isEssential": False, "state": "ACTIVE", "versions": []}
        for name in question.facts.add_ons
        if wanted in {None, "", name}
    ]
    return {"addonOptions": options}


def _kubeconfig(question: Question) -> JsonObject:
    id_ = question.arguments["clusterId"]
    cluster = question.records.get(id_)
    if cluster is None and question.records.is_gone(id_):
        raise Refusal(f"404-NotAuthorizedOrNotFound, Authorization failed or requested resource not found: {id_}")
    if question.kubeconfig is None:
        raise Refusal("this stand-in OCI plug-in was started without --kubeconfig: it has no cluster to lead to")
    return {"content": question.kubeconfig.read_text()}


def _clusters(question: Question) -> JsonObject:
    place, name = question.arguments["compartmentId"], question.arguments.get("name")
    found = [record.state for record in question.records.all_of("Cluster") if record.state["compartmentId"] == place]
    return {"clusters": [state for state in found if name in {None, "", state["name"]}]}


def _node_pools(question: Question) -> JsonObject:
    cluster = question.arguments.get("clusterId")
    found = [record.state for record in question.records.all_of("NodePool")]
    return {"nodePools": [state for state in found if cluster in {None, "", state["clusterId"]}]}


def _cluster_network_instances(question: Question) -> JsonObject:
    record = question.records.get(question.arguments["clusterNetworkId"])
    return {"instances": _instances_of(record) if record else []}


def _instances_of(record: Record) -> list[JsonObject]:
    return [
        {"id": machine["id"], "displayName": machine["name"], "state": "RUNNING", "faultDomain": "FAULT-DOMAIN-1"}
        for machine in record.machines
    ]


def _instances(question: Question) -> JsonObject:
    place = question.arguments["compartmentId"]
    found = [record.state for record in question.records.all_of("Instance") if record.state["compartmentId"] == place]
    return {"instances": found}


def _vcn(question: Question) -> JsonObject:
    return _one(question, "vcnId", resource_of("oci:Core/vcn:Vcn"))


def _subnet(question: Question) -> JsonObject:
    return _one(question, "subnetId", resource_of("oci:Core/subnet:Subnet"))


def _one(question: Question, key: str, resource: Resource) -> JsonObject:
    record = question.records.get(question.arguments[key])
    if record is None or record.token != resource.token:
        id_ = question.arguments[key]
        raise Refusal(f"404-NotAuthorizedOrNotFound, Authorization failed or requested resource not found: {id_}")
    return record.state


def _private_ip(question: Question) -> JsonObject:
    wanted = question.arguments["privateIpId"]
    for record in question.records.all_of("MountTarget"):
        if wanted in record.state["privateIpIds"]:
            return {"ipAddress": record.state["ipAddress"], "subnetId": record.state["subnetId"]}
    raise Refusal(f"404-NotAuthorizedOrNotFound, Authorization failed or requested resource not found: {wanted}")


def _region_subscriptions(question: Question) -> JsonObject:
    facts = question.facts
    names = dict.fromkeys([facts.tenancy.home_region, question.region])
    subscriptions = [
        {
            "isHomeRegion": name == facts.tenancy.home_region,
            "regionKey": facts.key(name),
            "regionName": name,
            "state": "READY",
        }
        for name in names
    ]
    return {"regionSubscriptions": subscriptions}


def _tenancy(question: Question) -> JsonObject:
    tenancy = question.facts.tenancy
    key = question.facts.key(tenancy.home_region)
    return {"homeRegionKey": key, "name": tenancy.name, "description": "", "id": question.arguments["tenancyId"]}


def _domains(question: Question) -> JsonObject:
    domain = {
        "compartmentId": question.arguments["compartmentId"],
        "displayName": "Default",
        "homeRegion": question.facts.tenancy.home_region,
        "id": "ocid1.domain.oc1..aaaaaaaarehearsal",
        "state": "ACTIVE",
        "type": "DEFAULT",
        "url": "https://idcs-rehearsal.identity.oraclecloud.com:443",
    }
    return {"domains": [domain]}


def _limit_values(question: Question) -> JsonObject:
    service, wanted = question.arguments["serviceName"], question.arguments.get("name")
    limits = question.facts.limits.get(service, {})
    values = [
        {"name": name, "value": str(value), "scopeType": "REGION", "availabilityDomain": ""}
        for name, value in limits.items()
        if wanted in {None, "", name}
    ]
    return {"limitValues": values}


def _resource_availability(question: Question) -> JsonObject:
    service, name = question.arguments["serviceName"], question.arguments["limitName"]
    value = question.facts.limits.get(service, {}).get(name, 0)
    return {"available": str(value), "used": "0", "effectiveQuotaValue": float(value)}


def _namespace(question: Question) -> JsonObject:
    return {"namespace": question.facts.tenancy.namespace}


_FUNCTIONS: Final[Mapping[str, Callable[[Question], JsonObject]]] = {
    "getAddonOptions": _addon_options,
    "getAvailabilityDomains": _availability_domains,
    "getClusterKubeConfig": _kubeconfig,
    "getClusterNetworkInstances": _cluster_network_instances,
    "getClusterOption": _cluster_option,
    "getClusters": _clusters,
    "getDomains": _domains,
    "getFaultDomains": _fault_domains,
    "getImages": _images,
    "getInstances": _instances,
    "getLimitValues": _limit_values,
    "getNamespace": _namespace,
    "getNodePoolOption": _node_pool_option,
    "getNodePools": _node_pools,
    "getPrivateIp": _private_ip,
    "getRegionSubscriptions": _region_subscriptions,
    "getResourceAvailability": _resource_availability,
    "getServices": _services,
    "getShapes": _shapes,
    "getSubnet": _subnet,
    "getTenancy": _tenancy,
    "getVcn": _vcn,
}
