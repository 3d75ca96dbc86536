"""Program that puts the weights of one model into a cache and makes sure that they are complete.

These files run in pods as they are, as the package `prewarm`, so they use the standard library and each other only:

    python -m prewarm --cache /model-cache --repository openai/gpt-oss-120b

The cache has the layout of Hugging Face's own (`hub/models--<owner>--<name>/snapshots/<commit>`), so that programs find
the weights with `HF_HOME` and `HF_HUB_OFFLINE=1`. Once a model is complete the program ends at once and asks no one. It
takes up broken downloads where they ended, and of several at a time on one cache one works while the others wait.

A model may need a vocabulary beside its weights, which comes from elsewhere: it lies in the cache's folder `encodings`.
LoRA adapters of a model lie beside it in the folder `adapters`, as vLLM looks for them.
"""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager


class PrewarmError(Exception):
    """Something that a person has to look at."""


def say(text: str) -> None:
    """Print a line of progress."""
    print(text, flush=True)


@contextmanager
def repeated(action: Callable[[], object], period_s: float) -> Generator[None]:
    """Call `action` every `period_s` seconds, in a thread of its own, while the block runs."""
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
