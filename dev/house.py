"""Counts of the code from its syntax trees, for comparison before and after a change.

- Helper with one use: a function or method of at most 8 lines that is named exactly once, by a call, or a property that
  is read exactly once. Private names are counted in their own module, public ones in the whole tree including tests;
  imports don't count. A function has no caller that it could stand in, and doesn't count, if it is named as a value
  (entry of a table, argument, default), if a decorator registers it, or if it overrides a method and calls only that.
- Transcribed pair: `"x": y.x` in a dict display, unpacked or not, where the value reads attribute `x` unchanged,
  through one call (`list(y.x)`, `y.x()`) or in a branch of a conditional; also `getattr(y, "x")`, each name of a listed
  `getattr(y, name)`, and keywords `x=y.x` of `dict` and of argument types (`…Args`). Counted separately: items (`"x":
  y["x"]`) and keywords of all other calls (`x=y.x`, `x=y["x"]`).
- Docstring finding: a beginning that is neither an imperative verb nor a noun phrase that stands alone (`FINDINGS`). A
  docstring has at most one; all kinds except questions and verbs are called telegrams.
- Walk: the modules entered by following the calls that can be resolved without types. A climb is a call to another
  module whose imports lead back to the caller's module.
"""

import argparse
import ast
import json
import re
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import median, quantiles
from typing import TypeAlias

PROJECT = Path(__file__).resolve().parents[1]
TESTS = "tests"
HELPER_LINES = 8
PROPERTIES = {"property", "cached_property"}
PLAIN_DECORATORS = PROPERTIES | {"staticmethod", "classmethod", "cache", "lru_cache", "contextmanager", "override"}
"""Decorators that register a function nowhere, so that it has the callers that name it."""
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Documented: TypeAlias = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

VERBS = """
Acts Adds Asks Audits Begins Brings Builds Closes Collects Compares Creates Cuts Declares Deletes Deploys Destroys
Detaches Does Doesn't Downloads Drains Ends Evicts Fails Fills Finds Follows Gets Gives Goes Has Hears Holds Installs Is
Keeps Kills Lays Leads Leaves Lets Listens Looks Makes Opens Prepares Prints Publishes Puts Raises Reads Refuses
Registers Rehearses Remembers Removes Replaces Returns Says Sees Selects Sends Serves Settles Shows Simulates Stands
Stops Takes Tells Tries Trusts Turns Uncordons Uses Waits Writes
"""
NOUNS_TOO = """
Answers Attacks Benchmarks Bounds Calls Changes Checks Copies Counts Launches Loads Logs Measures Names Passes Plans
Quotes Records Reports Requests Runs Scores Sets Signs Starts Stores Tests Updates Watches
"""
"""Words that are verbs before an object, as in "Checks the file", and otherwise nouns, as in "Checks of files"."""
OBJECT = "an? the all its? their one each every no this those these what until whether"
FINDINGS = {
    "question": "(What|Whatever|Which|Who|Whom|Whose|How|Whether|Where|When|Why)\\b",
    "verb": rf"({'|'.join(VERBS.split())})\b(?! of\b)"
    rf"|({'|'.join(NOUNS_TOO.split())}) (`|({'|'.join(OBJECT.split())})\b)",
    "pronoun": "(That|Those|This|These|It|Its|They|Them|Their|There|Both|Some|So|Such|Same)\\b"
    "|(All|Each|Any|One|None|Most) of (it|them|these|those)\\b",
    "preposition": "(As|Of|For|From|By|At|In|On|With|Without|To|Into|Than)\\b"
    "|(If|Until|While|After|Before|Over|Between|Per)\\b",
    "statement": r"`[^`]+` (is|are|has|have)\b|[A-Z]\w+s (are|have)\b"
    r"|(The|An?|Every) ((?!that|which|who|where)\S+ ){1,2}(is|are|has|have)\b",
    "absence": "(Nothing|None|Nobody|May|Only)\\b",
    "dangling": r"(\S+ ){0,5}((of|for|by|with|to|from|than) (it|them|those|that)|(would|does|did|do) again)\.?$",
}
"""Regular expressions of unclear beginnings of docstrings, by kind of beginning; the first match counts."""
TELEGRAMS = ("pronoun", "preposition", "statement", "absence", "dangling")
LATE_IMPORT = re.compile(r"# noqa:[^#\n]*PLC0415")
WALKS = (("llmd_oke.planning", "plan"), ("llmd_oke.program.models", "declare_units"), ("llmd_oke.program", "deploy"))
"""Functions from which walks through the code's calls start: from a stack file to its plan, from a model's plan to its
Deployments, and from the plan to all declared resources.
"""


