"""The kubeconfig by which this machine reaches the cluster of a stack."""

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

if TYPE_CHECKING:  # an update does without lightkube
    import lightkube
    from lightkube.config.kubeconfig import SingleConfig

VARIABLE = "KUBECONFIG"


@contextmanager
def cluster_kubeconfig(pulumi: PulumiCli, plan: Plan) -> Generator[None]:
    """Set KUBECONFIG to the kubeconfig of the cluster that this stack, or the one under it, created.

    A cluster that was there already is reached as the environment says.

    Raises:
        KitError: the stack has no such output, or it can't be read.
    """
    if isinstance(plan.cluster, ExistingCluster):
        yield
        return
    text = pulumi.output("kubeconfig", plan.cluster_stack)
    with TemporaryDirectory(prefix="llmd-oke-") as folder:  # for its owner alone
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
    """A client of the cluster that the environment's kubeconfig names, by a context of it.

    Raises:
        KitError: there is no kubeconfig, or not that context.
    """
    import lightkube  # noqa: PLC0415

    return lightkube.Client(config=kubeconfig_context(context))


def kubeconfig_context(name: str | None) -> "SingleConfig":
    """A context of the environment's kubeconfig; its current one where no name is given.

    Raises:
        KitError: there is no kubeconfig, or not that context.
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
