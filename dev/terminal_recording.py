"""Recording of a terminal as one SVG: commands are typed and their output appears, by CSS alone, without a script.

`python dev/terminal_recording.py` writes `docs/how-to/first-hour.svg`: a first stack file is written and checked, its
plan drawn, and a field of it explained. Readers who want no motion see all of it at once. Equal output
gives equal bytes.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

PROJECT = Path(__file__).resolve().parents[1]
PICTURE = PROJECT / "docs" / "how-to" / "first-hour.svg"

COLUMNS = 92
"""Width of the recorded terminal in characters."""

COMMANDS = (
    "llmd-oke init --stack prod --region us-ashburn-1 --compartment ocid1.compartment.oc1..example --load 100",
    "llmd-oke diagram --stack prod",
    "llmd-oke explain Deployment/gpt-oss-120b-decode.args[max-num-seqs] --stack prod",
)

_TYPING_S = 0.02
_LINE_S = 0.06
_PAUSE_S = 1.2
_LINE_HEIGHT = 17
_CHARACTER = 8.0
_COMMAND = ' class="c"'
_MARGIN = 18

_STYLE = (
    "text{font:13px ui-monospace,'DejaVu Sans Mono',monospace;fill:#d7dce2;white-space:pre}"
    ".c{fill:#8fd18f;font-weight:600}"
    "g{opacity:0;animation:a .01s linear forwards}@keyframes a{to{opacity:1}}"
    "@media (prefers-reduced-motion:reduce){g{opacity:1;animation:none}}"
)


@dataclass(frozen=True)
class TimedLine:
    """Line on the recorded terminal, and the second at which it appears."""

    text: str
    at_s: float
    command: bool = False


def recording(steps: Sequence[tuple[str, str]]) -> str:
    """Return an SVG that shows the commands and their outputs one below the other, each line appearing at its time."""
    lines = list(_lines(steps))
    width = round(2 * _MARGIN + COLUMNS * _CHARACTER)
    height = 2 * _MARGIN + len(lines) * _LINE_HEIGHT
    texts = [_drawn(line, row) for row, line in enumerate(lines) if line.text]
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    )
    title = "A terminal: a stack file is written and checked, its plan drawn, a field explained"
    frame = f'<rect width="{width}" height="{height}" rx="10" fill="#15181c"/>'
    body = "\n".join(texts)
    return f'{opening} role="img"><title>{title}</title><style>{_STYLE}</style>{frame}\n{body}\n</svg>\n'


def _drawn(line: TimedLine, row: int) -> str:
    place = f'x="{_MARGIN}" y="{_MARGIN + 12 + row * _LINE_HEIGHT}"{_COMMAND if line.command else ""}'
    text = f"<text {place}>{escape(line.text)}</text>"
    return f'<g style="animation-delay:{line.at_s:.2f}s">{text}</g>' if line.at_s else text


def _lines(steps: Sequence[tuple[str, str]]) -> Iterator[TimedLine]:
    """The lines in order. The first command is there from the beginning, so that a still picture shows what it is."""
    now_s = 0.0
    for command, output in steps:
        for number, part in enumerate(_folded(f"$ {command}")):
            now_s += len(part) * _TYPING_S if now_s else 0
            yield TimedLine(part, now_s, command=True) if not number else TimedLine(f"  {part}", now_s, command=True)
        now_s += _PAUSE_S
        for text in output.rstrip().splitlines():
            now_s += _LINE_S
            yield TimedLine(text.rstrip(), now_s)
        now_s += _PAUSE_S
        yield TimedLine("", now_s)


def _folded(command: str) -> Iterator[str]:
    """Parts of a command that fit the terminal, each but the last with a backslash."""
    line = ""
    for word in command.split():
        if line and len(line) + len(word) > COLUMNS - 6:
            yield f"{line} \\"
            line = ""
        line = f"{line} {word}".strip()
    yield line


def recorded() -> str:
    """Run the recorded commands in a new project, as on a terminal, and return the recording as SVG."""
    with tempfile.TemporaryDirectory() as home:
        project = Path(home).resolve() / "project"
        project.mkdir()
        (project / "Pulumi.yaml").write_text("name: mine\n")
        return recording([(command, _output(command, project)) for command in COMMANDS])


def _output(command: str, project: Path) -> str:
    """Return what a command shows on a terminal, without colours, to somebody who isn't signed in to OCI."""
    home = project.parent
    own = {
        "HOME": str(home),
        "COLUMNS": str(COLUMNS),
        "LINES": "60",
        "NO_COLOR": "1",
        "FORCE_COLOR": "",
        "TTY_COMPATIBLE": "1",
    }
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OCI_")} | own
    arguments = [sys.executable, "-m", "llmd_oke", *command.split()[1:]]
    done = subprocess.run(arguments, cwd=project, env=environment, capture_output=True, text=True, check=True)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.stdout)
    return plain.replace(f"{project}/", "").replace(f"{home}/", "~/")


if __name__ == "__main__":
    PICTURE.write_text(recorded())
