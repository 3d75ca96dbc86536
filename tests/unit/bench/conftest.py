from collections.abc import AsyncIterator

import pytest
from fake_deployment import Deployment, served


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    async with served() as fake:
        yield fake
