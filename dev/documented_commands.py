"""Commands of the pages: where each of them stands, and where it is run.

`python dev/documented_commands.py` counts them by the place where they are run, and those that are run nowhere by the
reason; `--exempt` names each of these. What runs where is data: `tests/data/documented-commands.yaml`. Pages of
decisions record what was decided, and the reference is made from the code; neither tells anybody what to do, so that
their commands don't count.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache, cached_property
from itertools import groupby
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, model_validator

ROOT = Path(__file__).resolve().parents[1]
RULES = ROOT / "tests" / "data" / "documented-commands.yaml"

_SHELLS = frozenset(("sh", "bash", "console"))
_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_PROGRAMS = re.compile(
    r"(?:[A-Z_]+=\S+ )*(?:(?:\./)?scripts/[a-z]\S*|llmd-oke|curl|docker|gh|git|helm|hf|kubectl|oci|pip|pulumi|python)"
    r"(?: |$)"
)
_WHOLE = re.compile(r"(?:^|\s)(?:-{1,2}[a-z]|\./scripts/|scripts/|dev/)|[<|]| [a-z0-9-]+ \S+ \S+")
"""An option, a script or three further words: a command as it is typed. `pulumi up` alone is the name of a command."""


class CommandPlace(StrEnum):
    """Place where the commands that the documentation's pages show are run."""

    HERE = "here"
    """Run in a project like a user's, in every run of the tests."""
    NIGHT = "here at night"
    """Run in a project like a user's, by the nightly tests, because the command takes long."""
    PULUMI = "pulumi"
    """Run with the real Pulumi CLI and a state in a folder, in every run of the tests."""
    REHEARSED = "rehearsed"
    """Run in a rehearsed stack, by the nightly tests."""
    ELSEWHERE = "elsewhere"
    """Run by another test, or by a script that tests or pipelines run."""
    OPEN = "open"
    """Run nowhere yet, although a rehearsal would do."""
    EXEMPT = "exempt"
    """Run nowhere, because the command needs OCI, a GPU or a hosted service."""
    WORDS = "words"
    """Run nowhere, because the text only names a command, or a part of one."""


_UNRUN = (CommandPlace.OPEN, CommandPlace.EXEMPT)


class CommandRule(BaseModel):
    """Rule that says where the commands are run that one of its patterns matches as a whole. `because` says what exempt
    and open commands need, `by` names what runs those that are run elsewhere.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    commands: tuple[str, ...]
    place: CommandPlace
    because: str = ""
    by: str = ""

    @model_validator(mode="after")
    def _explained(self) -> "CommandRule":
        if self.place in _UNRUN and not self.because:
            raise ValueError(f"{self.commands}: `because` is missing")
        if self.place is CommandPlace.ELSEWHERE and not self.by:
            raise ValueError(f"{self.commands}: `by` is missing")
        return self

    def matches(self, text: str) -> bool:
        """Tell whether one of the rule's patterns matches the whole command."""
        return any(fnmatchcase(text, pattern) for pattern in self.commands)


@dataclass(frozen=True)
class DocumentedCommand:
    """Command that a page of the documentation shows. `block` is the line where its code block begins; None if the
    command stands in a sentence.
    """

    page: Path
    line: int
    block: int | None
    text: str

    @cached_property
    def rule(self) -> CommandRule | None:
        """First rule that matches the command; None if the command runs as it stands."""
        return next((rule for rule in rules() if rule.matches(self.text)), None)

    @property
    def place(self) -> CommandPlace:
        """Place where the command of a page is run."""
        return self.rule.place if self.rule else CommandPlace.HERE

    @property
    def where(self) -> str:
        """Page and line of the command, in the form in which editors open them."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@cache
def rules() -> tuple[CommandRule, ...]:
    """Return the rules that say where commands are run, in their order: the first that matches a command decides."""
    return tuple(CommandRule.model_validate(rule) for rule in yaml.safe_load(RULES.read_text()))


def pages() -> list[Path]:
    """Return the pages of the documentation that tell people what to do."""
    docs = [
        page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name not in {"decisions", "reference"}
    ]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *docs, *sorted(ROOT.glob("examples/*/*.md"))]


@cache
def documented_commands() -> tuple[DocumentedCommand, ...]:
    """Return all commands that the documentation's pages show, page by page, from top to bottom."""
    return tuple(command for page in pages() for command in sorted(commands_of(page), key=lambda found: found.line))


def commands_of(page: Path) -> Iterator[DocumentedCommand]:
    """Yield the commands of a page's code blocks, and those in its sentences that stand in no block."""
    text = page.read_text()
    blocks = list(_FENCE.finditer(text))
    in_blocks: set[str] = set()
    for block in blocks:
        if block[2] not in _SHELLS:
            continue
        begins = text.count("\n", 0, block.start()) + 1
        for offset, command in _commands_of_block(block[3].splitlines()):
            in_blocks.add(command)
            yield DocumentedCommand(page, begins + 1 + offset, begins, command)
    prose = _FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)
    for found in _INLINE.finditer(prose):
        if _PROGRAMS.match(found[1]) and _WHOLE.search(found[1]) and found[1] not in in_blocks:
            in_blocks.add(found[1])
            yield DocumentedCommand(page, prose.count("\n", 0, found.start()) + 1, None, found[1])


def _commands_of_block(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield each command with the number of its first line; loops and continued lines are one command."""
    held: list[str] = []
    for number, line in enumerate(lines):
        code = re.sub(r"(^|\s+)#(\s.*)?$", "", line.strip())
        if not code:
            continue
        held.append(code)
        whole = "\n".join(held)
        if code.endswith("\\") or len(re.findall(r"^for\b", whole, re.MULTILINE)) > len(
            re.findall(r"\bdone$", whole, re.MULTILINE)
        ):
            continue
        yield number - len(held) + 1, whole
        held = []
    if held:
        raise ValueError(f"no end: {held}")


def counted(*, named: bool = False) -> str:
    """Return lines that say how many documented commands are run where, and how many are exempt for which reason; with
    `named` also which ones.
    """
    found = [command for command in documented_commands() if command.place is not CommandPlace.WORDS]
    counts = [
        f"{sum(c.place is place for c in found)} {place}" for place in CommandPlace if place is not CommandPlace.WORDS
    ]
    unrun = sorted((f"{c.place}, {c.rule.because}", c.where, c.text) for c in found if c.rule and c.place in _UNRUN)
    lines = [f"{len(found)} commands of the pages: {', '.join(counts)}"]
    for because, group in groupby(unrun, key=lambda item: item[0]):
        commands = [f"  {where}  {text.splitlines()[0]}" for _, where, text in group]
        lines += [f"{because}: {len(commands)}", *(commands if named else ())]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(f"{counted(named='--exempt' in sys.argv)}\n")
