"""Pods of a rehearsal that run nothing: no program stands for their images, so they are only shown as running."""

from collections import Counter
from collections.abc import Iterable

import httpx2
import lightkube
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.resources.core_v1 import Pod

from llmd_oke.errors import KitError
from llmd_oke.rehearsal.pods.pod_worker import SIMULATED_ANNOTATION
from llmd_oke.rehearsal.watches import metadata, texts


def placeholder_images() -> dict[str, int]:
    """Images without a program in the cluster of the environment's kubeconfig, and how many pods have each.

    Raises:
        KitError: the API server doesn't answer, or refuses.
    """
    try:
        return count_images(lightkube.Client(KubeConfig.from_env(), trust_env=False).list(Pod, namespace="*"))
    except (ApiError, ConfigError, httpx2.HTTPError) as error:
        raise KitError(f"The pods of the rehearsal can't be listed: {error}") from error


def count_images(pods: Iterable[Pod]) -> dict[str, int]:
    """The images of the containers that the node agent marked, by the number of pods."""
    counts = Counter(image for pod in pods for image in sorted(_images(pod)))
    return dict(sorted(counts.items()))


def _images(pod: Pod) -> set[str]:
    marked = texts(metadata(pod), "annotations").get(SIMULATED_ANNOTATION, "").split(",")
    containers = [*(pod.spec.initContainers or []), *pod.spec.containers] if pod.spec else []
    return {container.image or container.name for container in containers if container.name in marked}
