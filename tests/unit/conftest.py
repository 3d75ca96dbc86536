"""Texts of refusals and advice are those of golden files: tests of the kit's own folders say when something is refused,
`messages/<folder>/<module>.txt` has every text that a user would read then, refusals by the test that causes them.
"""

import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import cast

import pytest
from free_ports import free_port
from llmd_base.errors import InvalidStack, KitError
from llmd_oke import planning
from registry_for_tests import Registry, served

FOLDERS = ("cluster", "config", "operators", "planning", "program", "serving")
"""Folders of unit tests, like those of `components/llmd_oke`, whose refusals and advice are recorded."""

UNIT = Path(__file__).parent
MESSAGES = UNIT / "messages"
_LOOPBACK = re.compile(r"(127\.0\.0\.1(?::|', ))[0-9]+")
UPDATE = "LLMD_OKE_UPDATE_GOLDEN"
PLACES = pytest.StashKey[dict[Path, "Texts"]]()

Texts = dict[str, set[str]]
"""Refusals by the name of the test that causes them; under an empty name advice, which most tests cause."""


def pytest_configure(config: pytest.Config) -> None:
    """Keep the texts of all tests until the end, for files to be written anew, by one process that sees them all.

    Raises:
        UsageError: files are to be written anew, and tests run in several processes.
    """
    if os.environ.get(UPDATE) and hasattr(config, "workerinput"):
        raise pytest.UsageError(f"{UPDATE} writes what one process sees: leave -n out.")
    config.stash[PLACES] = {}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the recorded files anew where the environment says so, each with what its own tests caused."""
    for file, texts in session.config.stash[PLACES].items():
        file.unlink(missing_ok=True)
        advice = "".join(f"{text}\n" for text in sorted(texts.pop("", ())))
        refusals = [
            f"{name}\n" + "".join(f"    {text}\n" for text in sorted(texts[name]))
            for name in sorted(texts)
            if texts[name]
        ]
        if written := "\n".join(part for part in (advice, *refusals) if part):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(written)


@cache
def _recorded(file: Path) -> Texts:
    texts: Texts = {"": set()}
    name = ""
    for line in file.read_text().splitlines() if file.exists() else ():
        if line.startswith("test_"):
            name = line
            texts[name] = set()
        elif line:
            texts[name].add(line.removeprefix("    "))
    return texts


@pytest.fixture(autouse=True)
def _texts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hold each refusal that a test causes to those recorded for it, and advice to that recorded for its module.
    Generated examples are left out.
    """
    module = request.path.relative_to(UNIT)
    if module.parts[0] not in FOLDERS or hasattr(getattr(request, "function", None), "hypothesis"):
        yield
        return
    name = request.node.name
    caused: Texts = {name: set(), "": set()}
    begin, plan = KitError.__init__, cast("Callable[..., planning.Plan]", planning.plan)

    def record(error: KitError, message: str, remedy: str | None = None) -> None:
        begin(error, message, remedy)
        whole = message if remedy is None else f"{message} -> {remedy}"
        caused[name].update(whole.splitlines() if isinstance(error, InvalidStack) else [" / ".join(whole.splitlines())])

    def record_advice(*args: object, **kwargs: object) -> planning.Plan:
        made = plan(*args, **kwargs)
        caused[""].update(f"{advice.kind}: {advice.path}: {advice.text}" for advice in made.advice)
        return made

    monkeypatch.setattr(KitError, "__init__", record)
    monkeypatch.setattr(planning, "plan", record_advice)
    place = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    file = MESSAGES / module.parent / module.with_suffix(".txt").name
    recorded = _recorded(file)
    for key, texts in caused.items():
        told = {_LOOPBACK.sub(r"\1PORT", text.replace(str(place), "FOLDER") if place else text) for text in texts}
        if os.environ.get(UPDATE):
            request.config.stash[PLACES].setdefault(file, {}).setdefault(key, set()).update(told)
        else:
            assert told <= recorded.get(key, set()), f"texts that {file.name} lacks; {UPDATE}=1 accepts them"


@pytest.fixture
def registry() -> Iterator[Registry]:
    """A registry of container images on the loopback interface, without any."""
    with served(Registry()) as running:
        yield running


@pytest.fixture
def port() -> int:
    """A port that nobody listens at."""
    return free_port()
