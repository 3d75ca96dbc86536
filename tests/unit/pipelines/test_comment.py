"""The comment on a pull request: what a reviewer reads, and that nothing of the pull request is markup in it."""

import json
import re
from pathlib import Path

import pytest
from llmd_base.errors import KitError
from llmd_oke.cli.main import app
from llmd_oke.pipelines.comment import LIMITS, MARK, Reports, comment, diagram
from llmd_oke.pipelines.records import (
    NodesOfPool,
    PassportExcerpt,
    PolicyBreach,
    PreviewedResource,
    PreviewReport,
    PricedPart,
    ProjectChanges,
    RehearsalReport,
    ServersOfRole,
    SnapshotModel,
    StackSnapshot,
    TouchedStack,
    read_record,
    write_record,
)
from markdown_it import MarkdownIt
from typer.testing import CliRunner

BASE, HEAD = "a" * 40, "b" * 40
HOSTILE = (
    "</details><script>alert(1)</script> [x](https://evil.example) ![y](//evil.example/z.png) `@admin` #1 @team/ops"
    " www.evil.example | # heading\n/close\n- item **bold** <!-- llmd-oke pipeline --> $(id) `id` ${{ secrets.X }} ```"
)
MODEL = SnapshotModel(
    name="gpt-oss-120b",
    topology="8p-tp1-4d-tp2",
    copies=2,
    gpus=32,
    routed=True,
    roles=(
        ServersOfRole(role="prefill", servers=16, gpus_each=1),
        ServersOfRole(role="decode", servers=8, gpus_each=2),
    ),
)


def snapshot(stack: str = "prod", usd: float = 48.0, **more: object) -> StackSnapshot:
    known = {"stack": stack, "costs": (PricedPart(part=f"mi300x: {usd}", usd_per_hour=usd),), "models": (MODEL,)}
    known |= {"entry": "front door, public", "pools": (NodesOfPool(name="mi300x", shape="BM.GPU.MI300X.8", nodes=4),)}
    return StackSnapshot.model_validate({**known, **more})


def change(stack: str = "prod", **more: object) -> TouchedStack:
    known: dict[str, object] = {"before": snapshot(stack), "after": snapshot(stack, 96.0), "kind": "changed"}
    return TouchedStack.model_validate({"stack": stack, **known, **more})


def reports(*changed: TouchedStack, **more: object) -> Reports:
    known: dict[str, object] = {"previews": {}, "rehearsals": {}}
    return Reports(ProjectChanges(base=BASE, head=HEAD, changes=changed, untouched=("other",)), **{**known, **more})  # type: ignore[arg-type]


def full() -> Reports:
    """Reports of one stack in which every text is the pull request's."""
    breaches = tuple(PolicyBreach(policy=HOSTILE, level=level, text=HOSTILE) for level in ("advisory", "mandatory"))  # type: ignore[arg-type]
    pools = (NodesOfPool(name=HOSTILE, shape=HOSTILE, nodes=1),)
    models = (MODEL.model_copy(update={"name": HOSTILE, "topology": HOSTILE}),)
    costs = (PricedPart(part=HOSTILE, usd_per_hour=None),)
    after = snapshot(problems=(HOSTILE,), breaches=breaches, pools=pools, models=models, entry=HOSTILE, costs=costs)
    sound = after.model_copy(update={"problems": ()})
    resource = PreviewedResource(operation="update", resource=HOSTILE, replaced_by=(HOSTILE,), changed=(HOSTILE,))
    texts = dict.fromkeys(("refusals", "by_hand", "advice"), (HOSTILE,))
    preview = PreviewReport(stack="prod", first=HOSTILE, size=HOSTILE, resources=(resource,), **texts)  # type: ignore[arg-type]
    passport = PassportExcerpt(
        model=HOSTILE, topology=HOSTILE, basis=HOSTILE, smoke_passed=False, failed_checks=(HOSTILE,), accuracy=HOSTILE
    )
    rehearsal = RehearsalReport(
        stack="prod", base=BASE, passed=False, seconds=1, changes=HOSTILE, error=HOSTILE, passports=(passport,)
    )
    changed = (change("bad", after=after), change(after=sound, created=(HOSTILE,), changed=(HOSTILE,)))
    return reports(
        *changed,
        previews={"prod": preview},
        rehearsals={"prod": rehearsal},
        missing=(HOSTILE,),
        artifacts="https://ci/1",
    )


def test_a_pull_request_comment_omits_the_price_table_of_an_undeployable_stack():
    broken = change(after=StackSnapshot(stack="prod", problems=("no such shape",)))
    assert "| list price, $/hour |" in comment(reports(change()), 10**6)
    said = comment(reports(broken), 10**6)
    assert "| list price, $/hour |" not in said
    assert "| 48.00 → unknown |" in said


def test_a_pull_request_comment_has_one_row_for_each_touched_new_or_removed_stack():
    preview = PreviewReport(stack="prod", counts={"update": 2, "same": 5})
    rehearsal = RehearsalReport(stack="prod", base=BASE, passed=True, seconds=130)
    text = comment(reports(change(), previews={"prod": preview}, rehearsals={"prod": rehearsal}), LIMITS["github"])
    assert text.startswith(f"{MARK}\n\n## Stacks: 1 of 2 touched")
    row = "| `prod` | passed | none here | 48.00 → 96.00 (**+48.00**) | 2 to update, 5 unchanged | passed (2 min) |"
    assert row in text
    assert "Not touched: `other`." in text
    text = comment(reports(change("old", after=None, kind="removed"), change("new", before=None, kind="new")), 60_000)
    assert "| `old` (removed) | - | - | 48.00 → 0 | stays until `llmd-oke destroy` | - |" in text
    assert "| `new` (new) | passed | none here | 96.00 | none | none |" in text


