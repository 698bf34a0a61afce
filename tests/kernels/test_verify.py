"""The verify kernels against the plain torch verify, whose law is theirs; and twins with a planted fault."""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from ft.fast import sampler
from ft.fast.sampling import scores, units
from ft.kernels import verify as kernels
from ft.kernels.verify_noise import words
from ft.reference.random import philox
from ft.reference.types import Proposal, Sampling, Verification
from ft.reference.verify import decide

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FOLDER = Path(kernels.__file__).parent

GREEDY = Sampling()
REJECTION = Sampling(temperature=0.8, top_k=3, top_p=0.95)
COUPLED = Sampling(temperature=0.9, top_k=8, seed=11)
BLOCK = Sampling(temperature=1.2, verification=Verification.BLOCK)
PLAIN = Sampling(temperature=1.0)
MIXED = [GREEDY, REJECTION, COUPLED, BLOCK, Sampling(temperature=1.5, min_p=0.02)]


@dataclass(frozen=True)
class Case:
    """Inputs of one verify: logits [B, R, V] and what `Proposal` and `Uniforms` hold; sizes of the workspace.

    A small capacity makes the slow cut common.
    """

    logits: Tensor
    proposal: Proposal
    samplings: Sequence[Sampling]
    positions: Tensor
    uniforms: sampler.Uniforms | None
    tile: int = 1024
    capacity: int = 64

    @property
    def rows(self) -> sampler.SamplingRows:
        return sampler.SamplingRows.of(self.samplings, range(5, 5 + len(self.samplings)), DEVICE)


def make(
    seed: int,
    vocabulary: int,
    samplings: Sequence[Sampling],
    drafts: int,
    logits: Tensor | None = None,
    scale: float = 3.0,
    injected: bool = True,
) -> Case:
    """A case whose candidates hold the likeliest ids, so that drafts pass about as often as they fail."""
    generator = torch.Generator().manual_seed(seed)
    requests, choices = len(samplings), min(4, vocabulary)
    if logits is None:
        logits = scale * torch.randn(requests, drafts + 1, vocabulary, generator=generator)
    candidates = torch.rand(requests, drafts, vocabulary, generator=generator).topk(choices).indices
    candidates[..., :2] = logits[:, :drafts].nan_to_num(-9.0, -9.0, -9.0).topk(2).indices
    q = torch.rand(candidates.shape, generator=generator)
    q /= q.sum(-1, keepdim=True)
    place = torch.randint(0, 2, (requests, drafts, 1), generator=generator)
    counts = torch.randint(0, drafts + 1, (requests,), generator=generator)
    counts[0] = drafts
    coins = torch.rand(requests, drafts, generator=generator)
    final = torch.rand(requests, generator=generator)
    positions = torch.randint(1, 1000, (requests,), generator=generator)
    return Case(
        logits.to(DEVICE),
        Proposal(
            candidates.gather(2, place)[..., 0].to(DEVICE),
            counts.to(DEVICE),
            candidates.to(DEVICE),
            q.to(DEVICE),
        ),
        samplings,
        positions.to(DEVICE),
        sampler.Uniforms(coins.to(DEVICE), final.to(DEVICE)) if injected else None,
        tile=4 if vocabulary <= 32 else 8 if vocabulary <= 64 else 64 if vocabulary <= 300 else 1024,
    )


def run(case: Case, module: ModuleType = kernels) -> tuple[tuple[Tensor, ...], kernels.Workspace]:
    """The kernels' answer, and the workspace it left."""
    requests, rows, vocabulary = case.logits.shape
    proposal, sampled = case.proposal, case.rows
    choices = 1 if proposal.candidates is None else proposal.candidates.shape[-1]
    space = module.workspace(requests, rows, vocabulary, DEVICE, choices, case.capacity, case.tile)
    answer = module.verify(
        case.logits,
        proposal.tokens,
        proposal.counts,
        proposal.candidates,
        proposal.q,
        sampled.temperature,
        sampled.top_k,
        sampled.top_p,
        sampled.min_p,
        sampled.seed,
        sampled.mode,
        case.positions,
        case.uniforms.coins if case.uniforms else None,
        case.uniforms.final if case.uniforms else None,
        space,
        sampled.modes,
        sampled.filtered,
    )
    return answer, space


