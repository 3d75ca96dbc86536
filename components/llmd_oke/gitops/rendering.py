"""The Kubernetes part of a stack: objects in the order of the program's dependencies, charts, and Secrets to create."""

import hashlib
import json
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import pulumi
from llmd_base.errors import InvalidStack, KitError, Problem
from pulumi.runtime import mocks

from llmd_oke.config import CONFIG_KEY, locate, setting_names, stack_file
from llmd_oke.operations.guards import SERVERS
from llmd_oke.planning import Plan, plan_stack_file
from llmd_oke.planning.model_plan import UpdateWay
from llmd_oke.program import program
from llmd_oke.program.declare import COMPUTED, KUBECONFIG, ClusterMocks, Declared, declared
from llmd_oke.serving import labels

UNKNOWN = "llmd-oke-unknown:"
"""Stands, with a name behind it, where a value is known only to a cloud or to another stack."""

_SECRET = "llmd-oke-secret:"  # noqa: S105 - stands for one, with the name of its setting behind it
_SECRETS = ("huggingFaceToken", "modelSourceUrl")
"""Settings beside the stack's object whose values go into Secrets."""

_IMAGE_LINK = "https://placeholder.invalid/image"
_KUBERNETES = "kubernetes:"
_RELEASE = "kubernetes:helm.sh/v3:Release"
_STACK_REFERENCE = "pulumi:pulumi:StackReference"

_LEFT_OUT = {
    "llmd-oke:index:NodeGate": "it waits for nodes, which only an update of the stack makes",
    "llmd-oke:index:Acceptance": "it tests new nodes, which only an update of the stack makes",
}
"""Components whose objects belong to an update by the engine, and why."""


@dataclass(frozen=True)
class RenderedObject:
    """A Kubernetes object. Whatever has a lower `wave` must be there, and ready, before it; `outlives` says that it
    stays when all others are deleted.
    """

    wave: int
    manifest: Mapping[str, Any]
    outlives: bool = False

    @property
    def kind(self) -> str:
        """Kind of the object, without group."""
        return self.manifest["kind"]

    @property
    def namespace(self) -> str | None:
        """Namespace of the object; None where it belongs to none."""
        return self.manifest["metadata"].get("namespace")

    @property
    def name(self) -> str:
        """Name of the object."""
        return self.manifest["metadata"]["name"]


@dataclass(frozen=True)
class ChartRelease:
    """A chart that Helm installs before the objects of the next wave. `chart` is a reference (`oci://…`) or a name in
    `repository`.
    """

    wave: int
    name: str
    namespace: str
    chart: str
    version: str
    repository: str | None
    values: Mapping[str, Any]
    timeout_s: int


@dataclass(frozen=True)
class RequiredSecret:
    """A Secret that is not rendered. `key` of it has the value of the stack's setting of that name."""

    namespace: str
    name: str
    key: str
    setting: str

    def command(self, stack: str) -> str:
        """Return the command that creates the Secret, or sets it anew, without the value in arguments or files."""
        namespace, name, config = shlex.quote(self.namespace), shlex.quote(self.name), shlex.quote(stack)
        return (
            f'printf %s "$(pulumi config get --stack {config} llmd-oke:{self.setting})"'
            f" | kubectl create secret generic {name} --namespace {namespace} --from-file={self.key}=/dev/stdin"
            " --dry-run=client --output yaml | kubectl apply --server-side -f -"
        )


