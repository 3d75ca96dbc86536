"""The benchmark of `doctor`: its logs are searched, and its limit is that of a GiB."""

import doctor_speed
import pytest
from doctor_speed import SpeedResult


def test_the_speed_benchmark_of_the_doctor_command_searches_a_generated_log(capsys: pytest.CaptureFixture[str]):
    blocks = 4
    assert doctor_speed.main(["--mib", str(blocks), "--runs", "1", "--json"]) in {0, 1}  # by the machine's load
    assert f'"mib": {blocks}' in capsys.readouterr().out


def test_the_speed_benchmark_of_the_doctor_command_passes_up_to_10_s_for_each_gib():
    assert SpeedResult(mib=512, lines=1, wall_s=4.9, cpu_s=1, fired=1).passed
    assert not SpeedResult(mib=512, lines=1, wall_s=5.1, cpu_s=1, fired=1).passed
    assert SpeedResult(mib=1024, lines=1, wall_s=10, cpu_s=1, fired=1).mb_per_s == pytest.approx(107.4, rel=0.01)
