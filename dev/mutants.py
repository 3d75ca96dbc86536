"""Mutation test: small random mistakes in the kit's code, one at a time, each of which some test must notice.

A mistake inverts a comparison, swaps `and` with `or`, drops a `not`, takes the other branch of a conditional
expression, or changes a number or a short string. It is made in a copy of the project. The tests of the mistake's
directory and module run first, then all quick tests; a mistake that no test notices survives. Exit codes: 0 all killed,
1 some survived.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
KIT = Path("components/llmd_oke")
FOLDERS = ("planning", "config", "serving", "program", "cluster")
RENDERED = "tests/render"
QUICK = ("tests/unit", RENDERED, "tests/package", "tests/test_bed/unit")
LIMIT_S = 1200.0
"""Time limit of a test run in seconds; a mistake that exceeds it counts as noticed."""
TEXT_LIMIT = 40
"""Maximum length of the strings in which a mistake is made; longer ones, and those with spaces, are texts for
people.
"""

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
ARITHMETIC: dict[type[ast.operator], str] = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+"}


@dataclass(frozen=True)
class Mutant:
    """Mistake that is made in the code to see whether a test notices it: `new` replaces `old`, which begins at byte
    `start` of a file.
    """

    file: str
    line: int
    start: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {self.old}  ->  {self.new}"

    def applied(self, source: bytes) -> bytes:
        """Return a file's content in bytes with the mistake in it."""
        return source[: self.start] + self.new.encode() + source[self.start + len(self.old.encode()) :]


@dataclass(frozen=True)
class MutantVerdict:
    """Result of one mistake in the code: the test that failed (empty if none did), and the wall seconds until then."""

    mutant: Mutant
    killed_by: str
    seconds: float


def mutants(project: Path, file: Path) -> list[Mutant]:
    """Return all mistakes that can be made in a file, in the order of their positions."""
    source = (project / file).read_text()
    tree = ast.parse(source)
    skipped = set(_documentation(tree))
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    result: list[Mutant] = []
    for node in ast.walk(tree):
        new = mistake(node) if isinstance(node, ast.expr) and id(node) not in skipped else None
        if new is None or not isinstance(node, ast.expr) or node.end_lineno is None or node.end_col_offset is None:
            continue
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        old = source.encode()[start:end].decode()
        result.append(Mutant(str(file), node.lineno, start, old, new))
    return sorted(result, key=lambda mutant: (mutant.start, mutant.new))


def mistake(node: ast.expr) -> str | None:
    """Return the replacement of an expression by a mistaken one; None if no mistake is defined for it."""
    new: str | None = None
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in COMPARISONS:
            new = f"{ast.unparse(left)} {COMPARISONS[type(operator)]} {ast.unparse(right)}"
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in ARITHMETIC:
            new = f"{ast.unparse(left)} {ARITHMETIC[type(operator)]} {ast.unparse(right)}"
        case ast.BoolOp(op=operator, values=values):
            other = " or " if isinstance(operator, ast.And) else " and "
            new = other.join(f"({ast.unparse(value)})" for value in values)
        case ast.UnaryOp(op=ast.Not(), operand=expression) | ast.IfExp(orelse=expression):
            new = ast.unparse(expression)
        case ast.Constant(value=value):
            return _other(value)
        case _:
            pass
    return new and f"({new})"


def _other(value: object) -> str | None:
    """Return the source of another truth value, number or short string; None for other values."""
    match value:
        case bool():
            return str(not value)
        case int():
            return str(value + 1)
        case str() if value and " " not in value and len(value) < TEXT_LIMIT:
            return repr(f"{value}X")
        case _:
            return None