@dataclass(frozen=True)
class Module:
    """Text and syntax tree of a Python module; `file` is the path in the checkout, `name` the name in imports."""

    package: str
    file: str
    name: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        """Number of lines of the module."""
        return self.text.count("\n")


@dataclass(frozen=True)
class PackageCounts:
    """Counts of a package's code; `one_use_per_kloc` is the number of helpers with one use per thousand lines."""

    package: str
    modules: int
    lines: int
    functions: int
    function_median: float
    function_p90: float
    function_max: int
    one_use_private: int
    one_use_public: int
    one_use_per_kloc: float
    pairs: int
    items: int
    keywords: int
    docstrings: int
    telegrams: int
    findings: dict[str, int]
    any_dicts: int
    late_imports: int


@dataclass(frozen=True)
class Walk:
    """Modules that a reader enters who follows all calls from a start function; `climbs` are the calls to a module that
    itself imports the caller's module, in the form `caller -> callee`.
    """

    start: str
    modules: list[str]
    climbs: list[str]


@dataclass(frozen=True)
class CountedPlace:
    """Place of the code that a count includes, such as a docstring that opens with neither an imperative verb nor a
    noun phrase.
    """

    file: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {self.kind:11}  {self.text}"


@dataclass(frozen=True)
class House:
    """Counts of a checkout's code; `repeated_classes` has the locations of public class names outside tests that occur
    more than once.
    """

    packages: list[PackageCounts]
    total: PackageCounts
    pairs_by_file: dict[str, int]
    repeated_classes: dict[str, list[str]]
    walks: list[Walk]
    telegrams: list[str]


def read_tree(root: Path) -> list[Module]:
    """Return all Python modules of a checkout: the kit, the packages, `dev` (formerly `benchmarks`) and tests."""
    folders = [("components", item) for item in sorted((root / "components").glob("*/"))]
    folders += [("packages", item) for item in sorted((root / "packages").glob("*/"))]
    folders += [("", root / name) for name in ("dev", "benchmarks", TESTS)]
    modules: list[Module] = []
    for base, folder in folders:
        package = {"benchmarks": "dev"}.get(folder.name, folder.name)
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(root / base).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            text = path.read_text()
            modules.append(Module(package, str(path.relative_to(root)), name, text, ast.parse(text)))
    return modules


def functions(tree: ast.AST) -> Iterator[Function]:
    """Return all functions and methods in a syntax tree, including nested ones."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def length(function: Function) -> int:
    """Return the number of lines of a function, with its docstring and without decorators."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def uses(nodes: Iterable[ast.AST]) -> Counter[str]:
    """Count how often each name occurs in expressions `name` and `x.name` among the nodes of a syntax tree."""
    return Counter(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in nodes
        if isinstance(node, ast.Name | ast.Attribute)
    )


def called(tree: ast.AST) -> Iterator[ast.expr]:
    """Return the expressions of all functions and methods that a syntax tree calls."""
    return (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))


def decorators(function: Function) -> set[str]:
    """Return the names of a function's decorators, such as `lru_cache` of `@functools.lru_cache(maxsize=1)`."""
    return set(uses(item.func if isinstance(item, ast.Call) else item for item in function.decorator_list))