def test_a_pull_request_comment_lists_mandatory_policy_violations_before_advisory():
    breaches = (
        PolicyBreach(policy="shapes", level="advisory", text="another shape"),
        PolicyBreach(policy="regions", level="mandatory", text="another region"),
    )
    text = comment(reports(change(after=snapshot(breaches=breaches))), 60_000)
    assert "| **1 refuse it**, 1 advisory |" in text
    assert text.index("- `regions`: another region") < text.index("- `shapes`: another shape")


def test_text_of_a_pull_request_adds_no_links_scripts_or_html_to_the_comment():
    text = comment(full(), LIMITS["gitlab"])
    html = MarkdownIt("gfm-like").disable("linkify").render(text)
    shown = re.sub(r"<code.*?</code>", "", html, flags=re.DOTALL)  # code is shown as it is
    assert "<script" not in shown
    assert "<img" not in shown
    assert re.findall(r'href="([^"]*)"', shown) == ["https://ci/1"]
    assert re.findall(r"<strong>bold", shown) == []
    assert html.count("<details>") == html.count("</details>")
    assert re.sub(r"`[^`\n]*`", "", text).count(MARK) == 1


def test_text_of_a_pull_request_mentions_nobody_and_is_no_quick_action_of_gitlab():
    text = comment(full(), LIMITS["gitlab"])
    assert [line for line in text.splitlines() if line.lstrip().startswith("/")] == []
    outside_code = re.sub(r"`[^`\n]*`", "", re.sub(r"```mermaid.*?```", "", text, flags=re.DOTALL))
    assert not re.search(r"@\w|#\d", outside_code)
    assert "evil.example" in outside_code
    assert not re.search(r"www\.|(?<!ci)://(?!ci)", outside_code)


def test_a_hostile_name_cannot_break_out_of_the_comments_mermaid_diagram():
    lines = diagram(full().changes.changes[1].after).splitlines()  # type: ignore[union-attr, arg-type]
    assert not [line for line in lines if "```" in line or "%%" in line or "<" in line.replace("-->", "")]
    assert all(line.count('"') in {0, 2} for line in lines)


def test_the_comments_mermaid_diagram_shows_servers_kv_transfer_and_gpu_pools():
    lines = diagram(snapshot()).splitlines()
    assert lines[0] == "flowchart LR"
    assert '    m0prefill["16 prefill, 1 GPU each"]' in lines
    assert "    m0prefill -- KV cache --> m0decode" in lines
    assert '  pool0[("mi300x: 4 x BM.GPU.MI300X.8")]' in lines


@pytest.mark.parametrize("system", LIMITS)
def test_a_comment_above_the_size_limit_keeps_its_overview_and_drops_details(system: str):
    limit = LIMITS[system]
    items = tuple(f"äöü {number} " + "x" * 500 for number in range(30))
    many = [change(f"s{number}", after=snapshot(problems=items)) for number in range(100)]
    text = comment(reports(*many), limit)
    assert len(text.encode()) <= limit
    assert "| `s0` | **30 problems** |" in text
    assert "The rest would be longer than a comment may be" in text


def test_a_comment_whose_overview_exceeds_the_size_limit_is_cut_at_a_line_break():
    text = comment(full(), 400)
    assert len(text.encode()) <= 400
    assert text.endswith("\n\ncut here\n")


def test_pipeline_comment_reads_reports_of_ci_jobs_and_names_wrong_and_missing_ones(tmp_path: Path):
    found = tmp_path / "found"
    write_record(found / "changes" / "changes.json", reports(change()).changes)  # type: ignore[arg-type]
    write_record(found / "preview-prod" / "preview-prod.json", PreviewReport(stack="prod", counts={"create": 3}))
    (found / "rehearsal-prod.json").write_text(json.dumps({"stack": "../../etc", "markdown": "# hi"}))
    output = tmp_path / "comment.md"
    argv = ["pipeline", "comment", "--reports", str(found), "--output", str(output), "--artifacts", 'https://ci/"1"']
    ended = CliRunner().invoke(app, argv)
    assert ended.exit_code == 0, ended.output
    text = output.read_text()
    assert "3 to create" in text
    assert "is no RehearsalReport" in text
    assert '<a href="https://ci/&quot;1&quot;">' in text
    (found / "changes" / "changes.json").unlink()
    assert CliRunner().invoke(app, argv).exit_code == 0
    assert "The job that compares stacks left no result" in output.read_text()


def test_a_ci_jobs_report_above_8_mib_is_refused(tmp_path: Path):
    long = tmp_path / "changes.json"
    long.write_bytes(b" " * (9 * 2**20))
    with pytest.raises(KitError, match="longer than 8 MiB"):
        read_record(long, ProjectChanges)


@pytest.mark.parametrize("name", ["a b", "../a", "a`b", "$(id)", "", "a\nb", "-rf", "ü"])
def test_a_preview_report_with_an_invalid_stack_name_is_refused(name: str):
    with pytest.raises(ValueError, match="pattern"):
        PreviewReport(stack=name)
