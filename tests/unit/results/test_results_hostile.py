"""Results that somebody made to hurt: they take no time, end in a sentence, and what they call things stays a name."""

import io
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from llmd_base.documents import UnboundedError, require_bounded
from llmd_base.errors import KitError
from llmd_bench import files
from llmd_bench.files import Latencies, row_json
from llmd_bench.loads import grouped
from llmd_bench.readers import read
from llmd_bench.texts import code, plain
from llmd_oke.cli import console
from llmd_oke.cli.main import app
from llmd_oke.config import yaml_files
from results_rows import row
from rich.table import Table
from typer.testing import CliRunner

ROW = json.loads(row_json(row()))


def bomb() -> str:
    """380 bytes that stand for 9**8 values."""
    lines = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    lines += [
        f"{name}: &{name} [{','.join(['*' + before] * 9)}]" for before, name in zip("abcdefg", "bcdefgh", strict=True)
    ]
    return "\n".join(lines) + "\n"


def compared(path: Path, *more: str) -> tuple[str, BaseException | None]:
    ended = CliRunner().invoke(app, ["compare", str(path), str(path), *more])
    return ended.output, ended.exception


def written(tmp_path: Path, name: str, text: str | bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    return path


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("bomb.yaml", bomb(), "it has more than 200,000 values"),
        ("deep.yaml", "[" * 100_000, "nested too deeply"),
        ("deep.json", "[" * 100_000, "nested too deeply"),
        ("deep.jsonl", f"{json.dumps({**ROW, 'gpus_counted': 0})}\n{'[' * 100_000}\n", "nested too deeply"),
        ("long.yaml", "- x\n" * 2_000_000, "longer than 4 MiB"),
        ("date.yaml", "version: '0.2'\nrun: {time: {start: 2026-13-45}}\n", "month must be in 1..12"),
        ("key.yaml", "? [a]\n: b\n", "is not YAML"),
        ("digits.json", "1" * 10_000, "value that is none"),
        ("none.jsonl", json.dumps({**ROW, "gpus_counted": 0}), "gpus_counted: must be at least 1"),
        ("minus.jsonl", json.dumps({**ROW, "copies": -1}), "copies: must be at least 1"),
        ("huge.jsonl", json.dumps({**ROW, "output_tokens_per_s": 1e308}), "output_tokens_per_s: must be at most"),
        ("escape.jsonl", json.dumps({**ROW, "model": "m\x1b]0;evil\x07"}), "model: has a control character"),
        ("lines.jsonl", json.dumps({**ROW, "model": "m\nerror forged"}), "model: has a control character"),
        ("order.jsonl", json.dumps({**ROW, "model": "m\u202etxt"}), "model: has a control character"),
        ("half.jsonl", json.dumps({**ROW, "model": "m\ud800"}), "model: "),
        ("half-note.jsonl", json.dumps({**ROW, "notes": ["m\ud800"]}), "notes.0: "),
    ],
)
def test_a_malicious_result_file_is_refused_quickly_with_an_explanation(tmp_path, name, text, sentence):
    started_s = time.monotonic()
    _, ended = compared(written(tmp_path, name, text))
    assert isinstance(ended, KitError)
    assert sentence in str(ended)
    assert time.monotonic() - started_s < 5


def test_endless_files_and_rows_larger_than_the_size_limit_are_refused(monkeypatch):
    monkeypatch.setattr(files, "MAX_BYTES", 2**20)
    with pytest.raises(KitError, match="larger than 1 MiB"):
        files.read_text(Path("/dev/zero"))
    monkeypatch.setattr(files, "MAX_BYTES", 10)
    (rejected,) = files.parse_rows(b"x" * 11, "dev/rows.jsonl").rejected
    assert "larger than" in rejected.why


def test_named_pipes_in_a_results_folder_are_ignored(tmp_path):
    os.mkfifo(tmp_path / "rows.jsonl")
    assert not read(tmp_path).rows


def test_results_with_more_than_500_different_loads_are_refused():
    rows = [row(concurrency=2.0**i) for i in range(40)] * 2 + [row(model=f"m{i}") for i in range(500)]
    with pytest.raises(KitError, match="more than 500 different loads"):
        grouped(rows, by_deployment=False)