def _documentation(tree: ast.Module) -> Iterator[int]:
    """Yield the ids of nodes that no test can observe: docstrings, type annotations, those of casts included, literal
    parts of f-strings, and the decorators of classes, since the type checker alone sees that a record is frozen.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield id(node.value)
        hidden: list[ast.AST] = []
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            hidden.append(node.annotation)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns:
            hidden.append(node.returns)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
            hidden.append(node.value)
        if isinstance(node, ast.ClassDef):
            hidden += node.decorator_list
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "cast":
            hidden.append(node.args[0])
        if isinstance(node, ast.JoinedStr):
            hidden += [value for value in node.values if isinstance(value, ast.Constant)]
        yield from (id(part) for block in hidden for part in ast.walk(block))


def sample(project: Path, folders: Sequence[str], number: int, seed: int) -> list[Mutant]:
    """Return `number` random mistakes in the code of these directories; equal code and seed give equal mistakes."""
    files = sorted(path for folder in folders for path in (project / KIT / folder).glob("*.py"))
    pool = [mutant for path in files for mutant in mutants(project, path.relative_to(project))]
    return random.Random(seed).sample(pool, min(number, len(pool)))  # noqa: S311 - no secrets


def judge(copy: Path, mutant: Mutant) -> MutantVerdict:
    """Make the mistake in a copy of the project, run tests until one fails, revert the mistake, and return
    the result.
    """
    started_s = time.monotonic()
    file = copy / mutant.file
    source = file.read_bytes()
    file.write_bytes(mutant.applied(source))
    try:
        stages = (near(copy, mutant), (RENDERED,), QUICK)
        killed_by = next((name for tests in stages if (name := failure(copy, tests))), "")
    finally:
        file.write_bytes(source)
    return MutantVerdict(mutant, killed_by, time.monotonic() - started_s)


def near(copy: Path, mutant: Mutant) -> tuple[str, ...]:
    """Return the tests that are run first for a mistake: those of its module's directory, the render tests of its
    module, and the golden render tests.
    """
    file = Path(mutant.file)
    rendered = sorted((copy / RENDERED).glob(f"test_*{file.stem}*.py"))
    names = [str(path.relative_to(copy)) for path in rendered]
    return (f"tests/unit/{file.parent.name}", *names, f"{RENDERED}/test_render_goldens.py")


def failure(copy: Path, tests: Sequence[str]) -> str:
    """Run tests in a copy of the project until the first failure, and return the failed test's name; empty if all
    pass.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    search = os.pathsep.join(str(copy / folder) for folder in (KIT.parent, "packages"))
    options = ("-x", "-q", "-p", "no:cacheprovider", "--no-header")
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=copy,
            env={**environment, "PYTHONPATH": search},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {LIMIT_S:g} s"
    if ended.returncode == 0:
        return ""
    lines = ended.stdout.splitlines()
    return next((line for line in lines if line.startswith(("FAILED", "ERROR"))), ended.stdout[-200:])


def copy_project(project: Path, target: Path) -> None:
    """Copy the project's files that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=project, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(project / name, target / name, follow_symlinks=False)


def main() -> int:
    """Make random mistakes in the code, print for each which test noticed it and the number that tests noticed; return
    the exit code.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=40, help="how many mistakes (40)")
    parser.add_argument("--seed", type=int, default=1, help="of the random choice (1)")
    parser.add_argument("--folder", action="append", choices=FOLDERS, help="only of this folder; may be repeated")
    parser.add_argument("--json", action="store_true", help="write the verdicts as JSON")
    options = parser.parse_args()
    verdicts: list[MutantVerdict] = []
    # In the project's parent directory, since some tests read its siblings and are skipped without them.
    with tempfile.TemporaryDirectory(prefix="llmd-oke-mutants-", dir=PROJECT.parent) as folder:
        copy = Path(folder)
        copy_project(PROJECT, copy)
        for mutant in sample(copy, options.folder or FOLDERS, options.number, options.seed):
            verdict = judge(copy, mutant)
            verdicts.append(verdict)
            outcome = f"killed by {verdict.killed_by[:120]}" if verdict.killed_by else "SURVIVED"
            print(f"{len(verdicts):3} {mutant}: {outcome}, {verdict.seconds:.0f} s", file=sys.stderr, flush=True)
    survivors = sum(not verdict.killed_by for verdict in verdicts)
    print(f"{len(verdicts) - survivors} of {len(verdicts)} killed, seed {options.seed}", file=sys.stderr)
    if options.json:
        print(json.dumps([asdict(verdict) for verdict in verdicts], indent=2))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
