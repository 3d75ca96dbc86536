"""Whether an answer is right."""

import re

from llmd_oke.bench.evals.items import Item

_NUMBER = re.compile(r"\d[\d,]*")
_WORD = re.compile(r"[a-z]+")


def right(item: Item, said: str) -> bool:
    """Numbers: the last one in the answer is meant. Words: all of them, in order, at the end of the answer."""
    if item.kind == "repetition":
        wanted = item.answer.split()
        return _WORD.findall(said.lower())[-len(wanted) :] == wanted
    numbers = _NUMBER.findall(said)
    return bool(numbers) and numbers[-1].replace(",", "") == item.answer
