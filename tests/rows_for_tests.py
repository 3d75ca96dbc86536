"""Rows of results, with what a test wants to be different."""

from llmd_base.row import Basis, Origin, Row


def known_row(**changes: object) -> Row:
    """A row of two simulated GPUs that answer requests with 64 tokens in and 8 out."""
    known: dict[str, object] = {
        "subject": "end-to-end",
        "basis": Basis.CALIBRATED,
        "model": "gpt-oss-120b",
        "gpu": "MI300X",
        "origin": Origin(tool="test"),
        "gpus_counted": 2,
        "input_tokens": 64,
        "output_tokens": 8,
        "output_tokens_per_s": 100.0,
    }
    return Row.model_validate({**known, **changes})
