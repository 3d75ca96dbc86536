"""Execution of a Pulumi program without engine, cluster or cloud, with the resources that it declares as result.

Each call has its own event loop, thread and mocks, so that calls don't affect each other, and a time limit, because a
program with an output that never resolves would otherwise hang (pulumi issue 7663).
"""

import asyncio
import json
import re
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import pulumi
from llmd_base.errors import KitError
from llmd_base.records import document
from pulumi.runtime import mocks, rpc
from pulumi.runtime.proto import resource_pb2
from pulumi.runtime.resource import RegisterResponse
from pulumi.runtime.settings import get_root_resource

from llmd_oke import config as stack_config
from llmd_oke.config import StackConfig
from llmd_oke.program.deployment import program

PROJECT = "llmd-oke"
LIMIT_S = 60.0

_P = ParamSpec("_P")
_T = TypeVar("_T")

_HASH = re.compile("-[0-9a-f]{8}(?=-|$)")

KUBECONFIG = json.dumps(
    {
        "clusters": [
            {
                "name": "cluster",
                "cluster": {"server": "https://10.140.0.5:6443", "certificate-authority-data": "Q0EgQ0VSVElGSUNBVEU="},
            }
        ],
        "users": [{"name": "user", "user": {"exec": {"command": "oci", "args": ["ce", "cluster", "generate-token"]}}}],
    }
)
"""Kubeconfig as OKE returns it: URL and certificate authority of the cluster, and a user with OCI's exec plug-in."""

_ANSWERS: dict[str, dict[str, Any]] = {
    "oci:ContainerEngine/getClusterKubeConfig:getClusterKubeConfig": {"content": KUBECONFIG},
    "oci:ContainerEngine/getNodePoolOption:getNodePoolOption": {
        "sources": [
            {
                "sourceName": f"Oracle-Linux-8.10-2026.07.31-0-OKE-{version}-1330",
                "imageId": f"ocid1.image.oc1..{version}",
                "sourceType": "IMAGE",
            }
            for version in (f"1.{minor}.{patch}" for minor in range(33, 37) for patch in range(10))
        ]
    },
    "oci:Core/getServices:getServices": {
        "services": [
            {
                "id": "ocid1.service.oc1.iad.all",
                "cidrBlock": "all-iad-services-in-oracle-services-network",
                "name": "All IAD Services In Oracle Services Network",
                "description": "",
            }
        ]
    },
    "oci:Identity/getAvailabilityDomains:getAvailabilityDomains": {
        "availabilityDomains": [
            {"id": f"ocid1.availabilitydomain.oc1..{number}", "name": f"Uocm:US-ASHBURN-AD-{number}"}
            for number in (1, 2, 3)
        ]
    },
    "oci:Identity/getDomains:getDomains": {
        "domains": [{"displayName": "Default", "url": "https://idcs-0.identity.oraclecloud.com:443"}]
    },
    "oci:Identity/getRegionSubscriptions:getRegionSubscriptions": {
        "regionSubscriptions": [{"isHomeRegion": True, "regionName": "us-ashburn-1"}]
    },
}


COMPUTED: dict[str, dict[str, Any]] = {
    "pulumi:pulumi:StackReference": {"outputs": {}},  # a new stack has no outputs
    "oci:Core/vcn:Vcn": {"defaultSecurityListId": "ocid1.securitylist.oc1.iad.default"},
    "oci:FileStorage/mountTarget:MountTarget": {
        "ipAddress": "10.140.0.100",
        "exportSetId": "ocid1.exportset.oc1.iad.1",
    },
    "oci:Lustre/fileStorageLustreFileSystem:FileStorageLustreFileSystem": {"managementServiceAddress": "10.140.2.2"},
}


def without_hash(name: str) -> str:
    """Return a name without its hash, such as that of a unit's versions or of a front door's config."""
    return _HASH.sub("", name)