def agree(case: Case, module: ModuleType = kernels) -> kernels.Workspace:
    """The kernels say what the plain torch verify says."""
    expected = sampler.verify(case.logits, case.proposal, case.rows, case.positions, case.uniforms)
    (accepted, emitted, broken), space = run(case, module)
    assert emitted.tolist() == expected.emitted.tolist()
    assert accepted.tolist() == expected.accepted.tolist()
    assert broken.tolist() == expected.broken.tolist()
    return space


def sweep(logits: Sequence[float] | Tensor, sampling: Sampling, draws: int = 6) -> Case:
    """One row drawn from at `draws` places of its law, no drafts."""
    row = torch.as_tensor(logits, dtype=torch.float32)
    case = make(0, row.numel(), [sampling] * draws, 0, row.expand(draws, 1, -1).contiguous())
    final = (torch.arange(draws, device=DEVICE) + 0.5) / draws
    return replace(case, uniforms=sampler.Uniforms(torch.zeros(draws, 0, device=DEVICE), final))


@pytest.mark.parametrize(
    ("vocabulary", "drafts", "dtype"),
    [
        (5, 2, torch.float32),
        (61, 4, torch.float32),
        (1500, 1, torch.bfloat16),
        (2051, 0, torch.bfloat16),
        (2051, 2, torch.float32),
    ],
)
def test_mixed_batches_agree(vocabulary: int, drafts: int, dtype: torch.dtype) -> None:
    case = make(vocabulary + drafts, vocabulary, MIXED, drafts, injected=dtype == torch.float32)
    agree(replace(case, logits=case.logits.to(dtype)))


@pytest.mark.parametrize("sampling", [*MIXED, PLAIN], ids=lambda one: f"{one.mode().name} {one.min_p}")
def test_batches_of_one_kind_agree(sampling: Sampling) -> None:
    agree(make(1, 61, [sampling] * 2, 3, scale=1.5))
    agree(replace(make(2, 61, [sampling], 2, injected=False), capacity=128))


def test_drafts_without_a_law_agree() -> None:
    case = make(3, 40, MIXED, 1, scale=1.0)
    agree(replace(case, proposal=replace(case.proposal, candidates=None, q=None)))


def untrusted() -> Case:
    """Candidates twice, outside, a draft not among them; q negative, NaN, infinite, of another total, zero at the draft."""
    case = make(5, 12, [PLAIN] * 5 + [BLOCK] * 5, 2, scale=1.0)
    proposal = case.proposal
    assert proposal.candidates is not None and proposal.q is not None
    candidates, q, tokens = proposal.candidates.clone(), proposal.q.clone(), proposal.tokens.clone()
    for half in (0, 5):
        candidates[half, :, 3] = candidates[half, :, 0]
        tokens[half] = candidates[half, :, 0]
        candidates[half + 1, 0, 2], candidates[half + 1, 1, 2] = 12, -1
        q[half + 2, 0, 2], q[half + 2, 1, 3] = torch.nan, -0.1
        q[half + 3] *= 1.1
        q[half + 3, 1, 2] = torch.inf
        tokens[half + 4] = 11 - candidates[half + 4, :, 2]
    counts = torch.full_like(proposal.counts, 2)
    return replace(case, proposal=Proposal(tokens, counts, candidates, q))


def test_laws_that_are_not_trusted_agree() -> None:
    agree(untrusted())


def broken_rows() -> Case:
    """NaN, +inf, nothing finite, and all of it, in rows of every mode."""
    case = make(6, 1100, [GREEDY, PLAIN, COUPLED, BLOCK, REJECTION], 2)
    logits = case.logits.clone()
    logits[:, 0, 7], logits[:, 1, 1050] = torch.nan, torch.inf
    logits[1:, 2] = -torch.inf
    logits[3, 0], logits[0, 0], logits[2, 0] = torch.nan, -torch.inf, torch.inf
    return replace(case, logits=logits)


def test_broken_rows_agree() -> None:
    agree(broken_rows())


TIES = torch.full((8, 4), -5.0)
TIES[:, 1] = torch.tensor([0.0, 2.0, 1.0, 2.0, 1.0, 1.0, -1.0, 1.0])
STEPS = torch.arange(300).remainder(17) * 0.25


def ties_at_the_kth() -> Case:
    return sweep(TIES.flatten(), Sampling(temperature=1.0, top_k=3))


