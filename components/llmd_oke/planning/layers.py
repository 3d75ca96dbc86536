"""What each layer of a stack needs, and what it can't have."""

from collections.abc import Iterator

from llmd_oke.config import CreateCluster, StackConfig, kubeconfig
from llmd_oke.errors import KitError, Problem


def layer_problems(config: StackConfig) -> Iterator[Problem]:
    """What doesn't go together with the layer."""
    if config.layer == "serving":
        yield from _cluster_of_serving(config)
    else:
        yield from _cluster_of_its_own(config)
    yield from _models(config)


def _cluster_of_serving(config: StackConfig) -> Iterator[Problem]:
    if isinstance(config.cluster, CreateCluster):
        why = "the serving layer creates no cluster; the stack of the cluster layer does"
        yield Problem("cluster.mode", "create", "clusterStack in place of cluster, or mode existing", why)
    elif config.cluster is None and config.cluster_stack is None:
        why = "the serving layer must know which cluster it deploys to"
        yield Problem("clusterStack", None, "the stack of the cluster layer, or a cluster of mode existing", why)
    elif config.cluster is not None and config.cluster_stack is not None:
        yield Problem("clusterStack", config.cluster_stack, "either cluster or clusterStack", "cluster says it already")


def _cluster_of_its_own(config: StackConfig) -> Iterator[Problem]:
    if config.cluster is None:
        yield Problem("cluster", None, "a cluster of mode existing or create", "the key is missing")
    if config.cluster_stack is not None:
        why = f"layer {config.layer} has the cluster in its own stack"
        yield Problem("clusterStack", config.cluster_stack, "nothing, or layer: serving", why)
    if isinstance(config.cluster, CreateCluster) and config.cluster.given.kubeconfig is not None:
        yield from _given_kubeconfig(config.cluster.given.kubeconfig)


def _given_kubeconfig(text: str) -> Iterator[Problem]:
    """Its text is never shown: it may hold credentials."""
    path, accepted = "cluster.given.kubeconfig", "the kubeconfig that OKE gives for the cluster, as text"
    try:
        user = kubeconfig.read(text).user
    except KitError:
        why = "it is no kubeconfig with a cluster's https:// address, its authority and a user"
        yield Problem(path, "another text", accepted, why)
        return
    if found := sorted(kubeconfig.CREDENTIALS & set(user)):
        why = "whoever reads the stack file could use them, and the kit signs in by itself"
        yield Problem(path, f"credentials ({', '.join(found)})", f"{accepted}, whose user asks a program (exec)", why)


def _models(config: StackConfig) -> Iterator[Problem]:
    if config.layer == "cluster" and config.models:
        names = [model.object_name for model in config.models]
        yield Problem("models", names, "nothing, or layer: all", "the cluster layer deploys no models")
    if config.layer != "cluster" and not config.models:
        yield Problem("models", None, "a list: The models to serve", "the key is missing")
