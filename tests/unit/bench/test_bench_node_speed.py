"""Rates of a node by itself: how they are computed, and what is said of what can't be measured."""

from types import SimpleNamespace

import pytest
from llmd_base.errors import KitError
from llmd_pods import node_speed
from llmd_pods.node_speed import SpeedWork, disk_read_gb_per_s, disk_sizes, gpu_speeds

WORK = SpeedWork(copy_bytes=10**9, matrix_size=1000, repeats=2, warm_ups=1, disk_bytes=2 * 16 * 2**20)


class Clock:
    """Seconds that pass with work alone."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def work(self, seconds: float) -> None:
        self.now_s += seconds


def torch_with(clock: Clock, *, broken: int | None = None) -> SimpleNamespace:
    """A PyTorch whose copies take a second and whose products take two."""

    def full(_shape: tuple[int, ...], _fill: int, *, dtype: str, device: str) -> SimpleNamespace:
        if device == f"cuda:{broken}":
            raise RuntimeError("HIP error: out of memory")
        return SimpleNamespace(copy_=lambda _: clock.work(1.0))

    def mm(_first: object, _second: object, *, out: object) -> None:
        clock.work(2.0)

    cuda = SimpleNamespace(synchronize=lambda _gpu: None)
    return SimpleNamespace(full=full, mm=mm, cuda=cuda, uint8="uint8", bfloat16="bfloat16")


@pytest.fixture(name="clock")
def clock_fixture(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(node_speed.time, "perf_counter", clock)
    return clock


def test_a_gpus_rates_count_bytes_both_ways_and_two_operations_for_a_multiplication(clock):
    (speed,) = gpu_speeds(torch_with(clock), 1, WORK)
    assert speed.memory_gb_per_s == pytest.approx(2.0)
    assert speed.matrix_tflops == pytest.approx(2 * 1000**3 / 2.0 / 1e12)


def test_a_gpu_whose_speed_measurement_raises_an_error_is_named(clock):
    with pytest.raises(KitError, match="GPU 1: HIP error: out of memory"):
        list(gpu_speeds(torch_with(clock, broken=1), 2, WORK))


def test_nvme_disk_sizes_are_read_in_sectors_of_512_bytes_from_sysfs(tmp_path):
    for name, sectors in (("nvme0n1", 1000), ("sda", 5), ("nvme1n1", 2000)):
        (tmp_path / "block" / name).mkdir(parents=True)
        (tmp_path / "block" / name / "size").write_text(f"{sectors}\n")
    assert disk_sizes(tmp_path) == {"nvme0n1": 512_000, "nvme1n1": 1_024_000}


def test_measuring_a_folders_read_speed_leaves_no_file_behind_or_names_the_folder(tmp_path):
    assert disk_read_gb_per_s(tmp_path, WORK.disk_bytes) > 0
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KitError, match=f"{tmp_path}/absent can't be measured: No such file"):
        disk_read_gb_per_s(tmp_path / "absent", WORK.disk_bytes)
