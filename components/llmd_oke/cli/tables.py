"""Tables whose figures are never truncated: in a narrow terminal headings are wrapped, or rows become paragraphs."""

from collections.abc import Container, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

_WIDEST = 10_000
_BETWEEN = Text("   ")
_INDENT = 4


def plain_cells(*cells: str | Text) -> list[Text]:
    """Return cells as Rich texts without markup, since names from files and clusters may contain brackets."""
    return [cell if isinstance(cell, Text) else Text(cell) for cell in cells]


def open_table(*headings: str, right: Container[str] = (), **columns: Any) -> Table:
    """Return a Rich table without lines and rows. The columns with a heading in `right` are aligned to the right;
    `columns` are settings of all columns, such as `no_wrap`.
    """
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", **columns)
    return table


@dataclass(frozen=True)
class FittingTable:
    """Rich table that becomes a paragraph for each row if its cells don't fit the terminal's width."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the renderables for the width of the console."""
        if _widest(console, options, self.table) <= options.max_width:
            yield self.table
            return
        narrow = copy(self.table)  # columns as wide as their cells, or as the longest words of their headings
        narrow.columns = [
            replace(column, width=max(_words_of(console, column), default=1), no_wrap=False)
            for column in self.table.columns
        ]
        if _widest(console, options, narrow) <= options.max_width:
            yield narrow
            return
        if self.table.title:
            yield self.table.title
        yield from _paragraphs(console, self.table, options.max_width - _INDENT)


def _widest(console: Console, options: ConsoleOptions, table: Table) -> int:
    return Measurement.get(console, options.update(max_width=_WIDEST), table).maximum


def _words_of(console: Console, column: Column) -> Iterator[int]:
    """Yield the widths of a column's parts that must not be wrapped."""
    yield from (cell_len(word) for word in _text(console, column.header).plain.split())
    yield from (line.cell_len for cell in column.cells for line in _text(console, cell).split())


def _paragraphs(console: Console, table: Table, width: int) -> Iterator[RenderableType]:
    names = [" ".join(_text(console, column.header).plain.split()) for column in table.columns]
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        first, *others = (Text(", ").join(_text(console, cell).split()) for cell in cells)
        yield first
        pairs = [
            Text.assemble((f"{name} " if name else "", "dim"), cell)
            for name, cell in zip(names[1:], others, strict=True)
            if cell.plain.strip()
        ]
        yield from (Padding(line, (0, 0, 0, _INDENT)) for line in _lines(pairs, width))


def _lines(pairs: Iterable[Text], width: int) -> Iterator[Text]:
    """Yield lines, each with as many pairs of name and figure as fit the width."""
    line: list[Text] = []
    for pair in pairs:
        if line and _BETWEEN.join([*line, pair]).cell_len > width:
            yield _BETWEEN.join(line)
            line = []
        line.append(pair)
    if line:
        yield _BETWEEN.join(line)


def _text(console: Console, cell: RenderableType) -> Text:
    return cell if isinstance(cell, Text) else console.render_str(str(cell))
