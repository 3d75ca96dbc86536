"""Times between tokens, as a simulation collects them."""

from array import array


class Gaps:
    """Times between two tokens: `counts[i]` of `gaps_s[i]` seconds each, seen around `times_s[i]`."""

    __slots__ = ("counts", "gaps_s", "times_s")

    def __init__(self) -> None:
        self.times_s = array("d")
        self.gaps_s = array("d")
        self.counts = array("d")

    def add(self, time_s: float, gap_s: float, count: int) -> None:
        """That many tokens came so long after the one before them."""
        self.times_s.append(time_s)
        self.gaps_s.append(gap_s)
        self.counts.append(count)
