"""Configurations of public models (`tests/data/model-configs`), and their catalogue entries' computed parts."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "data" / "model-configs"


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    """The config.json of a model, with some keys changed; None removes one."""
    config = json.loads((FOLDER / f"{name}.json").read_text()) | changes
    return {key: value for key, value in config.items() if value is not None or key not in changes}
