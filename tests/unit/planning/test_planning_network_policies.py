from typing import Any

import pytest
from created_stacks import refusals
from llmd_oke import planning
from llmd_oke.config import validate
from stack_files import created_pool, created_stack, paths, plan, problems


def test_network_policies_have_no_enforcing_engine_by_default():
    assert plan().network_policies.engine == "none"
    assert any("NetworkPolicies do nothing" in item.text for item in plan().advice)


def test_calico_is_refused_on_existing_clusters_and_with_flannel():
    calico = {"networkPolicies": {"engine": "calico"}}
    assert paths(**calico) == ["networkPolicies.engine"]
    assert "networkPolicies.engine" in refusals(created_pool(), stack_changes=calico, cni="flannel")


@pytest.mark.parametrize("cidr", ["10.0.0.1/8", "10.0.0.0/33", "300.0.0.0/8"])
def test_an_invalid_egress_destination_in_networkpolicies_is_refused_with_its_path(cidr: str):
    found = paths(networkPolicies={"engine": "existing", "destinations": [{"cidr": cidr}]})
    assert found == ["networkPolicies.destinations[0].cidr"]


@pytest.mark.parametrize("cidr", ["169.254.169.254/32", "169.254.169.0/24", "169.254.0.0/16", "169.254.20.10/32"])
def test_an_egress_destination_of_only_the_metadata_service_is_refused(cidr: str):
    opened = {"engine": "existing", "destinations": [{"cidr": "10.60.0.0/24"}, {"cidr": cidr}]}
    assert paths(networkPolicies=opened) == ["networkPolicies.destinations[1].cidr"]
    assert not problems(networkPolicies={"engine": "existing", "destinations": [{"cidr": "0.0.0.0/0"}]})


def test_with_calico_no_advice_says_that_network_policies_do_nothing():
    config: Any = created_stack(created_pool(), networkPolicies={"engine": "calico"})
    texts = [item.text for item in planning.plan(validate(config)).advice]
    assert not any("NetworkPolicies do nothing" in text for text in texts)
