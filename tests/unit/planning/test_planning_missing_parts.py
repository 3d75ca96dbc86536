"""A part that is missing as a whole hides no problem of the others."""

import pytest
from llmd_oke.errors import Refused
from llmd_oke.planning import plan_object


def test_a_missing_list_of_pools_hides_no_wrong_release() -> None:
    stack = {
        "cluster": {"mode": "existing", "identifier": "here"},
        "gpuPool": [],
        "release": "llm-d-9",
        "models": [{"model": "gpt", "topology": "1p-tp1-1d-tp1", "workload": {"inputTokens": 1, "outputTokens": 1}}],
    }
    with pytest.raises(Refused) as refused:
        plan_object(stack)
    assert {"gpuPools", "gpuPool", "release", "models[0].model"} <= {problem.path for problem in refused.value.problems}
