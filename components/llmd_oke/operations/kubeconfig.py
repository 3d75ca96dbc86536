"""Kubeconfigs and clients by which commands reach a stack's cluster from this machine."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from llmd_base.errors import KitError

from llmd_oke.config import ExistingCluster
from llmd_oke.operations.pulumi_cli import PulumiCli
from llmd_oke.planning import Plan

if TYPE_CHECKING:  # updates don't import lightkube
    import lightkube
    from lightkube.config.kubeconfig import SingleConfig

VARIABLE = "KUBECONFIG"


@contextmanager
def cluster_kubeconfig(pulumi: PulumiCli, plan: Plan) -> Generator[None]:
    """Set KUBECONFIG during the block to the kubeconfig of the cluster that this stack, or its `clusterStack`, created.

    For an existing cluster, the environment's KUBECONFIG isn't changed.

    Raises:
        KitError: the stack has no output `kubeconfig`, or the output can't be read.
    """
    if isinstance(plan.cluster, ExistingCluster):
        yield
        return
    text = pulumi.output("kubeconfig", plan.cluster_stack)
    with TemporaryDirectory(prefix="llmd-oke-") as folder:  # mode 0700
        path = Path(folder) / "kubeconfig"
        path.write_text(text)
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = str(path)
        try:
            yield
        finally:
            os.environ.pop(VARIABLE)
            if before is not None:
                os.environ[VARIABLE] = before


def cluster_client(context: str | None) -> "lightkube.Client":
    """Return a client of the cluster of a context of the environment's kubeconfig; the current context if None.

    Raises:
        KitError: there is no kubeconfig, or it doesn't have that context.
    """
    import lightkube  # noqa: PLC0415

    return lightkube.Client(config=kubeconfig_context(context))


def kubeconfig_context(name: str | None) -> "SingleConfig":
    """Return a context of the environment's kubeconfig; the current context if `name` is None.

    Raises:
        KitError: there is no kubeconfig, or it doesn't have that context.
    """
    from lightkube.config.kubeconfig import KubeConfig  # noqa: PLC0415
    from lightkube.core.exceptions import ConfigError  # noqa: PLC0415

    try:
        config = KubeConfig.from_env().get(name)
    except ConfigError as error:
        command = "pulumi stack output kubeconfig --show-secrets > kubeconfig"
        remedy = f"Set KUBECONFIG. Of a cluster that a stack created: {command}."
        raise KitError(f"No cluster can be reached: {error}", remedy) from error
    if config is None:
        raise KitError(f"The kubeconfig has no context {name!r}.", "Set KUBECONFIG, or another kubeconfigContext.")
    return config
