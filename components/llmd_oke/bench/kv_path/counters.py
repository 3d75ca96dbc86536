"""What RDMA ports have counted (Linux, Documentation/ABI/stable/sysfs-class-infiniband)."""

import re
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path("/sys/class/infiniband")
GROUPS = ("counters", "hw_counters")

WORD_BYTES = 4
"""`port_xmit_data` and `port_rcv_data` count bytes divided by four."""

_RECEIVED, _SENT = "/counters/port_rcv_data", "/counters/port_xmit_data"

_TROUBLE = re.compile(r"err|retry|retrans|timeout|discard|drop|out_of|nak|link_downed|congest|cnp|ecn")
"""Parts of the names of counters that say that something was lost, repeated or held back; drivers name them freely."""

Counters = Mapping[str, int]
"""By device, port, group and name: `mlx5_0/1/counters/port_rcv_data`."""


def read_counters(folder: Path = FOLDER) -> dict[str, int]:
    """All counters of all ports that this pod sees; empty where it sees none."""
    found: dict[str, int] = {}
    for group in GROUPS:
        for file in sorted(folder.glob(f"*/ports/*/{group}/*")):
            value = _number(file)
            if value is not None:
                device, port = file.parts[-5], file.parts[-3]
                found[f"{device}/{port}/{group}/{file.name}"] = value
    return found


def moved(before: Counters, after: Counters) -> dict[str, int]:
    """What grew; a counter that began anew has no difference."""
    return {name: value - before[name] for name, value in after.items() if name in before and value > before[name]}


def tells_received_bytes(before: Counters, after: Counters) -> bool:
    """Whether a port counted received bytes all the while: it has such a counter, which did not begin anew."""
    return any(name.endswith(_RECEIVED) and value >= before.get(name, value + 1) for name, value in after.items())


def received_bytes(grown: Counters) -> int:
    """Bytes that ports received, of what `moved` found."""
    return WORD_BYTES * sum(value for name, value in grown.items() if name.endswith(_RECEIVED))


def sent_bytes(grown: Counters) -> int:
    """Bytes that ports sent, of what `moved` found."""
    return WORD_BYTES * sum(value for name, value in grown.items() if name.endswith(_SENT))


def trouble(grown: Counters) -> dict[str, int]:
    """Counters that say that something was lost, repeated or held back."""
    return {name: value for name, value in grown.items() if _TROUBLE.search(name.rsplit("/", 1)[-1])}


def _number(file: Path) -> int | None:
    """None for what can't be read: some counters exist in name only."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
