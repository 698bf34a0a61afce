"""On a GPU: the same bits in every batch and in a graph replay, the same numbers as on the CPU."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ft.fast import random, sampler
from ft.reference.types import Proposal, Sampling, Stream

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

VOCABULARIES = [7, 1003, 248_320]
SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.8, top_p=0.95),
    Sampling(temperature=0.9, top_k=12, seed=1),
    Sampling(temperature=1.2, min_p=0.02),
    Sampling(temperature=1.0, seed=3),
] * 2
ROWS = 4


class Batch:
    """Ten requests on the device, target and draft logits, drafted and verified by `step`."""

    def __init__(self, vocabulary: int) -> None:
        generator = torch.Generator().manual_seed(0)
        count = len(SAMPLINGS)
        self.logits = 3 * torch.randn(count, ROWS, vocabulary, generator=generator).cuda()
        noise = torch.randn(count, ROWS - 1, vocabulary, generator=generator).cuda()
        self.near = self.logits[:, :-1] + 0.5 * noise
        self.rows = sampler.SamplingRows.of(SAMPLINGS, range(count), "cuda")
        self.positions = torch.arange(count, device="cuda") * 7

    def keep(self, index: int) -> "Batch":
        """Request `index` alone."""
        one, alone = slice(index, index + 1), object.__new__(Batch)
        alone.logits, alone.near, alone.positions = self.logits[one], self.near[one], self.positions[one]
        alone.rows = sampler.SamplingRows.of(SAMPLINGS[one], [index], "cuda")
        return alone

    def step(self) -> tuple[Tensor, Tensor]:
        """Drafts [B, k] and the emitted run [B, k+1]."""
        chosen = [
            sampler.choose_drafts(self.near[:, row], self.positions + row, self.rows, self.positions)
            for row in range(ROWS - 1)
        ]
        tokens, candidates, q = (torch.stack(part, 1) for part in zip(*chosen, strict=True))
        counts = torch.full_like(self.positions, ROWS - 1)
        proposal = Proposal(tokens, counts, candidates, q)
        return tokens, sampler.verify(self.logits, proposal, self.rows, self.positions).emitted


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_every_request_has_the_same_bits_alone(vocabulary: int) -> None:
    batch = Batch(vocabulary)
    drafts, emitted = batch.step()
    law = sampler.law(batch.logits[:, 1], batch.rows)
    noise = random.gumbel(batch.rows.seed, batch.positions, vocabulary)
    for index in range(len(SAMPLINGS)):
        alone = batch.keep(index)
        alone_drafts, alone_emitted = alone.step()
        assert torch.equal(alone_drafts[0], drafts[index])
        assert torch.equal(alone_emitted[0], emitted[index])
        assert torch.equal(sampler.law(alone.logits[:, 1], alone.rows)[0], law[index])
        assert torch.equal(random.gumbel(alone.rows.seed, alone.positions, vocabulary)[0], noise[index])


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_numbers_are_the_cpus(vocabulary: int) -> None:
    batch = Batch(vocabulary)
    rows = sampler.SamplingRows.of(SAMPLINGS, range(len(SAMPLINGS)))
    for stream in Stream:
        got = random.open_uniform(batch.rows.seed, batch.positions, stream, vocabulary)
        want = random.open_uniform(rows.seed, batch.positions.cpu(), stream, vocabulary)
        assert torch.equal(got.cpu(), want)
    law = sampler.law(batch.logits[:, 1].cpu(), rows)
    torch.testing.assert_close(sampler.law(batch.logits[:, 1], batch.rows).cpu(), law, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_replay_reads_seeds_and_positions_anew(vocabulary: int) -> None:
    batch = Batch(vocabulary)
    eager = batch.step()[1]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = batch.step()[1]
    graph.replay()
    assert torch.equal(replayed, eager)
    batch.positions += 1
    batch.rows = replace(batch.rows, seed=batch.rows.seed.add_(5))
    graph.replay()
    assert torch.equal(replayed, batch.step()[1])
    assert not torch.equal(replayed, eager)
