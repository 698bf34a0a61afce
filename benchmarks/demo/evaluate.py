"""How well the demo's draft guesses, computed without caches: every round runs the trunk and the draft over all
tokens again, for all prompts at once. It shares no code with the engine, so each checks the other.

Letters: B prompts, T their length padded on the right to whole chunks, N rows of the draft.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from benchmarks.demo import mtp
from benchmarks.demo.model import CHUNK, Heads, Parameters, Shape, hidden, logits


@dataclass
class Text:
    """One growing text. ids end with the pending token; the last round emitted what it added."""

    ids: list[int]
    prompt: int
    rounds: int = 0
    accepted: list[int] = field(default_factory=list)

    @property
    def generated(self) -> list[int]:
        return self.ids[self.prompt :]


@dataclass(frozen=True)
class Figures:
    """tokens_per_step: emitted by rounds, over rounds; a prompt's first token belongs to no round.
    acceptance: share of the drafts at each position that were accepted, among rounds that kept all drafts before.
    repeated_8_grams: mean share of a text's 8-grams that stood before in it."""

    tokens_per_step: float
    acceptance: tuple[float, ...]
    repeated_8_grams: float


@dataclass(frozen=True)
class Chooser:
    """Takes tokens from laws [B, V]: the top one when greedy, else by the law itself, T = 1."""

    draw: torch.Generator | None

    def take(self, law: Tensor) -> Tensor:
        if self.draw is None:
            return law.argmax(-1)
        return torch.multinomial(law, 1, generator=self.draw)[:, 0]


@torch.no_grad()
def speculate(
    trunk: Parameters,
    draft: Parameters,
    shape: Shape,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    chooser: Chooser,
    drafts: int = 3,
) -> list[Text]:
    """Continue each prompt by at least `tokens` tokens, in rounds of `drafts` drafts and one verify."""
    device = trunk["model.norm.weight"].device
    texts = [Text(list(prompt), len(prompt)) for prompt in prompts]
    final = _final(texts, [[] for _ in texts], trunk, shape, device)
    first = chooser.take(_law(final, [len(text.ids) - 1 for text in texts], trunk))
    for text, token in zip(texts, first.tolist(), strict=True):
        text.ids.append(token)
    while live := [index for index, text in enumerate(texts) if len(text.generated) <= tokens]:
        running = [texts[index] for index in live]
        offered, laws = _propose(running, final[live], trunk, draft, shape, drafts, chooser)
        final = _grown(final, live, _final(running, offered, trunk, shape, device))
        for row, text in enumerate(running):
            base = len(text.ids) - 1
            targets = torch.softmax(logits(final[live[row], base : base + drafts + 1], trunk), dim=-1)
            _judge(text, offered[row], laws[row], targets, chooser)
    return texts


@torch.no_grad()
def drafts_after(
    ids: Sequence[int], trunk: Parameters, draft: Parameters, shape: Shape, drafts: int
) -> list[int]:
    """The greedy drafts that follow a text whose last token is pending."""
    text = Text(list(ids), len(ids))
    final = _final([text], [[]], trunk, shape, trunk["model.norm.weight"].device)
    return _propose([text], final, trunk, draft, shape, drafts, Chooser(None))[0][0]


