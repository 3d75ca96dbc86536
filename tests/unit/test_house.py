"""Counts of the code, on trees of a few lines."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from house import CountedPlace, House, count, docstring_findings, kind_of_finding, read_tree

PROGRAM = Path(__file__).parents[2] / "dev" / "house.py"


def tree(root: Path, **files: str) -> Path:
    """A checkout with modules of the kit; `_in_` in a name stands before its folder."""
    for name, text in files.items():
        file = (root / "components" / "llmd_oke").joinpath(*reversed(name.split("_in_"))).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def counted(root: Path, text: str) -> House:
    return count(tree(root, module=text))


def test_a_short_function_or_a_property_that_is_used_once_counts_as_a_helper(tmp_path):
    house = counted(tmp_path, "def _once(): return 1\ndef _twice(): return 2\nx = _once()\ny = _twice() + _twice()\n")
    assert (house.total.one_use_private, house.total.one_use_per_kloc) == (1, 250.0)
    text = "class Pair:\n    @property\n    def once(self): return 1\nx = Pair().once\n"
    assert counted(tmp_path, text).total.one_use_public == 1


@pytest.mark.parametrize(
    "text",
    [
        "def _long():\n" + "    x = 1\n" * 8 + "_long()\n",
        "def _judge(): return 1\nJUDGES = {'x': _judge}\n",
        "def _key(item): return item\nx = sorted([2, 1], key=_key)\n",
        "@app.command(name='x')\ndef _command(): return 1\n_command()\n",
        "class Own(Base):\n    def _read(self): return super()._read()\n",
    ],
)
def test_a_long_function_or_one_without_a_caller_of_its_own_does_not_count_as_helper(tmp_path, text):
    assert counted(tmp_path, text).total.one_use_private == 0


def test_uses_of_a_private_function_count_only_in_its_module(tmp_path):
    module = "def _once(): return 1\nx = _once()\n"
    assert count(tree(tmp_path, one=module, two=module)).total.one_use_private == 2


def test_a_use_in_tests_counts_as_a_use_of_a_public_function(tmp_path):
    tree(tmp_path, one="def once(): return 1\nx = once()\n")
    assert count(tmp_path).total.one_use_public == 1
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text("from llmd_oke.one import once\nassert once() == 1\n")
    assert count(tmp_path).total.one_use_public == 0


@pytest.mark.parametrize(
    "text",
    [
        '{"x": y.x}',
        '{"x": list(y.x)}',
        '{"x": y.x()}',
        '{"x": None if y is None else y.x}',
        '{"x": getattr(y, "x")}',
        'f(**{"x": y.x})',
        '{**{"x": y.z.x}}',
        "dict(x=y.x)",
        "PoolArgs(x=y.x)",
        '{name: getattr(y, name) for name in ("x",)}',
    ],
)
def test_copying_an_attribute_to_a_key_of_its_own_name_counts_as_a_transcription(tmp_path, text):
    assert counted(tmp_path, f"value = {text}\n").total.pairs == 1


@pytest.mark.parametrize("text", ['{"x": y.z}', '{"x": f(y.x, 2)}', '{"x": x}', "{name: y.x for name in names}"])
def test_a_computed_or_renamed_value_does_not_count_as_a_transcription(tmp_path, text):
    assert counted(tmp_path, f"value = {text}\n").total.pairs == 0


def test_transcriptions_of_items_and_of_keyword_arguments_are_counted_separately(tmp_path):
    total = counted(tmp_path, 'a = {"x": y["x"]}\nb = Record(x=y.x, z=y["z"], w=1)\n').total
    assert (total.pairs, total.items, total.keywords) == (0, 1, 2)


def test_repeated_public_class_names_are_listed_with_their_places(tmp_path):
    house = count(
        tree(tmp_path, one="class Limits: ...\nclass _Own: ...\n", two="\nclass Limits: ...\nclass _Own: ...\n")
    )
    places = [f"components/llmd_oke/{place}" for place in ("one.py:1", "two.py:2")]
    assert house.repeated_classes == {"Limits": places}


@pytest.mark.parametrize(
    ("docstring", "kind"),
    [
        ("Whether the node is ready.", "question"),
        ("Runs the program.", "verb"),
        ("Runs of the program.", None),
        ("Requests the token.", "verb"),
        ("Requests that a server takes.", None),
        ("Those of a model's servers.", "pronoun"),
        ("All of them.", "pronoun"),
        ("As Rich asks for it.", "preposition"),
        ("Nothing is left.", "absence"),
        ("Names of it.", "dangling"),
        ("`number` is the server's.", "statement"),
        ("The cluster is up.", "statement"),
        ("The cluster that is up.", None),
        ("Servers that are up.", None),
        ("The node that would again.", "dangling"),
        ("Return True where the node is ready.", None),
        ("The node's name, and the pods that were given to it.", None),
        ("A node of the cluster, and how many pods may run there with it: 110.", None),
    ],
)
def test_docstrings_must_open_with_an_imperative_verb_or_a_noun_phrase(docstring, kind):
    assert kind_of_finding(docstring) == kind


def test_docstring_findings_in_tests_name_file_and_line_too(tmp_path):
    tree(tmp_path, one='"""A module."""\n\ndef f():\n    """Gives a number.\n\n    More."""\n')
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text('"""What it does."""\n')
    found = docstring_findings(read_tree(tmp_path))
    assert found == [
        CountedPlace("components/llmd_oke/one.py", 4, "verb", "Gives a number."),
        CountedPlace("tests/test_one.py", 1, "question", "What it does."),
    ]


def test_source_counts_list_the_modules_whose_functions_are_really_called(tmp_path):
    house = count(
        tree(
            tmp_path,
            __init___in_planning="from llmd_oke.planning.planner import plan\n",
            planner_in_planning=(
                "from llmd_oke import config\nfrom llmd_oke.pools import Pool\nfrom llmd_oke.unused import never\n"
                "def plan():\n    return Pool(config.read())\n"
            ),
            pools=(
                "from llmd_oke.shapes import shape\nclass Pool:\n    def __init__(self): self._size()\n"
                "    def _size(self): return shape()\n    def other(self): from llmd_oke.unused import never; never()\n"
            ),
            shapes="def shape():\n    from llmd_oke.pools import Pool\n    Pool()\n",
            config="def read(): ...\n",
            unused="def never(): ...\n",
        )
    )
    names = [f"llmd_oke.{name}" for name in ("config", "planning.planner", "pools", "shapes")]
    assert house.walks[0].modules == names
    assert house.walks[0].climbs == ["llmd_oke.pools -> llmd_oke.shapes", "llmd_oke.shapes -> llmd_oke.pools"]


def run(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), f"--tree={root}", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_check_of_docstrings_fails_on_a_finding(tmp_path):
    tree(tmp_path, one='"""Gives a number."""\n', three_in_two='"""A module."""\n')
    found = run(tmp_path, "--list", "docstrings", "--check")
    assert (found.returncode, found.stdout.split()[:2]) == (1, ["components/llmd_oke/one.py:1", "verb"])
    assert run(tmp_path, "--list", "docstrings").returncode == 0
    assert run(tmp_path, "--list", "docstrings", "--check", "components/llmd_oke/two").returncode == 0


def test_source_code_counts_can_be_printed_as_a_table_or_json(tmp_path):
    tree(tmp_path, one='"""A module."""\nfrom typing import Any\nx: dict[str, Any] = {}\n')
    assert "public class names that occur more than once: 0" in run(tmp_path).stdout
    assert json.loads(run(tmp_path, "--json").stdout)["total"]["any_dicts"] == 1
