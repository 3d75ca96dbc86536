"""Custom resource definitions: a component for those of an llm-d release, and the wait for those of OKE's add-ons.

OKE reports an add-on as created before the add-on's operator has created its definitions, and Pulumi's Kubernetes
provider retries a missing kind for about a minute only, whatever the resource's timeouts are.
"""

import asyncio
import ssl
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import pulumi
import yaml
from llmd_base.errors import KitError, causes

from llmd_oke.catalogue.releases import AwaitedAdmission, crd_manifests
from llmd_oke.objects import KubernetesObject, ReleaseRef, inputs, is_update, outputs, resolve_release, when_declared

if TYPE_CHECKING:  # slow to import, and not needed in previews
    import httpx2
    from lightkube.core.async_client import AsyncClient

ESTABLISH_TIMEOUT = pulumi.CustomTimeouts(create="120s", update="120s", delete="120s")

TAKE_OVER = {"pulumi.com/patchForce": "true"}
"""Annotation that forces server-side apply: fields that an earlier stack manages would otherwise conflict once another
release has other values."""

POLL_S = 2.0
OFFERS = 8

OPERATOR = "Look whether the operator that makes them runs; in OKE, at the add-on's state and its pods."
WAY = "Is the API server reached from here, with a tunnel to this cluster and no other, and may this user sign in?"
RIGHT = "This user needs the right to get customresourcedefinitions."
PROGRAM = "The kubeconfig's program must be on PATH and sign in: `llmd-oke token` with the options that it has there."

_ABSENT = "it is not there"
_COMING = "it is not established"


class CrdsArgs(TypedDict):
    """Arguments of the custom resource definitions."""

    release: ReleaseRef
    """llm-d release of the catalogue, whose definitions are declared."""


