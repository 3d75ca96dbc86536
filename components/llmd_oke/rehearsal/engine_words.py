"""What the engine and plug-ins say of a failure, without what tells a reader nothing. The log has all of it."""

import json
import re

_TRACEBACK = "Traceback (most recent call last):"
_CALLS = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*")
_SEVERAL = re.compile(r"\d+ errors? occurred:")
_BULLET = re.compile(r"\n\s*\* ")
_MADE = re.compile(r'resource "[^"]*" was successfully created, but .*?: ')
_OBJECT = '{"message": '
_REPEATED = ("an unhandled error occurred: ", "python inline source runtime error: ")


def tidy(text: str) -> str:
    """One error: several in one become lines of their own; the calls of Python programs are left out, and of last words
    in JSON the message is kept.
    """
    told = text.strip()
    for words in _REPEATED:
        if told.startswith(words):
            told = told.removeprefix(words).partition(_TRACEBACK)[0].strip()
    told = _messages(_CALLS.sub("", told))
    if not _SEVERAL.match(told):
        return told
    parts = (_MADE.sub("", part.strip()) for part in _BULLET.split(_SEVERAL.sub("", told, count=1)))
    return "\n".join(part for part in parts if part)


def _messages(text: str) -> str:
    """The text with the message of each JSON object that begins with one in the object's place."""
    before, found, rest = text.partition(_OBJECT)
    if not found:
        return text
    try:
        words, end = json.JSONDecoder().raw_decode(found + rest)
    except ValueError:
        return text
    return f"{before}{words['message']}{_messages((found + rest)[end:])}"
