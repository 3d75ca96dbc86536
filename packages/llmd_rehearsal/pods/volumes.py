"""Volumes of a pod: files from ConfigMaps, Secrets, tokens and the downward API, or folders."""

import asyncio
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from lightkube.core.async_client import AsyncClient
from lightkube.models.authentication_v1 import BoundObjectReference, TokenRequestSpec
from lightkube.models.core_v1 import Container, DownwardAPIVolumeFile, KeyToPath, Volume, VolumeProjection
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod, ServiceAccountToken
from llmd_base.errors import KitError

from llmd_rehearsal.pods.environment import (
    MissingConfigError,
    PodFacts,
    Sources,
    field_value,
    resource_value,
    source_data,
)
from llmd_rehearsal.watches import identity, spec_of

_DEFAULT_MODE = 0o644
_DEFAULT_TOKEN_S = 3600
RENEW_AT = 0.8  # fraction of a token's lifetime, as in kubelet's token manager
_LONGEST_S = 24 * 3600.0
_versions = count(1)


@dataclass(frozen=True)
class File:
    """Content of one file of a pod's volume, and its mode."""

    content: bytes
    mode: int = _DEFAULT_MODE


@dataclass(frozen=True)
class TokenRequest:
    """Service account token that a projected volume requests; audience None means the API server's own."""

    audience: str | None
    expiration_s: int


@dataclass(frozen=True)
class VolumeSources:
    """Sources from which the files of a pod's volumes are made: facts about the pod, ConfigMaps and Secrets, and
    tokens.
    """

    facts: PodFacts
    sources: Sources
    tokens: Mapping[TokenRequest, str]


def token_requests(pod: Pod) -> set[TokenRequest]:
    """Return all service account tokens that the pod's volumes need."""
    projections = (projection for volume in spec_of(pod).volumes or [] for projection in _projections(volume))
    return {_token_request(projection) for projection in projections if projection.serviceAccountToken}


def source_names(pod: Pod) -> frozenset[str]:
    """Return the names of the ConfigMaps and Secrets that the pod's volumes contain."""
    volumes = spec_of(pod).volumes or []
    projections = [part for volume in volumes for part in _projections(volume)]
    config_maps = [source.configMap.name for source in (*volumes, *projections) if source.configMap]
    secrets = [volume.secret.secretName for volume in volumes if volume.secret]
    projected = [part.secret.name for part in projections if part.secret]
    return frozenset(filter(None, (*config_maps, *secrets, *projected)))


def has_files(volume: Volume) -> bool:
    """Tell whether the volume's files come from the API server (see `files`); otherwise it is a folder (see
    `folder`).
    """
    return bool(volume.configMap or volume.secret or volume.downwardAPI or volume.projected)


def files(volume: Volume, pod: Pod, sources: VolumeSources) -> dict[str, File]:
    """Return the contents of a volume whose files come from the API server, by relative path.

    Raises:
        MissingConfigError: a ConfigMap, Secret or key that isn't optional doesn't exist.
    """
    namespace = identity(pod).namespace
    if volume.configMap:
        source = volume.configMap
        data = source_data(sources.sources, "configmap", namespace, source.name, optional=source.optional)
        return _selected(data, source.items, source.defaultMode, optional=source.optional)
    if volume.secret:
        secret = volume.secret
        data = source_data(sources.sources, "secret", namespace, secret.secretName, optional=secret.optional)
        return _selected(data, secret.items, secret.defaultMode, optional=secret.optional)
    if volume.downwardAPI:
        return _downward(volume.downwardAPI.items, pod, sources.facts, volume.downwardAPI.defaultMode)
    mode = volume.projected.defaultMode if volume.projected else None
    merged: dict[str, File] = {}
    for projection in _projections(volume):
        merged |= _projected(projection, pod, sources, mode)
    return merged


def folder(volume: Volume, pod: Pod, pod_folder: Path, state_folder: Path) -> Path:
    """Return the folder on this machine of a volume without files from the API server.

    An emptyDir is in the pod's folder, whatever its medium. A PersistentVolumeClaim is one folder for all pods. A
    hostPath is an initially empty folder of the simulated node, never the path on this machine.

    Raises:
        MissingConfigError: rehearsals don't support volumes of this kind.
    """
    namespace, node = identity(pod).namespace, spec_of(pod).nodeName or ""
    if volume.persistentVolumeClaim:
        return state_folder / "volumes" / namespace / volume.persistentVolumeClaim.claimName
    if volume.hostPath:
        return state_folder / "nodes" / node / "host" / volume.hostPath.path.strip("/")
    if volume.emptyDir or volume.ephemeral:
        return pod_folder / "volumes" / volume.name
    raise MissingConfigError(f'volume "{volume.name}": the rehearsal has no volumes of this kind')


def _projections(volume: Volume) -> list[VolumeProjection]:
    return (volume.projected.sources if volume.projected else None) or []


