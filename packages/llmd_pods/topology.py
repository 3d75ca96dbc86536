"""Short forms of topologies: `8p-tp1-4d-tp2` and `agg-tp1-16r`, written and read here alone."""

import re

_COUNT = "([1-9][0-9]{0,3})"

_DISAGGREGATED = re.compile(f"{_COUNT}p-tp{_COUNT}-{_COUNT}d-tp{_COUNT}")

_AGGREGATED = re.compile(f"agg-tp{_COUNT}-{_COUNT}r")

SHORT_FORMS = "{x}p-tp{p}-{y}d-tp{d} such as 8p-tp1-4d-tp2, or agg-tp{t}-{n}r such as agg-tp1-16r"

SHORT_FORM_PATTERN = f"^({_DISAGGREGATED.pattern}|{_AGGREGATED.pattern})$"


def disaggregated_short_form(prefill: int, prefill_size: int, decode: int, decode_size: int) -> str:
    """The short form of so many prefill and decode servers of these tensor parallel sizes."""
    return f"{prefill}p-tp{prefill_size}-{decode}d-tp{decode_size}"


def aggregated_short_form(size: int, replicas: int) -> str:
    """The short form of so many aggregated servers of a tensor parallel size."""
    return f"agg-tp{size}-{replicas}r"


def parse_short_form(text: str) -> dict[str, dict[str, int]]:
    """The long form of a short one.

    Raises:
        ValueError: the text is neither form.
    """
    if match := _DISAGGREGATED.fullmatch(text):
        x, p, y, d = map(int, match.groups())
        return {"prefill": _servers(x, p), "decode": _servers(y, d)}
    if match := _AGGREGATED.fullmatch(text):
        t, n = map(int, match.groups())
        return {"aggregated": _servers(n, t)}
    msg = "the text is no topology"
    raise ValueError(msg)


def _servers(replicas: int, tensor_parallel_size: int) -> dict[str, int]:
    return {"replicas": replicas, "tensorParallelSize": tensor_parallel_size}
