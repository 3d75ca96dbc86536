"""Makes vLLM's parsers of answers with a model's tokenizer, as its servers do at each request of a chat:
`answer_parsers.py < asked.json`.

It runs in vLLM's environment. The input has `folder`, that of the tokenizer, and `args`, flags such as
`--tool-call-parser=NAME`; the answer is what each parser says against it, by flag, as JSON.
"""

import json
import sys

from transformers import AutoTokenizer
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager

FINDERS = {
    "--tool-call-parser": ToolParserManager.get_tool_parser,
    "--reasoning-parser": ReasoningParserManager.get_reasoning_parser,
}


def main() -> None:
    """Answer with the problems by flag; those that are no parser's are left out."""
    asked = json.load(sys.stdin)
    tokenizer, problems = AutoTokenizer.from_pretrained(asked["folder"]), {}
    for argument in asked["args"]:
        flag, _, name = argument.partition("=")
        if flag in FINDERS:
            try:
                FINDERS[flag](name)(tokenizer)
            except (KeyError, RuntimeError, ValueError) as error:
                problems[argument] = str(error)
    print(json.dumps(problems))


if __name__ == "__main__":
    main()
