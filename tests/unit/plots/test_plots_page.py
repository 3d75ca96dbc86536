import re

import pytest
from llmd_bench.plots.page import Cell, PageSection, Table, page

TABLE = Table(("metric", "A", "B"), [("TTFT", "1,234.5", Cell("-3%", "good")), ("ITL", "8", Cell("+1%", "bad"))])


def test_a_report_page_has_its_own_styles_no_script_and_refers_to_no_other_file():
    text = page("t", [PageSection("h", "p", TABLE, "<svg></svg>")])
    assert not re.search(r"<script|<link|src=|@import|url\(", text)
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


@pytest.mark.parametrize("where", ["title", "heading", "text", "cell", "column"])
def test_html_in_the_texts_of_a_report_page_is_escaped(where):
    evil = "<b onclick=x>&"
    given = {name: evil if name == where else "x" for name in ("title", "heading", "text", "cell", "column")}
    table = Table((given["column"],), [(given["cell"],)])
    assert evil not in page(given["title"], [PageSection(given["heading"], given["text"], table)])


def test_table_cells_of_numbers_are_aligned_to_the_right_and_improved_ones_marked():
    assert TABLE.numeric == [False, True, True]
    assert Table(("a",), [("8p-tp1",), ("2",)]).numeric == [False]
    assert 'class="number good">-3%' in page("t", [PageSection("h", table=TABLE)])


def test_an_empty_line_in_a_report_pages_text_separates_html_paragraphs():
    assert page("t", [PageSection("h", "one\n\ntwo")]).count("<p>") == 2
