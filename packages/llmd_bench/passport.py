"""Passport of a deployment: one file with what runs, and the evidence that it is correct, fast and accurate."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llmd_base.row import Basis, usd_per_million_tokens
from pydantic import BaseModel, ConfigDict

from llmd_bench.evals import EvalResult
from llmd_bench.texts import code, plain

PASSPORT_JSON, PASSPORT_MARKDOWN = "passport.json", "passport.md"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ColdStart(_Part):
    """Time from the servers' creation to the first token, by the cluster's clock; times are ISO 8601, UTC."""

    applied: str
    """Creation time of the first of the running servers."""
    ready: str | None
    """Time at which the last server became ready; None if a server isn't ready or was unready in between."""
    first_token: str | None
    """Time at which a benchmark received the first token from the servers through the router."""
    ready_s: float | None
    first_token_s: float | None

    def __str__(self) -> str:
        if self.first_token_s is None:
            return "unknown"
        ready = f", servers ready after {self.ready_s:.0f} s" if self.ready_s is not None else ""
        return f"{self.first_token_s:.0f} s from the first server's creation to the first token{ready}"


class RunningImage(_Part):
    """Container image of all running containers with one name: the reference in the manifest, and the digests that
    nodes report.
    """

    asked: str
    """Image reference in the manifest: tag, and digest if the kit's lock has one."""
    tag: str
    locked: str | None
    """Digest in the manifest; None if the manifest has only a tag."""
    digests: tuple[str, ...]
    """Running digests that the nodes report: of the image index or of the platform's image; empty if unknown. Several
    during an update, or if a tag was moved between two pulls.
    """


class Accuracy(_Part):
    """Result of the last evaluation of the deployed configuration: share of right answers with its 95 % confidence
    interval.
    """

    evaluation: str
    score: float
    interval_95: tuple[float, float]
    questions: int
    started: str
    basis: Basis

    def __str__(self) -> str:
        low, high = self.interval_95
        return f"{self.evaluation}: {self.score:.1%} of {self.questions} ({low:.1%} to {high:.1%}), {self.basis}"


class NodeAcceptance(_Part):
    """Verdict of a node's last acceptance, with its date and the image that ran it."""

    verdict: str
    date: str
    image: str


class Passport(_Part):
    """Description of one model of a deployed stack. Performance figures are the smoke benchmark's; `basis` applies to
    all of them.
    """

    stack: str
    model: str
    config_hash: str
    release: str
    override: dict[str, str] = {}
    """Versions that replace the release's own, by the names in the stack file's `override`."""
    project_values: dict[str, str] = {}
    """SHA-256 of each file of the project's own `values/` that the stack uses, by path."""
    topology: str
    copies: int
    gpus: int
    gpus_reserved: int | None
    price_usd_per_hour: float
    price_includes: str
    images: dict[str, RunningImage]
    """Running container images by role and container name."""
    restarts: dict[str, int]
    """Restart counts of the running pods' containers, by role and container; without zeros."""
    basis: Basis
    simulated: tuple[str, ...]
    smoke_passed: bool
    checks: list[dict[str, Any]]
    load: dict[str, Any]
    performance: dict[str, Any]
    remote_prefill: dict[str, Any] | None
    accuracy: Accuracy | None
    usd_per_million_output_tokens: float | None
    """Price of a million output tokens in USD at the smoke benchmark's load, which is light; the price is lower at full
    load.
    """
    cold_start: ColdStart | None
    nodes: dict[str, NodeAcceptance | None] = {}
    """Last acceptance of each node that servers run on; None for nodes without acceptance."""
    created: str


def accuracy(result: EvalResult | None) -> Accuracy | None:
    """Return the passport's part on an evaluation; None without an evaluation."""
    if result is None:
        return None
    return Accuracy(
        evaluation=result.evaluation,
        score=result.score,
        interval_95=result.interval,
        questions=len(result.answers),
        started=result.started,
        basis=result.basis,
    )


def usd_per_million_output_tokens(price_usd_per_hour: float, performance: Mapping[str, Any]) -> float | None:
    """Return the price of a million output tokens in USD at the measured rate; None if there was no output."""
    return usd_per_million_tokens(price_usd_per_hour, performance.get("output_tokens_per_s"))


