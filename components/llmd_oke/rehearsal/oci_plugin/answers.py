"""What OCI adds to a new resource: ids of what comes with it, addresses, endpoints, states."""

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from ipaddress import IPv4Network
from typing import Any, Final

from llmd_oke.rehearsal.oci_plugin.errors import invalid
from llmd_oke.rehearsal.oci_plugin.forecasts import filled
from llmd_oke.rehearsal.oci_plugin.records import Records
from llmd_oke.rehearsal.oci_plugin.region import lifecycles, region_facts
from llmd_oke.rehearsal.oci_plugin.schemas import Resource
from llmd_oke.rehearsal.plugin_protocol.trees import JsonObject

OCI_TAGS: Final = "urn:ietf:params:scim:schemas:oracle:idcs:extension:OCITags"
"""The schema that an identity domain adds to each group (terraform-provider-oci,
identity_domains_dynamic_resource_group_test.go ignores `schemas`).
"""
_DURATION: Final = re.compile(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?")

ENHANCED_UPGRADES: Final = 2
"""As many newer versions are named as upgrades."""


@dataclass(frozen=True)
class Birth:
    """A resource that comes to be. `state` is what the inputs say, `api_server` the rehearsal's, as host:port."""

    resource: Resource
    id: str
    state: JsonObject
    records: Records
    region: str
    api_server: str = ""

    def child(self, kind: str) -> str:
        """The id of something that comes with it."""
        return f"ocid1.{kind}.oc1.{region_facts().key(self.region).lower()}.aaaaaaaa{self.id[-52:]}"


def first_state(birth: Birth, given: JsonObject) -> JsonObject:
    """All outputs of a new resource."""
    resource = birth.resource
    every = {name: filled(known, given.get(name)) for name, known in {**resource.outputs, **resource.inputs}.items()}
    state = {name: value for name, value in every.items() if value is not None}
    state |= {"id": birth.id, **_common(resource, state)}
    state |= _as_answered(resource, state)
    added = _ANSWERS.get(resource.name)
    told: JsonObject = added(replace(birth, state=state)) if added else {}
    return {**state, **{name: value for name, value in told.items() if not given.get(name)}}


def next_state(resource: Resource, before: JsonObject, given: JsonObject) -> JsonObject:
    """The outputs of a resource that is changed."""
    known = {**resource.outputs, **resource.inputs}
    every = {name: filled(known[name], given.get(name), before.get(name)) for name in known}
    dropped = {name for name, each in resource.inputs.items() if not each.computed and name not in given}
    changed = {name: value for name, value in every.items() if value is not None and name not in dropped}
    changed |= _as_answered(resource, changed)
    if resource.name == "Subnet":
        changed["ipv4cidrBlocks"] = [changed["cidrBlock"]]
    if resource.name == "Vcn" and given.get("cidrBlocks"):
        changed["cidrBlock"] = given["cidrBlocks"][0]
    return {**changed, "id": before["id"]}


def answered_to_read(resource: Resource, state: JsonObject) -> JsonObject:
    """The outputs as a read answers them: an identity domain tells a group's tags to those only who ask for them, which
    the plug-in does not (terraform-provider-oci, issue 2418).
    """
    return {**state, "tags": []} if resource.name == "DomainsDynamicResourceGroup" else state


def _as_answered(resource: Resource, state: JsonObject) -> JsonObject:
    """What OCI answers in other words than it was told."""
    if resource.name == "DomainsDynamicResourceGroup":
        return {"schemas": sorted({*state["schemas"], OCI_TAGS})}
    settings: JsonObject | None = state.get("nodeEvictionNodePoolSettings")
    if resource.name == "NodePool" and settings and settings.get("evictionGraceDuration"):
        told = _duration(settings["evictionGraceDuration"])
        return {"nodeEvictionNodePoolSettings": {**settings, "evictionGraceDuration": told}}
    return {}


def _duration(text: str) -> str:
    """A time of hours, minutes and seconds in the largest units (Java, Duration.toString)."""
    parts = _DURATION.fullmatch(text)
    if parts is None:
        raise invalid(f"Invalid evictionGraceDuration: {text}")
    hours, minutes, seconds = (int(part or 0) for part in parts.groups())
    minutes, seconds = divmod(hours * 3600 + minutes * 60 + seconds, 60)
    hours, minutes = divmod(minutes, 60)
    told = "".join(f"{number}{unit}" for number, unit in ((hours, "H"), (minutes, "M"), (seconds, "S")) if number)
    return f"PT{told or '0S'}"


def well(resource: Resource) -> str:
    """The state of a resource that is there and well."""
    type_ = resource.token.split("/")[1].partition(":")[0]
    words: Any = lifecycles()["states"]
    return next((word.upper() for word, types in words.items() if type_ in types), "ACTIVE")


def _common(resource: Resource, state: JsonObject) -> JsonObject:
    now = datetime.now(UTC)
    moment = now.strftime("%Y-%m-%d %H:%M:%S +0000 UTC")
    names = {"displayName": f"{resource.name.lower()}{now:%Y%m%d%H%M%S}"}
    found = {"timeCreated": moment, "timeUpdated": moment, "state": well(resource), **names}
    return {name: value for name, value in found.items() if name in state and not state[name]}


def _vcn(birth: Birth) -> JsonObject:
    state = birth.state
    ranges = state.get("cidrBlocks") or [state.get("cidrBlock")]
    label = state.get("dnsLabel")
    return {
        "cidrBlock": ranges[0],
        "cidrBlocks": ranges,
        "defaultDhcpOptionsId": birth.child("dhcpoptions"),
        "defaultRouteTableId": birth.child("routetable"),
        "defaultSecurityListId": birth.child("securitylist"),
        "vcnDomainName": f"{label}.oraclevcn.com" if label else "",
    }


def _subnet(birth: Birth) -> JsonObject:
    cidr = IPv4Network(birth.state["cidrBlock"])
    vcn = birth.records.get(birth.state["vcnId"])
    of_vcn: JsonObject = vcn.state if vcn else {}
    label, domain = birth.state.get("dnsLabel"), of_vcn.get("vcnDomainName")
    return {
        "dhcpOptionsId": of_vcn.get("defaultDhcpOptionsId", ""),
        "ipv4cidrBlocks": [str(cidr)],
        "routeTableId": of_vcn.get("defaultRouteTableId", ""),
        "securityListIds": [of_vcn["defaultSecurityListId"]] if of_vcn else [],
        "subnetDomainName": f"{label}.{domain}" if label and domain else "",
        "virtualRouterIp": str(cidr[1]),
        "virtualRouterMac": "00:00:17:00:00:01",
    }


def _nat_gateway(_: Birth) -> JsonObject:
    return {"natIp": f"198.51.100.{secrets.randbelow(254) + 1}"}


def _service_gateway(birth: Birth) -> JsonObject:
    for service in birth.state["services"]:
        service["serviceName"] = service.get("serviceName") or "All Services In Oracle Services Network"
    return {}


def _cluster(birth: Birth) -> JsonObject:
    versions = region_facts().kubernetes_versions
    newer = versions[versions.index(birth.state["kubernetesVersion"]) + 1 :][:ENHANCED_UPGRADES]
    endpoint = birth.api_server or "192.0.2.10:6443"
    endpoints = {
        "ipv6endpoint": "",
        "kubernetes": endpoint,
        "privateEndpoint": endpoint,
        "publicEndpoint": endpoint if (birth.state.get("endpointConfig") or {}).get("isPublicIpEnabled") else "",
        "vcnHostnameEndpoint": endpoint,
    }
    issuer = f"https://objectstorage.{birth.region}.oraclecloud.com/oidc/{birth.id[-11:]}"
    return {
        "availableKubernetesUpgrades": list(newer),
        "endpoints": [endpoints],
        "openIdConnectDiscoveryEndpoint": f"{issuer}/.well-known/openid-configuration",
        "type": "BASIC_CLUSTER",
    }


def _addon(birth: Birth) -> JsonObject:
    return {"currentInstalledVersion": birth.state.get("version") or "v1.0.0", "version": None}


def _node_pool(birth: Birth) -> JsonObject:
    cluster = birth.records.get(birth.state["clusterId"])
    return {"kubernetesVersion": cluster.state["kubernetesVersion"] if cluster else ""}


def _cluster_network(birth: Birth) -> JsonObject:
    for index, pool in enumerate(birth.state["instancePools"]):
        pool["id"] = birth.child(f"instancepool{index}")
        pool["state"] = "RUNNING"
        pool["currentSize"] = pool["size"]
        pool["compartmentId"] = pool.get("compartmentId") or birth.state["compartmentId"]
    return {"hpcIslandId": birth.child("hpcisland"), "networkBlockIds": [birth.child("networkblock")]}


def _instance(birth: Birth) -> JsonObject:
    return {
        "bootVolumeId": birth.child("bootvolume"),
        "privateIp": f"10.0.{secrets.randbelow(250)}.{secrets.randbelow(250) + 2}",
        "region": region_facts().key(birth.region).lower(),
        "faultDomain": region_facts().fault_domains[0],
    }


def _mount_target(birth: Birth) -> JsonObject:
    subnet = birth.records.get(birth.state["subnetId"])
    address = str(IPv4Network(subnet.state["cidrBlock"])[10]) if subnet else "192.0.2.20"
    return {"exportSetId": birth.child("exportset"), "ipAddress": address, "privateIpIds": [birth.child("privateip")]}


def _lustre(birth: Birth) -> JsonObject:
    subnet = birth.records.get(birth.state["subnetId"])
    address = str(IPv4Network(subnet.state["cidrBlock"])[11]) if subnet else "192.0.2.21"
    return {"lnet": "tcp", "majorVersion": "2.15", "managementServiceAddress": address}


def _capacity_report(birth: Birth) -> JsonObject:
    for each in birth.state["shapeAvailabilities"]:
        each["availabilityStatus"], each["availableCount"] = "AVAILABLE", "1000"
    return {}


def _dynamic_resource_group(birth: Birth) -> JsonObject:
    return {"ocid": birth.id, "tenancyOcid": "", "domainOcid": birth.child("domain")}


_ANSWERS: Final[Mapping[str, Callable[[Birth], JsonObject]]] = {
    "Vcn": _vcn,
    "Subnet": _subnet,
    "NatGateway": _nat_gateway,
    "ServiceGateway": _service_gateway,
    "Cluster": _cluster,
    "Addon": _addon,
    "NodePool": _node_pool,
    "ClusterNetwork": _cluster_network,
    "Instance": _instance,
    "MountTarget": _mount_target,
    "FileStorageLustreFileSystem": _lustre,
    "ComputeCapacityReport": _capacity_report,
    "DomainsDynamicResourceGroup": _dynamic_resource_group,
}
