"""Times on the command line: `90s`, `10m`, `2h`, or a bare number of seconds."""

import math
import re
from collections.abc import Callable
from typing import Any

import typer

_UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0}
_TIME = re.compile(r"(\d{1,9}(?:\.\d+)?)([smh]?)")


def option(
    *names: str, about: str, least_s: float = 0.001, most_s: float = math.inf, default_s: float | None = None
) -> Any:
    """An option whose value is a time; its parameter gets seconds. `default_s` is for the help text alone."""
    text = f"{about}." if default_s is None else f"{about}; {time_text(default_s)} if left out."
    return typer.Option(*names, help=text, parser=_parser(least_s, most_s), metavar="TIME", show_default=False)


def time_text(time_s: float) -> str:
    """A time as these options take it, in its largest unit without a fraction."""
    unit = next((unit for unit, length_s in _UNITS_S.items() if time_s >= length_s and not time_s % length_s), "s")
    return f"{time_s / _UNITS_S[unit]:g}{unit}"


def _parser(least_s: float, most_s: float) -> Callable[[str | float], float]:
    """Seconds of a text; the parser gets defaults as well, which are seconds already."""
    least = time_text(least_s)
    limits = f"of {least} or more" if math.isinf(most_s) else f"from {least} to {time_text(most_s)}"

    def parse(value: str | float) -> float:
        match = _TIME.fullmatch(str(value))
        time_s = float(match[1]) * _UNITS_S[match[2] or "s"] if match else -1.0
        if not least_s <= time_s <= most_s:
            raise typer.BadParameter(f"{value!r} is no time {limits}; accepted: 90s, 10m, 2h, or seconds.")
        return time_s

    return parse
