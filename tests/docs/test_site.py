"""The site of the documentation: it builds from the checkout, every link leads somewhere, and it can be searched.

Links to other hosts are tried where the internet can be reached.
"""

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 1200
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(LIMIT_S)]

FETCHED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//|<link\b[^>]*\bhref=\"(?:https?:)?//")
"""What a browser fetches by itself from another host."""


INTERNET = "https://github.com"
"""The host of most links."""

REFUSES_ROBOTS = re.compile(r"(?:401|403|429|5\d\d) ")
"""How an answer begins of a host that is there, and has nothing to say to programs or to anyone now."""


def build(builder: str, folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run a builder of the site, with the settings that `scripts/docs` has."""
    return subprocess.run(
        [sys.executable, "-m", "sphinx", "--builder", builder, *options, "--conf-dir", "docs/site", ".", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `scripts/docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    built = build("html", folder, "--fail-on-warning", "--keep-going", "--quiet")
    assert built.returncode == 0, built.stderr
    return folder


def test_every_markdown_page_of_the_docs_is_built_into_the_docs_site(site: Path):
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    names = [page.relative_to(ROOT).with_suffix(".html") for page in pages]
    assert [name for name in names if not (site / name).is_file()] == []


def test_no_page_of_the_docs_site_loads_a_resource_from_another_host(site: Path):
    assert [page.name for page in site.rglob("*.html") if FETCHED.search(page.read_text())] == []


def test_the_search_index_of_the_docs_site_contains_words_of_its_pages(site: Path):
    index = (site / "searchindex.js").read_text()
    assert [
        word for word in ("bastion", "tensor", "preflight") if f'"{word}' not in index and f"{word}:" not in index
    ] == []


def dead_links(output: Path) -> list[str]:
    """The links to other hosts that lead nowhere, each with its page, by what Sphinx's check of links wrote."""
    found = [json.loads(line) for line in output.read_text().splitlines()]
    return [
        f"{link['filename']}:{link['lineno']}: {link['uri']}: {link['info']}"
        for link in found
        if link["status"] == "broken" and link["uri"].startswith("http") and not REFUSES_ROBOTS.match(link["info"])
    ]


def test_no_link_of_the_docs_site_to_another_host_is_dead(tmp_path: Path):
    try:
        urllib.request.urlopen(INTERNET, timeout=30).close()
    except OSError as error:
        pytest.skip(f"{INTERNET} can't be reached from here: {error}")
    checked = build("linkcheck", tmp_path)
    assert (tmp_path / "output.json").is_file(), checked.stderr
    assert dead_links(tmp_path / "output.json") == []
