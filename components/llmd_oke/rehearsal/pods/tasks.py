"""Tasks whose failure is never lost: nobody awaits most of what runs for a pod."""

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any

_log = logging.getLogger(__name__)


def start(work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
    """Run `work` as a task; an error in it is logged with `what` it was for."""
    task = asyncio.create_task(work, name=what)
    task.add_done_callback(partial(_log_failure, what))
    return task


def _log_failure(what: str, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("%s failed", what, exc_info=task.exception())
