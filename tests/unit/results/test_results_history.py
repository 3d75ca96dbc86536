import json

import pytest
from llmd_base.errors import KitError
from llmd_base.row import Origin
from llmd_bench.comparison import Side
from llmd_bench.files import write_rows
from llmd_bench.history import FolderStore, SideResults, copy_runs, find, runs, stack_folder, stacks
from results_rows import row

TIMES = ("20260301T120000Z", "20260302T120000Z", "20260303T120000Z")


@pytest.fixture
def store(tmp_path):
    for time, config_hash in zip(TIMES, ("aaaa1111", "bbbb2222", "bbbb2222"), strict=True):
        rows = [row(origin=Origin(tool="test", config_hash=config_hash))]
        write_rows(rows, tmp_path / "dev" / time / "rows.jsonl")
    (tmp_path / "dev/latest").symlink_to(TIMES[-1])
    (tmp_path / "dev/20260304T120000Z").mkdir()
    return FolderStore(tmp_path)


def times(found):
    return [run.time for run in found]


def test_the_history_lists_runs_newest_first_without_links_and_unfinished_ones(store):
    assert times(runs(store, "dev")) == [*reversed(TIMES)]
    assert stacks(store) == ["dev"]


@pytest.mark.parametrize(
    ("reference", "which"),
    [
        ("dev@latest", TIMES[2:]),
        ("dev@previous", TIMES[1:2]),
        (f"dev:{TIMES[0]}", TIMES[:1]),
        ("dev@aaaa1111", TIMES[:1]),
        ("dev@bbbb", (TIMES[2], TIMES[1])),
    ],
)
def test_benchmark_runs_are_found_by_each_form_of_reference(store, reference, which):
    assert times(find(store, reference)) == list(which)


@pytest.mark.parametrize(
    ("reference", "lacking", "there"),
    [
        *((reference, "has no result", TIMES[2]) for reference in ("dev@cccc", "dev:20200101T000000Z", "dev@second")),
        ("prod@latest", "Stack prod has no results", "dev"),
    ],
)
def test_a_run_or_stack_that_the_history_lacks_is_refused_with_existing_ones(store, reference, lacking, there):
    with pytest.raises(KitError, match=lacking) as caught:
        find(store, reference)
    assert there in caught.value.remedy


LOAD = "20260304T130000Z"


@pytest.fixture
def loaded(store, tmp_path):
    """The same, and a load of two stages."""
    stages = [row(arrival="constant", offered_requests_per_s=rate) for rate in (4.0, 8.0)]
    write_rows(stages, tmp_path / "dev/bench" / LOAD / "rows.jsonl")
    return store


def test_bench_loads_are_listed_on_request_and_found_by_time_but_never_as_latest(loaded):
    assert times(runs(loaded, "dev")) == [*reversed(TIMES)]
    newest = runs(loaded, "dev", loads=True)[0]
    assert (newest.name, newest.kind, len(newest.rows)) == (f"dev:{LOAD}", "load", 2)
    assert [run.kind for run in find(loaded, f"dev:{LOAD}")] == ["load"]
    assert times(find(loaded, "dev@latest")) == [TIMES[2]]


def test_the_error_for_a_history_of_loads_only_says_how_to_name_a_load(tmp_path):
    write_rows([row()], tmp_path / "dev/bench" / LOAD / "rows.jsonl")
    with pytest.raises(KitError, match="loads") as caught:
        find(FolderStore(tmp_path), "dev@latest")
    assert "dev:TIME" in caught.value.remedy


def test_results_of_all_models_of_a_stacks_benchmark_are_one_run_in_the_history(store, tmp_path):
    for model in ("a", "b"):
        write_rows([row(model=model)], tmp_path / "dev/20260305T120000Z" / model / "rows.jsonl")
    (result,) = find(store, "dev@latest")
    assert [item.model for item in result.rows] == ["a", "b"]


def test_an_invalid_line_in_a_history_is_named_and_hides_no_other_run(store, tmp_path):
    (tmp_path / "dev" / TIMES[1] / "rows.jsonl").write_text("{\n")
    result = runs(store, "dev")
    assert [len(run.rows) for run in result] == [1, 0, 1]
    assert str(result[1].found.rejected[0]).startswith(f"dev/{TIMES[1]}/rows.jsonl:1: ")


def test_latencies_of_single_requests_omit_failed_requests_and_truncated_lines(store, tmp_path):
    lines = [
        {"first_token_s": 0.5, "token_times_s": [0.5, 0.625, 0.6875], "failure": None},
        {"first_token_s": 0.1, "token_times_s": [0.1], "failure": "cut"},
        {"first_token_s": 0.75, "token_times_s": [0.75, 9.0], "only_ends": True, "failure": None},
        {"first_token_s": 0.25, "token_times_s": [0.25, 0.375], "failure": None},
    ]
    path = tmp_path / "dev" / TIMES[2] / "requests.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + '\n{"first')
    latencies = find(store, "dev@latest")[0].latencies()
    assert (latencies.ttft_ms, latencies.itl_ms) == ([500, 750, 250], [125, 62.5, 125])


def test_copying_a_history_copies_missing_runs_and_is_an_error_without_runs(loaded, tmp_path):
    target, told = FolderStore(tmp_path / "copy"), []
    assert len(copy_runs(loaded, target, "dev", told.append)) == 4
    assert copy_runs(loaded, target, "dev", told.append) == []
    assert told == [LOAD, *reversed(TIMES)]
    assert [run.kind for run in runs(target, "dev", loads=True)] == ["load", "smoke", "smoke", "smoke"]
    assert find(target, "dev@latest")[0].rows == find(loaded, "dev@latest")[0].rows
    with pytest.raises(KitError, match="no results to copy"):
        copy_runs(FolderStore(tmp_path / "none"), target, "dev", lambda _: None)


def test_an_interrupted_copy_of_a_history_is_completed_by_the_next(store, tmp_path):
    class Full(FolderStore):
        def write(self, name, content):
            if name.endswith("rows.jsonl"):
                raise KitError("full")
            super().write(name, content)

    (tmp_path / "dev" / TIMES[2] / "requests.jsonl").write_text("")
    with pytest.raises(KitError, match="full"):
        copy_runs(store, Full(tmp_path / "copy"), "dev", lambda _: None)
    assert len(copy_runs(store, FolderStore(tmp_path / "copy"), "dev", lambda _: None)) == 3


def test_rows_measured_for_the_tuner_are_not_listed_as_runs_in_the_history(store, tmp_path):
    write_rows([row()], tmp_path / "tuned/tuning/rows.jsonl")
    assert stacks(store) == ["dev"]
    with pytest.raises(KitError, match="Stack tuned has no results"):
        find(store, "tuned@latest")


def test_a_stack_named_with_organization_and_project_has_one_history_folder(tmp_path):
    folder = stack_folder("acme/llm/dev")
    write_rows([row()], tmp_path / folder / TIMES[0] / "rows.jsonl")
    store = FolderStore(tmp_path)
    assert (stacks(store), times(runs(store, "acme/llm/dev"))) == ([folder], [TIMES[0]])


@pytest.mark.parametrize(
    ("bases", "worst"),
    [(["measured"], "measured"), (["measured", "calibrated"], "calibrated"), (["bound", "measured"], "bound")],
)
def test_the_basis_of_one_side_of_a_comparison_is_that_of_its_least_certain_row(bases, worst):
    assert SideResults(Side("a", tuple(row(basis=basis) for basis in bases))).basis == worst
