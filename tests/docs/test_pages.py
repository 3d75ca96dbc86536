"""Pages link to what is there, and name commands, options and words that are there."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("examples/*/*.md")])
DECISIONS = sorted(DOCS.glob("decisions/0*.md"))


def prose(page: Path) -> str:
    return re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of headings, as GitHub makes them."""
    headings: list[str] = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(page: Path) -> Iterator[str]:
    """Links to nothing, and to folders, which the site has no page for."""
    links: list[str] = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    for link in links:
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if "://" not in link and (not target.is_file() or (anchor and anchor not in anchors(target))):
            yield f"{page}: {link}"


def test_links_of_docs_pages_lead_to_existing_files_and_headings():
    assert [link for page in PAGES for link in dead_links(page)] == []


def command_options() -> dict[str, set[str]]:
    """Options of each command, by its name without `llmd-oke`: those of the reference page."""
    text = (DOCS / "reference" / "commands.md").read_text()
    sections: list[str] = re.split(r"^## llmd-oke ", text, flags=re.MULTILINE)[1:]
    return {section.split("\n", 1)[0]: set(re.findall(r"--[a-z][a-z-]*", section)) for section in sections}


OPTIONS = command_options()
GROUPS = {name.split()[0] for name in OPTIONS}


def unknown_commands(page: Path) -> Iterator[str]:
    calls: list[tuple[str, str]] = re.findall(
        r"llmd-oke ([a-z][a-z-]*(?: [a-z][a-z-]*)?)([^`#;|\n]*)", page.read_text()
    )
    for words, rest in calls:
        name = words if words in OPTIONS else words.split()[0]
        options: list[str] = re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest.split(" -- ")[0])
        if name in OPTIONS:
            yield from (f"{page}: {name} {option}" for option in options if option not in OPTIONS[name] | {"--help"})
        elif name not in GROUPS:
            yield f"{page}: {name}"


def test_commands_and_options_that_docs_pages_name_exist():
    pages = [page for page in PAGES if page.parent.name != "reference"]
    assert [command for page in pages for command in unknown_commands(page)] == []


def test_each_decision_has_status_context_decision_and_an_index_row():
    index = (DOCS / "decisions" / "README.md").read_text()
    for page in DECISIONS:
        title, _, rest = page.read_text().removeprefix("# ").partition("\n")
        number, _, decision = title.partition(". ")
        assert page.name.startswith(f"{number}-")
        headings = re.findall(r"^(?:Status: \w+|## .*)", rest, flags=re.MULTILINE)
        assert headings[1:3] == ["## Context", "## Decision"], page
        assert f"| [{number}]({page.name}) | {decision} |" in index


def test_the_index_of_how_to_pages_lists_every_how_to_page():
    index = (DOCS / "how-to" / "README.md").read_text()
    pages = [page.name for page in DOCS.glob("how-to/*.md") if page.name != "README.md"]
    assert [page for page in pages if f"]({page})" not in index] == []


def test_each_word_that_the_glossary_explains_occurs_on_another_docs_page():
    words: list[str] = re.findall(r"^\| ([\w -]+) \|", (DOCS / "glossary.md").read_text(), flags=re.MULTILINE)
    text = "\n".join(page.read_text() for page in PAGES if page.name != "glossary.md").lower()
    assert [word for word in words if word.lower() not in text and word != "word"] == []
