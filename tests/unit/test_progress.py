import io

from listening import Listener
from llmd_base.progress import PlainProgress, Ticker


def test_every_progress_event_is_one_line_with_seconds_since_the_start():
    times = iter([100.0, 100.4, 112.0])
    stream = io.StringIO()
    progress = PlainProgress(stream, clock=lambda: next(times))
    progress.step("building etcd")
    progress.detail("10 s, 40 packages")
    assert stream.getvalue() == "[    0 s] building etcd\n[   12 s]   10 s, 40 packages\n"


def test_frequent_progress_reports_are_limited_but_new_phases_are_always_shown():
    times, listener = iter([0.0, 1.0, 1.5, 2.5, 4.0]), Listener()
    ticker = Ticker(listener, 2.0, clock=lambda: next(times))
    for text, phase in (("a 1", "a"), ("a 2", "a"), ("b 1", "b"), ("b 2", "b")):
        ticker.tell(text, phase)
    assert (listener.steps, listener.details) == ([], ["a 1", "b 1"])
