"""What a simulated model can read in a prompt: the questions of the kit's own accuracy set, and nothing else.

It is no model. It answers these so that whatever corrupts a prompt on its way from prefill to decode shows as a wrong
answer, as it would with weights.
"""

import re

_BIN = re.compile(r"In which bin is (\S+)\?")
_SUM = re.compile(r"What is (\d+) \+ (\d+)\?")
_REPEAT = re.compile(r"Repeat these words in the same order, and nothing else: ([a-z ]+)")

_MISREAD = str.maketrans("0123456789abcdefghijklmnopqrstuvwxyz", "5678901234nopqrstuvwxyzabcdefghijklm")


def read(prompt: str) -> str | None:
    """The answer to a question of the set at the end of `prompt`; None for any other prompt."""
    if asked := _last(_BIN, prompt):
        found = re.search(rf"^{re.escape(asked[1])}: bin (\d+)$", prompt, re.MULTILINE)
        return found[1] if found else None
    if asked := _last(_SUM, prompt):
        return str(int(asked[1]) + int(asked[2]))
    asked = _last(_REPEAT, prompt)
    return asked[1].strip() if asked else None


def misread(answer: str) -> str:
    """The same answer as it comes from a corrupted KV cache: of the same length, with every character wrong."""
    return answer.translate(_MISREAD)


def _last(pattern: re.Pattern[str], prompt: str) -> re.Match[str] | None:
    """The pattern's last match within the end of a prompt, where a question stands."""
    matches = list(pattern.finditer(prompt[-600:]))
    return matches[-1] if matches else None
