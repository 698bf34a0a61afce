"""Verifies as black boxes: the reference's, the fast one, and variants with a planted fault."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ft.contracts.law.cases import VOCABULARY
from ft.contracts.law.enumeration import Box, Paths
from ft.contracts.law.exact import Setup
from ft.fast import sampler
from ft.fast.edit_table import EditTable
from ft.fast.edits import Texts
from ft.reference.edits import History, RequestLaw
from ft.reference.types import Proposal, Sampling, Verification
from ft.reference.verify import Uniforms, verify

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""Where kernels run; on a CPU Triton interprets them."""


def reference_box(setup: Setup, told: bool = True) -> Box:
    """The reference, request by request. told: whether it hears of q at all."""
    law = RequestLaw(setup.sampling, 0, reference_history(setup))

    def box(paths: Paths, coins: Tensor, final: Tensor) -> Tensor:
        emitted = torch.full((len(coins), paths.width), -1)
        for index in range(len(coins)):
            count = int(paths.counts[index])
            drafts = paths.drafts[index, :count].tolist()
            judged = verify(
                law.rows(paths.logits[index, : count + 1], drafts),
                drafts,
                setup.sampling,
                seed=0,
                position=1,
                candidates=paths.candidates[index] if told else None,
                q=paths.q[index] if told else None,
                uniforms=Uniforms(coins[index].tolist(), float(final[index])),
            )
            emitted[index, : len(judged.emitted)] = torch.tensor(judged.emitted)
        return emitted

    return box


def reference_history(setup: Setup) -> History:
    """The history of a setup; its grammar as masks."""

    def allowed(output: tuple[int, ...]) -> Tensor:
        assert setup.grammar is not None
        return torch.tensor([token in setup.grammar(output) for token in range(VOCABULARY)])

    grammar = None if setup.grammar is None else allowed
    return History(setup.prompt, setup.output, setup.stop_ids, grammar)


@dataclass(frozen=True)
class SetupMasks:
    """A setup's grammar as the engine's masks of one word, for N paths. Implements edits.MaskSource."""

    setup: Setup

    def row(self, drafts: Tensor) -> Tensor:
        assert self.setup.grammar is not None
        allowed = [self.setup.grammar((*self.setup.output, *before)) for before in drafts.tolist()]
        return torch.tensor([[sum(1 << token for token in ids)] for ids in allowed], dtype=torch.int32)


def editor_of(setup: Setup, requests: int, vocabulary: int) -> sampler.Editor:
    """The engine's editor for copies of one request."""
    table = EditTable(1, torch.device("cpu"))
    table.admit(0, setup.sampling.edits)
    slots = torch.zeros(requests, dtype=torch.int64)
    known = (*setup.prompt, *setup.output)
    stop_ids = torch.tensor([setup.stop_ids or (-1,)] * requests)
    texts = Texts(
        torch.tensor([[*known, 0]] * requests, dtype=torch.int32),
        slots + len(known),
        slots + len(setup.prompt),
    )
    masks = None if setup.grammar is None else SetupMasks(setup)
    return sampler.Editor(table.rows(slots, stop_ids), texts, vocabulary, masks)


def fast_box(setup: Setup, told: bool = True) -> Box:
    """The engine's verify, all paths in one launch."""

    def box(paths: Paths, coins: Tensor, final: Tensor) -> Tensor:
        editor = editor_of(setup, len(coins), paths.vocabulary)
        paths = replace(paths, logits=editor.edited_rows(paths.logits, paths.drafts))
        return run_fast(paths, [setup.sampling] * len(coins), coins, final, told).emitted

    return box


def padded_box(setup: Setup) -> Box:
    """The fast verify on logits that are a slice of rows with huge values beyond the vocabulary."""

    def box(paths: Paths, coins: Tensor, final: Tensor) -> Tensor:
        wide = torch.full((*paths.logits.shape[:2], paths.vocabulary + 11), 1e9)
        wide[..., : paths.vocabulary] = paths.logits
        paths = replace(paths, logits=wide[..., : paths.vocabulary])
        return run_fast(paths, [setup.sampling] * len(coins), coins, final).emitted

    return box


