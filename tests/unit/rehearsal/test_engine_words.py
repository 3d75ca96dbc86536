"""Failures as people read them."""

from llmd_oke.rehearsal.engine_words import tidy

JOB = """2 errors occurred:
\t* resource "urn:pulumi:s::p::kubernetes:batch/v1:Job::gate" was successfully created, but the Kubernetes API server \
reported that it failed to fully initialize or become live: Resource 'gate-1' was created but failed to initialize
\t* [Pod kube-system/gate-1-x]: [Error] after 10 s: 0 of 1 nodes have joined
"""


def test_errors_of_a_plug_in_become_lines_without_what_was_said_before() -> None:
    assert tidy(JOB).splitlines() == [
        "Resource 'gate-1' was created but failed to initialize",
        "[Pod kube-system/gate-1-x]: [Error] after 10 s: 0 of 1 nodes have joined",
    ]


def test_calls_of_the_program_are_left_out() -> None:
    text = "python inline source runtime error: no such shape\nTraceback (most recent call last):\n  File x\nKitError"
    assert tidy(text) == tidy(f"an unhandled error occurred: {text}") == "no such shape"


def test_a_pods_last_words_keep_their_cause() -> None:
    pod = "[Pod a/b]: [Error] measuring\nTraceback (most recent call last):\n  File x\n    call()\nKeyError: 'x'\n"
    told = tidy(f"2 errors occurred:\n\t* {pod}\n\t* [BackoffLimitExceeded] Job has failed")
    assert told.splitlines() == [
        "[Pod a/b]: [Error] measuring",
        "KeyError: 'x'",
        "[BackoffLimitExceeded] Job has failed",
    ]


def test_other_words_stay_as_they_are() -> None:
    assert tidy("update failed") == "update failed"
    assert tidy("Service error: 500-InternalError\nProvider version: 4.20") == (
        "Service error: 500-InternalError\nProvider version: 4.20"
    )


def test_of_last_words_in_json_the_message_is_kept() -> None:
    words = '{"message": "gpt failed: TTFT p95 9 (\\"late\\")", "passed": false, "failed": ["TTFT p95"]}'
    assert tidy(f"[Pod a/b]: [Error] {words}\n[BackoffLimitExceeded] Job has failed").splitlines() == [
        '[Pod a/b]: [Error] gpt failed: TTFT p95 9 ("late")',
        "[BackoffLimitExceeded] Job has failed",
    ]


def test_words_that_only_begin_like_json_stay_as_they_are() -> None:
    assert tidy('[Error] {"message": "cut') == '[Error] {"message": "cut'