def _token_request(projection: VolumeProjection) -> TokenRequest:
    token = projection.serviceAccountToken
    if token is None:
        raise ValueError("not a token projection")
    return TokenRequest(token.audience, token.expirationSeconds or _DEFAULT_TOKEN_S)


def _projected(projection: VolumeProjection, pod: Pod, sources: VolumeSources, mode: int | None) -> dict[str, File]:
    namespace = identity(pod).namespace
    if projection.configMap:
        source = projection.configMap
        data = source_data(sources.sources, "configmap", namespace, source.name, optional=source.optional)
        return _selected(data, source.items, mode, optional=source.optional)
    if projection.secret:
        secret = projection.secret
        data = source_data(sources.sources, "secret", namespace, secret.name, optional=secret.optional)
        return _selected(data, secret.items, mode, optional=secret.optional)
    if projection.downwardAPI:
        return _downward(projection.downwardAPI.items, pod, sources.facts, mode)
    if projection.serviceAccountToken:
        token = sources.tokens[_token_request(projection)]
        return {projection.serviceAccountToken.path: File(token.encode(), mode or _DEFAULT_MODE)}
    raise MissingConfigError("unsupported projection")


def _selected(
    data: Mapping[str, bytes], items: Iterable[KeyToPath] | None, mode: int | None, *, optional: bool | None
) -> dict[str, File]:
    usual = _DEFAULT_MODE if mode is None else mode
    if not items:
        return {key: File(value, usual) for key, value in data.items()}
    selection = list(items)
    missing = [item.key for item in selection if item.key not in data]
    if missing and not optional:
        raise MissingConfigError(f"references non-existent config key: {missing[0]}")
    return {
        item.path: File(data[item.key], usual if item.mode is None else item.mode)
        for item in selection
        if item.key in data
    }


def _downward(
    items: Iterable[DownwardAPIVolumeFile] | None, pod: Pod, facts: PodFacts, mode: int | None
) -> dict[str, File]:
    files: dict[str, File] = {}
    for item in items or ():
        if item.fieldRef:
            text = field_value(pod, facts, item.fieldRef.fieldPath)
        elif item.resourceFieldRef:
            text = resource_value(pod, Container(name=""), facts, item.resourceFieldRef)
        else:
            raise MissingConfigError(f"{item.path}: neither fieldRef nor resourceFieldRef")
        files[item.path] = File(text.encode(), item.mode or mode or _DEFAULT_MODE)
    return files


def write_files(folder: Path, files: Mapping[str, File]) -> None:
    """Replace the content of `folder` by `files`: the new files are written beside the old ones, then one link is
    replaced, so that programs never see a mixture.
    """
    folder.mkdir(parents=True, exist_ok=True)
    current = folder / "..data"
    old = folder / current.readlink() if current.is_symlink() else None
    new = folder / f"..{os.getpid()}-{next(_versions)}"
    for path, file in files.items():
        target = new / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.content)
        target.chmod(file.mode)
    new.mkdir(exist_ok=True)
    link = folder / "..data_new"
    link.symlink_to(Path(new.name))
    link.replace(current)
    names = {path.partition("/")[0] for path in files}
    links = (entry for entry in folder.iterdir() if entry.is_symlink())  # folders are mount points of inner volumes
    present = {entry.name for entry in links if not entry.name.startswith("..")}
    for name in names - present:
        (folder / name).symlink_to(Path("..data") / name)
    for name in present - names:
        (folder / name).unlink()
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def renewal_s(requests: Iterable[TokenRequest]) -> float | None:
    """Return the seconds until the first of these tokens must be renewed; None if there are no tokens."""
    lives = [min(request.expiration_s * RENEW_AT, _LONGEST_S) for request in requests]
    return min(lives, default=None)


async def request_tokens(client: AsyncClient, pod: Pod, requests: Iterable[TokenRequest]) -> Mapping[TokenRequest, str]:
    """Return new service account tokens, bound to the pod.

    Raises:
        ApiError: the service account doesn't exist.
    """
    distinct = list(requests)
    return dict(
        zip(distinct, await asyncio.gather(*(_request(client, pod, request) for request in distinct)), strict=True)
    )


async def _request(client: AsyncClient, pod: Pod, request: TokenRequest) -> str:
    pod_id = identity(pod)
    bound = BoundObjectReference(apiVersion="v1", kind="Pod", name=pod_id.name, uid=pod_id.uid)
    audiences = [request.audience] if request.audience else []
    spec = TokenRequestSpec(audiences=audiences, boundObjectRef=bound, expirationSeconds=request.expiration_s)
    account = spec_of(pod).serviceAccountName or "default"
    token = ServiceAccountToken(metadata=ObjectMeta(), spec=spec)
    answer = await client.create(token, account, namespace=pod_id.namespace)
    if answer.status is None or answer.status.token is None:
        raise KitError(f"the API server gave no token for service account {pod_id.namespace}/{account}")
    return answer.status.token
