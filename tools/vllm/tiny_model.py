"""Writes a tiny model with random weights and a tokenizer: `tiny_model.py FOLDER CONFIG [VOCABULARIES]`.

It runs in vLLM's environment. `CONFIG` has the keys of its config.json, as JSON; the tokenizer is one of its own, or
Harmony's by the vocabulary in the folder `VOCABULARIES`. The weights are the same each time.
"""

import json
import os
import sys
from pathlib import Path

import torch
from openai_harmony import HarmonyEncodingName, load_harmony_encoding
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

TEXT = "hello world the quick brown fox jumps over the lazy dog one two three four"
SPECIAL = ["<s>", "</s>"]
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>"]
"""Tokens by which vLLM's parsers of reasoning and of calls of tools read answers; they are part of the text."""

HARMONY_SPECIAL, HARMONY_TOKENS = 199998, 201088
HARMONY_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Pattern of o200k_base: openai/tiktoken, tiktoken_ext/openai_public.py."""

CHAT = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def own_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of all bytes and the words of one sentence."""
    letters = pre_tokenizers.ByteLevel.alphabet()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=SPECIAL, initial_alphabet=letters)
    tokenizer.train_from_iterator([TEXT] * 10, trainer)
    tokenizer.add_tokens([AddedToken(mark, special=False) for mark in MARKS])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")


def harmony_tokenizer(vocabularies: str) -> PreTrainedTokenizerFast:
    """Return the tokenizer of gpt-oss, whose special tokens are named by the package that writes its prompts."""
    os.environ["TIKTOKEN_ENCODINGS_BASE"] = vocabularies
    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    special = [encoding.decode([number]) for number in range(HARMONY_SPECIAL, HARMONY_TOKENS)]
    file = f"{vocabularies}/o200k_base.tiktoken"
    tokenizer = TikTokenConverter(vocab_file=file, pattern=HARMONY_PATTERN, extra_special_tokens=special).converted()
    ends = {"bos_token": "<|startoftext|>", "eos_token": "<|return|>", "pad_token": "<|endoftext|>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **ends)


def main(folder: Path, settings: dict[str, object], vocabularies: list[str]) -> None:
    """Write the model; the folder appears when all of it is there."""
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    tokenizer = harmony_tokenizer(vocabularies[0]) if vocabularies else own_tokenizer()
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(unfinished)
    dtype = getattr(torch, str(settings["dtype"]))
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = AutoConfig.for_model(**{**settings, **ends, "vocab_size": len(tokenizer), "tie_word_embeddings": False})
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(config).to(dtype).save_pretrained(unfinished)
    unfinished.rename(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:])
