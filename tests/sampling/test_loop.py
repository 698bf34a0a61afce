"""The reference loop: the text with drafts is the text without, and every hook sees what it should."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from ft.reference import loop
from ft.reference.drafting import DraftChooser
from ft.reference.edits import RequestLaw
from ft.reference.loop import Generation, generate
from ft.reference.proposers.oracle import OracleProposer
from ft.reference.proposers.scripted import ScriptedProposer
from ft.reference.protocol import Proposer
from ft.reference.types import Sampling, Verification
from ft.reference.verify import verify

from .toy import NoisyProposer, ShortCommit, ToyTarget, WholeCommit

PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)
TOKENS = 30
SAMPLINGS = {
    "greedy": Sampling(),
    "coupled": Sampling(temperature=1.0, seed=7),
    "coupled, filtered": Sampling(temperature=1.3, top_k=6, top_p=0.9, seed=8),
}
SCRIPT = (0, 2, 1, 7, 3, 0)


def decode(
    sampling: Sampling,
    proposer: Proposer | None,
    drafts: int,
    target: Callable[[], ToyTarget] = ToyTarget,
    max_tokens: int = TOKENS,
    stop_ids: tuple[int, ...] = (),
    context: int = 400,
    prompt: tuple[int, ...] = PROMPT,
    chunk: int = 3,
) -> Generation:
    return generate(
        target(),
        proposer,
        prompt,
        sampling,
        drafts=drafts,
        max_tokens=max_tokens,
        stop_ids=stop_ids,
        context=context,
        chunk=chunk,
    )


def proposers(sampling: Sampling, prompt: tuple[int, ...] = PROMPT) -> dict[str, Proposer]:
    """One of each kind, for the text that plain decoding of `prompt` gives."""
    text = [*prompt, *decode(sampling, None, 0, max_tokens=TOKENS + 12, prompt=prompt).tokens]
    seed = 0 if sampling.seed is None else sampling.seed
    return {
        "oracle": OracleProposer({0: text}),
        "scripted": ScriptedProposer.of({0: text}, SCRIPT, 11),
        "noisy": NoisyProposer(DraftChooser({0: RequestLaw(sampling, seed)}), 11),
    }


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("kind", ["oracle", "scripted", "noisy"])
@pytest.mark.parametrize("drafts", [0, 1, 3, 7])
def test_text_with_drafts_is_the_text_without(name: str, kind: str, drafts: int) -> None:
    sampling = SAMPLINGS[name]
    plain = decode(sampling, None, 0)
    drafted = decode(sampling, proposers(sampling)[kind], drafts)
    assert drafted.tokens == plain.tokens and len(plain.tokens) == TOKENS
    assert drafted.finish == plain.finish == "length"
    assert sum(emitted for _, _, emitted in drafted.steps) == TOKENS
    if kind == "oracle":
        assert all(accepted == offered for offered, accepted, _ in drafted.steps)


def test_scripted_counts_are_met() -> None:
    sampling = SAMPLINGS["coupled"]
    steps = decode(sampling, proposers(sampling)["scripted"], 7).steps
    assert [accepted for _, accepted, _ in steps] == [
        min(wanted, offered) for (offered, _, _), wanted in zip(steps, SCRIPT * 9, strict=False)
    ]


@pytest.mark.parametrize("broken", [ShortCommit, WholeCommit])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_wrong_commit_is_caught(broken: type[ToyTarget], name: str) -> None:
    sampling = SAMPLINGS[name]
    plain = decode(sampling, None, 0)
    wrong = decode(sampling, proposers(sampling)["scripted"], 7, target=broken)
    assert wrong.tokens != plain.tokens


@pytest.mark.parametrize("fault", ["fixed position", "position of the step's row count"])
def test_noise_keyed_by_the_wrong_position_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = SAMPLINGS["coupled"]
    plain, proposer = decode(sampling, None, 0), proposers(sampling)["scripted"]

    def shifted(logits, drafts, sampling, seed, position, *laws):  # type: ignore[no-untyped-def]
        return verify(
            logits, drafts, sampling, seed, 5 if fault.startswith("fixed") else position + len(drafts), *laws
        )

    monkeypatch.setattr(loop, "verify", shifted)
    assert decode(sampling, proposer, 3).tokens != plain.tokens


@pytest.mark.parametrize("kind", ["oracle", "scripted", "noisy"])
@pytest.mark.parametrize("drafts", [1, 3, 7])
def test_cuts_fall_where_plain_decoding_ends(kind: str, drafts: int) -> None:
    for sampling in SAMPLINGS.values():
        for max_tokens, stop_ids, context in [
            (5, (), 400),
            (30, (2, 7), 400),
            (30, (), 13),
            (1, (), 400),
            (30, (), 9),
        ]:
            plain, drafted = (
                decode(sampling, proposer, k, max_tokens=max_tokens, stop_ids=stop_ids, context=context)
                for proposer, k in ((None, 0), (proposers(sampling)[kind], drafts))
            )
            assert (drafted.tokens, drafted.finish) == (plain.tokens, plain.finish)
            assert len(PROMPT) + len(plain.tokens) <= context
            assert plain.finish == ("stop" if plain.tokens[-1] in stop_ids else "length")


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_hooks_see_every_token_once(chunk: int) -> None:
    proposer = NoisyProposer(DraftChooser({0: RequestLaw(SAMPLINGS["coupled"], 7)}), 11)
    generation = decode(SAMPLINGS["coupled"], proposer, 3, chunk=chunk)
    text = [*PROMPT, *generation.tokens]
    assert proposer.prefilled == list(enumerate(text))[1 : len(PROMPT)]
    assert proposer.verified == list(enumerate(text))[len(PROMPT) :]


def test_a_prompt_of_one_token_decodes() -> None:
    sampling = SAMPLINGS["coupled"]
    plain = decode(sampling, None, 0, prompt=(4,))
    assert decode(sampling, proposers(sampling, (4,))["scripted"], 3, prompt=(4,)).tokens == plain.tokens


def test_rejection_repeats_with_its_seed_and_accepts_an_oracle_that_is_certain() -> None:
    sampling = replace(SAMPLINGS["coupled"], verification=Verification.REJECTION)
    proposer = NoisyProposer(DraftChooser({0: RequestLaw(sampling, 7)}), 11)
    first, again = decode(sampling, proposer, 3), decode(sampling, proposer, 3)
    assert first == again and any(accepted for _, accepted, _ in first.steps)
    other = decode(replace(sampling, seed=9), proposer, 3)
    assert other.tokens != first.tokens


def test_broken_logits_end_the_request() -> None:
    def target() -> ToyTarget:
        broken = ToyTarget()
        broken.table[:] = float("nan")
        return broken

    generation = decode(Sampling(), None, 0, target=target)
    assert generation.error and generation.tokens == (0,)


def test_prompts_that_cannot_run_are_refused() -> None:
    with pytest.raises(ValueError, match="prompt of 0 tokens"):
        decode(Sampling(), None, 0, prompt=())
    with pytest.raises(ValueError, match="< 8, the context"):
        decode(Sampling(), None, 0, context=8)
