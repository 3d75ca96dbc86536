"""Tells which environment variables are part of vLLM's hash of compiled code: `compile_factors.py < names.json`.

It runs in vLLM's environment. The answer is those of a list of names that are, as JSON.
"""

import json
import sys

from vllm import envs


def main() -> None:
    """Answer one list."""
    factors = envs.compile_factors()
    print(json.dumps([name for name in json.load(sys.stdin) if name in factors]))


if __name__ == "__main__":
    main()
