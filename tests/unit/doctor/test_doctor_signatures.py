"""The catalogue of signatures: each fires on its recorded line and on no other's, and says what is there to do."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from llmd_oke.catalogue.signatures import (
    ComponentSignatures,
    MetricSignature,
    Signature,
    TextSignature,
    components,
    metric_signatures,
    text_signatures,
)
from llmd_oke.cli.main import app
from llmd_oke.operations.doctor.diagnosis import diagnose
from llmd_oke.operations.doctor.log_search import LONGEST_LINE, LogSearch
from pydantic import ValidationError
from typer.main import get_command

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "signatures.md"

TEXTS, METRICS = text_signatures(), metric_signatures()
ALL: dict[str, Signature] = {**TEXTS, **METRICS}
SEARCH = LogSearch(TEXTS)

HEAD = """# Signatures of known faults

What [`llmd-oke doctor`](how-to/find-known-faults.md) looks for, by component: in logs, in events and states of
Kubernetes' objects, and in metrics. Severities are those of
[`status`](how-to/see-how-a-stack-is.md#what-the-words-mean). Made from `values/signatures`, which has the texts and
patterns too, and the recorded line that each is tested with;
`tests/unit/doctor/test_doctor_signatures.py` holds it to that.
"""


def recorded_log(signature: TextSignature) -> bytes:
    return f"{signature.recorded}\n".encode() * signature.least


def test_at_least_sixty_fault_signatures_cover_all_components_that_serve_a_model():
    assert len(ALL) >= 60
    names = {item.component for item in components()}
    parts = {"vLLM", "NIXL", "UCX", "RCCL", "AITER", "endpoint picker", "routing sidecar", "Envoy", "AMD GPU operator"}
    assert {*parts, "Kubernetes", "OKE and OCI", "RDMA network", "ROCm"} == names
    assert sum(len(item.signatures) for item in components()) == len(ALL)


@pytest.mark.parametrize("name", TEXTS)
def test_each_fault_signature_alone_matches_its_recorded_log_line(name: str):
    signature = TEXTS[name]
    fired = SEARCH(recorded_log(signature), next(iter(signature.containers), "vllm"))
    assert set(fired) == {name}
    assert fired[name].count == signature.least


@pytest.mark.parametrize("name", [name for name, item in TEXTS.items() if item.least > 1])
def test_fault_signatures_of_lines_that_a_healthy_start_may_log_need_several_lines(name: str):
    signature = TEXTS[name]
    assert SEARCH(f"{signature.recorded}\n".encode() * (signature.least - 1), "vllm") == {}


@pytest.mark.parametrize("name", [name for name, item in TEXTS.items() if item.containers])
def test_fault_signatures_of_common_texts_are_searched_only_in_their_own_containers(name: str):
    assert SEARCH(recorded_log(TEXTS[name]), "kube-apiserver") == {}


@pytest.mark.parametrize("name", METRICS)
def test_each_metric_signature_matches_values_beyond_its_limit_and_none_within(name: str):
    signature = METRICS[name]
    (limit,) = (value for value in (signature.above, signature.below) if value is not None)
    total = max(signature.least, 1000.0)
    labels = {label: accepted[0] for label, accepted in signature.labels.items()}
    beyond, within = (limit * 1.5, limit * 0.5) if signature.below is None else (limit * 0.5, limit * 1.5)
    assert fired_on_metrics(signature, labels, beyond * total if signature.per else beyond + 1, total) == {name}
    assert fired_on_metrics(signature, labels, within * total if signature.per else within, total) == set()
    if signature.per:
        assert fired_on_metrics(signature, labels, 1, 1) == set(), "too few to judge"


def fired_on_metrics(signature: MetricSignature, labels: dict[str, str], value: float, total: float) -> set[str]:
    """Return what fires on a program with a value of the metric, and `total` of what it is divided by."""
    shown = ",".join(f'{label}="{text}"' for label, text in labels.items())
    others = "".join(f'{per}{{other="yes"}} {total - value * bool(labels)}\n' for per in signature.per[:1])
    exposed = f"{signature.metrics[0]}{{{shown}}} {value}\n{others}"
    return {item.name for item in diagnose([("metrics/decode-0.prom", exposed.encode())]).findings}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.timeout(10)
def test_no_fault_signatures_pattern_is_slow_on_a_hostile_log_line(name: str):
    signature = TEXTS[name]
    words = [*signature.texts, *re.findall(r"[A-Za-z_]{4,}", signature.pattern or ""), " ", "'", "x", "{", "1"]
    started_s = time.perf_counter()
    for word in words:
        signature.accepts(signature.texts[0] + word * (LONGEST_LINE // len(word)))
    assert time.perf_counter() - started_s < 1


def test_no_fault_signatures_text_is_part_of_another_signatures_text():
    """Two texts may be in one line where patterns tell them apart; the recorded lines show that they do."""
    texts = [text for signature in TEXTS.values() for text in signature.texts]
    inside = {(one, other) for one in texts for other in texts if one != other and one in other}
    assert inside == set()


@pytest.mark.parametrize("name", ALL)
def test_each_fault_signature_has_a_cause_a_remedy_and_an_existing_command(name: str):
    signature = ALL[name]
    assert signature.title[0].isupper()
    assert signature.cause.endswith(".")
    for page in re.findall(r"docs/[\w/-]+\.md", signature.remedy):
        assert (ROOT / page).is_file()
    if not signature.remedy.startswith("docs/"):
        assert signature.remedy.endswith(".")
    assert set(re.findall(r"\{(\w+)\}", signature.command)) <= {"stack", "namespace", "pod", "container", "node"}
    for text in (signature.command, *re.findall(r"`(llmd-oke [^`]+)`", signature.remedy)):
        if text.startswith("llmd-oke "):
            assert_is_command(text.split()[1:])


def assert_is_command(words: list[str]) -> None:
    command = get_command(app)
    for word in words:
        children = getattr(command, "commands", None)
        if children is None and not hasattr(command, "list_commands"):
            return
        command = command.get_command(None, word)  # type: ignore[attr-defined]
        assert command is not None, word


def test_the_faults_page_equals_what_is_generated_from_the_signatures():
    """`LLMD_OKE_UPDATE_GOLDEN=1` writes it anew."""
    text = "\n".join([HEAD.rstrip(), *(line for item in components() for line in section(item)), ""])
    if os.environ.get("LLMD_OKE_UPDATE_GOLDEN"):
        PAGE.write_text(text)
    assert PAGE.read_text() == text, "set LLMD_OKE_UPDATE_GOLDEN=1 to write it"


def section(item: ComponentSignatures) -> Iterator[str]:
    yield from ["", f"## {item.component}", "", "| what is wrong | in | severity | cause | remedy | sources |"]
    yield "|---|---|---|---|---|---|"
    for name, signature in item.signatures.items():
        versions = f" ({signature.versions})" if signature.versions else ""
        remedy = signature.remedy.removeprefix("docs/")
        if remedy != signature.remedy:
            remedy = f"[{remedy}]({remedy})"
        sources = " ".join(f"[{number}]({source})" for number, source in enumerate(signature.sources, start=1))
        cells = [f"{signature.title} (`{name}`)", signature.evidence, signature.severity]
        yield f"| {' | '.join([*cells, signature.cause + versions, remedy, sources])} |"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"recorded": "another thing"}, "doesn't match"),
        ({"texts": ["short"]}, "at least 8 characters"),
        ({"sources": ["http://example.org"]}, "pattern"),
        ({"sources": []}, "at least 1"),
        ({"severity": "bad"}, "outage"),
    ],
)
def test_an_invalid_fault_signature_is_refused_with_the_reason(change: dict[str, object], said: str):
    entry = {
        "title": "T",
        "severity": "risk",
        "evidence": "log",
        "texts": ["no such thing"],
        "recorded": "no such thing",
        "cause": "C.",
        "remedy": "R.",
        "command": "c",
        "sources": ["https://example.org"],
    }
    ComponentSignatures.model_validate({"component": "c", "signatures": {"a": entry}})
    with pytest.raises(ValidationError, match=said):
        ComponentSignatures.model_validate({"component": "c", "signatures": {"a": entry | change}})
