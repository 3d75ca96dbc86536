"""Templates of `values/charts`: the endpoint picker's config."""

from functools import cache
from typing import Any

import jinja2

from llmd_oke.catalogue.files import values_folder


def render(template: str, **variables: Any) -> str:
    """The text of a template; a variable that is missing is an error, never an empty string."""
    return _environment().get_template(template).render(**variables)


@cache
def _environment() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(values_folder() / "charts")
    return jinja2.Environment(  # noqa: S701 - YAML, not HTML
        loader=loader,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
