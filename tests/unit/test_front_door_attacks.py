"""The table of attacks on a front door that is published, and those that are run."""

import re
from pathlib import Path

from attacks import ATTACKS, AttackTarget, smuggling_cases

PAGE = (Path(__file__).parents[2] / "docs" / "front-door-attacks.md").read_text()


def test_each_attack_is_published_with_less_than_60_percent_of_memory_used():
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(ATTACKS)
    rows = re.findall(r"^\| `\w+` \| [\d,]+ MiB, (\d+)% \| (\d+), (\d+) \|", PAGE, re.MULTILINE)
    assert len(rows) == len(ATTACKS)
    assert all(int(share) < 60 and int(requests) > 50 and failed == "0" for share, requests, failed in rows)


def test_each_request_smuggling_attack_hides_a_second_request():
    cases = smuggling_cases(AttackTarget("127.0.0.1", 1, "a", "", "k", "k", "m"))
    assert all(sent.count(b"POST ") == 2 and b"/smuggled" in sent for sent in cases.values())
