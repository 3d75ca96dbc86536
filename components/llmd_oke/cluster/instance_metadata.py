"""Instance metadata of nodes: user data rendered from `values/cloud-init`, and the keys that OKE reads.

All boot scripts are in the metadata. A node downloads none at boot, so that a node that boots next year runs the
scripts that were reviewed today.
"""

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import jinja2
from llmd_base.errors import KitError

from llmd_oke.catalogue.cluster import cloud_init
from llmd_oke.values import values_folder

DIGEST_KEY = "llmd-oke-cloud-init"
"""Metadata key with the SHA-256 of the user data's text, which shows the version that a node booted with. Comments and
whitespace of the scripts change neither user data nor digest."""

SHORT_NAMES_REFUSED_FROM = 34
"""First minor version of Kubernetes whose CRI-O refuses image names without a registry (oci-hpc-oke)."""

_HEAD = """#!/usr/bin/env bash
# What this node runs at its first boot, step by step; the first step that fails ends it.
set -euo pipefail
exec > >(tee -a /var/log/llmd-oke-boot.log) 2>&1
folder=/opt/llmd-oke/boot
install -d -m 0700 "$folder"
step() { # runs the script on standard input
  cat >"$folder/$1.sh"
  echo "llmd-oke: $1"
  bash "$folder/$1.sh" </dev/null 2>&1 | tee "$folder/$1.log" || failed "$1"
}
failed() { # the console tells it too: the instance's console history can be read without signing in to the node
  echo "llmd-oke: step $1 failed" >>"$folder/$1.log"
  tail -n 20 "$folder/$1.log" 2>/dev/null >/dev/console || true
  echo "llmd-oke: step $1 failed" >&2
  exit 1
}
"""

_END = "LLMD_OKE_END_OF_STEP"

_GAP = re.compile(r"(?:\s|\\\n|(?<![^\s;&|()])#[^\n]*)+")
"""Separators between words and commands of Bash: blanks, line ends and comments."""

_PASSED_OVER = re.compile(r"\\\n|#[^\n]*")

_WORDS = re.compile(r"[^\s\\'\"$(){}#]+|\\.|'[^']*'|\$?\(|\$\{|.", re.DOTALL)

_QUOTED = re.compile(r"[^\\\"$(){}]+|\\.|\$\(|\$\{|.", re.DOTALL)

_CLOSED_BY = {'"': '"', "(": ")", "$(": ")", "${": "}"}


@dataclass(frozen=True)
class Boot:
    """Variables of the boot scripts of a pool's nodes.

    `taints` have the kubelet's form (`key=value:effect`); `self_managed` is true for nodes outside node pools of OKE;
    `file_storage` is true if pods of the nodes mount OCI File Storage, `rdma_in_pods` if pods get RDMA devices of their
    own. `gpus` is the number of GPUs that a node must have.
    """

    kind: str
    kubernetes_version: str
    taints: Sequence[str] = ()
    max_pods: int | None = None
    nvme: str = "none"
    huge_pages_gib: int = 0
    kubelet_arguments: Sequence[str] = ()
    self_managed: bool = False
    file_storage: bool = False
    rdma_in_pods: bool = False
    gpus: int = 0


def user_data(boot: Boot) -> str:
    """Return the user data, a Bash script that runs the boot scripts one after the other."""
    left_out = {"nvme-raid"} if boot.nvme == "none" else set[str]()
    if not boot.huge_pages_gib:
        left_out.add("huge-pages")
    if not boot.rdma_in_pods:
        left_out.add("rdma-namespaces")
    names = [name for name in cloud_init().scripts[boot.kind] if name not in left_out]
    steps = [f"step {name} <<'{_END}'\n{without_comments(_script(name, boot))}{_END}\n" for name in names]
    return "".join([without_comments(_HEAD), *steps])


