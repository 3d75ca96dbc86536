from collections.abc import Callable

import pytest
from llmd_oke import catalogue


@pytest.fixture
def shape_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Make the catalogue's shapes have that many virtual functions."""
    real = catalogue.shape

    def change(virtual_functions: int) -> None:
        def shape(name: str) -> catalogue.Shape | None:
            result = real(name)
            if result is None:
                return None
            rdma = result.rdma.model_copy(update={"virtual_functions": virtual_functions})
            return result.model_copy(update={"rdma": rdma})

        monkeypatch.setattr(catalogue, "shape", shape)

    return change
