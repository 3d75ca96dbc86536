"""Rendering of a stack's Kubernetes part: objects in the order of their dependencies, charts, and Secrets to create."""

import hashlib
import json
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import pulumi
from llmd_base.documents import leaves
from llmd_base.errors import InvalidStack, KitError, Problem
from pulumi.runtime import mocks

from llmd_oke.config import locate, setting_names
from llmd_oke.operations.guards import SERVERS
from llmd_oke.planning import Plan, plan_stack_file
from llmd_oke.planning.model_plan import UpdateWay
from llmd_oke.program.declare import COMPUTED, KUBECONFIG, ClusterMocks, Declared, declared
from llmd_oke.program.deployment import deploy
from llmd_oke.serving import labels

UNKNOWN = "llmd-oke-unknown:"
"""Prefix of placeholders for values that only OCI or another stack knows; the value's name follows."""

_SECRET = "llmd-oke-secret:"  # noqa: S105 - prefix of placeholders, followed by the setting's name
_SECRETS = ("huggingFaceToken", "modelSourceUrl")
"""Secret settings of the stack file (keys `llmd-oke:…`) whose values go into Secrets."""

_IMAGE_LINK = "https://placeholder.invalid/image"
_KUBERNETES = "kubernetes:"
_RELEASE = "kubernetes:helm.sh/v3:Release"
_STACK_REFERENCE = "pulumi:pulumi:StackReference"

_LEFT_OUT = {
    "llmd-oke:index:NodeGate": "it waits for nodes, which only an update of the stack makes",
    "llmd-oke:index:Acceptance": "it tests new nodes, which only an update of the stack makes",
}
"""Components whose objects aren't rendered, with the reason."""


@dataclass(frozen=True)
class RenderedObject:
    """A Kubernetes object. All objects of lower waves must be ready before objects of `wave` are applied; `outlives` is
    true for an object that stays when the stack is deleted.
    """

    wave: int
    manifest: Mapping[str, Any]
    outlives: bool = False

    @property
    def kind(self) -> str:
        """Kind of the rendered object, without API group."""
        return self.manifest["kind"]

    @property
    def namespace(self) -> str | None:
        """Namespace of the object; None for a cluster-scoped object."""
        return self.manifest["metadata"].get("namespace")

    @property
    def name(self) -> str:
        """Name of the rendered object."""
        return self.manifest["metadata"]["name"]


@dataclass(frozen=True)
class ChartRelease:
    """A chart that Helm installs before the objects of the next wave. `chart` is an OCI reference (`oci://…`) or a
    chart's name in `repository`.
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
    """A Secret that isn't rendered and must be created. Its key `key` must have the value of the stack's setting
    `setting`.
    """

    namespace: str
    name: str
    key: str
    setting: str

    def command(self, stack: str) -> str:
        """Return the shell command that creates or updates the Secret, without the value in arguments or files."""
        namespace, name, config = shlex.quote(self.namespace), shlex.quote(self.name), shlex.quote(stack)
        return (
            f'printf %s "$(pulumi config get --stack {config} llmd-oke:{self.setting})"'
            f" | kubectl create secret generic {name} --namespace {namespace} --from-file={self.key}=/dev/stdin"
            " --dry-run=client --output yaml | kubectl apply --server-side -f -"
        )


@dataclass(frozen=True)
class LeftOut:
    """Object that Pulumi would create and that isn't rendered, with the reason."""

    name: str
    reason: str


@dataclass(frozen=True)
class ModelUpdates:
    """Update of a model's servers to another version: new servers `beside` the old ones, units `one by one`, all units
    at once with an `outage`, or `rolling` pod by pod. `note` describes the cost of that; `units` are the names of the
    model's units.
    """

    model: str
    way: UpdateWay
    note: str
    units: tuple[str, ...]

    @property
    def in_place(self) -> bool:
        """True if units keep their names when servers of another version replace the old ones."""
        return self.way in {"outage", "one by one"}


@dataclass(frozen=True)
class Rendering:
    """The Kubernetes objects and charts of a stack, sorted by wave, with Secrets to create and objects left out."""

    stack: str
    objects: tuple[RenderedObject, ...]
    charts: tuple[ChartRelease, ...]
    secrets: tuple[RequiredSecret, ...]
    left_out: tuple[LeftOut, ...]
    updates: tuple[ModelUpdates, ...] = ()

    @property
    def waves(self) -> int:
        """Number of waves (steps of a deployment, one after the other) that have objects or charts."""
        return len({part.wave for part in (*self.objects, *self.charts)})


def render(project: Path, stack: str, outputs: Mapping[str, Any] | None = None) -> Rendering:
    """Render the Kubernetes part of a stack.

    Args:
        project: directory that contains `stacks/`.
        stack: name of the stack.
        outputs: outputs of the stack that created the cluster, if `clusterStack` names one.

    Raises:
        InvalidStack: the stack file isn't valid, or objects have values that are known only once OCI has created a
            resource. The exception has all problems, with lines of the stack file.
        KitError: the stack doesn't exist, or `outputs` is given and the stack file has no `clusterStack`.
    """
    plan = plan_stack_file(project, stack, nodes_pull=True)
    if outputs is not None and plan.cluster_stack is None:
        raise KitError(f"{stack} takes nothing from another stack, so that outputs mean nothing.", "Leave them out.")
    if problems := list(_front_door_problems(plan)):
        raise InvalidStack(locate(problems, project, stack))
    resources = declarations(project, stack, plan, outputs or {})
    updates = tuple(
        ModelUpdates(model.name, model.update_way, model.update_note, tuple(unit.name for unit in model.units))
        for model in plan.models
    )
    rendering = rendering_of(stack, resources, updates)
    if problems := list(_unknown_values(rendering, plan)):
        raise InvalidStack(locate(problems, project, stack))
    return rendering


