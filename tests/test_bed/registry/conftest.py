"""A registry for all tests of this folder, each with repositories of its own."""

from collections.abc import Iterator

import pytest
from registry_program import RegistryProgram, running_registry


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProgram]:
    with running_registry(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture
def registry(program: RegistryProgram) -> RegistryProgram:
    program.private.clear()
    program.tokens.asked.clear()
    return program