@dataclass(frozen=True)
class Declared:
    """A declared resource with its options. References to other resources are URNs; timeouts are Pulumi's texts
    (`"600s"`); `outputs` are those that a component registers.
    """

    type: str
    name: str
    urn: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    secret_inputs: frozenset[str] = frozenset()
    parent: str = ""
    provider: str = ""
    depends_on: tuple[str, ...] = ()
    timeouts: Mapping[str, str] = field(default_factory=dict[str, str])
    replace_on_changes: tuple[str, ...] = ()
    delete_before_replace: bool = False
    retain_on_delete: bool = False
    protect: bool = False
    deleted_with: str = ""
    ignore_changes: tuple[str, ...] = ()
    additional_secret_outputs: tuple[str, ...] = ()
    plugin_version: str = ""


@dataclass(frozen=True)
class Rendered:
    """Declared resources of a program, sorted by type and name, and its exported outputs."""

    resources: tuple[Declared, ...]
    outputs: Mapping[str, Any]

    def of_type(self, token: str) -> list[Declared]:
        """Return the resources with a type token, for example `llmd-oke:index:Router`."""
        return [resource for resource in self.resources if resource.type == token]

    def resource(self, token: str, name: str) -> Declared:
        """Return the resource with a type token and a Pulumi name.

        Raises:
            LookupError: no resource of the type has that name; the message lists their names.
        """
        for resource in self.of_type(token):
            if resource.name == name:
                return resource
        raise LookupError(f"no {token} {name!r}; there are {[resource.name for resource in self.of_type(token)]}")

    def manifests(self) -> list[dict[str, Any]]:
        """Return the Kubernetes objects, as they would be sent to the API server."""
        return [dict(resource.inputs) for resource in self._objects()]

    def kubernetes(self, kind: str, name: str) -> dict[str, Any]:
        """Return the Kubernetes object of a kind and name; `name` may leave out the hash in the object's name.

        Raises:
            LookupError: no object of the kind has that name; the message lists their names.
        """
        return dict(self.kubernetes_resource(kind, name).inputs)

    def kubernetes_resource(self, kind: str, name: str) -> Declared:
        """Return the declared resource of the Kubernetes object of a kind and name, with its options; `name` may leave
        out the hash in the object's name.

        Raises:
            LookupError: no object of the kind has that name; the message lists their names.
        """
        of_kind = [resource for resource in self._objects() if resource.inputs["kind"] == kind]
        for resource in of_kind:
            own = resource.inputs["metadata"]["name"]
            if name in {own, without_hash(own)}:
                return resource
        raise LookupError(f"no {kind} {name!r}; there are {[r.inputs['metadata']['name'] for r in of_kind]}")

    def _objects(self) -> Iterator[Declared]:
        for resource in self.resources:
            if not resource.type.startswith("kubernetes:") or "kind" not in resource.inputs:  # a Helm release has none
                continue
            metadata = resource.inputs["metadata"]
            if "name" in metadata:
                yield resource
            else:  # the provider names it after the resource
                metadata = {"name": resource.name, **metadata}
                yield replace(resource, inputs={**resource.inputs, "metadata": metadata})


class ClusterMocks(mocks.Mocks):
    """Pulumi mocks that accept every resource: IDs are `namespace/name`, outputs equal inputs."""

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        """Return ID and outputs of a declared resource."""
        metadata: dict[str, str] = cast("dict[str, Any]", args.inputs).get("metadata") or {}
        parts = [metadata[key] for key in ("namespace", "name") if metadata.get(key)]
        return "/".join(parts) or args.name, _outputs(args.typ, dict(cast("dict[str, Any]", args.inputs)))

    def call(self, args: mocks.MockCallArgs) -> tuple[dict[str, Any], list[tuple[str, str]] | None]:
        """Return the recorded result of a provider function.

        Raises:
            KitError: there is none for this function.
        """
        if args.token not in _ANSWERS:
            raise KitError(f"The program calls {args.token}, which these mocks have no answer to.")
        return _ANSWERS[args.token], []


