"""Helpers that all components share: Kubernetes objects as resources, lookup of catalogue entries, and inputs and
dependencies of components.

Each object is a resource of its own, so that previews, drift and diffs are for each object.
"""

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, TypeVar, cast, get_args, get_origin, is_typeddict

import pulumi
from llmd_base.errors import KitError
from pulumi.runtime import mocks
from pulumi.runtime.settings import get_monitor
from pydantic import BaseModel

from llmd_oke import catalogue
from llmd_oke.catalogue.registry_mirror import MirrorRegistry
from llmd_oke.catalogue.releases import with_override
from llmd_oke.config.deprecated_keys import DeprecatedArgument, deprecated_arguments
from llmd_oke.kubernetes_types import PodSecurityContext, SecurityContext
from llmd_oke.sdk_modules import plugin_version

Manifest = Mapping[str, Any]
"""Kubernetes object as a mapping like its YAML; values may be Pulumi outputs."""

PART_OF = {"app.kubernetes.io/part-of": "llmd-oke", "app.kubernetes.io/managed-by": "pulumi"}
"""Labels of all objects that the kit declares in a cluster."""

RESTRICTED_CONTAINER: SecurityContext = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
"""Security context of a container by Kubernetes' `restricted` pod security standard, with a read-only root file system.
"""

NON_ROOT_USER_ID = 65532
"""User ID of `nonroot` in distroless images, such as Envoy's; pods whose image names no user run as it too."""

_SECRET_FIELDS = {"Secret": ["data", "stringData"]}
"""Fields that are secret in the state whoever filled them, by kind."""

Value = TypeVar("Value")

if TYPE_CHECKING:  # a name of the catalogue, or a record of another project's own
    ModelRef = str | catalogue.CatalogueModel
    ReleaseRef = str | catalogue.Release
    ShapeRef = str | catalogue.Shape
else:  # the analyzer of component packages knows no unions, and other languages have no records
    ModelRef = ReleaseRef = ShapeRef = str


def pod_security(user_id: int) -> PodSecurityContext:
    """Return the security context of a pod by Kubernetes' `restricted` pod security standard."""
    return {"runAsNonRoot": True, "runAsUser": user_id, "seccompProfile": {"type": "RuntimeDefault"}}


class OverrideArgs(TypedDict):
    """Replacements for parts of a release."""

    router: NotRequired[str | None]
    """Release whose endpoint picker, proxy and routing sidecar run instead; the release's own if left out."""
    vllm_image: NotRequired[str | None]
    """Image of vLLM; the release's if left out."""
    endpoint_picker_image: NotRequired[str | None]
    """Image of the endpoint picker; the release's if left out."""
    routing_sidecar_image: NotRequired[str | None]
    """Image of the routing sidecar; the release's if left out."""
    proxy_image: NotRequired[str | None]
    """Image of Envoy; the release's if left out."""
    attention_backend: NotRequired[str | None]
    """Value of vLLM's `--attention-backend` for all servers; the release's default if left out."""
    quick_reduce: NotRequired[str | None]
    """Number format of vLLM's quick all-reduce: NONE, FP, INT8, INT6 or INT4; that of the model's catalogue entry if
    left out.
    """


class RegistryMirrorArgs(TypedDict):
    """Private registry with copies of all images and charts that are pulled."""

    prefix: str
    """Registry and path prefix, for example `iad.ocir.io/ai/mirror`. A copy's name is the prefix followed by the full
    name of the original.
    """
    pull_secret: NotRequired[str | None]
    """Name of the image pull Secret of all pods; none if left out, for nodes that authenticate themselves."""


def registry_mirror(args: Mapping[str, Any]) -> MirrorRegistry | None:
    """Return the private registry in a component's arguments; None if they have none."""
    own: RegistryMirrorArgs | None = args.get("registry_mirror")
    return None if own is None else MirrorRegistry(own["prefix"], own.get("pull_secret"))


