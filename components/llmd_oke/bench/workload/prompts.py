"""Prompts whose length is known and which no cache has seen.

Text, not token ids: the endpoint picker reads the prompt of a completion as a string. Gateway API inference extension
1.4 parses only a string and 1.5 a string or a list of strings (`CompletionsRequest` in
pkg/epp/framework/interface/scheduling/types.go); a list of numbers is answered with 400 before any server sees it.
Its prefix scorer and llm-d's `prefix-based-pd-decider` then count a token for each 4 characters. So a prompt is made
of common words of three letters, each after a space: 4 characters to the endpoint picker, and as a rule one token to
a model, whose vocabulary holds such words whole. The server's own count is what is reported.
"""

from dataclasses import dataclass
from random import Random

CHARACTERS_PER_TOKEN = 4
"""Of the endpoint picker's estimate (`averageCharactersPerToken` in llm-d and the inference extension)."""

_TEXT = """
the and for are but not you all any can had her was one our out day get has him his how man new now old see two way
who boy did its let put say she too use act add age ago aid air arm art ask bad bag bar bed big bit box buy car cat
cup cut dog dry due ear eat egg end eye far fed few fit fly fun gas got gap guy hit hot ice job key kid law lay led
leg lie lot low map may mix mom net nor odd off oil own pay pet pop ran raw red rid row run sad sea set sat sir sit
six sky son sun tax tea ten tie tip top try fix
"""

WORDS = tuple(_TEXT.split())
"""128 words, so that one random byte picks a word with even odds."""

_SPACED = tuple(f" {WORDS[byte % len(WORDS)]}" for byte in range(256))


@dataclass(frozen=True)
class PromptSource:
    """Gives the prompt of each request of a run.

    The same `seed` and `run` give the same prompts. `run` names one run of the benchmark: another run's prompts
    share no prefix with these (of 16 words, the chance is 1 in 10^33).
    """

    input_tokens: int
    seed: int
    run: str

    def prompt(self, index: int | str) -> str:
        """The text of request `index`: `input_tokens` words, 4 characters each."""
        chosen = Random(f"{self.seed}/{self.run}/{index}").randbytes(self.input_tokens)  # noqa: S311 - load, not secrets
        return "".join(map(_SPACED.__getitem__, chosen))