def run_fast(
    paths: Paths, samplings: list[Sampling], coins: Tensor, final: Tensor, told: bool = True
) -> sampler.Judged:
    rows = sampler.SamplingRows.of(samplings, [index % 97 for index in range(len(samplings))])
    proposal = Proposal(paths.drafts, paths.counts, *((paths.candidates, paths.q) if told else (None, None)))
    positions = torch.arange(len(coins)) % 89
    return sampler.verify(paths.logits, proposal, rows, positions, sampler.Uniforms(coins, final))


def mixed_box(sampling: Sampling) -> Box:
    """The fast verify with a greedy and a coupled copy of every path in the same launch.

    The copies must say what they say alone, whatever the coins.
    """
    greedy = replace(sampling, temperature=0.0)
    coupled = replace(sampling, verification=Verification.COUPLED)

    def box(paths: Paths, coins: Tensor, final: Tensor) -> Tensor:
        count = len(coins)
        three = Paths(*(torch.cat([part] * 3) for part in vars(paths).values()))
        samplings = [sampling] * count + [greedy] * count + [coupled] * count
        mixed = run_fast(three, samplings, coins.repeat(3, 1), final.repeat(3)).emitted
        noise = torch.rand(coins.shape)
        for index, one in ((1, greedy), (2, coupled)):
            rows = sampler.SamplingRows.of([one] * count, [(index * count + i) % 97 for i in range(count)])
            alone = sampler.verify(
                paths.logits,
                Proposal(paths.drafts, paths.counts),
                rows,
                torch.arange(index * count, (index + 1) * count) % 89,
                sampler.Uniforms(noise, final),
            )
            assert torch.equal(mixed[index * count : (index + 1) * count], alone.emitted)
        return mixed[:count]

    return box


def spread_box(sampling: Sampling, live: list[int], vocabulary: int) -> Box:
    """The fast verify over a vocabulary of which only `live` ids have finite logits, at the edges of tiles."""
    ids = torch.tensor(live)
    back = torch.full((vocabulary + 1,), -2)
    back[ids], back[-1] = torch.arange(len(live)), -1

    def box(paths: Paths, coins: Tensor, final: Tensor) -> Tensor:
        logits = torch.full((*paths.logits.shape[:2], vocabulary), -torch.inf)
        logits[..., ids] = paths.logits
        spread = replace(paths, drafts=ids[paths.drafts], candidates=ids[paths.candidates], logits=logits)
        return back[run_fast(spread, [sampling] * len(coins), coins, final).emitted]

    return box


def triton_box(setup: Setup, told: bool = True) -> Box:
    """The Triton kernels, all paths in one launch; edits by the engine's editor. On a GPU tiles of 4 ids split
    the row; the interpreter's time goes by programs, so it takes the row as one tile."""
    from ft.kernels import verify as kernels

    def box(paths: Paths, coins: Tensor, final: Tensor) -> Tensor:
        count = len(coins)
        editor = editor_of(setup, count, paths.vocabulary)
        logits = editor.edited_rows(paths.logits, paths.drafts)
        rows = sampler.SamplingRows.of([setup.sampling] * count, range(count))
        space = kernels.workspace(
            count,
            paths.width,
            paths.vocabulary,
            DEVICE,
            choices=paths.candidates.shape[-1],
            capacity=64,
            tile=4 if DEVICE == "cuda" else 8,
        )

        def there(values: Tensor) -> Tensor:
            return values.to(DEVICE).contiguous()

        _, emitted, _ = kernels.verify(
            there(logits),
            there(paths.drafts),
            there(paths.counts),
            there(paths.candidates) if told else None,
            there(paths.q) if told else None,
            there(rows.temperature),
            there(rows.top_k),
            there(rows.top_p),
            there(rows.min_p),
            there(rows.seed),
            there(rows.mode),
            torch.ones(count, dtype=torch.int64, device=DEVICE),
            there(coins),
            there(final),
            space,
            rows.modes,
            rows.filtered,
        )
        return emitted.cpu()

    return box
