"""Program that downloads the weights of one model into a cache and verifies that they are complete.

These files run in pods as the package `prewarm`, so they use the standard library and each other only:

    python -m prewarm --cache /model-cache --repository openai/gpt-oss-120b

The cache has the layout of Hugging Face's cache (`hub/models--<owner>--<name>/snapshots/<commit>`), so that programs
find the weights with `HF_HOME` and `HF_HUB_OFFLINE=1`. If a model is complete, the program ends immediately without
network access. Interrupted downloads are resumed. If several programs share a cache, one downloads while the others
wait.

A model may need a vocabulary from another source, which is stored in the cache's directory `encodings`. LoRA adapters
of a model are stored in the directory `adapters`, in which vLLM looks for them. The module that drafts tokens for a
model may be a repository of its own, which is stored like the model's.
"""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager


class PrewarmError(Exception):
    """Error of pre-warming that retries don't solve; the message says what an operator has to correct."""


def say(text: str) -> None:
    """Print a line of the program's progress, unbuffered."""
    print(text, flush=True)


@contextmanager
def repeated(action: Callable[[], object], period_s: float) -> Generator[None]:
    """Call `action` every `period_s` seconds in a separate thread while the `with` block runs."""
    end = threading.Event()

    def repeat() -> None:
        while not end.wait(period_s):
            action()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
