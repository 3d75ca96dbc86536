"""Deployments in a cluster that follow llm-d's guides: their model and servers, and the steps by which their clients
change over to a stack of the kit.

The guides make Deployments of servers by kustomize or Helm, with the label `llm-d.ai/role`, and a pool that selects
them (https://github.com/llm-d/llm-d/tree/340cdaa0/guides/pd-disaggregation/modelserver/amd/vllm). They are read from
`kubectl get -o json`; nothing of them is changed.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from llmd_base.errors import KitError

from llmd_oke import catalogue

READ = "kubectl get deployments,inferencepools,httproutes --all-namespaces -o json"
"""`kubectl` command that prints a cluster's Deployments, InferencePools and HTTPRoutes as JSON, which
`read_deployments` reads.
"""

PAGE = "docs/how-to/adopt-a-cluster.md"
"""Page with the steps by which clients change over."""

_ROLE, _GPU, _RELEASE = "llm-d.ai/role", "amd.com/gpu", "meta.helm.sh/release-name"
_TENSOR_PARALLEL = ("--tensor-parallel-size", "-tp")
_SIZE = re.compile(r"[1-9][0-9]{0,3}")
_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True)
class GuideServers:
    """Servers of one role (prefill or decode) that a Deployment as in an llm-d guide runs: `replicas` servers with
    `gpus` GPUs each. `release` is the name of the Helm release, empty without one.
    """

    namespace: str
    name: str
    role: str
    model: str
    replicas: int
    tensor_parallel_size: int
    gpus: int
    release: str = ""


@dataclass(frozen=True)
class GuideDeployment:
    """Deployment of one model as in an llm-d guide: its servers, and the HTTPRoutes, as `namespace/name`, whose
    requests go to its InferencePool.
    """

    servers: tuple[GuideServers, ...]
    routes: tuple[str, ...] = ()

    @property
    def model(self) -> str:
        """Repository of the model on Hugging Face."""
        return self.servers[0].model

    @property
    def namespace(self) -> str:
        """Namespace of the guide's servers."""
        return self.servers[0].namespace

    @property
    def gpus(self) -> int:
        """Number of GPUs of all of the guide's servers."""
        return sum(item.replicas * item.gpus for item in self.servers)

    @property
    def topology(self) -> str:
        """Topology of the deployment's servers in short form, such as `8p-tp1-4d-tp2`.

        Raises:
            KitError: the servers are not one kind of prefill and one of decode servers.
        """
        sizes = {role: [item for item in self.servers if item.role == role] for role in ("prefill", "decode")}
        if any(len(items) != 1 for items in sizes.values()) or len(self.servers) != 2:
            names = ", ".join(f"{item.name} ({item.role})" for item in self.servers)
            raise KitError(
                f"The guide's servers of {self.model} are {names}, not one Deployment of prefill and one of decode.",
                "--topology says which servers the stack is to have.",
            )
        prefill, decode = sizes["prefill"][0], sizes["decode"][0]
        return (
            f"{prefill.replicas}p-tp{prefill.tensor_parallel_size}-{decode.replicas}d-tp{decode.tensor_parallel_size}"
        )

    def steps(self, stack: str, free_gpus: int, wanted_gpus: int) -> Iterator[str]:
        """Yield the steps by which clients change over from the guide's servers to the stack's, in order.

        Args:
            stack: name of the stack.
            free_gpus: GPUs of the stack's nodes that the guide's servers leave free.
            wanted_gpus: GPUs of the stack's servers.
        """
        names = ", ".join(f"{item.namespace}/{item.name}" for item in self.servers)
        if wanted_gpus > free_gpus:
            yield (
                f"{wanted_gpus} GPUs are needed and {free_gpus} are free beside {names}: give the pool more nodes, or"
                " scale these down first, and the model isn't served until the update ends"
            )
        yield f"llmd-oke up --stack {stack}   # beside {names}, which stay as they are"
        if self.routes:
            yield (
                f"{', '.join(self.routes)}: a route of the stack at the same Gateway takes over, in two updates;"
                f" or give it the stack's address as backend, with a ReferenceGrant ({PAGE})"
            )
        else:
            yield f"give clients the stack's address (llmd-oke status --stack {stack})"
        releases = sorted({item.release for item in self.servers if item.release})
        for release in releases:
            yield f"helm uninstall {release} --namespace {self.namespace}   # once no request goes there"
        if not releases:
            deployments = " ".join(item.name for item in self.servers)
            yield f"kubectl delete deployment {deployments} --namespace {self.namespace}   # once no request goes there"


