import pytest
from real_vllm_for_tests import need_real_vllm


@pytest.fixture(autouse=True, scope="module")
def _real_vllm(request: pytest.FixtureRequest) -> None:
    """Skip files that ask vLLM itself before they render anything for it."""
    if request.path.name.startswith("test_real_"):
        need_real_vllm()