def without_comments(script: str) -> str:
    """Return a Bash script without comments, indentation, empty lines and repeated blanks.

    OKE compares nodes by their user data, so that a reworded comment would make OKE cycle all nodes of a pool (OCI
    documentation, Updating Worker Nodes in an Existing Node Pool by Replacing Boot Volumes). Quotes and substitutions
    may be nested to any depth; boot scripts have no here-documents.
    """
    kept: list[str] = re.findall(r"\A#![^\n]*\n", script)  # passed over as a comment below
    ends, at = list[str](), 0
    first = len(kept)
    while at < len(script):
        quoted = ends[-1:] in (['"'], ["}"])
        gap = None if quoted else _GAP.match(script, at)
        found = gap or (_QUOTED if quoted else _WORDS).match(script, at)
        assert found is not None  # noqa: S101 - both take any character
        part, at = found[0], found.end()
        if gap is not None:
            blanks = _PASSED_OVER.sub("", part)
            part = ("\n" if "\n" in blanks else blanks[:1]) if len(kept) > first else ""
        elif ends and part == ends[-1]:
            ends.pop()
        elif part in _CLOSED_BY:
            ends.append(_CLOSED_BY[part])
        kept.append(part)
    return "".join(kept)


def metadata(boot: Boot, further: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a node's metadata: user data, the digest of the user data, and the additional keys `further`.

    Raises:
        KitError: the metadata is larger than OCI allows.
    """
    text = user_data(boot)
    values = {
        "user_data": base64.b64encode(text.encode()).decode(),
        DIGEST_KEY: hashlib.sha256(text.encode()).hexdigest(),
        **(further or {}),
    }
    limit = cloud_init().metadata_limit_bytes
    size = sum(len(key) + len(value) for key, value in values.items())
    if size > limit:
        raise KitError(f"The nodes' metadata has {size} bytes; OCI allows {limit}.", "Fewer or shorter labels help.")
    return values


def kubelet_arguments(boot: Boot) -> str:
    """Return the arguments to append to the kubelet's command line.

    Taints are among them, because node pools of OKE have no field for taints.
    """
    arguments = [f"--register-with-taints={','.join(boot.taints)}"] if boot.taints else []
    if boot.max_pods is not None:
        arguments.append(f"--max-pods={boot.max_pods}")
    return " ".join([*arguments, *boot.kubelet_arguments])


@dataclass(frozen=True)
class SelfManaged:
    """Cluster that a self-managed node joins. `ca_certificate` is the base64 of the certificate authority's PEM text,
    as in kubeconfigs; `pod_subnet_id` is None with flannel.
    """

    api_server_host: str
    ca_certificate: str
    tenancy_id: str
    kubernetes_version: str
    labels: Mapping[str, str]
    max_pods: int
    pod_subnet_id: str | None = None
    pod_nsg_ids: Sequence[str] = ()


def self_managed(node: SelfManaged) -> dict[str, str]:
    """Return the metadata keys that OKE's start-up programs and the script `join` read on self-managed nodes
    (terraform-oci-oke, instanceconfig.tf).
    """
    keys = {
        "apiserver_host": node.api_server_host,
        "cluster_ca_cert": node.ca_certificate,
        "oke-k8version": node.kubernetes_version,
        "oke-kubeproxy-proxy-mode": cloud_init().kube_proxy_mode,
        "oke-tenancy-id": node.tenancy_id,
        "oke-initial-node-labels": ",".join(f"{key}={value}" for key, value in sorted(node.labels.items())),
        "secondary_vnics": json.dumps([]),
    }
    if node.pod_subnet_id is None:
        return keys
    return {
        **keys,
        "oke-native-pod-networking": "true",
        "oke-max-pods": str(node.max_pods),
        "pod-subnets": node.pod_subnet_id,
        "pod-nsgids": ",".join(node.pod_nsg_ids),
    }


def _script(name: str, boot: Boot) -> str:
    facts = cloud_init()
    version = boot.kubernetes_version.removeprefix("v")
    return _template(name).render(
        {**dict(facts), **vars(boot)},
        blocked_modules=[module for fault in facts.kernel_faults for module in fault.modules],
        raid_level=10 if boot.nvme == "raid-10" else 0,
        huge_pages=boot.huge_pages_gib * 1024 // 2,
        kubelet_arguments=kubelet_arguments(boot),
        version=version,
        minor_version=".".join(version.split(".")[:2]),
        crio_short_names=int(version.split(".")[1]) >= SHORT_NAMES_REFUSED_FROM,
    )


@cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(  # noqa: S701 - shell scripts, not HTML
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="{##",  # ${#array[@]} is no comment
    )
    environment.filters["quote"] = shlex.quote
    file = values_folder() / "cloud-init" / f"{name}.sh.j2"
    return environment.from_string(file.read_text())
