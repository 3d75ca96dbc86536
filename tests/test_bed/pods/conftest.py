"""One cluster for all tests of the pod runner; each test has a namespace of its own."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from llmd_base.errors import KitError
from pod_cluster import PodCluster, programs


@pytest.fixture(scope="session")
def pod_cluster(tmp_path_factory: pytest.TempPathFactory, shared_by_folder: ExitStack) -> PodCluster:
    missing = [name for name, path in programs().items() if not path.is_file()]
    missing += [name for name in ("bash", "bwrap", "ip", "nsenter", "unshare") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)} (control plane programs are looked up in LLMD_OKE_PROGRAMS)")
    state = tmp_path_factory.mktemp("pods")
    try:
        cluster = PodCluster.started(state)
    except KitError as error:
        if "does not allow" in error.message:
            pytest.skip(error.message)
        raise
    shared_by_folder.callback(cluster.cluster.stop)
    shared_by_folder.callback(cluster.api.close)
    return cluster


@pytest.fixture(autouse=True)
def _ending_namespaces(pod_cluster: PodCluster) -> Iterator[None]:
    """End the namespaces that a test makes itself, after those of wider fixtures were made."""
    with pod_cluster.ending_namespaces():
        yield
