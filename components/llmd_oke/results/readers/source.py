"""A file of results, parsed once however many formats look at it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import yaml

from llmd_oke.config.yaml_errors import require_bounded
from llmd_oke.results.files import read_text
from llmd_oke.results.reading import Rejected
from llmd_oke.results.row import Origin

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Source:
    """One file."""

    path: Path

    @cached_property
    def text(self) -> str:
        """Its text.

        Raises:
            KitError: it is not there or no text.
        """
        return read_text(self.path)

    @cached_property
    def mapping(self) -> Mapping[str, Any]:
        """Its document, where that is a mapping in JSON or YAML; an empty one otherwise."""
        document = self._parsed[0]
        return cast("Mapping[str, Any]", document) if isinstance(document, Mapping) else {}

    @property
    def optional_mapping(self) -> Mapping[str, Any]:
        """The same, and empty where there is no such file."""
        return self.mapping if self.path.is_file() else {}

    @cached_property
    def broken(self) -> Rejected | None:
        """Where JSON or YAML that its name promises goes wrong."""
        return self._parsed[1]

    @cached_property
    def _parsed(self) -> tuple[object, Rejected | None]:
        try:
            return self._read(), None
        except json.JSONDecodeError as error:
            wrong = self.rejected(f"is not JSON: {error.msg}", error.lineno)
        except RecursionError:
            wrong = self.rejected("is nested too deeply")
        except yaml.YAMLError as error:
            mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
            wrong = self.rejected(f"is not YAML: {error}", mark.line + 1 if mark else None)
        except (ValueError, TypeError) as error:  # of a date with a 13th month, an endless number, a list as a key
            wrong = self.rejected(f"has a value that is none: {error}")
        return None, wrong

    def _read(self) -> object:
        match self.path.suffix:
            case ".json":
                return json.loads(self.text)
            case ".yaml" | ".yml":
                require_bounded(self.text)
                return yaml.load(self.text, _Loader)  # noqa: S506 - a safe loader
            case _:
                return None

    def rejected(self, why: str, line: int | None = None) -> Rejected:
        """What stands in a line of it is no row."""
        return Rejected(str(self.path), line, why)

    def origin(self, tool: str, line: int | None = None) -> Origin:
        """Where a row of it comes from."""
        return Origin(tool=tool, file=str(self.path), line=line)
