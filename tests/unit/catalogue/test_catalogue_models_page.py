"""The page of the docs with all models of the kit, which this file makes with LLMD_OKE_UPDATE_GOLDEN=1."""

import os
from collections.abc import Iterator
from pathlib import Path

from llmd_oke import catalogue
from llmd_oke.catalogue.speculation import Draft

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
_NONE = "none"
MODELS = [known for name in catalogue.model_names() if (known := catalogue.model(name))]

HEADINGS = (
    *("model", "repository", "parameters, billions (of a token)", "weights", "KV cache of a token", "context"),
    *("features", "drafts", "quantized as", "verified"),
)
HEAD = f"""# Models

The models that the catalogue has (`values/models`; each figure there has its source), with the features that their
servers have unless a stack chooses others
([how](how-to/change-model-servers.md#calls-of-tools-and-reasoning-in-a-field-of-its-own)). *Verified* names the GPUs
that the vLLM project says its recipe of the model was verified on, alone and without llm-d; the kit has verified none
on GPUs. *Drafts* is what speculative decoding drafts tokens by, and how many at each step, where a stack asks for it
([how](how-to/draft-tokens.md)), with the GPUs that its source ran it on, where it says so. *Quantized as* names the
models whose weights were made of a model's: a stack chooses one by its name. Any other model of a known architecture is
[one command](how-to/add-a-model.md) away.

| {" | ".join(HEADINGS)} |
|{"---|" * len(HEADINGS)}
"""


def draft_text(draft: Draft) -> str:
    text = f"[{draft.method}, {draft.tokens}]({draft.source})"
    return f"{text}, run on {', '.join(draft.verified_on)}" if draft.verified_on else text


def rows() -> Iterator[str]:
    for known in MODELS:
        repository = f"[{known.repository}](https://huggingface.co/{known.repository})"
        parameters = f"{known.parameters.total_billions:g} ({known.parameters.active_billions:g})"
        weights = f"{known.weights.gib:g} GiB, {known.weights.format}"
        features = ", ".join(f"[{name}]({feature.source})" for name, feature in known.features.items())
        recipe = known.recipe
        verified = f"[{', '.join(recipe.verified_on)}]({recipe.source})" if recipe and recipe.verified_on else _NONE
        cache = f"{known.kv_cache.bytes_per_token / 1024:g} KiB"
        cells = [
            known.name,
            repository,
            parameters,
            weights,
            cache,
            f"{known.max_model_len:,}",
            features or _NONE,
            draft_text(known.draft) if known.draft else _NONE,
            ", ".join(each.name for each in MODELS if each.quantized_from == known.name) or _NONE,
            verified,
        ]
        yield f"| {' | '.join(cells)} |\n"


def test_the_page_of_models_equals_what_is_generated_from_the_catalogue():
    page = HEAD + "".join(rows())
    if os.environ.get("LLMD_OKE_UPDATE_GOLDEN"):
        PAGE.write_text(page)
    assert PAGE.read_text() == page


def test_sources_of_model_features_have_a_fixed_version_and_their_gpus_are_known():
    published = [part for known in MODELS for part in (known.recipe, known.draft) if part]
    assert {gpu for part in published for gpu in part.verified_on} <= set(catalogue.gpu_names())
    features = [feature for known in MODELS for feature in known.features.values()]
    sources = [part.source for part in (*features, *published)]
    assert [source for source in sources if "/main/" in source or "/latest/" in source] == []
