from array import array

import pytest
from llmd_oke.bench.records.lines import as_line, read_lines
from llmd_oke.bench.records.request import Failure, RequestRecord
from llmd_oke.errors import KitError

WHOLE = RequestRecord(3, 0.5, 1.25, array("d", [0.25, 0.5]), 128, 2, counted_by_server=True, due_s=0.499, status=200)
FAILED = RequestRecord(4, 1.0, 0.1, failure=Failure.STATUS, error="HTTP 429: busy", status=429, retry_after_s=3.0)


def test_what_is_written_is_read_back_equal():
    (first, second) = read_lines([as_line(0, WHOLE), as_line(1, FAILED)])
    assert first == (0, WHOLE)
    assert (second[0], second[1].failure, second[1].retry_after_s) == (1, Failure.STATUS, 3.0)


def test_gaps_of_a_request_whose_inner_times_were_left_out_stay_unknown():
    long = RequestRecord(3, 0.0, 2.0, (0.25, 0.5, 1.5), output_tokens=3, due_s=0.0)
    ((_, arrived),) = read_lines([as_line(0, long.thinned())])
    assert (list(arrived.event_times_s), arrived.gaps_s, arrived.tpot_s) == ([0.25, 1.5], [], long.tpot_s)


def test_a_line_that_was_cut_off_at_the_end_is_left_out():
    assert len(read_lines([as_line(0, WHOLE), as_line(0, FAILED)[:40]])) == 1


def test_a_bad_line_in_the_middle_is_told():
    with pytest.raises(KitError, match="line 1 of requests is no request"):
        read_lines(["{}", as_line(0, WHOLE)])