def render(
    config: StackConfig | Mapping[str, Any] | str,
    *,
    secrets: Mapping[str, str] | None = None,
    project: Path | None = None,
    limit_s: float = LIMIT_S,
) -> Rendered:
    """Run the kit's program for one stack; return the declared resources and the outputs.

    Args:
        config: the stack's config, the object under `llmd-oke:stack`, or the name of a stack.
        secrets: values of the stack's secret keys, for example `{"huggingFaceToken": "..."}`.
        project: directory that contains `stacks/`, and `values/` for a project's own entries; the working directory if
            left out.
        limit_s: limit of the program's run in seconds.

    Raises:
        InvalidStack: the stack file isn't valid.
        KitError: the stack doesn't exist, or the program doesn't end within `limit_s`.
    """
    if isinstance(config, str):
        config = stack_config.load(project or Path.cwd(), config)
    if isinstance(config, StackConfig):
        config = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
    plain = {f"{PROJECT}:stack": json.dumps(config), f"{PROJECT}:rehearsed": "true"}
    hidden = {f"{PROJECT}:{key}": secret for key, secret in (secrets or {}).items()}
    return declared(lambda: program(project), config={**plain, **hidden}, secret_keys=tuple(hidden), limit_s=limit_s)


def declared(
    run: Callable[[], object],
    *,
    config: Mapping[str, str] | None = None,
    secret_keys: tuple[str, ...] = (),
    cluster: mocks.Mocks | None = None,
    stack: str = "test",
    limit_s: float = LIMIT_S,
) -> Rendered:
    """Run a Pulumi program with mocks; return the declared resources and the outputs.

    Args:
        run: the program.
        config: Pulumi config by full key (`project:key`).
        secret_keys: the secret ones of these keys.
        cluster: mocks of resources and provider functions; `ClusterMocks` if left out.
        stack: the stack's name, without organization and project.
        limit_s: limit of the program's run in seconds.

    Raises:
        KitError: the program doesn't end within `limit_s`.
    """
    recorder = _Recorder(cluster or ClusterMocks(), stack)
    failures: list[BaseException] = []

    def attempt() -> None:
        try:
            recorder.run(run, dict(config or {}), list(secret_keys))
        except BaseException as error:  # raised again in the caller's thread
            failures.append(error)

    thread = threading.Thread(target=attempt, name="declared", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        raise KitError(f"The program does not end within {limit_s:g} s; does an output wait for itself?")
    if failures:
        raise failures[0]
    return recorder.rendered()


def _outputs(type_: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return a resource's outputs: its inputs, with values that OCI computes, a Helm release's status, a Stash's
    output.
    """
    if type_ == "kubernetes:helm.sh/v3:Release":
        return {**inputs, "status": {"name": inputs.get("name"), "namespace": inputs.get("namespace")}}
    if type_ == "pulumi:index:Stash":
        return {**inputs, "output": inputs.get("input")}
    return {**inputs, **COMPUTED.get(type_, {})}


class _Recorder(mocks.MockMonitor):
    """Pulumi's mock of the engine that also records resource options and component outputs."""

    def __init__(self, cluster: mocks.Mocks, stack: str) -> None:
        super().__init__(cluster)
        self._stack = stack
        self._declared: list[Declared] = []
        self._component_outputs: dict[str, Mapping[str, Any]] = {}
        self._outputs: dict[str, Any] = {}

    def run(self, program: Callable[[], object], config: dict[str, str], secret_keys: list[str]) -> None:
        with _event_loop():
            pulumi.runtime.set_all_config(config, secret_keys)
            mocks.set_mocks(self.mocks, PROJECT, self._stack, False, monitor=self, organization="organization")
            mocks.test(lambda: self._exports(program))()

    def rendered(self) -> Rendered:
        resources = (replace(item, outputs=self._component_outputs.get(item.urn, {})) for item in self._declared)
        return Rendered(tuple(sorted(resources, key=lambda r: (r.type, r.name))), self._outputs)

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802 - the protocol's name
        """Return ID and outputs of a resource. Outputs are returned as they are: Pulumi's own mock serializes them, and
        Pulumi's runtime reads them again, which is a third of what a rendering costs.
        """
        if request.type == "pulumi:pulumi:Stack":
            return super().RegisterResource(request)
        urn = self.make_urn(request.parent, request.type, request.name)
        inputs = rpc.deserialize_properties(request.object)
        self._declared.append(_declaration(request, urn, inputs))
        asked = mocks.MockResourceArgs(
            typ=request.type,
            name=request.name,
            inputs=inputs,
            provider=request.provider,
            resource_id=request.importId,
            custom=request.custom,
        )
        id_, outputs = cast("tuple[str | None, dict[str, Any]]", self.mocks.new_resource(asked))
        self.resources[urn] = self.ResourceRegistration(urn, id_ or "", outputs)
        plain: Any = outputs
        return RegisterResponse(urn, id_ or "", plain, None, resource_pb2.Result.SUCCESS)

    def RegisterResourceOutputs(self, request: Any) -> Any:  # noqa: N802 - the protocol's name
        self._component_outputs[request.urn] = _readable(rpc.deserialize_properties(request.outputs))
        return super().RegisterResourceOutputs(request)

    def _exports(self, program: Callable[[], object]) -> pulumi.Output[None]:
        program()
        root: Any = get_root_resource()
        return pulumi.Output.from_input(dict(root.outputs)).apply(self._outputs.update)


def _declaration(request: Any, urn: str, inputs: Mapping[str, Any]) -> Declared:
    timeouts = document("create update delete", request.customTimeouts)
    return Declared(
        type=request.type,
        name=request.name,
        urn=urn,
        inputs=_readable(inputs),
        secret_inputs=frozenset(_secret_paths(inputs)),
        parent=request.parent,
        provider=request.provider,
        depends_on=tuple(sorted(request.dependencies)),
        timeouts={step: limit for step, limit in timeouts.items() if limit},
        replace_on_changes=tuple(request.replaceOnChanges),
        delete_before_replace=request.deleteBeforeReplace,
        retain_on_delete=request.retainOnDelete,
        protect=request.protect,
        deleted_with=request.deletedWith,
        ignore_changes=tuple(request.ignoreChanges),
        additional_secret_outputs=tuple(request.additionalSecretOutputs),
        plugin_version=request.version,
    )


def _readable(value: Any) -> Any:
    """Return a deserialized property value with secrets unwrapped, whole numbers as int, and sorted keys."""
    if rpc.is_rpc_secret(value):
        return _readable(rpc.unwrap_rpc_secret(value))
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _readable(part) for key, part in sorted(cast("dict[str, Any]", value).items())}
    if isinstance(value, list):
        return [_readable(part) for part in cast("list[Any]", value)]
    return value


def _secret_paths(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of secret values, such as `stringData.token`."""
    if rpc.is_rpc_secret(value):
        yield path
    elif isinstance(value, dict):
        for key, part in cast("dict[str, Any]", value).items():
            yield from _secret_paths(part, f"{path}.{key}".removeprefix("."))
    elif isinstance(value, list):
        for i, part in enumerate(cast("list[Any]", value)):
            yield from _secret_paths(part, f"{path}[{i}]")


class _NoWorkers(ThreadPoolExecutor):
    """Executor that runs everything at once, in the thread that asks: Pulumi hands each request to the engine to a
    worker, and these mocks answer without waiting for anything.
    """

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Return the future of a call that has ended."""
        ended: Future[_T] = Future()
        try:
            ended.set_result(fn(*args, **kwargs))
        except BaseException as error:  # the future's to raise
            ended.set_exception(error)
        return ended


@contextmanager
def _event_loop() -> Generator[None]:
    """Create an event loop for this thread; close it after the block."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.set_default_executor(_NoWorkers())
    try:
        yield
    finally:
        loop.close()
