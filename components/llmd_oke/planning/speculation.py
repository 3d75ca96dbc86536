"""Checks of speculative decoding: the draft that the catalogue has for a model, settings that vLLM doesn't combine with
drafts, and advice.
"""

from collections.abc import Iterator

from llmd_base.errors import SET, Problem

from llmd_oke import catalogue
from llmd_oke.catalogue.models import MODELS
from llmd_oke.catalogue.speculation import ServerDraft
from llmd_oke.config.engine import flag_of
from llmd_oke.planning.model_plan import ModelPlan
from llmd_oke.planning.plan import Advice, Plan
from llmd_oke.planning.planned_model import PlannedModel
from llmd_oke.planning.releases import vllm_facts
from llmd_oke.values import VALUES

SPECULATION_FLAGS = frozenset({"--speculative-config", "-sc", "--spec-method", "--spec-model", "--spec-tokens"})
"""Flags of vLLM that each configure speculative decoding."""

_UNCHUNKED = "--no-enable-chunked-prefill"


def speculation_problems(context: PlannedModel) -> Iterator[Problem]:
    """Yield the problems of the speculative decoding of one model."""
    engine, path = context.model.engine, f"{context.path}.engine.speculation"
    asked, facts = engine.speculation, context.facts
    if asked is None:
        return
    for i, argument in enumerate(engine.extra_args):
        if flag_of(argument) in SPECULATION_FLAGS:
            why = "engine.speculation gives servers that argument, and vLLM would merge the two, take the last, or end"
            yield Problem(f"{context.path}.engine.extraArgs[{i}]", argument, "one of the two", why)
    draft = facts.server_draft(asked)
    if draft is None:
        known = [name for name in catalogue.model_names() if (model := catalogue.model(name)) and model.draft]
        why = f"{VALUES}/{MODELS.folder}/{facts.name}.yaml has no draft: no public source has one for {facts.name}"
        yield Problem(path, SET, f"nothing, or a model with one: {', '.join(known)}", why)
        return
    if asked.revision is not None and draft.draft.repository is None:
        why = f"what drafts for {facts.name} are layers of its own files"
        yield Problem(f"{path}.revision", asked.revision, "nothing; storage.prewarm.revisions for the model", why)
    yield from _of_release(context, draft.draft.method, path)
    yield from _batches(context, draft)


def _of_release(context: PlannedModel, method: str, path: str) -> Iterator[Problem]:
    """Releases whose vLLM isn't known to draft so; an image that no release has may do anything."""
    release = vllm_facts(context.stack)
    if release is not None and method not in release.vllm.drafts:
        known = (catalogue.release(name) for name in catalogue.release_names())
        accepted = " or ".join(other.name for other in known if other and method in other.vllm.drafts)
        why = f"of vLLM in {release.name} it isn't known that it drafts by {method}"
        yield Problem(path, SET, f"nothing, or release {accepted}", why)


def _batches(context: PlannedModel, draft: ServerDraft) -> Iterator[Problem]:
    """Batches that vLLM doesn't start with: too small for drafts beside adapters (engine/arg_utils.py), or for a whole
    prompt where prompts aren't computed in chunks (config/scheduler.py).
    """
    for role in context.model.topology.servers():
        engine = context.model.engine.of_role(role)
        batch = engine.settings().get("max_num_batched_tokens")
        if not isinstance(batch, int):
            continue
        path = f"{context.path}.{context.model.engine.key_of('max_num_batched_tokens', role)}"
        drafted = engine.max_num_seqs * (draft.tokens + 1)
        if _UNCHUNKED in draft.draft.arguments and batch < context.max_model_len:
            why = f"drafts of {context.facts.name} take {_UNCHUNKED}, so that a step computes whole prompts"
            yield Problem(path, batch, f"nothing, or at least {context.max_model_len}, as maxModelLen", why)
        elif engine.adapters is not None and batch < drafted:
            why = f"{engine.max_num_seqs} sequences draft {draft.tokens} tokens each at a step, beside adapters"
            yield Problem(path, batch, f"nothing, or at least {drafted}", why)


def speculation_advice(plan: Plan) -> Iterator[Advice]:
    """Yield advice on the memory that drafts take, and on what is known about their benefit."""
    for i, model in enumerate(plan.models):
        if (draft := model.settings.draft) is None:
            continue
        path, facts = f"models[{i}].engine.speculation", draft.draft
        yield Advice(path, f"{_taken(model)}; {_known(model)}")
        if facts.repository is not None and not (draft.revision or facts.revision):
            text = f"the revision of {facts.repository} is not pinned, so that nodes may draft by different weights"
            yield Advice(path, f"{text}: engine.speculation.revision")
        if _UNCHUNKED in facts.arguments:
            yield Advice(
                path,
                f"by its source it is started with {_UNCHUNKED}: a step computes whole prompts, and vLLM makes room"
                f" for {model.max_model_len:,} tokens at once, which no plan counts; a shorter engine.maxModelLen takes"
                " less",
            )


def _taken(model: ModelPlan) -> str:
    """Say what the weights and KV cache of a draft take of each GPU."""
    role = max(model.units[0].roles, key=lambda role: role.memory.draft_gib / role.parallelism.gpus)
    draft = role.settings.draft
    assert draft is not None  # noqa: S101 - servers of all roles draft alike
    facts = draft.draft
    origin = facts.repository or "its own files"
    cached = facts.key_value_bytes_per_token / model.model.kv_cache.bytes_per_token
    states = ""
    if model.model.architecture.linear_attention is not None:
        states = f", and a sequence has {draft.tokens + 1} states of linear attention"
    gib = role.memory.draft_gib / role.parallelism.gpus
    return (
        f"drafted tokens of each step: {draft.tokens}, by {facts.method} of {origin}, whose weights take {gib:.2g} GiB"
        f" of each GPU of {role.role} servers, its KV cache {cached:.1%} more for each token{states} (bounds)"
    )


def _known(model: ModelPlan) -> str:
    """Say what was verified of a draft, and how forecasts count it."""
    draft, asked = model.model.draft, model.engine.speculation
    verified = f"run on {', '.join(draft.verified_on)} by its source" if draft and draft.verified_on else ""
    share = asked.accepted_share if asked else None
    counted = (
        "no forecast counts what it saves or costs (acceptedShare)"
        if share is None
        else f"forecasts count {share:.0%} of its tokens as accepted, as the stack file says, and are bounds"
    )
    return f"{verified or 'no source says that it was run on these GPUs'}; {counted}"
