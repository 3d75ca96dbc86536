"""Stacks rendered to the resources that they declare. It takes the CRDs of the releases."""

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import pytest
from llmd_oke.testing import Rendered, render
from pulumi.runtime.proto import source_pb2
from render_support import STACKS, need_definitions
from stack_files import read

Render = Callable[..., Rendered]


@pytest.fixture(scope="session", autouse=True)
def _without_places() -> Iterator[None]:
    """Leave out where the program declares each resource: a sixth of Pulumi's work, which mocks don't look at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pulumi.runtime.resource._get_stack_trace", source_pb2.StackTrace)
        yield


@pytest.fixture(scope="session")
def rendered() -> Render:
    """Render a stack, by name or by its config; equal ones only once."""
    known: dict[str, Rendered] = {}
    files = cache(read)

    def get(config: Mapping[str, Any] | str, **secrets: str) -> Rendered:
        stack = files(config) if isinstance(config, str) else config
        key = json.dumps([stack, secrets], sort_keys=True)
        if key not in known:
            need_definitions(stack["release"])
            known[key] = render(stack, secrets=secrets)
        return known[key]

    return get


@pytest.fixture(params=STACKS)
def stack(request: pytest.FixtureRequest, rendered: Render) -> Rendered:
    """Each of the kit's own stacks."""
    return rendered(request.param)


@pytest.fixture
def rehearsal(rendered: Render) -> Rendered:
    """gpt-oss-120b 8p-tp1-4d-tp2 on nine nodes."""
    return rendered("rehearsal")


@pytest.fixture
def guide(rendered: Render) -> Rendered:
    """gpt-oss-120b 8p-tp1-2d-tp4 on two full nodes."""
    return rendered("guide")


@pytest.fixture
def baseline(rendered: Render) -> Rendered:
    """gpt-oss-120b agg-tp1-16r behind a plain Service."""
    return rendered("guide-baseline")


@pytest.fixture
def varied(rendered: Render) -> Callable[..., Rendered]:
    """The rehearsal's stack with some keys of its model (or, by `stack=`, of itself) changed."""
    original = read("rehearsal")

    def vary(
        stack: Mapping[str, Any] | None = None, secrets: Mapping[str, str] | None = None, **model: object
    ) -> Rendered:
        config = {**copy.deepcopy(original), **(stack or {})}
        config["models"][0].update(model)
        return rendered(config, **(secrets or {}))

    return vary