def pulls_from(mirror: MirrorRegistry) -> pulumi.ResourceTransformation:
    """Return the transformation by which the pods of all objects of a component pull their images from a private
    registry.
    """

    def transform(args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
        if not args.type_.startswith("kubernetes:"):
            return None
        return pulumi.ResourceTransformationResult(mirror.in_manifest(args.props), args.opts)

    return transform


class KubernetesObject(pulumi.CustomResource):
    """Pulumi resource for a Kubernetes object from its manifest: the same resource that Pulumi's class for the object's
    kind would declare.

    The kit's objects come from charts and templates, as manifests; they need no classes for the fields of every kind
    that Kubernetes has, which Pulumi's own take a fifth of a second to load.
    """

    def __init__(self, name: str, manifest: Manifest, opts: pulumi.ResourceOptions) -> None:
        fields = {key: value for key, value in manifest.items() if key != "status"}
        own = pulumi.ResourceOptions(additional_secret_outputs=_SECRET_FIELDS.get(manifest["kind"]))
        api_version = manifest["apiVersion"]
        group = api_version if "/" in api_version else f"core/{api_version}"
        super().__init__(
            f"kubernetes:{group}:{manifest['kind']}",
            name,
            fields,
            pulumi.ResourceOptions.merge(_with_version(opts), own),
        )


class HelmRelease(pulumi.CustomResource):
    """Helm release that Pulumi's Kubernetes provider installs and waits for: the same resource that Pulumi's class
    `helm.v3.Release` declares.
    """

    status: pulumi.Output[Mapping[str, Any]]
    """Status of the Helm release, such as its `namespace`; known once the release is installed."""

    def __init__(self, name: str, release: Mapping[str, Any], opts: pulumi.ResourceOptions) -> None:
        fields = {**release, "compat": "true", "status": None}
        super().__init__("kubernetes:helm.sh/v3:Release", name, fields, _with_version(opts))


def _with_version(opts: pulumi.ResourceOptions) -> pulumi.ResourceOptions:
    """Pulumi's own classes name the version of their plug-in too."""
    return pulumi.ResourceOptions.merge(pulumi.ResourceOptions(version=plugin_version("pulumi_kubernetes")), opts)


def when_declared(resource: pulumi.Resource, value: str) -> pulumi.Output[str]:
    """Return a known value as an output that resolves once a resource is declared.

    Unlike the object's own fields it is known in previews too.
    """

    def same(_urn: str) -> str:
        return value

    return resource.urn.apply(same)


def after(opts: pulumi.ResourceOptions, *needed: pulumi.Resource) -> pulumi.ResourceOptions:
    """Return resource options with further dependencies: a copy of `opts` that also depends on `needed`."""
    return pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=list(needed)))


def inputs(component: pulumi.ComponentResource, args: Mapping[str, Any], *without: str) -> dict[str, Any]:
    """Return a component's arguments as its inputs, which previews show and the state contains: without those that are
    None or named in `without` (secrets, and the way to the cluster), and with the names of catalogue records in place
    of the records. Pulumi warns of each deprecated argument.

    Raises:
        KitError: the component has no such argument, or needs one that is missing. Python itself checks neither.
    """
    kind, declared = type(component).__name__, type(component).__init__.__annotations__["args"]
    for path, entry in _deprecated_uses(declared, args) if deprecated_arguments() else ():
        replacement = entry.replacement or entry.by_hand
        if not entry.works:
            raise KitError(f"{kind} has no argument {path} from {entry.removed_in} on.", f"It is {replacement} now.")
        pulumi.log.warn(f"{kind}: {path} is {entry.text(replacement)}")
    if unknown := sorted(args.keys() - declared.__annotations__.keys()):
        close = get_close_matches(unknown[0], declared.__annotations__)
        remedy = f"Did you mean {' or '.join(close)}?" if close else f"{declared.__name__} has those that there are."
        raise KitError(f"{kind} has no argument {', '.join(unknown)}.", remedy)
    if missing := sorted(declared.__required_keys__ - args.keys()):
        raise KitError(f"{kind} lacks {', '.join(missing)}.", f"{declared.__name__} says what they are.")
    return {key: _by_name(value) for key, value in present(args).items() if key not in without}


