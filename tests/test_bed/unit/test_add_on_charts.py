"""The charts of OKE's add-ons in rehearsals."""

import pytest
from llmd_oke.catalogue.operators import operator
from llmd_oke.catalogue.registry_mirror import MirrorRegistry
from llmd_rehearsal.kubernetes_plugin import charts
from llmd_rehearsal.oci_plugin.local_cluster import contents


def test_every_add_ons_chart_is_available_to_rehearsals():
    known = {(source.reference, source.repository, source.version) for source in charts.sources()}
    request = {(item.chart.reference, item.chart.repository, item.chart.version) for item in contents().values()}
    assert request <= known


CHARTS = ["cert-manager", "amd-gpu-operator", "node-feature-discovery", "kube-prometheus-stack"]


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_in_a_private_registry_is_replaced_by_the_rehearsals_chart(name: str):
    copy = operator(name).chart.taken_from(MirrorRegistry("iad.ocir.io/ai/mirror"))
    source = charts.find(copy.pinned, "", copy.version)
    assert (source.version, source.published) == (copy.version, copy.reference.partition("/mirror/")[2])
