"""The way of this machine to the cluster of a stack, for what it asks there itself."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from llmd_oke.config import ExistingCluster
from llmd_oke.operations.pulumi_cli import PulumiCli
from llmd_oke.planning import Plan

VARIABLE = "KUBECONFIG"


@contextmanager
def leading_to_cluster(pulumi: PulumiCli, plan: Plan) -> Generator[None]:
    """Has KUBECONFIG name the kubeconfig of the cluster that this stack, or the one under it, created.

    A cluster that was there already is reached as the environment says.

    Raises:
        KitError: the stack has no such output, or it can't be read.
    """
    if isinstance(plan.cluster, ExistingCluster):
        yield
        return
    text = pulumi.output("kubeconfig", plan.config.cluster_stack)
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