def _deprecated_uses(declared: Any, value: Any, at: str = "") -> Iterator[tuple[str, DeprecatedArgument]]:
    """Yield the deprecated arguments in a value of the declared type, each after its path; `at` is the value's path."""
    if is_typeddict(declared) and isinstance(value, Mapping):
        of_type = [entry for entry in deprecated_arguments() if declared.__name__ in entry.types]
        for name, argument in present(cast("Mapping[str, Any]", value)).items():
            yield from ((f"{at}{name}", entry) for entry in of_type if entry.argument == name)
            yield from _deprecated_uses(declared.__annotations__.get(name), argument, f"{at}{name}.")
    elif get_origin(declared) in {dict, list} and isinstance(value, dict | list):
        items = cast("dict[str, Any]", value).values() if isinstance(value, dict) else cast("list[Any]", value)
        for item in items:
            yield from _deprecated_uses(get_args(declared)[-1], item, at)
    else:  # a choice of types, or a value that has no arguments of its own
        for part in get_args(declared):
            yield from _deprecated_uses(part, value, at)


def _by_name(value: Any) -> Any:
    if isinstance(value, list):
        return [_by_name(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _by_name(item) for key, item in present(cast("dict[str, Any]", value)).items()}
    return cast("Any", value).name if isinstance(value, BaseModel) else value


def register_outputs(component: pulumi.ComponentResource) -> None:
    """Register the outputs of a component with the engine: the attributes that its class annotates."""
    component.register_outputs({name: getattr(component, name) for name in type(component).__annotations__})


def mapped(value: pulumi.Input[str], function: Callable[[str], str]) -> Any:
    """Return a function's result for a text: at once if the text is known, so that equal arguments make equal
    manifests, otherwise as an output.
    """
    return function(value) if isinstance(value, str) else pulumi.Output.from_input(value).apply(function)


def field_value(value: pulumi.Input[str]) -> str:
    """Return `value` unchanged, typed as the text that the field of a manifest has once Pulumi has resolved outputs."""
    return cast("str", value)


def present(arguments: Mapping[str, Value | None]) -> dict[str, Value]:
    """Return the arguments that aren't None, by name."""
    return {key: value for key, value in arguments.items() if value is not None}


def given(arguments: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return the arguments of the given names, without those that are missing or None."""
    return {name: arguments[name] for name in names if arguments.get(name) is not None}


def outputs(component: pulumi.ComponentResource) -> dict[str, Any]:
    """Return the outputs that a component's class annotates, by name, without those that the component hasn't set."""
    declared = [name for name in type(component).__annotations__ if not name.startswith("_")]
    return given(vars(component), *declared)


def resolve_release(ref: ReleaseRef, override: OverrideArgs | None = None) -> catalogue.Release:
    """Return the release of a name, or the given record, with the replacements of its parts applied.

    Raises:
        KitError: the catalogue has no such release.
    """
    base = _entry(catalogue.release(ref), "release", ref, catalogue.release_names) if isinstance(ref, str) else ref
    return with_override(base, catalogue.Override.model_validate(override)) if override else base


def resolve_model(ref: ModelRef) -> catalogue.CatalogueModel:
    """Return the catalogue's model of a name, or the given record.

    Raises:
        KitError: the catalogue has no such model.
    """
    return _entry(catalogue.model(ref), "model", ref, catalogue.model_names) if isinstance(ref, str) else ref


def resolve_shape(ref: ShapeRef) -> catalogue.Shape:
    """Return the catalogue's shape of a name, or the given record.

    Raises:
        KitError: the catalogue has no such shape.
    """
    return _entry(catalogue.shape(ref), "shape", ref, catalogue.shape_names) if isinstance(ref, str) else ref


def _entry(entry: Value | None, kind: str, name: str, names: Callable[[], list[str]]) -> Value:
    if entry is None:
        raise KitError(f"The catalogue has no {kind} {name!r}.", f"Known: {', '.join(names())}.")
    return entry


def is_update() -> bool:
    """Tell whether the program runs in a real update: not in a preview, nor under Pulumi's mocks."""
    return not pulumi.runtime.is_dry_run() and not isinstance(get_monitor(), mocks.MockMonitor)