def one_use_helpers(modules: Sequence[Module]) -> list[tuple[Module, Function]]:
    """Return the functions of at most `HELPER_LINES` lines outside tests that one caller alone names in the code."""
    named = {module.file: uses(ast.walk(module.tree)) for module in modules}
    calls = {module.file: uses(called(module.tree)) for module in modules}
    named_anywhere, called_anywhere = sum(named.values(), Counter[str]()), sum(calls.values(), Counter[str]())
    found: list[tuple[Module, Function]] = []
    for module in modules:
        if module.package == TESTS:
            continue
        for function in functions(module.tree):
            name, decorated = function.name, decorators(function)
            own = name.startswith("_")
            named_once = (named[module.file] if own else named_anywhere)[name] == 1
            has_caller = (calls[module.file] if own else called_anywhere)[name] or decorated & PROPERTIES
            is_short = not name.startswith("__") and length(function) <= HELPER_LINES
            is_helper = is_short and decorated <= PLAIN_DECORATORS and not uses(ast.walk(function))[name]
            if is_helper and named_once and has_caller:
                found.append((module, function))
    return found


def reads_attribute(value: ast.expr, name: str) -> bool:
    """Return whether a value in a syntax tree is the attribute `name` of something, unchanged, through one call, or in
    a branch of a conditional.
    """
    match value:
        case ast.Attribute(attr=attribute):
            return attribute == name
        case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=attribute), *_]):
            return attribute == name
        case ast.Call(func=ast.Attribute(attr=attribute), args=[], keywords=[]) if attribute == name:
            return True
        case ast.Call(args=[argument], keywords=[]):
            return reads_attribute(argument, name)
        case ast.IfExp(body=body, orelse=orelse):
            return reads_attribute(body, name) or reads_attribute(orelse, name)
        case _:
            return False


def reads_item(value: ast.expr, name: str) -> bool:
    """Return whether a value in a syntax tree is `y["name"]`."""
    return isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant) and value.slice.value == name