def edge_of_top_p() -> Case:
    """Eight equal ids: half of the mass lies before the fifth, exactly, so that it is dropped."""
    return sweep(torch.zeros(8), Sampling(temperature=1.0, top_p=0.5))


def flat() -> Case:
    """More equal ids than candidates can be held; the cut falls among them."""
    return sweep(torch.zeros(300), Sampling(temperature=1.0, top_p=0.25), 2)


def test_ties_agree() -> None:
    both = Sampling(temperature=1.0, top_k=3, top_p=0.7)
    split = Sampling(temperature=1.0, top_k=2, top_p=0.51)
    for case in (
        ties_at_the_kth(),
        edge_of_top_p(),
        sweep(TIES.flatten(), both),
        sweep(torch.zeros(8), split),
    ):
        assert not agree(case).row_slow.any()


@pytest.mark.parametrize(
    ("top_k", "top_p"), [(0, 0.25), (100, 1.0), (100, 0.5), (0, 1e-6), (400, 0.9), (250, 0.3)]
)
def test_the_slow_cut_agrees(top_k: int, top_p: float) -> None:
    noise = torch.randn(300, generator=torch.Generator().manual_seed(3))
    for row in (torch.zeros(300), STEPS, noise):
        case = sweep(row, Sampling(temperature=1.0, top_k=top_k, top_p=top_p), 1)
        kept = units(torch.exp(scores(case.logits[0], case.rows))).sum()
        assert agree(case).row_total.item() == pytest.approx(kept.item(), rel=1e-6)


def test_the_slow_cut_finds_what_is_kept_among_equals() -> None:
    assert agree(flat()).row_slow.all()
    agree(sweep(STEPS, Sampling(temperature=1.0, top_k=100, top_p=0.3, seed=1), 1))


def edges(vocabulary: int = 2051) -> Case:
    """Only ids at the edges of tiles can come out."""
    row = torch.full((vocabulary,), -torch.inf)
    row[[0, 1023, 1024, 2047, 2048, vocabulary - 1]] = torch.tensor([1.0, 0.9, 1.1, 0.8, 1.0, 1.2])
    return sweep(row, Sampling(temperature=1.0, top_p=0.99), 5)


def test_ids_at_the_edges_of_tiles_agree() -> None:
    agree(edges())


def coupled_tokens(module: ModuleType = kernels) -> None:
    """Coupled tokens are those of the reference, whatever the drafts."""
    samplings = [COUPLED, Sampling(temperature=1.0, seed=2), Sampling(temperature=2.0, top_p=0.8, seed=3)]
    case = make(8, 61, samplings, 2, scale=1.0)
    case = replace(case, proposal=replace(case.proposal, counts=torch.full_like(case.proposal.counts, 2)))
    (accepted, emitted, _), space = run(case, module)
    tokens = space.row_id.view(3, 3)
    expected = [
        [
            decide(case.logits[b, r].cpu(), one, int(case.rows.seed[b]), int(case.positions[b]) + r)
            for r in range(3)
        ]
        for b, one in enumerate(samplings)
    ]
    assert tokens.tolist() == expected
    assert emitted.gather(1, accepted[:, None])[:, 0].tolist() == [
        row[n] for row, n in zip(expected, accepted.tolist(), strict=True)
    ]


def test_coupled_tokens_are_the_references() -> None:
    coupled_tokens()


def test_a_row_alone_has_the_bits_of_the_row_in_company() -> None:
    case = make(9, 61, MIXED, 2, scale=2.0)
    case = replace(case, proposal=replace(case.proposal, counts=torch.full_like(case.proposal.counts, 2)))
    _, company = run(case)
    for b, sampling in enumerate(case.samplings):
        for r in range(3):
            alone = make(0, 61, [sampling], 0, case.logits[b : b + 1, r : r + 1].contiguous().cpu())
            _, single = run(replace(alone, positions=case.positions[b : b + 1] + r))
            names: tuple[str, ...] = (
                ("row_id", "row_fault") if sampling.mode() == Verification.GREEDY else BITS
            )
            if sampling.mode() == Verification.COUPLED:
                names = tuple(name for name in BITS if name != "row_id")
            for name in names:
                one, among = getattr(single, name), getattr(company, name)
                assert one[0].tolist() == among[3 * b + r].tolist(), (name, b, r)


