"""Versions of programs: read, compared, and asked of the program itself."""

import re
import subprocess
from pathlib import Path

from llmd_oke.rehearsal.programs import build_info
from llmd_oke.rehearsal.programs.definitions import ProgramDefinition, VersionQuestion

_ANSWER_TIMEOUT_S = 20
_NUMBERS = re.compile(r"v?(\d+(?:\.\d+)*)")


def will_do(found: str, wanted: str, accepts: str) -> bool:
    """Whether a version found serves where another is wanted.

    `accepts` is `exact`, `patch` (same minor, not older), `minor` (same major, not older) or `later` (not older).
    """
    have, need = _numbers(found), _numbers(wanted)
    if accepts == "exact" or have is None or need is None:
        return normal(found) == normal(wanted)
    same = {"patch": 2, "minor": 1, "later": 0}[accepts]
    return have[:same] == need[:same] and have >= need and not _is_prerelease(found)


def normal(version: str) -> str:
    """The version with a leading `v`, as Go writes it."""
    return version if version.startswith("v") else f"v{version}"


def ask(path: Path, definition: ProgramDefinition) -> str | None:
    """The version of this program, or None when it does not tell."""
    question = definition.ask
    if question.go_module is not None:
        version = build_info.module_version(path, question.go_module)
    else:
        version = _answer(path, question)
    return None if version is None else normal(version)


def _answer(path: Path, question: VersionQuestion) -> str | None:
    try:
        done = subprocess.run(
            [path, *question.arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ANSWER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(question.answer, done.stdout + done.stderr)
    return match[1] if match else None


def _numbers(version: str) -> tuple[int, ...] | None:
    match = _NUMBERS.match(version)
    if match is None:
        return None
    numbers = [int(part) for part in match[1].split(".")]
    return tuple([*numbers, 0, 0, 0][:3])


def _is_prerelease(version: str) -> bool:
    return "-" in version
