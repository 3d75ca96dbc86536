"""What a pod's volumes hold: files of ConfigMaps, Secrets, the downward API and projections, or a folder."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lightkube.models.core_v1 import Container, DownwardAPIVolumeFile, KeyToPath, Volume, VolumeProjection
from lightkube.resources.core_v1 import Pod

from llmd_oke.rehearsal.pods.downward import field_value, resource_value
from llmd_oke.rehearsal.pods.facts import MissingSourceError, PodFacts, Sources, spec_of
from llmd_oke.rehearsal.watches import identity

_DEFAULT_MODE = 0o644
_DEFAULT_TOKEN_S = 3600


@dataclass(frozen=True)
class File:
    """One file of a volume."""

    content: bytes
    mode: int = _DEFAULT_MODE


@dataclass(frozen=True)
class TokenWish:
    """A service account token that a projection asks for; no audience means the API server's own."""

    audience: str | None
    expiration_s: int


@dataclass(frozen=True)
class Contents:
    """Where the files of volumes come from."""

    facts: PodFacts
    sources: Sources
    tokens: Mapping[TokenWish, str]


def token_wishes(pod: Pod) -> set[TokenWish]:
    """Give every token that the pod's volumes need."""
    projections = (each for volume in spec_of(pod).volumes or [] for each in _projections(volume))
    return {_wish(each) for each in projections if each.serviceAccountToken}


def has_files(volume: Volume) -> bool:
    """Say whether the volume's files come from the API (see `files`), rather than being a folder of its own."""
    return bool(volume.configMap or volume.secret or volume.downwardAPI or volume.projected)


def files(volume: Volume, pod: Pod, contents: Contents) -> dict[str, File]:
    """Give the volume's files by relative path; MissingSourceError for what isn't there and isn't optional."""
    namespace = identity(pod).namespace
    if volume.configMap:
        source = volume.configMap
        data = _config_map(contents, namespace, source.name, optional=source.optional)
        return _selected(data, source.items, source.defaultMode, optional=source.optional)
    if volume.secret:
        secret = volume.secret
        data = _secret(contents, namespace, secret.secretName, optional=secret.optional)
        return _selected(data, secret.items, secret.defaultMode, optional=secret.optional)
    if volume.downwardAPI:
        return _downward(volume.downwardAPI.items, pod, contents.facts, volume.downwardAPI.defaultMode)
    mode = volume.projected.defaultMode if volume.projected else None
    merged: dict[str, File] = {}
    for projection in _projections(volume):
        merged |= _projected(projection, pod, contents, mode)
    return merged


def folder(volume: Volume, pod: Pod, pod_folder: Path, state_folder: Path) -> Path:
    """Give the folder of a volume without files of its own.

    An emptyDir lies in the pod's folder, whatever its medium. A claim is one folder for all its pods. A hostPath
    is an empty folder of the simulated node, never the path of the machine that runs the rehearsal.
    """
    namespace, node = identity(pod).namespace, spec_of(pod).nodeName or ""
    if volume.persistentVolumeClaim:
        return state_folder / "volumes" / namespace / volume.persistentVolumeClaim.claimName
    if volume.hostPath:
        return state_folder / "nodes" / node / "host" / volume.hostPath.path.strip("/")
    if volume.emptyDir or volume.ephemeral:
        return pod_folder / "volumes" / volume.name
    raise MissingSourceError(f'volume "{volume.name}": the rehearsal has no volumes of this kind')


def _projections(volume: Volume) -> list[VolumeProjection]:
    return (volume.projected.sources if volume.projected else None) or []


def _wish(projection: VolumeProjection) -> TokenWish:
    token = projection.serviceAccountToken
    if token is None:
        raise ValueError("not a token projection")
    return TokenWish(token.audience, token.expirationSeconds or _DEFAULT_TOKEN_S)


def _projected(projection: VolumeProjection, pod: Pod, contents: Contents, mode: int | None) -> dict[str, File]:
    namespace = identity(pod).namespace
    if projection.configMap:
        source = projection.configMap
        data = _config_map(contents, namespace, source.name, optional=source.optional)
        return _selected(data, source.items, mode, optional=source.optional)
    if projection.secret:
        secret = projection.secret
        data = _secret(contents, namespace, secret.name, optional=secret.optional)
        return _selected(data, secret.items, mode, optional=secret.optional)
    if projection.downwardAPI:
        return _downward(projection.downwardAPI.items, pod, contents.facts, mode)
    if projection.serviceAccountToken:
        token = contents.tokens[_wish(projection)]
        return {projection.serviceAccountToken.path: File(token.encode(), mode or _DEFAULT_MODE)}
    raise MissingSourceError("unsupported projection")


def _config_map(contents: Contents, namespace: str, name: str | None, *, optional: bool | None) -> Mapping[str, bytes]:
    data = contents.sources.config_map(namespace, name or "")
    if data is None and not optional:
        raise MissingSourceError(f'configmap "{name}" not found')
    return data or {}


def _secret(contents: Contents, namespace: str, name: str | None, *, optional: bool | None) -> Mapping[str, bytes]:
    data = contents.sources.secret(namespace, name or "")
    if data is None and not optional:
        raise MissingSourceError(f'secret "{name}" not found')
    return data or {}


def _selected(
    data: Mapping[str, bytes], items: Iterable[KeyToPath] | None, mode: int | None, *, optional: bool | None
) -> dict[str, File]:
    usual = _DEFAULT_MODE if mode is None else mode
    if not items:
        return {key: File(value, usual) for key, value in data.items()}
    wanted = list(items)
    missing = [item.key for item in wanted if item.key not in data]
    if missing and not optional:
        raise MissingSourceError(f"references non-existent config key: {missing[0]}")
    return {
        item.path: File(data[item.key], usual if item.mode is None else item.mode)
        for item in wanted
        if item.key in data
    }


def _downward(
    items: Iterable[DownwardAPIVolumeFile] | None, pod: Pod, facts: PodFacts, mode: int | None
) -> dict[str, File]:
    return {
        item.path: File(_downward_text(item, pod, facts).encode(), item.mode or mode or _DEFAULT_MODE)
        for item in items or ()
    }


def _downward_text(item: DownwardAPIVolumeFile, pod: Pod, facts: PodFacts) -> str:
    if item.fieldRef:
        return field_value(pod, facts, item.fieldRef.fieldPath)
    if item.resourceFieldRef:
        return resource_value(pod, Container(name=""), facts, item.resourceFieldRef)
    raise MissingSourceError(f"{item.path}: neither fieldRef nor resourceFieldRef")