def write_passport(passport: Passport, folder: Path) -> Path:
    """Write the passport as JSON and as Markdown into the directory of reports; return the Markdown file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PASSPORT_JSON).write_text(passport.model_dump_json(indent=2) + "\n", encoding="utf-8")
    path = folder / PASSPORT_MARKDOWN
    path.write_text(markdown(passport), encoding="utf-8")
    return path


def markdown(passport: Passport) -> str:
    """Return the passport as Markdown text."""
    lines = [f"# {plain(passport.model)} on {plain(passport.stack)}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {text} |" for name, text in _facts(passport)]
    lines += ["", "| check | value | bound | passed |", "|---|---|---|---|"]
    for check in passport.checks:
        value = check.get("value")
        shown = "unknown" if value is None else f"{value:.4g} {check.get('units', '')}".strip()
        limit, passed = f"{check['bound']} {check['limit']:.4g}", "yes" if check["passed"] else "no"
        lines.append(f"| {plain(str(check['name']))} | {shown} | {limit} | {passed} |")
    lines += ["", "| container | image | digest that runs |", "|---|---|---|"]
    for container, image in passport.images.items():
        differ = "**nodes differ**: " if len(image.digests) > 1 else ""
        digests = ", ".join(map(code, image.digests)) or "not told"
        lines.append(f"| {plain(container)} | {code(image.asked)} | {differ}{digests} |")
    return "\n".join(lines) + "\n"


def _facts(passport: Passport) -> Iterator[tuple[str, str]]:
    copies = f"{passport.copies} x " if passport.copies > 1 else ""
    not_real = f"; simulated: {', '.join(passport.simulated)}" if passport.simulated else ""
    yield "configuration", f"`{passport.config_hash}`, {passport.release}"
    if passport.override:
        yield "instead of the release's own", "; ".join(f"{name} {value}" for name, value in passport.override.items())
    if passport.project_values:
        files = (f"{code(file)} ({digest[:12]})" for file, digest in passport.project_values.items())
        yield "of the project's own", ", ".join(files)
    yield "topology", f"{copies}{passport.topology}, {passport.gpus} GPUs"
    yield "numbers are", f"{passport.basis}{not_real}"
    yield "smoke benchmark", "passed" if passport.smoke_passed else "**failed**"
    restarts = ", ".join(f"{container} {number}" for container, number in passport.restarts.items()) or "none"
    yield "restarts", f"{restarts} since the pods that run now were made; those of the benchmark's time are a check"
    yield "remote prefill", _remote_prefill(passport.remote_prefill)
    yield "accuracy", f"{passport.accuracy or 'not evaluated in this configuration'}"
    if passport.nodes:
        tested = {name: item for name, item in passport.nodes.items() if item is not None}
        failed = [plain(name) for name, item in tested.items() if item.verdict != "passed"]
        oldest = min((item.date[:10] for item in tested.values()), default="")
        since = f", the oldest result of {plain(oldest)}" if oldest else ""
        failures = f"; **failed**: {', '.join(failed)}" if failed else ""
        passed = f"{len(tested) - len(failed)} of {len(passport.nodes)} passed"
        yield "acceptance of nodes", f"{passed}{since}{failures}"
    yield "price", f"{passport.price_usd_per_hour:,.2f} USD per hour ({passport.price_includes})"
    if passport.usd_per_million_output_tokens is not None:
        cost = f"{passport.usd_per_million_output_tokens:,.2f} USD"
        yield "1M output tokens", f"{cost} at the smoke benchmark's load; less at a full one"
    yield "cold start", f"{passport.cold_start or 'not seen: the servers did not start together'}"
    yield "made", passport.created


def _remote_prefill(proof: Mapping[str, Any] | None) -> str:
    if proof is None:
        return "not disaggregated, or no endpoint picker to ask"
    failed = proof.get("failed_prefills")
    failures = "number of failed prefills unknown" if failed is None else f"{failed} prefills failed"
    share = "unknown" if proof.get("share") is None else f"{proof['share']:.1%} of uncached prompts"
    return f"{share}; {failures}"
