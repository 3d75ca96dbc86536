"""What is asked of a search: the workload, the promises to users, and the GPUs."""

from dataclasses import dataclass, field, fields
from functools import cache

from llmd_oke.catalogue.files import Entry, required_entry
from llmd_oke.config.model import RouterProfileName
from llmd_oke.errors import KitError
from llmd_oke.tuning.servers.curves import Room
from llmd_oke.tuning.servers.latency import LatencyModel
from llmd_oke.tuning.servers.workload import Workload

SLO_FORM = "ttft=MS, itl=MS, e2e=MS and qps=RATE, separated by commas, such as ttft=2000,itl=25,qps=45"


@dataclass(frozen=True)
class Targets:
    """Limits of mean latencies in seconds, and the load to be carried; None where nothing is promised."""

    ttft_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None
    requests_per_s: float | None = None

    def __str__(self) -> str:
        """As it is written on a command line."""
        parts = (("ttft", self.ttft_s, 1000), ("itl", self.itl_s, 1000), ("e2e", self.e2e_s, 1000))
        shown = [f"{name}={value * scale:g}" for name, value, scale in parts if value is not None]
        return ",".join([*shown, *([f"qps={self.requests_per_s:g}"] if self.requests_per_s else [])])


class Headroom(Entry):
    """`values/tuning/headroom.yaml`: shares of what servers sustain that may be used."""

    prefill_share: float
    decode_share: float


@cache
def headroom() -> Headroom:
    """The kit's own shares."""
    return required_entry("tuning", "headroom", Headroom)


@dataclass(frozen=True)
class Hardware:
    """The GPUs that there are. `price_usd_per_hour` is that of one GPU, None if unknown; nodes are rented whole."""

    gpus: int
    gpus_per_node: int
    price_usd_per_hour: float | None


@dataclass(frozen=True)
class Question:
    """All that a search goes by."""

    model: LatencyModel
    workload: Workload
    targets: Targets
    hardware: Hardware
    room: Room
    sizes: tuple[int, ...]
    """Tensor parallel sizes to try."""
    headroom: Headroom = field(default_factory=headroom)
    profile: RouterProfileName = "token-load"
    """How routers choose servers."""


def parse_targets(text: str) -> Targets:
    """Targets as they are written on a command line: `ttft=2000,itl=25,qps=45`.

    Raises:
        KitError: the text has another form.
    """
    names = {"ttft": "ttft_s", "itl": "itl_s", "e2e": "e2e_s", "qps": "requests_per_s"}
    found: dict[str, float] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, value = part.partition("=")
        number = _positive(value)
        if name not in names or number is None:
            raise KitError(f"{part!r} is no target.", f"Accepted: {SLO_FORM}.")
        if names[name] in found:
            raise KitError(f"{name} is there twice.", f"Accepted: {SLO_FORM}.")
        found[names[name]] = number if name == "qps" else number / 1000
    return Targets(**found)


def _positive(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number < float("inf") else None


def joined(first: Targets, second: Targets) -> Targets:
    """The targets of `first`, and those of `second` that it lacks."""
    return Targets(**{each.name: getattr(first, each.name) or getattr(second, each.name) for each in fields(Targets)})
