import re

import pytest
from llmd_bench.plots.page import Cell, PageSection, Table, page

TABLE = Table(("metric", "A", "B"), [("TTFT", "1,234.5", Cell("-3%", "good")), ("ITL", "8", Cell("+1%", "bad"))])


def test_a_report_page_refers_to_no_other_file_and_has_no_script():
    text = page("t", [PageSection("h", "p", TABLE, "<svg></svg>")])
    assert not re.search(r"<script|<link|src=|@import|url\(", text)


@pytest.mark.parametrize("where", ["title", "heading", "text", "cell", "column"])
def test_html_in_the_texts_of_a_report_page_is_escaped(where):
    evil = "<b onclick=x>&"
    given = {name: evil if name == where else "x" for name in ("title", "heading", "text", "cell", "column")}
    table = Table((given["column"],), [(given["cell"],)])
    assert evil not in page(given["title"], [PageSection(given["heading"], given["text"], table)])


def test_number_columns_in_tables_of_a_report_page_are_aligned_to_the_right():
    assert TABLE.numeric == [False, True, True]
    assert Table(("a",), [("8p-tp1",), ("2",)]).numeric == [False]


def test_a_table_cell_with_an_improved_value_has_the_css_class_good():
    assert 'class="number good">-3%' in page("t", [PageSection("h", table=TABLE)])


def test_an_empty_line_in_a_report_pages_text_separates_html_paragraphs():
    assert page("t", [PageSection("h", "one\n\ntwo")]).count("<p>") == 2


def test_a_report_page_has_styles_for_light_dark_and_print():
    text = page("t", [])
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
