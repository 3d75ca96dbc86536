"""The charts of OKE's add-ons in rehearsals."""

from llmd_oke.rehearsal.add_ons import contents
from llmd_oke.rehearsal.kubernetes_plugin import charts


def test_every_chart_of_an_add_on_is_one_that_rehearsals_have():
    known = {(source.reference, source.repository, source.version) for source in charts.sources()}
    asked = {(each.chart.reference, each.chart.repository, each.chart.version) for each in contents().values()}
    assert asked <= known
