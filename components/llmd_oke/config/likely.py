"""Which of the known names a wrong one was probably meant to be."""

from collections.abc import Iterable
from difflib import get_close_matches


def among(written: str, known: Iterable[str], likeliest: str | None = None) -> str:
    """The names to choose from, the likeliest first where one is likely."""
    names = list(known)
    if not names:
        return "none"
    first = likeliest or likely(written, names)
    if first is None:
        return "one of " + ", ".join(names)
    others = ", ".join(name for name in names if name != first)
    return f"{first}? or another of {others}" if others else first


def likely(written: str, known: Iterable[str]) -> str | None:
    """The one name that is much like what was written, or that begins like it; its case doesn't matter."""
    by_lower_case = {name.lower(): name for name in known}
    wanted = written.lower()
    close = get_close_matches(wanted, by_lower_case, n=1)
    begins = [name for name in by_lower_case if wanted and name.startswith(wanted)]
    return next((by_lower_case[name] for name in (*close, *begins)), None)
