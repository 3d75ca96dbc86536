import pytest
from llmd_oke.bench.load.texts import read_length, read_shapes, read_trim
from llmd_oke.bench.records.windows import Trim
from llmd_oke.bench.workload.lengths import Fixed, LogNormal, Normal
from llmd_oke.bench.workload.shapes import ClosedLoop, ConstantRate, PoissonRate
from llmd_oke.errors import KitError


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("closed:8,16", [ClosedLoop(8), ClosedLoop(16)]),
        ("constant:45", [ConstantRate(45.0)]),
        ("poisson:0.5", [PoissonRate(0.5, seed=3)]),
    ],
)
def test_shapes(text, shapes):
    assert read_shapes(text, seed=3) == shapes


def test_a_trace_is_read_from_its_file(tmp_path):
    (tmp_path / "t.csv").write_text("time_s\n0\n1\n")
    (trace,) = read_shapes(f"trace:{tmp_path}/t.csv")
    assert (len(trace.entries), str(trace)) == (2, "trace:t.csv")


@pytest.mark.parametrize(
    "text", ["poisson", "poisson:", "steady:4", "closed:a", "constant:-1", "constant:inf", "trace:"]
)
def test_what_is_no_shape_is_refused_with_what_is_one(text):
    with pytest.raises(KitError, match="closed:USERS"):
        read_shapes(text)


@pytest.mark.parametrize(
    ("text", "length"),
    [("4096", Fixed(4096)), ("normal:100,20", Normal(100, 20)), ("lognormal:100,50", LogNormal(100, 50))],
)
def test_lengths(text, length):
    assert read_length(text) == length


@pytest.mark.parametrize("text", ["", "many", "normal:3", "normal:1,2,3", "4.5", "gamma:1,2"])
def test_what_is_no_length_is_refused_with_what_is_one(text):
    with pytest.raises(KitError, match="lognormal:MEAN"):
        read_length(text)


@pytest.mark.parametrize(
    ("text", "trim"), [("none", Trim()), ("busy", Trim(busy=True)), ("0.2", Trim(head_share=0.2, tail_share=0.2))]
)
def test_trims(text, trim):
    assert read_trim(text) == trim


@pytest.mark.parametrize("text", ["0.5", "most", ""])
def test_what_is_no_trim_is_refused_with_what_is_one(text):
    with pytest.raises(KitError, match=r"none, busy, or a share"):
        read_trim(text)
