"""Reads answers of `/render` by vLLM's own class: `rendered_request.py < answers.json`.

It runs in vLLM's environment. Each entry of input is what a server answered for one prompt; the answer has, for each,
what vLLM would write of the request that it reads there.
"""

import json
import sys

from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest


def main() -> None:
    """Answer all entries."""
    print(json.dumps([GenerateRequest(**entry).model_dump() for entry in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
