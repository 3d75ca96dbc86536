from collections.abc import Callable
from typing import Any

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


@pytest.fixture
def model_with(monkeypatch: pytest.MonkeyPatch) -> Callable[..., catalogue.CatalogueModel]:
    """Make each of the catalogue's models one of them with other fields: a dictionary changes parts of a field."""
    real = catalogue.model

    def change(name: str, **fields: Any) -> catalogue.CatalogueModel:
        known = real(name)
        assert known is not None
        parts: dict[str, Any] = {
            key: getattr(known, key).model_copy(update=value) if isinstance(value, dict) else value
            for key, value in fields.items()
        }
        changed = known.model_copy(update=parts)

        def model(_name: str) -> catalogue.CatalogueModel:
            return changed

        monkeypatch.setattr(catalogue, "model", model)
        return changed

    return change