BITS = ("row_id", "row_fault", "row_top", "row_cut", "row_total")


@triton.jit
def words_kernel(out, seed, position, stream, step):  # type: ignore[no-untyped-def]
    block = tl.arange(0, 8)
    a, b, c, d = words(tl.load(seed), tl.load(position), stream, block, tl.load(step))
    tl.store(out + 4 * block, a.to(tl.int64))
    tl.store(out + 4 * block + 1, b.to(tl.int64))
    tl.store(out + 4 * block + 2, c.to(tl.int64))
    tl.store(out + 4 * block + 3, d.to(tl.int64))


@pytest.mark.parametrize("seed", [0, 1, -1, 0x123456789ABCDEF, -(2**63)])
def test_words_are_those_of_the_generator(seed: int) -> None:
    position, stream, step = 2**32 - 2, 3, 2**31 + 7
    out = torch.zeros(32, dtype=torch.int64, device=DEVICE)
    given = [torch.tensor([value], device=DEVICE) for value in (seed, position, step)]
    words_kernel[(1,)](out, given[0], given[1], stream, given[2])
    counter = np.array([[position, stream, block, step] for block in range(8)], dtype=np.uint32)
    key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    assert out.tolist() == philox(counter, key).reshape(-1).tolist()


def test_inputs_that_do_not_fit_are_refused() -> None:
    case = make(1, 20, [PLAIN], 1)
    with pytest.raises(ValueError, match="must be contiguous"):
        run(replace(case, logits=case.logits.transpose(0, 1).contiguous().transpose(0, 1).expand(2, 2, 20)))
    with pytest.raises(ValueError, match="must be bfloat16 or float32"):
        run(replace(case, logits=case.logits.double()))
    with pytest.raises(ValueError, match="tile 100 must be a power of two"):
        kernels.workspace(1, 1, 20, DEVICE, tile=100)
    with pytest.raises(ValueError, match="capacity 100 must be a power of two"):
        kernels.workspace(1, 1, 20, DEVICE, capacity=100)
    with pytest.raises(ValueError, match="a sort key can hold"):
        kernels.workspace(1, 1, 2**24, DEVICE)


@dataclass(frozen=True)
class Twin:
    """A fault planted in a kernel file: `old` becomes `new`, and `check` must fail."""

    file: str
    old: str
    new: str
    check: Callable[[ModuleType], object]


def check_of(case: Callable[[], Case]) -> Callable[[ModuleType], object]:
    return lambda module: agree(case(), module)


def blocks() -> Case:
    case = make(23, 8, [BLOCK] * 4, 3, scale=0.6)
    return replace(case, proposal=replace(case.proposal, counts=torch.full_like(case.proposal.counts, 3)))


def rejecting() -> Case:
    """Drafts that mostly fail."""
    case = make(2, 12, [PLAIN] * 6, 1, scale=0.5)
    assert case.uniforms is not None
    high = torch.full_like(case.uniforms.coins, 0.999)
    counts = torch.full_like(case.proposal.counts, 1)
    return replace(
        case,
        proposal=replace(case.proposal, counts=counts),
        uniforms=replace(case.uniforms, coins=high),
    )


def doubled() -> Case:
    """Candidates that come twice, judged by a row of coins."""
    case = make(3, 4, [PLAIN] * 8, 1, torch.zeros(8, 2, 4))
    tokens = torch.zeros_like(case.proposal.tokens)
    candidates = torch.tensor([0, 1, 0, 1], device=DEVICE).expand(8, 1, 4).contiguous()
    q = torch.full((8, 1, 4), 0.25, device=DEVICE)
    coins = ((torch.arange(8, device=DEVICE) + 0.5) / 8)[:, None].contiguous()
    return replace(
        case,
        proposal=Proposal(tokens, torch.ones_like(case.proposal.counts), candidates, q),
        uniforms=sampler.Uniforms(coins, coins[:, 0].contiguous()),
    )


