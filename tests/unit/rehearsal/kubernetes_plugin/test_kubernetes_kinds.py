import pytest
from llmd_oke.rehearsal.kubernetes_plugin.kinds import kind_of
from llmd_oke.rehearsal.plugin_protocol.errors import Refusal


def test_a_listed_kind_is_known_by_its_type_token():
    kind = kind_of("kubernetes:rbac.authorization.k8s.io/v1:ClusterRole")

    assert (kind.id, kind.plural, kind.namespaced) == (
        "rbac.authorization.k8s.io/v1/ClusterRole",
        "clusterroles",
        False,
    )


def test_a_kind_outside_of_the_built_in_groups_is_a_custom_resource():
    assert not kind_of("kubernetes:inference.networking.k8s.io/v1:InferencePool").built_in


def test_a_built_in_kind_that_is_not_listed_is_refused_with_the_list():
    with pytest.raises(
        Refusal, match=r"kubernetes:networking.k8s.io/v1:Ingress is not in this rehearsal.*ConfigMap.*Service"
    ):
        kind_of("kubernetes:networking.k8s.io/v1:Ingress")


def test_helm_charts_are_refused_by_name():
    with pytest.raises(Refusal, match=r"helm.sh/v3:Chart is not in this rehearsal.*Helm's Release"):
        kind_of("kubernetes:helm.sh/v3:Chart")
