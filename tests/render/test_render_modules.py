import subprocess
import sys
from collections.abc import Callable

from created_cluster import created
from llmd_oke.testing import Rendered
from llmd_rehearsal.engine_operations import CREATED_CLUSTER_MODULES


def test_rendering_a_created_cluster_imports_every_module_that_is_preloaded(rendered: Callable[..., Rendered]):
    rendered(created(cluster={"network": {}}))
    assert set(CREATED_CLUSTER_MODULES) <= sys.modules.keys()


def test_a_stack_program_imports_no_kubernetes_client():
    heavy = {"httpx", "httpx2", "lightkube", "rich", "prometheus_client", "numpy", "aiohttp"}
    program = f"import llmd_oke.program, llmd_oke.program.cluster, sys; print(sorted(sys.modules.keys() & {heavy!r}))"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert loaded.stdout.strip() == "[]"