def read_deployments(file: Path) -> list[GuideDeployment]:
    """Return the deployments that follow llm-d's guides in a file with the output of the command `READ`, sorted by
    model.

    Raises:
        KitError: the file is no such output, or has no servers with AMD GPUs and a role.
    """
    try:
        document: Any = json.loads(file.read_bytes())
        items = cast("Sequence[Mapping[str, Any]]", document["items"])
        servers = [found for item in items if item["kind"] == "Deployment" and (found := _servers(item))]
        pools = {_named(item): item["spec"] for item in items if item["kind"] == "InferencePool"}
        routes = [item for item in items if item["kind"] == "HTTPRoute"]
        by_place: dict[tuple[str, str], list[GuideServers]] = {}
        for found in servers:
            by_place.setdefault((found.namespace, found.model), []).append(found)
        result = [
            GuideDeployment(tuple(found), tuple(_routes(namespace, routes, pools)))
            for (namespace, _), found in by_place.items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise KitError(f"{file} is no list of Kubernetes objects.", f"{READ} writes one.") from error
    if not result:
        raise KitError(f"{file} has no Deployment with {_GPU} and the label {_ROLE}.", f"{READ} writes all of them.")
    return result


def _servers(deployment: Mapping[str, Any]) -> GuideServers | None:
    """Return the servers of a Deployment; None if it runs none of a guide's."""
    template: Mapping[str, Any] = deployment["spec"]["template"]
    labels: Mapping[str, Any] = template["metadata"].get("labels") or _NOTHING
    role = labels.get(_ROLE)
    for container in template["spec"]["containers"]:
        limits: Mapping[str, Any] = container.get("resources", _NOTHING).get("limits") or _NOTHING
        if role and _GPU in limits:
            words = [str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ()))]
            gpus, metadata = int(limits[_GPU]), deployment["metadata"]
            annotations: Mapping[str, Any] = metadata.get("annotations") or _NOTHING
            return GuideServers(
                str(metadata["namespace"]),
                str(metadata["name"]),
                str(role),
                _model(words),
                int(deployment["spec"].get("replicas", 1)),
                int(_value(words, _TENSOR_PARALLEL) or gpus),
                gpus,
                str(annotations.get(_RELEASE, "")),
            )
    return None


def _model(words: Sequence[str]) -> str:
    """Return the model of a vLLM command line: the argument of `serve`, or of `--model`."""
    if named := _value(words, ("--model",), re.compile(r".+")):
        return named
    return words[words.index("serve") + 1] if "serve" in words[:-1] else ""


def _value(words: Sequence[str], names: Sequence[str], form: re.Pattern[str] = _SIZE) -> str | None:
    """Return the value of an option, given as `--name=value` or as two words."""
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            given = value if equals else words[place + 1] if place + 1 < len(words) else ""
            return given if form.fullmatch(given) else None
    return None


def _routes(namespace: str, routes: Sequence[Mapping[str, Any]], pools: Mapping[str, Any]) -> Iterator[str]:
    """Yield the routes that lead to a pool of a namespace."""
    for route in routes:
        own = str(route["metadata"]["namespace"])
        backends = [backend for rule in route["spec"].get("rules", ()) for backend in rule.get("backendRefs", ())]
        targets = {f"{backend.get('namespace', own)}/{backend['name']}" for backend in backends}
        if any(target in pools and target.startswith(f"{namespace}/") for target in targets):
            yield _named(route)


def _named(item: Mapping[str, Any]) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


def catalogue_model(repository: str) -> str:
    """Return the catalogue's name of the model in a repository of Hugging Face.

    Raises:
        KitError: the catalogue has no such model.
    """
    for name in catalogue.model_names():
        known = catalogue.model(name)
        if known is not None and known.repository == repository:
            return name
    raise KitError(
        f"The guide serves {repository or 'a model that its arguments do not name'}, which the catalogue doesn't have.",
        "`llmd-oke model add` adds it; or --model names one.",
    )
