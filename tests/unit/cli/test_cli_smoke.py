import pytest
from llmd_oke.cli.smoke import circumstances
from llmd_oke.errors import KitError
from llmd_oke.results.row import Basis


def test_simulated_servers_make_figures_calibrated():
    found = circumstances(0.5, ("vLLM",), ["epp=v0.7.1"])
    assert (found.basis, found.ran) == (Basis.CALIBRATED, {"epp": "v0.7.1"})
    assert circumstances(1.0, (), []).basis is Basis.MEASURED


def test_a_program_without_a_version_is_refused():
    with pytest.raises(KitError, match="no version"):
        circumstances(1.0, (), ["epp"])
