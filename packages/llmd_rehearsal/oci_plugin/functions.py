"""Functions (data sources) of the stand-in OCI plug-in."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llmd_rehearsal.oci_plugin.facts import OciRegion, image_id, region_facts
from llmd_rehearsal.oci_plugin.region import Records, not_found
from llmd_rehearsal.plugin_values import JsonObject, OperationRefusal, is_list, is_map


@dataclass(frozen=True)
class FunctionCall:
    """Call of a function (data source) of the OCI provider. `kubeconfig` is the path of the local cluster's
    kubeconfig.
    """

    arguments: JsonObject
    region: str
    records: Records
    kubeconfig: Path | None = None

    @property
    def facts(self) -> OciRegion:
        """Fixed data of the simulated OCI region: resource types, shapes, images and limits."""
        return region_facts()

    @property
    def key(self) -> str:
        """Key of the region that the call is for, such as `IAD`."""
        return self.facts.key(self.region)


def invoke(token: str, call: FunctionCall) -> JsonObject:
    """Return the result of a call to a function (data source) of the OCI provider; the result repeats the arguments, as
    the real plug-in's does.

    Raises:
        OperationRefusal: the rehearsal doesn't have the function; the message lists the supported functions.
    """
    name = token.rpartition(":")[2]
    function = _FUNCTIONS.get(name)
    if function is None:
        raise OperationRefusal(
            f"{token} is not in this rehearsal; its stand-in OCI plug-in answers {', '.join(_FUNCTIONS)}"
        )
    result = function(call)
    filters: list[JsonObject] = call.arguments.get("filters") or []
    for key, value in result.items():
        if filters and is_list(value):
            result[key] = [item for item in value if not is_map(item) or all(_passes(item, row) for row in filters)]
    return {"id": f"{name}-{call.region}", **call.arguments, **result}


def _passes(item: JsonObject, filter_: JsonObject) -> bool:
    """Tell whether an item matches one filter: its property has one of the filter's values, or matches one as a
    pattern.
    """
    name = "".join(part.title() if index else part for index, part in enumerate(filter_["name"].split("_")))
    value = str(item.get(name, ""))
    if filter_.get("regex"):
        return any(re.search(pattern, value) for pattern in filter_["values"])
    return value in filter_["values"]


def _availability_domains(call: FunctionCall) -> JsonObject:
    compartment = call.arguments["compartmentId"]
    names = call.facts.domains(call.region)
    return {"availabilityDomains": [{"compartmentId": compartment, "id": f"ocid1.ad..{n}", "name": n} for n in names]}


def _fault_domains(call: FunctionCall) -> JsonObject:
    domain = call.arguments["availabilityDomain"]
    names = call.facts.fault_domains
    return {"faultDomains": [{"availabilityDomain": domain, "id": f"ocid1.fd..{n}", "name": n} for n in names]}


def _services(call: FunctionCall) -> JsonObject:
    key = call.key
    services = [
        {
            "cidrBlock": service.label.format(key=key.lower(), KEY=key),
            "description": service.name.format(key=key.lower(), KEY=key),
            "id": f"ocid1.service.oc1.{key.lower()}.aaaaaaaa{index}",
            "name": service.name.format(key=key.lower(), KEY=key),
        }
        for index, service in enumerate(call.facts.services)
    ]
    return {"services": services}


def _images(call: FunctionCall) -> JsonObject:
    arguments = call.arguments
    images = [
        {
            "compartmentId": "",
            "displayName": image.name,
            "id": image_id(image.name, call.key),
            "operatingSystem": image.os,
            "operatingSystemVersion": image.os_version,
            "state": "AVAILABLE",
        }
        for image in call.facts.images
    ]
    images += [{**record.state, "displayName": record.display_name} for record in call.records.all_of("Image")]
    if arguments.get("shape"):
        vendor = call.facts.vendor(arguments["shape"])
        by_name = {image.name: image.gpu for image in call.facts.images}  # vendor of the GPUs with drivers in the image
        images = [
            image
            for image in images
            if by_name.get(name := image["displayName"], "AMD" if "AMD-ROCM" in name else "") == vendor
        ]
    keys = [key for key in ("operatingSystem", "operatingSystemVersion", "displayName") if arguments.get(key)]
    return {"images": [image for image in images if all(image[key] == arguments[key] for key in keys)]}


def _shapes(call: FunctionCall) -> JsonObject:
    only = call.arguments.get("shape")
    shapes = [
        {
            "name": name,
            "ocpus": float(shape.ocpus),
            "memoryInGbs": float(shape.memory_gib),
            "isFlexible": shape.flexible,
        }
        for name, shape in call.facts.shapes.items()
        if only in {None, name}
    ]
    return {"shapes": shapes}


def _node_pool_option(call: FunctionCall) -> JsonObject:
    facts = call.facts
    sources = [
        {"imageId": image_id(image.name, call.key), "sourceName": image.name, "sourceType": "IMAGE"}
        for image in facts.images
        if "OKE" in image.name
    ]
    versions, shapes = list(facts.kubernetes_versions), list(facts.shapes)
    return {"images": [], "kubernetesVersions": versions, "shapes": shapes, "sources": sources}


def _cluster_option(call: FunctionCall) -> JsonObject:
    networks = [{"cniType": "FLANNEL_OVERLAY"}, {"cniType": "OCI_VCN_IP_NATIVE"}]
    versions = list(call.facts.kubernetes_versions)
    return {"kubernetesVersions": versions, "clusterPodNetworkOptions": networks}


def _addon_options(call: FunctionCall) -> JsonObject:
    only = call.arguments.get("addonName")
    options: list[JsonObject] = [
        {"name": name, "isEssential": False, "state": "ACTIVE", "versions": []}
        for name in call.facts.add_ons
        if only in {None, "", name}
    ]
    return {"addonOptions": options}


def _kubeconfig(call: FunctionCall) -> JsonObject:
    id_ = call.arguments["clusterId"]
    if call.records.get(id_) is None and call.records.is_deleted(id_):
        raise OperationRefusal(str(not_found(id_)))
    if call.kubeconfig is None:
        raise OperationRefusal(
            "this stand-in OCI plug-in was started without --kubeconfig: it has no cluster to lead to"
        )
    return {"content": call.kubeconfig.read_text()}


def _clusters(call: FunctionCall) -> JsonObject:
    compartment, name = call.arguments["compartmentId"], call.arguments.get("name")
    states = [record.state for record in call.records.all_of("Cluster")]
    in_compartment = [state for state in states if state["compartmentId"] == compartment]
    return {"clusters": [state for state in in_compartment if name in {None, "", state["name"]}]}


def _node_pools(call: FunctionCall) -> JsonObject:
    cluster = call.arguments.get("clusterId")
    states = [record.state for record in call.records.all_of("NodePool")]
    return {"nodePools": [state for state in states if cluster in {None, "", state["clusterId"]}]}


def _cluster_network_instances(call: FunctionCall) -> JsonObject:
    record = call.records.get(call.arguments["clusterNetworkId"])
    instances = [
        {"id": machine["id"], "displayName": machine["name"], "state": "RUNNING", "faultDomain": "FAULT-DOMAIN-1"}
        for machine in (record.machines if record else ())
    ]
    return {"instances": instances}


def _instances(call: FunctionCall) -> JsonObject:
    compartment = call.arguments["compartmentId"]
    states = [record.state for record in call.records.all_of("Instance")]
    return {"instances": [state for state in states if state["compartmentId"] == compartment]}


def _state_of(call: FunctionCall, name: str, id_: str) -> JsonObject:
    record = call.records.get(id_)
    if record is None or record.resource.name != name:
        raise OperationRefusal(str(not_found(id_)))
    return {**record.state}


def _private_ip(call: FunctionCall) -> JsonObject:
    id_ = call.arguments["privateIpId"]
    for record in call.records.all_of("MountTarget"):
        if id_ in record.state["privateIpIds"]:
            return {"ipAddress": record.state["ipAddress"], "subnetId": record.state["subnetId"]}
    raise OperationRefusal(str(not_found(id_)))


def _region_subscriptions(call: FunctionCall) -> JsonObject:
    facts = call.facts
    names = dict.fromkeys([facts.tenancy.home_region, call.region])
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


def _tenancy(call: FunctionCall) -> JsonObject:
    tenancy = call.facts.tenancy
    key = call.facts.key(tenancy.home_region)
    return {"homeRegionKey": key, "name": tenancy.name, "description": "", "id": call.arguments["tenancyId"]}


def _domains(call: FunctionCall) -> JsonObject:
    domain = {
        "compartmentId": call.arguments["compartmentId"],
        "displayName": "Default",
        "homeRegion": call.facts.tenancy.home_region,
        "id": "ocid1.domain.oc1..aaaaaaaarehearsal",
        "state": "ACTIVE",
        "type": "DEFAULT",
        "url": "https://idcs-rehearsal.identity.oraclecloud.com:443",
    }
    return {"domains": [domain]}


def _limit_values(call: FunctionCall) -> JsonObject:
    service, only = call.arguments["serviceName"], call.arguments.get("name")
    limits = call.facts.limits.get(service, {})
    values = [
        {"name": name, "value": str(value), "scopeType": "REGION", "availabilityDomain": ""}
        for name, value in limits.items()
        if only in {None, "", name}
    ]
    return {"limitValues": values}


def _resource_availability(call: FunctionCall) -> JsonObject:
    service, name = call.arguments["serviceName"], call.arguments["limitName"]
    value = call.facts.limits.get(service, {}).get(name, 0)
    return {"available": str(value), "used": "0", "effectiveQuotaValue": float(value)}


_FUNCTIONS: Final[Mapping[str, Callable[[FunctionCall], JsonObject]]] = {
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
    "getNamespace": lambda call: {"namespace": call.facts.tenancy.namespace},
    "getNodePoolOption": _node_pool_option,
    "getNodePools": _node_pools,
    "getPrivateIp": _private_ip,
    "getRegionSubscriptions": _region_subscriptions,
    "getResourceAvailability": _resource_availability,
    "getServices": _services,
    "getShapes": _shapes,
    "getSubnet": lambda call: _state_of(call, "Subnet", call.arguments["subnetId"]),
    "getTenancy": _tenancy,
    "getVcn": lambda call: _state_of(call, "Vcn", call.arguments["vcnId"]),
}