class Crds(pulumi.ComponentResource):
    """Custom resource definitions that the router needs (InferencePool and others of the Gateway API Inference
    Extension).

    The definitions stay when the stack is destroyed, because their deletion would delete other stacks' objects. A later
    stack can adopt them with a provider that has `upsert_existing_objects`; then the cluster has the definitions of the
    release that was deployed last.
    """

    names: pulumi.Output[list[str]]
    """Names of the custom resource definitions, as `plural.group`."""

    def __init__(self, name: str, args: CrdsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("llmd-oke:index:Crds", name, inputs(self, args), opts)
        opts = pulumi.ResourceOptions(parent=self, retain_on_delete=True, custom_timeouts=ESTABLISH_TIMEOUT)
        names: list[pulumi.Output[str]] = []
        for manifest in crd_manifests(resolve_release(args["release"]).crds):
            metadata = manifest["metadata"]
            annotations = {**metadata.get("annotations", {}), **TAKE_OVER}
            definition = KubernetesObject(
                f"{name}-{manifest['spec']['names']['plural']}",
                {**manifest, "metadata": {**metadata, "annotations": annotations}},
                opts,
            )
            names.append(when_declared(definition, metadata["name"]))
        self.names = pulumi.Output.all(*names)
        self.register_outputs(outputs(self))


def when_established(
    names: Sequence[str],
    timeout_s: int,
    kubeconfig: pulumi.Input[str] | None = None,
    context: str | None = None,
    after: pulumi.Resource | None = None,
    remedy: str = OPERATOR,
    admission: AwaitedAdmission | None = None,
    namespace: str = "default",
) -> pulumi.Output[bool]:
    """Return an output that resolves to True once the cluster has established these definitions, and admits objects of
    the first one; in previews at once.

    Args:
        names: names of the definitions, as `plural.group`.
        timeout_s: limit of the wait in seconds.
        kubeconfig: text of the kubeconfig; the environment's if left out.
        context: context of the kubeconfig; the current context if left out.
        after: resource that must be registered, with all its dependencies, before the wait begins.
        remedy: advice of the error for definitions that are missing in the end.
        admission: object that is offered to the webhooks until they answer; None to wait for no webhooks.
        namespace: namespace of that object.

    Raises:
        KitError: (when the output resolves) a definition is missing after `timeout_s`, webhooks don't answer within
            their limit, or the cluster doesn't answer or refuses the credentials.
    """

    async def look(text: str | None) -> bool:
        if is_update():
            client = _client(text, context)
            await _wait(names, timeout_s, client, remedy)
            if admission is not None:
                await _wait_for_webhooks(names[0], admission, namespace, client)
        return True

    # The URN as a plain future: a waiting child of `after` must not depend on the other children.
    registered = after.urn.future() if after else None
    served = pulumi.Output.all(kubeconfig, registered).apply(lambda values: look(values[0]))
    return pulumi.Output.unsecret(served)  # True reveals nothing of a secret kubeconfig


async def _wait(names: Sequence[str], timeout_s: float, client: "AsyncClient", remedy: str = OPERATOR) -> None:
    ends_at = time.monotonic() + timeout_s
    while missing := {name: cause for name in names if (cause := await _lack(client, name))}:
        if time.monotonic() >= ends_at:
            absent, after = ", ".join(missing), f"after {timeout_s:g} s"
            if unheard := next((cause for cause in missing.values() if cause not in {_ABSENT, _COMING}), None):
                raise KitError(f"The cluster can't be asked for {absent} {after}: {unheard}.", WAY)
            raise KitError(f"The cluster has no definition of {absent} {after}.", remedy)
        await asyncio.sleep(POLL_S)


async def _lack(client: "AsyncClient", name: str) -> str:
    """Return why a definition isn't established yet, or why the cluster doesn't answer; empty if it is established.

    Raises:
        KitError: the cluster refuses the request, or the kubeconfig can't be used.
    """
    import httpx2  # noqa: PLC0415
    from lightkube.core.exceptions import ApiError, ConfigError  # noqa: PLC0415
    from lightkube.resources.apiextensions_v1 import CustomResourceDefinition  # noqa: PLC0415

    try:
        definition = await client.get(CustomResourceDefinition, name)
    except ApiError as error:
        if error.status.code == 404:
            return _ABSENT
        if error.status.code == 429 or (error.status.code or 0) >= 500:
            return f"it answers {error.status.code}, {error.status.message}"
        remedy = RIGHT if error.status.code == 403 else WAY
        message = f"The cluster refuses to show custom resource definitions: {error.status.message}."
        raise KitError(message, remedy) from error
    except httpx2.HTTPError as error:
        return _unheard(error)
    except (ConfigError, OSError, ValueError) as error:  # of the exec plug-in, or of its output
        raise KitError(f"The cluster can't be signed in to: {error}", PROGRAM) from error
    conditions = (definition.status.conditions if definition.status else None) or []
    established = any(condition.type == "Established" and condition.status == "True" for condition in conditions)
    return "" if established else _COMING


async def _wait_for_webhooks(name: str, admission: AwaitedAdmission, namespace: str, client: "AsyncClient") -> None:
    """Wait until webhooks answer all of several offers at once, for which the API server connects to each of their pods
    in all likelihood.
    """
    from lightkube import generic_resource  # noqa: PLC0415

    (plural, _, group), kind = name.partition("."), admission.offered["kind"]
    generic: Any = generic_resource
    api = generic.create_api_info(group, admission.offered["apiVersion"].partition("/")[2], kind, plural)
    # A class of its own: a status that this process also has may have registered one of other verbs.
    resource: Any = type(kind, (generic.GenericNamespacedResource,), {"_api_info": api})
    offered, ends_at = resource.from_dict(admission.offered), time.monotonic() + admission.timeout_s
    while cause := max(await asyncio.gather(*(_unanswered(client, offered, namespace) for _ in range(OFFERS)))):
        if time.monotonic() >= ends_at:
            raise KitError(f"The cluster admits no {kind} after {admission.timeout_s} s: {cause}", admission.remedy)
        await asyncio.sleep(POLL_S)


async def _unanswered(client: "AsyncClient", offered: Any, namespace: str) -> str:
    """Return why webhooks don't answer to an object yet: the API server can't call them, or the namespace isn't there;
    empty if they answer, whatever it is.
    """
    import httpx2  # noqa: PLC0415
    from lightkube.core.exceptions import ApiError  # noqa: PLC0415

    try:
        await client.create(offered, namespace, dry_run=True)
    except ApiError as error:
        code = error.status.code or 0
        return str(error.status.message) if code in {404, 429} or code >= 500 else ""
    except httpx2.HTTPError as error:
        return _unheard(error)
    return ""


def _unheard(error: "httpx2.HTTPError") -> str:
    """Return why the cluster doesn't answer.

    Raises:
        KitError: the API server's certificate isn't trusted, which a longer wait doesn't change.
    """
    for cause in causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            why = getattr(cause, "verify_message", None) or cause.args[-1]
            raise KitError(f"The API server's certificate is not trusted: {why}.", WAY) from error
    return str(error) or type(error).__name__


def _client(kubeconfig: str | None, context: str | None) -> "AsyncClient":
    from lightkube.config.kubeconfig import KubeConfig  # noqa: PLC0415
    from lightkube.core.async_client import AsyncClient  # noqa: PLC0415

    config = KubeConfig.from_dict(yaml.safe_load(kubeconfig)) if kubeconfig else KubeConfig.from_env()
    return AsyncClient(config=config.get(context))
