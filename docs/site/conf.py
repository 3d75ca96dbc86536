"""Settings of the site that `scripts/docs` builds from the pages of the repository, with Sphinx, MyST and Furo.

The source folder is the repository, so that pages link to each other and to files as they do on GitHub.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]

project = "llmd-oke"
author = "llmd-oke"
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "docs/*/*.md", "examples/*/README.md", "tools/README.md"]
extensions = ["myst_parser"]
myst_heading_anchors = 4
smartquotes = False  # options begin with two dashes, not with a long one

linkcheck_ignore = [
    r"https?://[\w.-]*example\.(?:com|org)",
    r"https?://(?:127\.0\.0\.1|localhost)",
    r"https://github\.com/OWNER/",
]
linkcheck_anchors_ignore_for_url = [r"https://github\.com/"]  # its pages make their anchors in the browser
linkcheck_timeout = 30
linkcheck_retries = 3
linkcheck_rate_limit_timeout = 120

html_theme = "furo"
html_title = "llmd-oke"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}

CONTENTS = {
    "Start": (
        *("docs/how-to/first-hour", "docs/how-to/rehearse", "docs/how-to/get-started-on-oci"),
        *("docs/how-to/get-started-on-an-existing-cluster", "docs/how-to/first-run-on-oci"),
    ),
    "How to": ("docs/how-to/README", "docs/alerts/README"),
    "Reference": (
        *("docs/reference/commands", "docs/reference/stack-file", "docs/reference/components"),
        *("docs/compatibility", "docs/releases", "docs/versions", "docs/models", "docs/signatures", "docs/glossary"),
    ),
    "How it works": (
        *("docs/architecture", "docs/decisions/README", "docs/traps", "docs/faults", "docs/parity"),
        *("docs/router-deviations", "docs/simulated-vllm", "docs/network-policies", "docs/pod-security"),
        *("docs/front-door-attacks", "docs/drills"),
    ),
    "Project": ("CONTRIBUTING", "CHANGELOG", "tools/README"),
}
"""Pages of the side bar by heading. Other pages of a folder stand below its README, in the order in which it links."""


def add_contents(_app: Sphinx, name: str, content: list[str]) -> None:
    """Append the tables of contents to the first page and to the README of each folder, which GitHub doesn't need."""
    if name == root_doc:
        examples = tuple(f"examples/{page.parent.name}/README" for page in sorted(ROOT.glob("examples/*/README.md")))
        sections = {**CONTENTS, "Project": (*CONTENTS["Project"], *examples)}
        content[0] += "".join(_toctree(heading, pages) for heading, pages in sections.items())
    elif name.endswith("/README") and name.startswith("docs/"):
        listed = {page for pages in CONTENTS.values() for page in pages}
        links: list[str] = re.findall(r"\]\(([\w-]+)\.md[)#]", content[0])
        folder = name.removesuffix("/README")
        there = sorted(page.stem for page in (ROOT / folder).glob("*.md") if page.stem != "README")
        pages = dict.fromkeys([*(link for link in links if link in there), *there])
        content[0] += _toctree("", [f"{folder}/{page}" for page in pages if f"{folder}/{page}" not in listed])


def _toctree(heading: str, pages: tuple[str, ...] | list[str]) -> str:
    caption = [f":caption: {heading}"] if heading else []
    return "\n".join(["", "", "```{toctree}", ":hidden:", *caption, "", *(f"/{page}" for page in pages), "```", ""])


def setup(app: Sphinx) -> None:
    """Register what is done as a page is read."""
    app.connect("source-read", add_contents)
