"""The short and the long form of topologies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmd_bench.deployment import Parallelism, aggregated_short_form, disaggregated_short_form, parse_short_form
from llmd_oke.config import Servers, Topology

SERVERS = st.tuples(st.integers(1, 1024), st.integers(1, 64)).map(
    lambda sizes: Servers(replicas=sizes[0], tensor_parallel_size=sizes[1])
)
DISAGGREGATED = st.builds(Topology, prefill=SERVERS, decode=SERVERS)
AGGREGATED = st.builds(Topology, aggregated=SERVERS)


@given(DISAGGREGATED | AGGREGATED)
def test_the_short_form_of_a_topology_equals_the_long_form(topology: Topology):
    again = Topology.model_validate(str(topology))
    assert again == topology
    assert hash(again) == hash(topology)
    assert str(again) == str(topology)
    assert (again.source_text, topology.source_text) == (str(topology), None)


@given(SERVERS, SERVERS)
def test_the_gpus_of_a_topology_are_the_sum_over_all_its_servers(prefill: Servers, decode: Servers):
    topology = Topology(prefill=prefill, decode=decode)
    assert topology.disaggregated
    assert topology.gpus == (
        prefill.replicas * prefill.tensor_parallel_size + decode.replicas * decode.tensor_parallel_size
    )


def test_reports_and_tuner_write_topologies_in_the_same_short_form():
    assert (
        disaggregated_short_form(8, Parallelism(1), 4, Parallelism(2))
        == str(Topology.model_validate("8p-tp1-4d-tp2"))
        == "8p-tp1-4d-tp2"
    )
    assert aggregated_short_form(Parallelism(2), 12) == str(Topology.model_validate("agg-tp2-12r")) == "agg-tp2-12r"


def test_short_forms_of_topologies_give_servers_and_tensor_parallel_size_by_role():
    assert parse_short_form("8p-tp1-4d-tp2") == {
        "prefill": {"replicas": 8, "tensorParallelSize": 1},
        "decode": {"replicas": 4, "tensorParallelSize": 2},
    }
    assert parse_short_form("agg-tp2-12r") == {"aggregated": {"replicas": 12, "tensorParallelSize": 2}}


@pytest.mark.parametrize(
    "text",
    [
        *("8p-tp1-4d-tp2x", "x8p-tp1-4d-tp2", "8p-tp1-4d-tp02", "99999p-tp1-1d-tp1", "agg-tp-1r"),
        *("agg-dp8-1r", "agg-tp1dp-1r", "agg-tp1epdp8-1r", "agg-tp1-dp8-1r"),  # in another order
    ],
)
def test_malformed_short_forms_of_a_topology_are_refused(text: str):
    with pytest.raises(ValueError, match="no topology"):
        parse_short_form(text)


def test_a_topology_without_a_short_form_is_written_as_a_list_of_its_roles():
    one = Servers(replicas=1, tensor_parallel_size=1)
    assert str(Topology(prefill=one)) == "prefill 1 x tp1"
    assert list(Topology(decode=one, aggregated=one).servers()) == ["decode", "aggregated"]


def test_short_forms_of_topologies_give_data_and_expert_parallelism():
    topology = Topology.model_validate("2p-tp1dp8ep-1d-tp2dp4")
    prefill, decode = topology.servers().values()
    assert (prefill.data_parallel_size, prefill.expert_parallel, prefill.gpus) == (8, True, 8)
    assert (decode.tensor_parallel_size, decode.data_parallel_size, decode.expert_parallel) == (2, 4, None)
    assert topology.gpus == 24
    assert str(topology) == "2p-tp1dp8ep-1d-tp2dp4"
    assert str(Topology.model_validate("agg-tp8ep-1r")) == "agg-tp8ep-1r"
