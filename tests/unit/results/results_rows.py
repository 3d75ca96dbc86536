"""Rows for tests."""

from llmd_base.row import Basis, Quantiles, Row
from llmd_bench.files import CatalogueNames
from llmd_oke.catalogue import gpu_names
from llmd_oke.catalogue.models import names_by_repository
from rows_for_tests import known_row

NAMES = CatalogueNames(names_by_repository(), tuple(gpu_names()))
"""As commands give them to readers."""


def row(*, ttft: float = 500.0, **changes: object) -> Row:
    """A plausible row with some fields changed; `ttft` is its p95 in ms."""
    fields: dict[str, object] = {
        "basis": Basis.MEASURED,
        "topology": "2p-tp1-1d-tp2",
        "gpus_counted": 4,
        "input_tokens": 4096,
        "output_tokens": 256,
        "concurrency": 8,
        "output_tokens_per_s": 800.0,
        "ttft_ms": Quantiles(mean=ttft / 2, p95=ttft),
        "requests": 100,
    }
    return known_row(**{**fields, **changes})
