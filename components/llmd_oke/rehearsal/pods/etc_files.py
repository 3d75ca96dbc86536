"""The few files of /etc that a program in a pod looks for."""

from collections.abc import Mapping
from dataclasses import dataclass

from lightkube.resources.core_v1 import Pod

from llmd_oke.rehearsal.pods.facts import host_name, spec_of
from llmd_oke.rehearsal.watches import identity


@dataclass(frozen=True)
class Resolver:
    """The cluster's DNS server and domain."""

    address: str
    domain: str


def etc_files(pod: Pod, pod_ip: str, resolver: Resolver) -> Mapping[str, str]:
    """Give their contents by name below /etc."""
    return {
        "hosts": _hosts(pod, pod_ip, resolver),
        "hostname": f"{host_name(pod)}\n",
        "resolv.conf": _resolv_conf(pod, resolver),
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
        "passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
        "group": "root:x:0:\nnogroup:x:65534:\n",
    }


def _hosts(pod: Pod, pod_ip: str, resolver: Resolver) -> str:
    name, spec = host_name(pod), spec_of(pod)
    names = name
    if spec.subdomain:
        names = f"{name}.{spec.subdomain}.{identity(pod).namespace}.svc.{resolver.domain} {name}"
    lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback", f"{pod_ip}\t{names}"]
    lines += [f"{alias.ip}\t{' '.join(alias.hostnames or [])}" for alias in spec.hostAliases or []]
    return "\n".join(lines) + "\n"


def _resolv_conf(pod: Pod, resolver: Resolver) -> str:
    domain = resolver.domain
    searched = f"{identity(pod).namespace}.svc.{domain} svc.{domain} {domain}"
    return f"search {searched}\nnameserver {resolver.address}\noptions ndots:5\n"
