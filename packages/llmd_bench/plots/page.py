"""Self-contained HTML page of text, tables and charts: without scripts or other files, for light, dark and printed
pages.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jinja2 import Environment, StrictUndefined

_TEMPLATE = Path(__file__).with_name("page.html.j2")
_NUMBER = re.compile(r"[-+]?[\d,.]+(?!\w)|-?$")

Tone = Literal["", "good", "bad", "quiet"]


@dataclass(frozen=True)
class Cell:
    """Cell of a table in an HTML page; `tone` selects its colour."""

    text: str
    tone: Tone = ""

    def classes(self, numeric: bool) -> str:
        """Return the cell's CSS classes, as the value of the HTML attribute."""
        return " ".join(name for name in ("number" if numeric else "", self.tone) if name)


@dataclass(frozen=True)
class Table:
    """Table of an HTML page. Columns whose cells all begin with a number are aligned to the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]

    @property
    def cells(self) -> list[list[Cell]]:
        """Rows of the table with all texts converted to cells."""
        return [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in self.rows]

    @property
    def numeric(self) -> list[bool]:
        """True for each column of the table whose cells all begin with a number."""
        return [all(_NUMBER.match(row[index].text) for row in self.cells) for index in range(len(self.columns))]


@dataclass(frozen=True)
class PageSection:
    """Section of a page: paragraphs (separated by an empty line), then a table, then a chart."""

    heading: str
    text: str = ""
    table: Table | None = None
    svg: str | None = None


def page(title: str, sections: Sequence[PageSection]) -> str:
    """Return the page as HTML; texts are escaped, SVG charts (`plots.charts`) are inserted unchanged."""
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    return template.render(title=title, sections=sections) + "\n"
