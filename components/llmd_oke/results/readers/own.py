"""The kit's own rows, as JSON Lines or CSV (`results.files`)."""

from llmd_oke.results.files import scan_rows
from llmd_oke.results.readers.source import Source
from llmd_oke.results.reading import Hints, Read


def detect(source: Source) -> bool:
    """Whether its first line has the names of a row's fields."""
    first = source.text.lstrip().split("\n", 1)[0]
    return source.path.suffix in {".jsonl", ".csv"} and "subject" in first and "gpus_counted" in first


def read(source: Source, hints: Hints) -> Read:  # noqa: ARG001 - a row says all itself
    """Its rows, and the lines that are none."""
    return scan_rows(source.path)
