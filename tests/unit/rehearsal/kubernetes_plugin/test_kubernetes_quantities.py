import pytest
from llmd_oke.rehearsal.kubernetes_plugin.quantities import NotAQuantity, canonical


@pytest.mark.parametrize(
    ("written", "answered"),
    [
        ("1", "1"),
        ("1000m", "1"),
        ("0.5", "500m"),
        ("1.5", "1500m"),
        ("2000", "2k"),
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("2048", "2048"),
        ("0", "0"),
        ("512Ki", "512Ki"),
        ("0.5Ki", "512"),
        ("1e3", "1e3"),
        ("12e6", "12e6"),
        ("-1", "-1"),
        ("100M", "100M"),
    ],
)
def test_a_quantity_is_written_as_a_server_would(written: str, answered: str):
    assert canonical(written) == answered


@pytest.mark.parametrize("text", ["lots", "", "1..2", "1 Gi", "Gi"])
def test_other_texts_are_no_quantities(text: str):
    with pytest.raises(NotAQuantity):
        canonical(text)
