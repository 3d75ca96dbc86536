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


def test_the_recording_begins_with_the_first_command_on_the_screen():
    svg = recording([("first", "output"), ("second", "")])
    assert '\n<text x="18" y="30" class="c">$ first</text>\n<g ' in svg
    assert 's"><text x="18" y="81" class="c">$ second' in svg