@dataclass(frozen=True)
class LeftOut:
    """An object of a deployment by the engine that is not rendered, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class ModelUpdates:
    """Way in which another version of a model's servers comes: `beside` what serves, `one by one`, as an `outage`, or
    `rolling` pod by pod; `note` says what that costs. `units` are those of the model.
    """

    model: str
    way: UpdateWay
    note: str
    units: tuple[str, ...]

    @property
    def in_place(self) -> bool:
        """True if units keep their names while servers of another version take the place of the old ones."""
        return self.way in {"outage", "one by one"}


@dataclass(frozen=True)
class Rendering:
    """All that a stack deploys into its cluster; objects and charts by wave."""

    stack: str
    objects: tuple[RenderedObject, ...]
    charts: tuple[ChartRelease, ...]
    secrets: tuple[RequiredSecret, ...]
    left_out: tuple[LeftOut, ...]
    updates: tuple[ModelUpdates, ...] = ()

    @property
    def waves(self) -> int:
        """Number of steps."""
        return len({part.wave for part in (*self.objects, *self.charts)})


def render(project: Path, stack: str, outputs: Mapping[str, Any] | None = None) -> Rendering:
    """The Kubernetes part of a stack.

    Args:
        project: folder with `stacks/`.
        stack: its name.
        outputs: those of the stack that made the cluster, where `clusterStack` names one.

    Raises:
        InvalidStack: the stack can't be deployed, or its objects have values that are not known before a cloud has made
            something; carries every problem, with lines.
        KitError: there is no such stack, or outputs are given of no other stack.
    """
    plan = plan_stack_file(project, stack, nodes_pull=True)
    if outputs is not None and plan.cluster_stack is None:
        raise KitError(f"{stack} takes nothing from another stack, so that outputs mean nothing.", "Leave them out.")
    if problems := list(_front_door_problems(plan)):
        raise InvalidStack(locate(problems, stack_file(project, stack)))
    resources = _declarations(project, stack, plan, outputs or {})
    updates = tuple(
        ModelUpdates(model.name, model.update_way, model.update_note, tuple(unit.name for unit in model.units))
        for model in plan.models
    )
    rendering = rendering_of(stack, resources, updates)
    if problems := list(_unknown_values(rendering, plan)):
        raise InvalidStack(locate(problems, stack_file(project, stack)))
    return rendering


def _front_door_problems(plan: Plan) -> Iterator[Problem]:
    """Find the parts of a front door that the engine alone makes: Secrets whose texts are worked out from several
    settings.
    """
    door = plan.front_door
    if door is None:
        return
    if door.authentication is not None:
        why = "the engine makes the Secret of the front door from the stack's config, and no secret is rendered"
        yield Problem("frontDoor.authentication", door.authentication.kind, "nothing, or llmd-oke up", why)
    if door.tls is not None and door.tls.kind == "config":
        why = "the certificate's key is a secret, and no secret is rendered"
        yield Problem("frontDoor.tls.kind", "config", "issuer or secret, or llmd-oke up", why)


def read_outputs(path: Path) -> Mapping[str, Any]:
    """Outputs of a stack, as `pulumi stack output --json` prints them.

    Raises:
        KitError: the file has no JSON object.
    """
    try:
        value: Any = json.loads(path.read_bytes())
    except (UnicodeDecodeError, json.JSONDecodeError):
        value = None
    if not isinstance(value, dict):
        raise KitError(f"{path} is no JSON object.", "Write it with: pulumi stack output --json --stack STACK")
    return cast("Mapping[str, Any]", value)


def _declarations(project: Path, stack: str, plan: Plan, outputs: Mapping[str, Any]) -> tuple[Declared, ...]:
    """Return what the program declares, with marks in place of secrets and of what only a cloud knows."""
    config = plan.config.model_dump(mode="json", by_alias=True, exclude_unset=True)
    given = setting_names(project, stack)
    hidden = {f"llmd-oke:{name}": f"{_SECRET}{name}" for name in _SECRETS if f"llmd-oke:{name}" in given}
    pools = (*plan.pools, *plan.created.cpu_pools) if plan.created else ()
    links = {pool.name: _IMAGE_LINK for pool in pools}
    values = {CONFIG_KEY: json.dumps(config), "llmd-oke:imageLinks": json.dumps(links), **hidden}
    cloud = _Unmade([model.name for model in plan.models], outputs)
    try:
        name = stack.rsplit("/", 1)[-1]
        return declared(
            lambda: program(project), config=values, secret_keys=tuple(hidden), cluster=cloud, stack=name
        ).resources
    except pulumi.RunError as error:
        raise KitError(str(error)) from error


class _Unmade(ClusterMocks):
    """A cloud in which nothing is made: what it would say of a resource is a mark. Other stacks have the outputs that
    are given, and this one serves its models already, so that units which change one by one stand one by one.
    """

    def __init__(self, models: Sequence[str], outputs: Mapping[str, Any]) -> None:
        super().__init__()
        known = {name: value for name, value in outputs.items() if value is not None and name != "kubeconfig"}
        self._outputs = {
            "cluster_id": f"{UNKNOWN}cluster_id",
            "model_cache_handle": f"{UNKNOWN}model_cache_handle",
            **known,
            "kubeconfig": KUBECONFIG,
            "endpoints": dict.fromkeys(models, ""),
        }

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        """The answer to a resource that is declared."""
        if args.typ == _STACK_REFERENCE:
            return args.resource_id, {"outputs": self._outputs}
        identifier, outputs = super().new_resource(args)
        if not args.typ.startswith("oci:"):
            return identifier, outputs
        made_up = {key: f"{UNKNOWN}{args.name}.{key}" for key in COMPUTED.get(args.typ, {})}
        return f"{UNKNOWN}{args.name}", {**outputs, **made_up}


def rendering_of(stack: str, resources: Sequence[Declared], updates: Sequence[ModelUpdates] = ()) -> Rendering:
    """Return what goes into a cluster of a program's resources, in an order that suits `updates` of its models.

    Raises:
        KitError: a secret stands elsewhere than in a Secret.
    """
    units_in_place = {unit for model in updates if model.in_place for unit in model.units}
    waves = _waves(resources, _after_decode_servers(resources, units_in_place))
    by_urn = {resource.urn: resource for resource in resources}
    objects: list[RenderedObject] = []
    charts: list[ChartRelease] = []
    secrets: list[RequiredSecret] = []
    left_out: list[LeftOut] = []
    for resource in resources:
        if not resource.type.startswith(_KUBERNETES):
            continue
        parent = by_urn.get(resource.parent)
        if parent and (reason := _LEFT_OUT.get(parent.type)):
            left_out.append(LeftOut(f"{resource.inputs['kind']} {resource.name}", reason))
        elif resource.type == _RELEASE:
            charts.append(_chart(resource, waves[resource.urn]))
        elif resource.inputs["kind"] == "Secret":
            namespace, name = resource.inputs["metadata"]["namespace"], resource.inputs["metadata"]["name"]
            settings = {key: str(value).removeprefix(_SECRET) for key, value in resource.inputs["stringData"].items()}
            secrets += [RequiredSecret(namespace, name, key, setting) for key, setting in settings.items()]
        elif resource.secret_inputs:
            raise KitError(f"{resource.inputs['kind']} {resource.name} would show a secret.")
        else:
            manifest = _manifest(resource)
            objects.append(RenderedObject(waves[resource.urn], manifest, resource.retain_on_delete))
    objects.sort(key=lambda item: (item.wave, item.kind, item.namespace or "", item.name))
    charts.sort(key=lambda item: (item.wave, item.name))
    return Rendering(stack, tuple(objects), tuple(charts), tuple(secrets), tuple(left_out), tuple(updates))


def _after_decode_servers(resources: Sequence[Declared], units: Collection[str]) -> Mapping[str, str]:
    """The InferencePools and prefill servers of these units, each with the decode servers that it waits for.

    The engine deletes the servers of a unit before it creates those of another version. YAML has them roll, and a pool
    selects one version: were it to change first, nothing would answer until a decode server has started. So the pool
    changes once the new decode servers are ready; until the last of the old ones goes those answer, with all old
    prefill servers. Prefill servers follow with the pool, as decode servers answer alone meanwhile.
    """
    deployments = {
        (found[labels.UNIT], found[labels.ROLE]): resource.urn
        for resource in resources
        if resource.type in SERVERS and {labels.UNIT, labels.ROLE} <= (found := _labels(resource)).keys()
    }
    decode = {unit: urn for (unit, role), urn in deployments.items() if role == "decode" and unit in units}
    waiting = {urn: decode[unit] for (unit, role), urn in deployments.items() if role == "prefill" and unit in decode}
    pools = [resource for resource in resources if resource.inputs.get("kind") == "InferencePool"]
    return {**waiting, **{pool.urn: decode[name] for pool in pools if (name := _name(pool)) in decode}}


def _labels(resource: Declared) -> Mapping[str, str]:
    return resource.inputs["metadata"].get("labels", {})


def _name(resource: Declared) -> str:
    return resource.inputs["metadata"].get("name") or resource.name


def _waves(resources: Sequence[Declared], waits_for: Mapping[str, str]) -> dict[str, int]:
    """Count how many objects each resource waits for, one behind the other. A child waits for what its parent waits
    for, as it does in the engine. `waits_for` has one more object for some.
    """
    by_urn = {resource.urn: resource for resource in resources}

    @cache
    def wave(urn: str) -> int:
        resource = by_urn[urn]
        provider = resource.provider.rpartition("::")[0]
        declared = (*resource.depends_on, resource.parent, provider, waits_for.get(urn, ""))
        needed = {name for name in declared if name in by_urn}
        return max((wave(name) + by_urn[name].type.startswith(_KUBERNETES) for name in needed), default=0)

    rendered = [resource.urn for resource in resources if resource.type.startswith(_KUBERNETES)]
    return {urn: wave(urn) for urn in rendered}


def _manifest(resource: Declared) -> dict[str, Any]:
    """The object without what is only Pulumi's: its annotations, and fields that it leaves to others after the object
    was made. A Job's name ends in a digest of its spec, which can't be changed: another one is another Job.
    """
    metadata: dict[str, Any] = dict(resource.inputs["metadata"])
    own = {key: value for key, value in metadata.pop("annotations", {}).items() if not key.startswith("pulumi.com/")}
    spec: Any = resource.inputs.get("spec")
    for path in resource.ignore_changes:
        section, _, name = path.partition(".")
        if section != "spec" or not name or "." in name:
            raise KitError(f"{resource.name} leaves {path} to others, which plain YAML can't say.")
        spec = {key: value for key, value in spec.items() if key != name}
    name = _name(resource)
    if resource.inputs["kind"] == "Job":
        name = f"{name}-{hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:8]}"
    metadata = {**metadata, "name": name, **({"annotations": own} if own else {})}
    return {**resource.inputs, "metadata": metadata, **({} if spec is None else {"spec": spec})}


def _chart(resource: Declared, wave: int) -> ChartRelease:
    release = resource.inputs
    return ChartRelease(
        wave=wave,
        name=release["name"],
        namespace=release["namespace"],
        chart=release["chart"],
        version=release["version"],
        repository=release.get("repositoryOpts", {}).get("repo"),
        values=release["values"],
        timeout_s=release["timeout"],
    )


def _unknown_values(rendering: Rendering, plan: Plan) -> Iterator[Problem]:
    """Find values of objects that are known only after something was made."""
    for item in rendering.objects:
        for place in _places(item.manifest):
            why = f"{item.kind} {item.name} needs it ({place}), and it is known only once it is made"
            if plan.cluster_stack is not None:
                command = f"pulumi stack output --json --stack {plan.cluster_stack} > FILE"
                accepted = f"the outputs of the stack that made it: {command}, then render with --outputs FILE"
                yield Problem("clusterStack", plan.cluster_stack, accepted, why)
            else:
                accepted = "one that is there (storage.modelCache.existing), or layer: serving with clusterStack"
                yield Problem("storage.modelCache", None, accepted, why)


def _places(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths in an object at which marks of unknown values stand: `spec.csi.volumeHandle`."""
    if isinstance(value, str) and UNKNOWN in value:
        yield path
    elif isinstance(value, Mapping):
        for key, part in cast("Mapping[str, Any]", value).items():
            yield from _places(part, f"{path}.{key}".removeprefix("."))
    elif isinstance(value, list):
        for index, part in enumerate(cast("Iterable[Any]", value)):
            yield from _places(part, f"{path}[{index}]")