TWINS = {
    "highest id of equals": Twin(
        "verify_tiles.py",
        "tl.min(tl.where(z == top, ids, 0x7FFFFFFF))",
        "tl.max(tl.where(z == top, ids, -1))",
        check_of(lambda: make(0, 32, [GREEDY], 0, torch.full((1, 1, 32), 0.5))),
    ),
    "ties at the k-th dropped": Twin(
        "verify_cut.py",
        "stays = real & ((key >> ID_BITS) >= level)",
        "stays = real & ((rank < k) | (k == 0))",
        check_of(ties_at_the_kth),
    ),
    "top-p keeps its edge": Twin(
        "verify_cut.py",
        "kept = stays & (larger.to(tl.float64) < limit)",
        "kept = stays & (larger.to(tl.float64) <= limit)",
        check_of(edge_of_top_p),
    ),
    "overflow unnoticed": Twin(
        "verify_cut.py", "slow = 1 - (enough & (held <= CAPACITY)).to(tl.int32)", "slow = 0", check_of(flat)
    ),
    "coin passes when equal": Twin(
        "verify_accept.py",
        "passed = coin * at_draft < tl.load",
        "passed = coin * at_draft <= tl.load",
        check_of(lambda: impossible()),
    ),
    "equal candidates overwrite": Twin(
        "verify_accept.py",
        "tl.where(equal, mass[None, :], 0)",
        "tl.where(equal & (slot[None, :] == slot[:, None]), mass[None, :], 0)",
        check_of(lambda: doubled()),
    ),
    "total of q unchecked": Twin(
        "verify_accept.py", "(tl.abs(total - ONE) <= TOLERANCE)", "(total > 0)", check_of(untrusted)
    ),
    "residual is p": Twin(
        "verify_final.py", "subtract = tl.sum(left) > 0", "subtract = tl.sum(left) < 0", check_of(rejecting)
    ),
    "weight forgotten": Twin(
        "verify_final.py",
        "tl.fma(p.to(tl.float64), weight, -dense.to(tl.float64))",
        "p.to(tl.float64) - dense.to(tl.float64)",
        check_of(lambda: weighted()),
    ),
    "the block takes the first reject": Twin(
        "verify_accept.py",
        "passed = real & (coin",
        "passed = real & (accepted == index) & (coin",
        check_of(blocks),
    ),
    "tiles before are forgotten": Twin(
        "verify_final.py",
        "earlier = tl.sum(tl.where(places < tile, masses, 0))",
        "earlier = total * 0",
        check_of(edges),
    ),
    "+inf is finite": Twin(
        "verify_law.py", "faulty = ~(z < INFINITY)", "faulty = tl.abs(z) < 0.0", check_of(broken_rows)
    ),
    "words of a block in another order": Twin(
        "verify_noise.py",
        "tl.interleave(tl.interleave(a, c), tl.interleave(b, d))",
        "tl.interleave(tl.interleave(a, b), tl.interleave(c, d))",
        coupled_tokens,
    ),
}


def impossible() -> Case:
    """A draft of no mass and a coin of 0."""
    case = make(2, 20, [Sampling(temperature=1.0, top_k=1)], 1)
    tokens = (case.logits[:, :1].argmax(-1) + 1) % 20
    proposal = Proposal(tokens, case.proposal.counts)
    assert case.uniforms is not None
    return replace(
        case, proposal=proposal, uniforms=replace(case.uniforms, coins=torch.zeros_like(tokens).float())
    )


def weighted() -> Case:
    """Block requests that accept one draft at a weight below 1 and reject the next."""
    case = make(44, 8, [BLOCK] * 4, 2, scale=0.6)
    assert case.uniforms is not None
    coins = torch.tensor([0.0, 0.999], device=DEVICE).expand(4, 2).contiguous()
    counts = torch.full_like(case.proposal.counts, 2)
    return replace(
        case,
        proposal=replace(case.proposal, counts=counts),
        uniforms=sampler.Uniforms(coins, (torch.arange(4, device=DEVICE) + 0.5) / 4),
    )


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_with_a_fault_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twin, package = TWINS[name], "twin_" + "".join(filter(str.isalpha, name))
    (tmp_path / package).mkdir()
    for path in FOLDER.glob("verify*.py"):
        text = path.read_text().replace("ft.kernels.", f"{package}.")
        if path.name == twin.file:
            assert text.count(twin.old) == 1, f"{twin.file} does not hold the text once"
            text = text.replace(twin.old, twin.new)
        (tmp_path / package / path.name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module(f"{package}.verify")
    twin.check(kernels)
    with pytest.raises(AssertionError):
        twin.check(module)