def _front_door_problems(plan: Plan) -> Iterator[Problem]:
    """Yield a problem for each part of the front door that can't be rendered: Secrets whose content is computed from
    the stack's settings.
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
    """Read a stack's outputs from a file, as `pulumi stack output --json` prints them.

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


def declarations(
    project: Path, stack: str, plan: Plan, outputs: Mapping[str, Any], *, rehearsed: bool = False
) -> tuple[Declared, ...]:
    """Run the program with mocks; return the declared resources, with placeholders for secrets and for values that only
    OCI knows. With `rehearsed` the program runs as in a rehearsal, and downloads no manifest of Calico.

    Raises:
        KitError: the program refuses the plan.
    """
    given = setting_names(project, stack)
    hidden = {f"llmd-oke:{name}": f"{_SECRET}{name}" for name in _SECRETS if f"llmd-oke:{name}" in given}
    pools = (*plan.pools, *plan.created.cpu_pools) if plan.created else ()
    links = {pool.name: _IMAGE_LINK for pool in pools}
    values = {"llmd-oke:imageLinks": json.dumps(links), **hidden}
    values |= {"llmd-oke:rehearsed": "true"} if rehearsed else {}
    cloud = _Unmade([model.name for model in plan.models], outputs)
    try:
        name = stack.rsplit("/", 1)[-1]
        return declared(
            lambda: deploy(plan, pulumi.Config("llmd-oke")),
            config=values,
            secret_keys=tuple(hidden),
            cluster=cloud,
            stack=name,
        ).resources
    except pulumi.RunError as error:
        raise KitError(str(error)) from error


class _Unmade(ClusterMocks):
    """Pulumi mocks that answer with placeholders for the values that OCI computes.

    Stack references return the given outputs. The outputs also contain `endpoints` of all models, so that the program
    treats the stack as one that serves already, and declares units that are updated one by one in that order.
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
        """Return ID and outputs of a declared resource."""
        if args.typ == _STACK_REFERENCE:
            return args.resource_id, {"outputs": self._outputs}
        identifier, outputs = super().new_resource(args)
        if not args.typ.startswith("oci:"):
            return identifier, outputs
        made_up = {key: f"{UNKNOWN}{args.name}.{key}" for key in COMPUTED.get(args.typ, {})}
        return f"{UNKNOWN}{args.name}", {**outputs, **made_up}


def rendering_of(stack: str, resources: Sequence[Declared], updates: Sequence[ModelUpdates] = ()) -> Rendering:
    """Return the rendering of a program's resources; the waves take account of the models' `updates`.

    Raises:
        KitError: an object other than a Secret contains a secret value.
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
    """Return, by URN, the additional dependencies of the units' InferencePools and prefill servers: each must wait for
    the URN of the unit's decode servers, or of the Job that waits for both roles of a DisaggregatedSet.

    Pulumi deletes the servers of a unit before it creates those of another version. Applied as YAML, servers roll, and
    an InferencePool selects servers of one version: if the pool changed first, no server would answer until a new
    decode server is ready. So the pool changes after the new decode servers are ready; until the rollout removes the
    last old decode server, the old decode and prefill servers answer. Prefill servers roll in the pool's wave, in which
    decode servers answer without remote prefill.
    """
    deployments = {
        (found[labels.UNIT], found[labels.ROLE]): resource.urn
        for resource in resources
        if resource.type in SERVERS
        and {labels.UNIT, labels.ROLE} <= (found := resource.inputs["metadata"].get("labels", {})).keys()
    }
    decode = {unit: urn for (unit, role), urn in deployments.items() if role == "decode" and unit in units}
    jobs = (resource for resource in resources if resource.inputs.get("kind") == "Job")
    waits = {resource.inputs["metadata"].get("labels", {}).get(labels.UNIT): resource.urn for resource in jobs}
    decode |= {unit: urn for unit, urn in waits.items() if unit in units}
    waiting = {urn: decode[unit] for (unit, role), urn in deployments.items() if role == "prefill" and unit in decode}
    pools = [resource for resource in resources if resource.inputs.get("kind") == "InferencePool"]
    return {**waiting, **{pool.urn: decode[name] for pool in pools if (name := _name(pool)) in decode}}


def _name(resource: Declared) -> str:
    return resource.inputs["metadata"].get("name") or resource.name


def _waves(resources: Sequence[Declared], waits_for: Mapping[str, str]) -> dict[str, int]:
    """Return the wave of each Kubernetes resource, by URN: the length of its longest chain of dependencies on other
    Kubernetes resources.

    A child also depends on its parent's dependencies, as in Pulumi's engine. `waits_for` maps some URNs to one more
    dependency.
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
    """Return the object without Pulumi's annotations and without fields of `ignore_changes`. The name of a Job gets a
    digest of the spec as suffix, because a Job's spec is immutable: another spec needs another Job.

    Raises:
        KitError: `ignore_changes` has a field other than a top-level field of the spec.
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
    """Yield a problem for each value of an object that is known only once OCI has created a resource."""
    for item in rendering.objects:
        unknown = [place for place, value in leaves(item.manifest) if isinstance(value, str) and UNKNOWN in value]
        for place in unknown:
            why = f"{item.kind} {item.name} needs it ({place}), and it is known only once it is made"
            if plan.cluster_stack is not None:
                command = f"pulumi stack output --json --stack {plan.cluster_stack} > FILE"
                accepted = f"the outputs of the stack that made it: {command}, then render with --outputs FILE"
                yield Problem("clusterStack", plan.cluster_stack, accepted, why)
            else:
                accepted = "one that is there (storage.modelCache.existing), or layer: serving with clusterStack"
                yield Problem("storage.modelCache", None, accepted, why)
