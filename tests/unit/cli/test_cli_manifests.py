import yaml
from llmd_oke.cli.manifests import as_yaml


def test_documents_share_nothing():
    labels = {"part-of": "llmd-oke"}
    text = as_yaml([{"kind": "Job", "labels": labels}, {"kind": "Role", "labels": labels}])
    assert "&" not in text
    assert [each["labels"] for each in yaml.safe_load_all(text)] == [labels, labels]
