"""What the engine and plug-ins say of a failure, without what tells a reader nothing. The log has all of it."""

import re

_TRACEBACK = "Traceback (most recent call last):"
_CALLS = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*")
_SEVERAL = re.compile(r"\d+ errors? occurred:")
_BULLET = re.compile(r"\n\s*\* ")
_MADE = re.compile(r'resource "[^"]*" was successfully created, but .*?: ')
_REPEATED = ("an unhandled error occurred: ", "python inline source runtime error: ")


def tidy(text: str) -> str:
    """One error: several in one become lines of their own; the calls of Python programs are left out."""
    told = text.strip()
    for words in _REPEATED:
        if told.startswith(words):
            told = told.removeprefix(words).partition(_TRACEBACK)[0].strip()
    told = _CALLS.sub("", told)
    if not _SEVERAL.match(told):
        return told
    parts = (_MADE.sub("", part.strip()) for part in _BULLET.split(_SEVERAL.sub("", told, count=1)))
    return "\n".join(part for part in parts if part)