@pytest.mark.parametrize("times", ['["a", 1]', "[1, [2]]", "[NaN, 1]", "[1e400, 1]", '{"a": 1}', '"ab"', "7"])
def test_invalid_token_times_of_a_stored_request_are_left_out(times):
    result = Latencies()
    result.add([f'{{"first_token_s": 1, "token_times_s": {times}}}', "[" * 100_000, '{"first_token_s": 1e400}'])
    assert (result.ttft_ms, result.itl_ms) == ([1000.0], [])


MARKUP = "[/x][bold red]m[/]"


def test_model_names_in_result_files_cannot_inject_markup_into_terminal_tables(tmp_path):
    path = written(tmp_path, "rows.jsonl", json.dumps({**ROW, "model": MARKUP, "topology": MARKUP}))
    shown, ended = compared(path)
    assert ended is None
    assert MARKUP in " ".join(shown.split())
    run = tmp_path / "reports" / "dev" / "20260301T120000Z"
    run.mkdir(parents=True)
    path.rename(run / "rows.jsonl")
    for words in (["list"], ["show", "latest"]):
        shown = CliRunner().invoke(app, ["history", *words, "--stack", "dev", "--history", str(tmp_path / "reports")])
        assert shown.exception is None
        assert "[/x]" in shown.output


OBEYED = "a\x1b[2Jb\x1b]0;evil\x07c\x9bd\u202ee\x08f\rg\ud800h"


def shown(value: Any, **options: Any) -> str:
    file = io.StringIO()
    made = console._console(stderr=False)
    made.file = file
    made.print(value, **options)
    return file.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_shown_texts_cannot_contain_terminal_control_sequences(monkeypatch, terminal):
    monkeypatch.setenv("FORCE_COLOR" if terminal else "NO_COLOR", "1")
    table = Table(title=OBEYED)
    table.add_row(OBEYED)
    for text in (shown(OBEYED, markup=False), shown(table), shown(OBEYED, style="bold", soft_wrap=True)):
        own = re.sub(r"\x1b\[[0-9;]*m", "", text)
        assert not set(own) & set("\x1b\x07\x9b\u202e\x08\r\ud800")
        assert "evil" in own
    for made in (console.output(), console.errors()):
        with made.capture() as captured:
            made.print(OBEYED, markup=False)
        assert "\x1b" not in captured.get()


@pytest.mark.parametrize(
    "text", ["a|b", "a`b", "[a](javascript:x)", "![a](b)", "<script>", "**a**", "a\n# b", "a\\|b", "&lt;"]
)
def test_model_names_in_result_files_cannot_inject_markup_into_markdown(text):
    escaped = plain(text)
    assert "\n" not in escaped
    assert "<" not in escaped
    assert not re.search(r"(?<!\\)(?:\\\\)*[|`*\[\]]", escaped)
    assert re.fullmatch(r"`[^`|\n]*`", code(text))


def test_model_names_in_result_files_cannot_inject_markup_into_html_pages(tmp_path):
    pytest.importorskip("matplotlib")
    evil = '"><script>alert(1)</script>$x$'
    path = written(tmp_path, "rows.jsonl", json.dumps({**ROW, "model": evil, "topology": evil}))
    page = tmp_path / "page.html"
    _, ended = compared(path, "--html", str(page), "--markdown", str(tmp_path / "page.md"))
    assert ended is None
    assert "<script" not in page.read_text()
    assert "<script" not in (tmp_path / "page.md").read_text()
    assert "alert(1)" in page.read_text()


def test_a_stack_file_that_exhausts_the_yaml_parser_is_refused(tmp_path):
    for text in ("[" * 100_000, "- " * 100_000, "a: " * 100_000):
        with pytest.raises(KitError):
            yaml_files.read(written(tmp_path, "Pulumi.dev.yaml", text))


def test_yaml_aliases_are_accepted_unless_they_expand_beyond_a_limit():
    require_bounded("a: &a {b: [1, 2]}\nc: *a\nd: [*a, *a]\n")
    with pytest.raises(UnboundedError):
        require_bounded(bomb())
