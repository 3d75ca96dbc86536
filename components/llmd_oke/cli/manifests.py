"""What `--dry-run` prints of Jobs: manifests that `kubectl apply -f -` takes."""

import json
from collections.abc import Sequence

import yaml


def as_yaml(manifests: Sequence[object]) -> str:
    """Manifests as YAML documents, each whole: where they share a part, it is written again instead of an alias."""
    return yaml.safe_dump_all(json.loads(json.dumps(manifests)), sort_keys=False)