@torch.no_grad()
def token_acceptance(texts: Sequence[Text], trunk: Parameters, draft: Parameters, shape: Shape) -> float:
    """Mean sum min(p, q) of a first draft over all tokens generated, each counted once. Rounds start more often at
    hard places, just behind a rejected draft, so the share that rounds accept is lower."""
    device, found = trunk["model.norm.weight"].device, []
    for text in texts:
        length = -(-len(text.ids) // CHUNK) * CHUNK
        (p, q_log), *_ = mtp.unrolled(draft, trunk, _padded([text.ids], length, device), shape)
        found.append(torch.minimum(p, q_log.exp()).sum(-1)[0, text.prompt - 1 : len(text.ids) - 2])
    return float(torch.cat(found).mean())


def _propose(
    texts: Sequence[Text],
    final: Tensor,
    trunk: Parameters,
    draft: Parameters,
    shape: Shape,
    drafts: int,
    chooser: Chooser,
) -> tuple[list[list[int]], Tensor]:
    """The drafts [B][k] and the laws they were taken from [B, k, V]. The chain starts at the last row that the
    trunk has seen; what it computes for other rows is not used."""
    starts = [len(text.ids) - 2 for text in texts]
    rows, device = max(starts) + 1, final.device
    ids = _padded([text.ids[1:] for text in texts], rows, device)
    carried, laws = final[:, :rows], []
    chain: list[Heads] = []
    offered: list[list[int]] = [[] for _ in texts]
    for step in range(drafts):
        positions = torch.arange(step, step + rows, device=device)
        carried = mtp.draft_step(ids, carried, draft, trunk, positions, chain, shape)
        laws.append(_law(carried, starts, trunk))
        chosen = chooser.take(laws[-1])
        for row, token in enumerate(chosen.tolist()):
            offered[row].append(token)
        ids = chosen[:, None].expand(-1, rows)
    return offered, torch.stack(laws, dim=1)


def _judge(text: Text, offered: Sequence[int], laws: Tensor, targets: Tensor, chooser: Chooser) -> None:
    """Accept with min(1, p/q), redraw from max(0, p - q); greedy: while the draft is the trunk's top token."""
    text.rounds += 1
    for place, token in enumerate(offered):
        p, q = targets[place], laws[place]
        if chooser.draw is None:
            kept, instead = int(p.argmax()) == token, p
        else:
            coin = torch.rand((), generator=chooser.draw, device=p.device)
            kept, instead = bool(coin * q[token] < p[token]), (p - q).clamp(min=0)
        if not kept:
            text.ids.append(int(chooser.take(instead[None])))
            text.accepted.append(place)
            return
        text.ids.append(token)
    text.ids.append(int(chooser.take(targets[-1:])))
    text.accepted.append(len(offered))


def _final(
    texts: Sequence[Text],
    more: Sequence[Sequence[int]],
    trunk: Parameters,
    shape: Shape,
    device: torch.device,
) -> Tensor:
    """Final hidden [B, T, H] fp32 of each text and what is to follow it. Padding on the right changes no row before."""
    full = [[*text.ids, *ids] for text, ids in zip(texts, more, strict=True)]
    length = -(-max(map(len, full)) // CHUNK) * CHUNK
    return hidden(_padded(full, length, device), trunk, shape, torch.float32)


def _padded(rows: Sequence[Sequence[int]], length: int, device: torch.device) -> Tensor:
    return torch.tensor([[*row[:length], *[0] * (length - len(row))] for row in rows], device=device)


def _law(final: Tensor, rows: Sequence[int], trunk: Parameters) -> Tensor:
    """[B, V] at one row of each text."""
    picked = final[torch.arange(len(rows), device=final.device), torch.tensor(rows, device=final.device)]
    return torch.softmax(logits(picked, trunk), dim=-1)


def _grown(final: Tensor, live: Sequence[int], fresh: Tensor) -> Tensor:
    """`fresh` in the places of the live texts; the rows of the others are no longer read."""
    grown = final.new_zeros(final.shape[0], fresh.shape[1], final.shape[2])
    grown[list(live)] = fresh
    return grown


def figures(texts: Sequence[Text], drafts: int = 3) -> Figures:
    """Of all texts together."""
    counts = [count for text in texts for count in text.accepted]
    emitted = sum(len(text.generated) - 1 for text in texts)
    reached = [sum(count >= place for count in counts) for place in range(drafts + 1)]
    acceptance = tuple(kept / max(1, all_) for all_, kept in pairwise(reached))
    repeats = [repeated(text.generated) for text in texts]
    return Figures(emitted / sum(text.rounds for text in texts), acceptance, sum(repeats) / len(repeats))


def repeated(ids: Sequence[int], size: int = 8) -> float:
    """Share of n-grams that stood before."""
    grams = [tuple(ids[start : start + size]) for start in range(len(ids) - size + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
