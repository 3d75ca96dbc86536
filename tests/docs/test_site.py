"""The site of the documentation: it builds from the checkout, every link leads somewhere, and it can be searched."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 1200
FETCHED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//|<link\b[^>]*\bhref=\"(?:https?:)?//")
"""What a browser fetches by itself from another host."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `scripts/docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--builder", "html", "--fail-on-warning", "--keep-going", "--quiet"]
    built = subprocess.run(
        [*command, "--conf-dir", "docs/site", ".", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.nightly
@pytest.mark.timeout(LIMIT_S)
def test_every_page_is_part_of_the_site(site: Path):
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    names = [page.relative_to(ROOT).with_suffix(".html") for page in pages]
    assert [name for name in names if not (site / name).is_file()] == []


@pytest.mark.nightly
@pytest.mark.timeout(LIMIT_S)
def test_no_page_loads_anything_from_another_host(site: Path):
    assert [page.name for page in site.rglob("*.html") if FETCHED.search(page.read_text())] == []


@pytest.mark.nightly
@pytest.mark.timeout(LIMIT_S)
def test_the_index_of_the_search_knows_words_of_the_pages(site: Path):
    index = (site / "searchindex.js").read_text()
    assert [
        word for word in ("bastion", "tensor", "preflight") if f'"{word}' not in index and f"{word}:" not in index
    ] == []
