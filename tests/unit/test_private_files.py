"""Files with secrets."""

import stat
from pathlib import Path

import pytest
from llmd_base.private_files import write_private


@pytest.mark.parametrize("content", ["the secret", b"the secret"])
def test_a_file_with_a_secret_is_readable_by_its_owner_alone(tmp_path: Path, content: str | bytes):
    file = tmp_path / "secret"
    file.write_text("readable by all")
    file.chmod(0o644)
    write_private(file, content)
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("the secret", 0o600)
    assert list(tmp_path.iterdir()) == [file]
