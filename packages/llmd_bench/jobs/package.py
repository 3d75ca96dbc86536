"""Program of the Job of a published evaluation: installs the evaluation's package, runs it, and reports its graded
answers.

Uses the standard library only, since a single file in a ConfigMap holds the program. The report is one line of JSON in
the termination message: one digit per answer (1 right, 0 wrong), in an order that is equal for all runs.
"""

import glob
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SPEC_VARIABLE = "LLMD_OKE_EVALUATION"
PACKAGES = "/tmp/packages"  # noqa: S108 - the pod's own scratch volume
TERMINATION_LOG = "/dev/termination-log"
TERMINATION_LIMIT_BYTES = 4096

_SCORE = re.compile(r"<p>Score: ([\d.]+)</p>")


def main() -> int:
    """Run the evaluation that the environment variable `SPEC_VARIABLE` describes; return 0, or the exit code of the
    failed step.

    pip installs exactly the hashed lock (`--no-deps`): with dependency resolution it refuses extras that the lock
    doesn't name.
    """
    spec: Mapping[str, Any] = json.loads(os.environ[SPEC_VARIABLE])
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check",
               "--no-deps", "--require-hashes", "--target", PACKAGES, "-r", spec["requirements"]]  # fmt: skip
    for words in (install, [sys.executable, *spec["program"][1:]]):
        print("running", " ".join(words), flush=True)
        ended = subprocess.run(words, env={**os.environ, "PYTHONPATH": PACKAGES}, check=False)
        if ended.returncode:
            _report({"error": f"{words[2] if len(words) > 2 else words[0]} ended with {ended.returncode}; see the log"})
            return ended.returncode
    return _conclude(spec)


def _conclude(spec: Mapping[str, Any]) -> int:
    files = sorted(glob.glob(spec["result_files"]))  # noqa: PTH207 - an absolute pattern
    try:
        answers = READERS[spec["reader"]](Path(files[-1]))
    except (IndexError, ValueError, LookupError, TypeError) as error:
        _report({"error": f"no results in {spec['result_files']}: {type(error).__name__}: {error}"})
        return 1
    _report({"answers": "".join("1" if right else "0" for right in answers), "question_set": spec["evaluation"]})
    return 0


def read_gpt_oss(path: Path) -> list[bool]:
    """Read which answers of a `…_allresults.json` of gpt_oss.evals are right, sorted by the prompt's hash: the file has
    the order in which answers arrived.
    """
    document = json.loads(path.read_text(encoding="utf-8"))
    judged: list[tuple[str, bool]] = []
    for conversation, shown in zip(document["convos"], document["htmls"], strict=True):
        score = _SCORE.search(shown)
        if score is None:
            raise ValueError("an answer without a score")
        judged.append((hashlib.sha256(json.dumps(conversation[0]).encode()).hexdigest(), float(score[1]) >= 1))
    return [right for _, right in sorted(judged)]


def read_lm_eval(path: Path) -> list[bool]:
    """Read which answers of a `samples_….jsonl` of lm_eval are right, sorted by document number; if the file has
    several filters, `flexible-extract` counts.
    """
    samples = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    filters = {sample.get("filter") for sample in samples}
    chosen = "flexible-extract" if "flexible-extract" in filters else samples[0].get("filter")
    chosen_samples = sorted(
        (sample for sample in samples if sample.get("filter") == chosen), key=lambda sample: sample["doc_id"]
    )
    return [float(sample["exact_match"]) >= 1 for sample in chosen_samples]


READERS: Mapping[str, Callable[[Path], list[bool]]] = {"gpt-oss": read_gpt_oss, "lm-eval": read_lm_eval}


def _report(report: Mapping[str, str]) -> None:
    text = json.dumps(report)
    print(text, flush=True)
    if len(text) <= TERMINATION_LIMIT_BYTES:
        Path(TERMINATION_LOG).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
