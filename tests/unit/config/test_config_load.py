"""Reading stack files: what is refused, and how it is told."""

import time
import timeit
from pathlib import Path

import pytest
from llmd_base.errors import InvalidStack, KitError, Problem
from llmd_oke import config

PROJECT = Path(__file__).parents[3]

STACK = """\
encryptionsalt: v1:abc
secretsprovider: default
config:
  aws:region: eu-west-1
  llmd-oke:hfToken:
    secure: v1:def
  llmd-oke:stack:
    cluster: {mode: existing, identifier: here}
    gpuPools:
      - {name: mi300x, shape: BM.GPU.MI300X.8, size: 2}
    release: llm-d-0.9.0
    models:
      - model: gpt-oss-120b
        topology: 8p-tp1-2d-tp4
        workload: {inputTokens: 5000, outputTokens: 250}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "stacks").mkdir()
    return tmp_path


def write(project: Path, text: str | bytes, stack: str = "mine") -> Path:
    path = project / "stacks" / f"Pulumi.{stack}.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(project: Path, text: str) -> list[Problem]:
    write(project, text)
    with pytest.raises(InvalidStack) as caught:
        config.load(project, "mine")
    return list(caught.value.problems)


def test_other_settings_of_the_file_and_an_organization_before_its_name_are_ignored(project: Path):
    write(project, STACK)
    loaded = config.load(project, "mine")
    assert (loaded.models[0].model, loaded.namespace) == ("gpt-oss-120b", "llm-d")
    assert config.load(project, "organization/llmd-oke/mine") == loaded


def test_a_missing_stack_file_is_reported_with_the_existing_ones(project: Path):
    write(project, STACK, "other")
    with pytest.raises(KitError, match=r"no stack file .*Pulumi\.mine\.yaml") as caught:
        config.load(project, "organization/llmd-oke/mine")
    assert caught.value.remedy == "Stacks here: other. `llmd-oke init --stack mine` makes this one."


@pytest.mark.parametrize(
    "text",
    [
        *(b"config: [", b"\xff\xfe\x00", b"a: 1\n---\nb: 2\n", b"? [a]\n: b\n", b"config: \x00"),
        b"config: !!python/object/apply:os.system [ls]",
    ],
)
def test_a_file_that_is_not_yaml_is_an_error_with_the_file_name(project: Path, text: bytes):
    path = write(project, text)
    with pytest.raises(KitError, match=f"{path}.* is not YAML"):
        config.load(project, "mine")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"config:\n\ta: 1\n", ":2 is not YAML: the line begins with a tab."),
        (b"a: b:\tc", ":1 is not YAML: mapping values are not allowed in this context."),
        ("config:\n  a: ü".encode("latin-1"), ":2 is not YAML: it has a byte that is not UTF-8."),
        (b"a: !secret x", ":1 is not YAML that the kit reads: the tag !secret means nothing here."),
        (b"a: b: c", ":1 is not YAML: mapping values are not allowed in this context."),
        (b"config: {\na: 2024-13-45}", ":2 has a date that does not exist: month must be in 1..12."),
        (b"[" * 5000, " is too large: it is nested too deeply, in more than 2000 levels."),
    ],
)
def test_a_yaml_error_in_a_stack_file_is_reported_by_file_and_line(project: Path, text: bytes, said: str):
    path = write(project, text)
    with pytest.raises(KitError) as caught:
        config.load(project, "mine")
    assert caught.value.message == f"{path}{said}"


def test_deeply_nested_yaml_in_a_stack_file_is_refused(project: Path):
    (problem,) = refused(project, "[" * 1000 + "]" * 1000)
    assert (problem.line, problem.why) == (1, "it is nested too deeply")


@pytest.mark.parametrize("name", ["", "../x", "a/b/c/d", "a b", ".hidden"])
def test_an_invalid_stack_name_is_refused(project: Path, name: str):
    with pytest.raises(KitError, match="no name of a stack"):
        config.load(project, name)


@pytest.mark.parametrize("text", ["", "5", "[]", "config:", "config: {}", "config: {llmd-oke:other: 1}"])
def test_a_stack_file_without_llmd_oke_stack_is_refused_with_the_missing_key(project: Path, text: str):
    (problem,) = refused(project, text)
    assert problem.path == "config"
    assert "llmd-oke:stack" in problem.accepted


@pytest.mark.parametrize("text", ["5", "text", "[]", "null"])
def test_the_refusal_of_a_stack_that_is_no_mapping_lists_the_keys_a_stack_has(project: Path, text: str):
    (problem,) = refused(project, f"config:\n  llmd-oke:stack: {text}\n")
    assert (problem.path, problem.line) == ("llmd-oke:stack", 2)
    assert "gpuPools" in problem.accepted


def test_all_problems_of_a_stack_file_are_reported_at_once_with_their_lines(project: Path):
    text = STACK.replace("size: 2", "size: 0").replace("release:", "relese:").replace("5000", "many")
    problems = refused(project, text)
    assert [(problem.path, problem.line) for problem in problems] == [
        ("release", 7),
        ("gpuPools[0].size", 10),
        ("relese", 11),
        ("models[0].workload.inputTokens", 15),
    ]


def test_a_missing_key_has_the_line_of_the_enclosing_object_and_a_duplicate_its_own(project: Path):
    (problem,) = refused(project, STACK.replace(", outputTokens: 250", ""))
    assert (problem.path, problem.line, problem.value) == ("models[0].workload.outputTokens", 15, None)
    (problem,) = refused(project, STACK + "    release: llm-d-0.6.0\n")
    assert (problem.path, problem.line) == ("release", 16)
    assert (problem.value, problem.why) == ("llm-d-0.6.0", "the key is in line 11 already")


def test_yaml_aliases_work_and_recursive_ones_are_refused(project: Path):
    write(project, STACK.replace("size: 2}", "size: &two 2}") + "    smoke: {requests: *two}\n")
    assert config.load(project, "mine").smoke.requests == 2
    (problem,) = refused(project, STACK + "    smoke: &smoke {thresholds: *smoke}\n")
    assert (problem.path, problem.why) == ("smoke.thresholds", "the alias contains itself")


def test_nested_yaml_aliases_are_not_expanded(project: Path):
    layers = "".join(f"    l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]\n" for i in range(1, 12))
    started = time.process_time()
    problems = refused(project, STACK + "    l0: &l0 [lol]\n" + layers)
    assert len(problems) == 12
    assert all(len(str(problem)) < 1000 for problem in problems)
    assert time.process_time() - started < 2


def test_problems_found_by_planning_get_the_line_of_their_key_in_the_stack_file(project: Path):
    write(project, STACK)
    paths = ["models[0].topology", "gpuPools", "models[0].engine.maxNumSeqs", "models[1]", "rdma"]
    located = config.locate([Problem(place, 1, "", "") for place in paths], project, "mine")
    assert {problem.path: problem.line for problem in located} == {
        "rdma": 7,
        "gpuPools": 9,
        "models[1]": 12,
        "models[0].engine.maxNumSeqs": 13,
        "models[0].topology": 14,
    }


def test_a_stack_file_is_loaded_in_under_100_ms():
    assert min(timeit.repeat(lambda: config.load(PROJECT, "rehearsal"), number=1, repeat=10)) < 0.1
