"""The recording of a terminal that README and documentation show."""

import os
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

sys.path.insert(0, str(Path(__file__).parents[2] / "dev"))

from terminal_recording import COLUMNS, PICTURE, recorded, recording


def test_the_terminal_recording_matches_the_output_of_the_commands():
    """`LLMD_OKE_UPDATE_GOLDEN=1` records it anew."""
    if os.environ.get("LLMD_OKE_UPDATE_GOLDEN"):
        PICTURE.write_text(recorded())
    assert PICTURE.read_text() == recorded()


def test_the_recording_is_well_formed_and_static_for_readers_who_avoid_motion():
    svg = recording([("command " * 20, "a <b> & c\n" * 3)])
    assert ET.fromstring(svg).tag.endswith("svg")  # noqa: S314 - the kit's own
    assert "prefers-reduced-motion" in svg
    assert all(len(line) <= COLUMNS for line in svg.splitlines() if line.startswith("$"))
