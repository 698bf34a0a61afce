"""The definition of decoding: prefill, propose, verify, cut, commit. Plain decoding is k = 0 of the same loop."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ft.reference.cut import Finish, cut
from ft.reference.edits import Allowed, History, RequestLaw
from ft.reference.logprobs import logprobs_of
from ft.reference.protocol import Proposer, Target
from ft.reference.random import request_seed
from ft.reference.types import Proposal, Sampling, Step, Verdict
from ft.reference.verify import verify

NO_DRAFTS = Proposal(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))


@dataclass(frozen=True)
class Generation:
    """tokens: what was emitted, prompt excluded. steps: (drafted, accepted by the rule, emitted) of each step.

    error: some row that decided an emitted token was broken (verify_sampling 4.5); the loop ends there.
    logprobs: (raw, processed) of each token.
    """

    tokens: tuple[int, ...]
    finish: Finish | None
    steps: tuple[tuple[int, int, int], ...]
    error: bool = False
    logprobs: tuple[tuple[float, float], ...] = ()


def generate(
    target: Target,
    proposer: Proposer | None,
    prompt: Sequence[int],
    sampling: Sampling,
    *,
    drafts: int,
    max_tokens: int,
    stop_ids: Collection[int] = (),
    context: int,
    chunk: int,
    slot: int = 0,
    seed: int | None = None,
    grammar: Allowed | None = None,
    laws: dict[int, RequestLaw] | None = None,
) -> Generation:
    """Decode one request in `slot`, whose states are empty, with at most `drafts` drafts a step.

    chunk: rows of a prompt step. seed: in place of the one that `sampling` asks for. laws: where the draft's
    chooser reads the request's law by slot; kept up to date here. ValueError when the prompt is empty or leaves no
    room in the context.
    """
    if not 1 <= len(prompt) < context:
        raise ValueError(f"prompt of {len(prompt)} tokens; need 1 <= tokens < {context}, the context")
    seed = request_seed(sampling) if seed is None else seed
    law = RequestLaw(sampling, seed, History(tuple(prompt), (), tuple(stop_ids), grammar))
    laws = {} if laws is None else laws
    taps = () if proposer is None else proposer.taps
    prefill(target, proposer, prompt, chunk, slot)
    committed, pending = len(prompt) - 1, prompt[-1]
    tokens: list[int] = []
    steps: list[tuple[int, int, int]] = []
    finish: Finish | None = None
    logprobs: list[tuple[float, float]] = []
    error = False
    while finish is None and not error:
        count = min(drafts, max_tokens - len(tokens) - 1, context - 1 - committed)
        proposal, laws[slot] = NO_DRAFTS, law
        if proposer is not None and count > 0:
            proposal = proposer.propose(step_of([pending], committed, slot, taps), torch.tensor([count]))
        drafted = [int(token) for token in proposal.tokens[0, : int(proposal.counts[0])]]
        step = step_of([pending, *drafted], committed, slot, taps)
        features = target.forward(step)
        logits = target.logits(features.final_hidden)[0]
        edited = law.rows(logits, drafted)
        judged = verify(
            edited,
            drafted,
            sampling,
            seed,
            committed + 1,
            None if proposal.candidates is None else proposal.candidates[0],
            None if proposal.q is None else proposal.q[0],
        )
        kept, finish = cut(judged.emitted, stop_ids, len(tokens), max_tokens, committed, context)
        error = any(judged.broken[:kept])
        target.commit(step, torch.tensor([kept]))
        if proposer is not None:
            proposer.post_verify(step, features, verdict_of(judged.accepted, judged.emitted, kept, step.rows))
        logprobs += logprobs_of(judged.emitted[:kept], logits, edited, sampling)
        law = law.after(judged.emitted[:kept])
        tokens += judged.emitted[:kept]
        steps.append((len(drafted), judged.accepted, kept))
        committed, pending = committed + kept, judged.emitted[kept - 1]
    return Generation(tuple(tokens), finish, tuple(steps), error, tuple(logprobs))


def prefill(target: Target, proposer: Proposer | None, prompt: Sequence[int], chunk: int, slot: int) -> None:
    """Take in all of the prompt but its last token, which is the first pending one, in chunks from token 0."""
    taps = () if proposer is None else proposer.taps
    for start in range(0, len(prompt) - 1, chunk):
        end = min(start + chunk, len(prompt) - 1)
        step = step_of(prompt[start:end], start, slot, taps, prefill=True)
        features = target.forward(step)
        target.commit(step, step.valid)
        if proposer is not None:
            proposer.on_prefill(step, features, torch.tensor([prompt[start + 1 : end + 1]]))


def step_of(
    token_ids: Sequence[int], start: int, slot: int, taps: tuple[int, ...], prefill: bool = False
) -> Step:
    """A step of one request whose rows stand at start, start + 1, ..."""
    ids = torch.tensor([list(token_ids)], dtype=torch.int64)
    positions = start + torch.arange(len(token_ids))[None]
    rope_positions = positions[None].expand(3, -1, -1)
    valid = torch.tensor([len(token_ids)])
    return Step(ids, positions, rope_positions, valid, torch.tensor([slot]), taps, prefill)


def verdict_of(accepted: int, emitted: Sequence[int], kept: int, rows: int) -> Verdict:
    """The verdict of one request, its run padded to `rows` with -1."""
    padded: Tensor = torch.full((1, rows), -1, dtype=torch.int64)
    padded[0, : len(emitted)] = torch.tensor(emitted)
    return Verdict(torch.tensor([accepted]), padded, torch.tensor([kept]))
