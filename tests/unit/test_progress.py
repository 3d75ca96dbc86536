import io

from llmd_oke.progress import PlainProgress


def test_every_event_is_one_line_with_the_seconds_since_the_start():
    times = iter([100.0, 100.4, 112.0])
    stream = io.StringIO()
    progress = PlainProgress(stream, clock=lambda: next(times))
    progress.step("building etcd")
    progress.detail("10 s, 40 packages")
    assert stream.getvalue() == "[    0 s] building etcd\n[   12 s]   10 s, 40 packages\n"
