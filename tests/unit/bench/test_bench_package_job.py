"""Reading what published evaluations leave behind."""

import json
import subprocess

import pytest
from llmd_bench.jobs import package as package_job


def test_answers_of_gpt_oss_evals_are_ordered_by_prompt_and_not_by_arrival(tmp_path):
    conversations = [[{"role": "user", "content": f"question {n}"}] for n in range(4)]
    shown = [f"<p>Score: {score}</p>" for score in (1.0, 0.0, 1.0, 0.0)]
    orders = []
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        path = tmp_path / "x_allresults.json"
        document = {"convos": [conversations[n] for n in order], "htmls": [shown[n] for n in order]}
        path.write_text(json.dumps(document))
        orders.append(package_job.read_gpt_oss(path))
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == [False, False, True, True]


def test_answers_of_lm_eval_are_read_from_its_flexible_filter_by_document_number(tmp_path):
    samples = [
        {"doc_id": 1, "filter": "strict-match", "exact_match": 0.0},
        {"doc_id": 1, "filter": "flexible-extract", "exact_match": 1.0},
        {"doc_id": 0, "filter": "flexible-extract", "exact_match": 0.0},
        {"doc_id": 0, "filter": "strict-match", "exact_match": 0.0},
    ]
    path = tmp_path / "samples_gsm8k_1.jsonl"
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    assert package_job.read_lm_eval(path) == [False, True]


@pytest.fixture(name="job")
def job_fixture(tmp_path, monkeypatch):
    """Run the Job's program with a package that is there already; return its exit code and its report."""

    def run(program, reader="lm-eval"):
        log = tmp_path / "termination-log"
        monkeypatch.setattr(package_job, "TERMINATION_LOG", str(log))
        (tmp_path / "empty.lock").write_text("")
        spec = {
            "evaluation": "gsm8k",
            "reader": reader,
            "requirements": str(tmp_path / "empty.lock"),
            "program": ["python", "-c", program],
            "result_files": str(tmp_path / "samples_*.jsonl"),
        }
        monkeypatch.setenv(package_job.SPEC_VARIABLE, json.dumps(spec))
        monkeypatch.setattr(package_job, "PACKAGES", str(tmp_path / "packages"))
        return package_job.main(), json.loads(log.read_text())

    return run


def test_the_report_of_an_evaluation_package_job_has_a_digit_for_each_answer(job, tmp_path):
    sample = json.dumps({"doc_id": 0, "filter": "flexible-extract", "exact_match": 1.0})
    code, report = job(f"open({str(tmp_path / 'samples_a.jsonl')!r}, 'w').write({sample!r})")
    assert (code, report["answers"]) == (0, "1")


@pytest.mark.parametrize(
    ("program", "code", "said"), [("raise SystemExit(3)", 3, "ended with 3"), ("", 1, "no results")]
)
def test_an_evaluation_package_that_fails_or_has_no_results_fails_the_job(job, monkeypatch, program, code, said):
    started = subprocess.run

    def run_all_but_pip(words, **options):
        return subprocess.CompletedProcess(words, 0) if "pip" in words else started(words, **options)

    monkeypatch.setattr(package_job.subprocess, "run", run_all_but_pip)
    ended, report = job(program)
    assert ended == code
    assert said in report["error"]
