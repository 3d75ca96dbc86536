"""The rows that the tuner keeps of a stack."""

from pathlib import Path

from llmd_base.row import Basis, Row
from llmd_tuner.experiments import records
from rows_for_tests import known_row


def row(**changes: object) -> Row:
    return known_row(**{"subject": "decode", "image": "one", "tensor_parallel_size": 2, "concurrency": 4, **changes})


def test_a_new_measurement_replaces_earlier_ones_under_the_same_conditions(tmp_path: Path):
    file = tmp_path / "tuning" / "rows.jsonl"
    records.add_rows([row(), row(concurrency=32.0)], file)
    kept = records.add_rows([row(output_tokens_per_s=120.0)], file)
    assert [(item.concurrency, item.output_tokens_per_s) for item in kept] == [(32.0, 100.0), (4.0, 120.0)]


def test_the_tuner_uses_rehearsed_rows_only_if_nothing_was_measured_on_hardware(tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    assert records.current_rows(file, "gpt-oss-120b", "MI300X") == []
    records.add_rows([row(), row(concurrency=8.0), row(model="other")], file)
    assert len(records.current_rows(file, "gpt-oss-120b", "MI300X")) == 2
    records.add_rows([row(basis=Basis.MEASURED)], file)
    assert [item.basis for item in records.current_rows(file, "gpt-oss-120b", "MI300X")] == [Basis.MEASURED]


def test_the_tuner_uses_only_rows_measured_with_the_newest_image(tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    records.add_rows([row(), row(image="two")], file)
    assert [item.image for item in records.current_rows(file, "gpt-oss-120b", "MI300X")] == ["two"]


def test_the_tuner_uses_only_rows_with_the_newest_server_settings_of_each_role(tmp_path: Path):
    """A prefill server without a connector has other conditions than a decode server; those of each are alike."""
    file = tmp_path / "rows.jsonl"
    prefill = {"subject": "prefill", "block_size": 16}
    older = [row(), row(block_size=16), row(**{**prefill, "block_size": 32})]
    records.add_rows([*older, row(**prefill), row(block_size=128), row(block_size=128, concurrency=8.0)], file)
    kept = records.current_rows(file, "gpt-oss-120b", "MI300X")
    assert [(item.subject, item.block_size) for item in kept] == [("prefill", 16), ("decode", 128), ("decode", 128)]
