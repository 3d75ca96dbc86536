from llmd_oke.rehearsal.programs.build_info import module_version

SCHEDULER = "github.com/llm-d/llm-d-inference-scheduler"


def go_program(tmp_path, modules, padding=160):
    """A file with a Go build list in it, as `go build` writes it, after a false start of the magic word."""
    text = b"s" * 16 + modules.encode() + b"e" * 16
    header = b"\xff Go buildinf:" + bytes([8, 2]) + bytes(16)
    false_start = b"\x7fELF\xff Go buildinf:"
    file = tmp_path / "program"
    file.write_bytes(false_start.ljust(padding, b"\0") + header + varint(8) + b"go1.26.8" + varint(len(text)) + text)
    return file


def varint(number):
    low, high = number & 0x7F, number >> 7
    return bytes([low | 0x80, high]) if high else bytes([low])


def test_a_dependencys_version_is_found(tmp_path):
    modules = f"path\tx/epp\nmod\tx\t(devel)\t\ndep\tother\tv9.9.9\th1:a=\ndep\t{SCHEDULER}\tv0.7.1\th1:b=\n"
    assert module_version(go_program(tmp_path, modules), SCHEDULER) == "v0.7.1"


def test_the_main_modules_version_is_found(tmp_path):
    modules = f"path\t{SCHEDULER}/cmd/epp\nmod\t{SCHEDULER}\tv0.8.0\th1:b=\n"
    assert module_version(go_program(tmp_path, modules), SCHEDULER) == "v0.8.0"


def test_a_program_from_a_checkout_tells_the_release_stamped_into_it(tmp_path):
    modules = f'mod\t{SCHEDULER}\t(devel)\t\nbuild\t-ldflags="-X gaie/version.BuildRef=v0.8.0 -X a=b"\n'
    assert module_version(go_program(tmp_path, modules), SCHEDULER) == "v0.8.0"


def test_a_program_from_a_checkout_without_a_stamp_tells_nothing(tmp_path):
    assert module_version(go_program(tmp_path, f"mod\t{SCHEDULER}\t(devel)\t\n"), SCHEDULER) is None


def test_a_program_without_the_module_tells_nothing(tmp_path):
    assert module_version(go_program(tmp_path, "mod\tother\tv1.0.0\t\n"), SCHEDULER) is None


def test_a_file_that_is_not_gos_tells_nothing(tmp_path):
    (tmp_path / "script").write_text("#!/bin/sh\n")
    (tmp_path / "empty").touch()
    assert module_version(tmp_path / "script", SCHEDULER) is None
    assert module_version(tmp_path / "empty", SCHEDULER) is None
    assert module_version(tmp_path / "missing", SCHEDULER) is None
