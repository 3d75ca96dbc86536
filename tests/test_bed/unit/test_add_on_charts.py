"""The charts of OKE's add-ons in rehearsals."""

from llmd_rehearsal.kubernetes_plugin import charts
from llmd_rehearsal.oci_plugin.local_cluster import contents


def test_every_chart_of_an_add_on_is_one_that_rehearsals_have():
    known = {(source.reference, source.repository, source.version) for source in charts.sources()}
    request = {(item.chart.reference, item.chart.repository, item.chart.version) for item in contents().values()}
    assert request <= known