def transcribed(tree: ast.AST) -> tuple[int, int, int]:
    """Return how many fields a module copies by hand: pairs `"x": y.x` of dictionaries, pairs `"x": y["x"]`, and
    keywords `x=y.x` of calls.
    """
    pairs = items = keywords = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            named = [
                (key.value, value)
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            ]
            pairs += sum(reads_attribute(value, name) for name, value in named)
            items += sum(reads_item(value, name) for name, value in named)
        elif isinstance(node, ast.DictComp):
            pairs += listed_getattr(node)
        elif isinstance(node, ast.Call):
            named = [(keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg]
            found = sum(reads_attribute(value, name) for name, value in named)
            if makes_arguments(node.func):
                pairs += found
            else:
                keywords += found + sum(reads_item(value, name) for name, value in named)
    return pairs, items, keywords


def listed_getattr(comprehension: ast.DictComp) -> int:
    """Return the number of names in `{name: getattr(y, name) for name in ("x", "z")}`; 0 for other comprehensions."""
    source = comprehension.generators[0].iter
    calls = [node for node in ast.walk(comprehension.value) if isinstance(node, ast.Call)]
    reads = any(isinstance(call.func, ast.Name) and call.func.id == "getattr" for call in calls)
    return len(source.elts) if reads and isinstance(source, ast.Tuple | ast.List | ast.Set) else 0


def makes_arguments(function: ast.expr) -> bool:
    """Return whether a call in a syntax tree makes a dictionary: it calls `dict` or a type of a component's arguments
    (`…Args`).
    """
    return isinstance(function, ast.Name) and (function.id == "dict" or function.id.endswith("Args"))


def docstrings(module: Module) -> Iterator[tuple[int, str]]:
    """Yield line number and text of each docstring of a module."""
    for node in ast.walk(module.tree):
        if isinstance(node, Documented) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text


def kind_of_finding(docstring: str) -> str | None:
    """Return the first kind in `FINDINGS` (unclear beginnings) that matches a docstring's first paragraph; None if none
    does.
    """
    opening = " ".join(docstring.split("\n\n", maxsplit=1)[0].split())
    return next((kind for kind, pattern in FINDINGS.items() if re.match(pattern, opening)), None)


def docstring_findings(modules: Iterable[Module]) -> list[CountedPlace]:
    """Return the docstrings with an unclear beginning (`FINDINGS`), in the order of files and lines."""
    return [
        CountedPlace(module.file, line, kind, text.split("\n")[0])
        for module in modules
        for line, text in sorted(docstrings(module))
        if (kind := kind_of_finding(text))
    ]


def helper_findings(modules: Sequence[Module]) -> list[CountedPlace]:
    """Return all helpers with one use (at most 8 lines, named by one caller alone), with their locations."""
    return [
        CountedPlace(module.file, function.lineno, f"{length(function)} lines", function.name)
        for module, function in one_use_helpers(modules)
    ]


def pair_findings(modules: Iterable[Module]) -> list[CountedPlace]:
    """Return the files outside tests that copy fields by hand, as pairs `"x": y.x`, with the number of pairs."""
    return [CountedPlace(file, 1, f"{pairs} pairs", "") for file, pairs in pairs_by_file(modules).items()]


def class_findings(modules: Iterable[Module]) -> list[CountedPlace]:
    """Return all places outside tests that define a public class whose name occurs more than once."""
    return [
        CountedPlace(file, line, "class", f"{name} ({len(places)} times)")
        for name, places in repeated_classes(modules).items()
        for file, line in places
    ]


def pairs_by_file(modules: Iterable[Module]) -> dict[str, int]:
    """Return the number of pairs `"x": y.x` of each file outside tests that has any, in descending order."""
    pairs = {module.file: transcribed(module.tree)[0] for module in modules if module.package != TESTS}
    return dict(sorted(((file, number) for file, number in pairs.items() if number), key=lambda item: -item[1]))


def repeated_classes(modules: Iterable[Module]) -> dict[str, list[tuple[str, int]]]:
    """Return the public class names that are defined more than once outside tests, with file and line of each
    definition.
    """
    places: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and module.package != TESTS:
                places[node.name].append((module.file, node.lineno))
    repeated = ((name, found) for name, found in places.items() if len(found) > 1)
    return dict(sorted(repeated, key=lambda item: (-len(item[1]), item[0])))


def package_counts(package: str, modules: list[Module], helpers: list[tuple[Module, Function]]) -> PackageCounts:
    """Return the counts of the code of some modules together; `helpers` are the helpers with one use of all modules."""
    files = {module.file for module in modules}
    mine = [function.name.startswith("_") for module, function in helpers if module.file in files]
    lengths = sorted(length(function) for module in modules for function in functions(module.tree)) or [0]
    lines = sum(module.lines for module in modules)
    copied = [transcribed(module.tree) for module in modules]
    texts = [text for module in modules for _, text in docstrings(module)]
    findings = Counter(kind for text in texts if (kind := kind_of_finding(text)))
    nodes = [node for module in modules for node in ast.walk(module.tree)]
    return PackageCounts(
        package=package,
        modules=len(modules),
        lines=lines,
        functions=sum(1 for module in modules for _ in functions(module.tree)),
        function_median=median(lengths),
        function_p90=quantiles(lengths, n=10)[-1] if len(lengths) > 1 else lengths[0],
        function_max=lengths[-1],
        one_use_private=sum(mine),
        one_use_public=len(mine) - sum(mine),
        one_use_per_kloc=round(1000 * len(mine) / lines, 1) if lines else 0.0,
        pairs=sum(pairs for pairs, _, _ in copied),
        items=sum(items for _, items, _ in copied),
        keywords=sum(keywords for _, _, keywords in copied),
        docstrings=len(texts),
        telegrams=sum(findings[kind] for kind in TELEGRAMS),
        findings=dict(findings),
        any_dicts=sum(isinstance(node, ast.Subscript) and ast.unparse(node) == "dict[str, Any]" for node in nodes),
        late_imports=sum(len(LATE_IMPORT.findall(module.text)) for module in modules),
    )


class CallGraph:
    """Graph of calls between functions of a checkout, resolved by imports and names. A called class stands for its
    construction (`__init__`, `__post_init__`) and the methods that construction calls on `self`.
    """

    def __init__(self, modules: Iterable[Module]) -> None:
        self.trees = {module.name: module.tree for module in modules if module.package not in {TESTS, "dev"}}
        self.imported = {name: imports(tree) for name, tree in self.trees.items()}

    def walk(self, module: str, name: str) -> Walk:
        """Follow all calls from a function or class, and return the modules that they enter."""
        first = self.find(module, name)
        if first is None:
            return Walk(f"{module}:{name}", [], [])
        waiting, seen, climbs = deque([first]), {first}, set[str]()
        while waiting:
            place = waiting.popleft()
            for called in self.called(place):
                if called.module != place.module and place.module in self.reachable(called.module):
                    climbs.add(f"{place.module} -> {called.module}")
                if called not in seen:
                    seen.add(called)
                    waiting.append(called)
        return Walk(f"{module}:{name}", sorted({place.module for place in seen}), sorted(climbs))

    def called(self, place: "Definition") -> Iterator["Definition"]:
        """Yield the functions and classes that a function calls; for a class, the methods that its
        construction runs.
        """
        if isinstance(place.node, ast.ClassDef):
            yield from place.methods("__init__", "__post_init__")
            return
        for node in ast.walk(place.node):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
                    yield from place.methods(name)
                case ast.Call(func=function) if isinstance(found := self.resolve(place.module, function), Definition):
                    yield found
                case _:
                    pass

    def resolve(self, module: str, expression: ast.expr) -> "Definition | str | None":
        """Return the function or class that an expression in a module names, or the name of the module that it names;
        None if it can't be resolved.
        """
        match expression:
            case ast.Name(id=name):
                return self.find(module, name) or self.module(*self.imported[module].get(name, (module, name)))
            case ast.Attribute(value=value, attr=name):
                owner = self.resolve(module, value)
                return self.find(owner, name) or self.module(owner, name) if isinstance(owner, str) else None
            case _:
                return None

    def module(self, package: str, name: str) -> str | None:
        """Return the full name of a package's module; None if the checkout has no such module."""
        return f"{package}.{name}" if f"{package}.{name}" in self.trees else None

    def find(self, module: str, name: str) -> "Definition | None":
        """Return the function or class that a name in a module refers to; None if the checkout doesn't define it."""
        if module not in self.trees:
            return None
        for node in self.trees[module].body:
            if isinstance(node, Function | ast.ClassDef) and node.name == name:
                return Definition(module, node, node if isinstance(node, ast.ClassDef) else None)
        origin = self.imported[module].get(name)
        return self.find(*origin) if origin and origin != (module, name) else None

    @cache  # noqa: B019 - one graph for each process
    def reachable(self, module: str) -> set[str]:
        """Return all modules of the checkout that a module imports directly or indirectly, including late imports."""
        found, waiting = set[str](), [module]
        while waiting:
            for package, name in self.imported[waiting.pop()].values():
                target = self.module(package, name) or package
                if target in self.trees and target not in found:
                    found.add(target)
                    waiting.append(target)
        return found


@dataclass(frozen=True)
class Definition:
    """Function or class that a module defines; `owner` is the class of a method, or the class itself."""

    module: str
    node: Function | ast.ClassDef
    owner: ast.ClassDef | None

    def methods(self, *names: str) -> Iterator["Definition"]:
        """Yield the methods of the owner class with these names, without inherited ones."""
        for node in self.owner.body if self.owner else []:
            if isinstance(node, Function) and node.name in names:
                yield Definition(self.module, node, self.owner)


def imports(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Return the source module and the name in that module, by the name in the importing module, for all names that a
    module imports, also by imports inside functions.
    """
    return {
        item.asname or item.name: (node.module, item.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for item in node.names
    }


def count(root: Path) -> House:
    """Return all counts of a checkout's code; `total` covers all packages except tests."""
    modules = read_tree(root)
    helpers = one_use_helpers(modules)
    graph = CallGraph(modules)
    outside = [module for module in modules if module.package != TESTS]
    packages = dict.fromkeys(module.package for module in modules)
    return House(
        packages=[
            package_counts(package, [module for module in modules if module.package == package], helpers)
            for package in packages
        ],
        total=package_counts("outside tests", outside, helpers),
        pairs_by_file=pairs_by_file(modules),
        repeated_classes={
            name: [f"{file}:{line}" for file, line in places] for name, places in repeated_classes(modules).items()
        },
        walks=[graph.walk(module, name) for module, name in WALKS],
        telegrams=[str(finding) for finding in docstring_findings(modules) if finding.kind in TELEGRAMS],
    )


LISTS = {
    "docstrings": docstring_findings,
    "helpers": helper_findings,
    "pairs": pair_findings,
    "classes": class_findings,
}
"""Functions that return the places which `--list NAME` prints, by that name."""


def table(rows: list[list[str]]) -> str:
    """Return rows of texts as aligned lines, with the first column to the left and the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def report(house: House) -> str:
    """Return the counts of a checkout as text: packages, then repetitions, then walks."""
    counted = [*house.packages, house.total]
    sizes = [["", "modules", "lines", "functions", "median", "p90", "max"]]
    helpers = [["one use, at most 8 lines", "private", "public", "per 1,000 lines"]]
    copied = [["transcribed", "pairs", "items", "keywords", "dict[str, Any]", "late imports"]]
    texts = [["docstrings", "all", "telegrams", *FINDINGS]]
    for item in counted:
        median_, p90 = f"{item.function_median:.0f}", f"{item.function_p90:.0f}"
        size = [f"{item.modules:,}", f"{item.lines:,}", f"{item.functions:,}"]
        sizes.append([item.package, *size, median_, p90, f"{item.function_max}"])
        uses_ = [f"{item.one_use_private}", f"{item.one_use_public}", f"{item.one_use_per_kloc}"]
        helpers.append([item.package, *uses_])
        pairs = [item.pairs, item.items, item.keywords, item.any_dicts, item.late_imports]
        copied.append([item.package, *(f"{number}" for number in pairs)])
        found = [item.docstrings, item.telegrams, *(item.findings.get(kind, 0) for kind in FINDINGS)]
        texts.append([item.package, *(f"{number:,}" for number in found)])
    most = ", ".join(f"{file} {number}" for file, number in list(house.pairs_by_file.items())[:5])
    classes = ", ".join(f"{name} {len(places)}" for name, places in list(house.repeated_classes.items())[:10])
    walks = "\n".join(
        f"walk from {walk.start}: {len(walk.modules)} files, {len(walk.climbs)} climbs" for walk in house.walks
    )
    return "\n\n".join(
        [
            table(sizes),
            table(helpers),
            f"{table(copied)}\nmost pairs: {most}",
            table(texts),
            f"public class names that occur more than once: {len(house.repeated_classes)}\nmost often: {classes}",
            walks,
        ]
    )


def main() -> int:
    """Print the counts of the code, or with `--list` the places of one count; return 1 if `--check` is given and there
    are such places.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tree", type=Path, default=PROJECT, help="another checkout of the project")
    parser.add_argument("--json", action="store_true", help="all counts with their places, as JSON")
    parser.add_argument("--list", choices=LISTS, help="list the places of one count")
    parser.add_argument("--check", action="store_true", help="end with 1 where --list lists any")
    parser.add_argument("folders", nargs="*", help="list only files below these, such as packages/llmd_pods")
    arguments = parser.parse_args()
    root: Path = arguments.tree
    if arguments.list:
        below = tuple(arguments.folders) or ("",)
        findings = [item for item in LISTS[arguments.list](read_tree(root)) if item.file.startswith(below)]
        print(json.dumps([asdict(item) for item in findings]) if arguments.json else "\n".join(map(str, findings)))
        return int(bool(findings) and arguments.check)
    house = count(root)
    print(json.dumps(asdict(house), indent=1) if arguments.json else report(house))
    return 0


if __name__ == "__main__":
    sys.exit(main())
