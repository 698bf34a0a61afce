"""LLM over a fake engine: texts, ends, counts, streams side by side, and what an abort leaves behind."""

from collections import deque
from itertools import zip_longest

import pytest

from ft.fast.llm import LLM
from ft.fast.request import FinishReason
from ft.fast.validate import ParameterError
from ft.reference.types import Verification

from .fake import CONTEXT, END, FakeEngine, by_byte, expected, make_llm

STOPPING = {"?": (*by_byte("ab"), END, *by_byte("cdef"))}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def llm(engine: FakeEngine) -> LLM:
    return make_llm(engine)


def at_rest(engine: FakeEngine) -> bool:
    return engine.idle and engine.free_slots == engine.slots


def test_more_prompts_than_slots(llm: LLM, engine: FakeEngine) -> None:
    prompts = [f"{n} prompt" for n in range(11)]
    completions = llm.generate(prompts, max_tokens=9)
    assert [one.text for one in completions] == [expected(prompt, 9) for prompt in prompts]
    assert {one.finish_reason for one in completions} == {FinishReason.LENGTH}
    assert at_rest(engine)


def test_a_prompt_may_be_ids(llm: LLM) -> None:
    by_text, by_ids = llm.generate("hello"), llm.generate([by_byte("hello")])
    assert (by_text[0].text, by_text[0].token_ids) == (by_ids[0].text, by_ids[0].token_ids)


@pytest.mark.parametrize("run", [1, 2, 4])
def test_a_stream_joins_to_the_whole(run: int) -> None:
    """Catches text that depends on how tokens fall into runs."""
    llm = make_llm(FakeEngine(run=run))
    deltas = list(llm.stream("hello", max_tokens=30, stop=["e f", "zz"]))
    (whole,) = make_llm(FakeEngine()).generate("hello", max_tokens=30, stop=["e f", "zz"])
    assert "".join(delta.text for delta in deltas) == whole.text
    assert deltas[-1].finish is whole.finish_reason
    assert sum(len(delta.update.tokens) for delta in deltas) == whole.usage.completion_tokens


def test_a_stop_id_inside_a_run_wins_over_the_limit() -> None:
    """Catches a run that is cut by max_tokens first, and text after the stop id."""
    llm = make_llm(FakeEngine(STOPPING, drafts=7, run=8))
    (one,) = llm.generate("?", max_tokens=5)
    assert (one.text, one.token_ids[-1], one.finish_reason) == ("ab", END, FinishReason.STOP)
    assert one.usage.completion_tokens == 3
    (short,) = llm.generate("?", max_tokens=2)
    assert (short.text, short.finish_reason) == ("ab", FinishReason.LENGTH)


def test_a_stop_id_can_be_ignored() -> None:
    (one,) = make_llm(FakeEngine(STOPPING)).generate("?", max_tokens=7, ignore_eos=True)
    assert (one.text, len(one.token_ids), one.finish_reason) == ("abcdef", 7, FinishReason.LENGTH)


@pytest.mark.parametrize("run", [1, 2, 3, 4, 5, 8])
def test_a_stop_string_ends_the_request_in_the_engine(run: int) -> None:
    """Catches a stop that is cut from the text while the engine goes on, and counts beyond it."""
    engine = FakeEngine({"?": by_byte("ab STOP cdefghij")}, drafts=7, run=run)
    (one,) = make_llm(engine).generate("?", max_tokens=100, stop="STOP")
    assert (one.text, one.finish_reason) == ("ab ", FinishReason.STOP)
    assert one.token_ids == by_byte("ab STOP")
    assert one.usage.accepted_drafts <= one.usage.completion_tokens == 7
    assert len(engine.aborted) == 1
    assert at_rest(engine)


def test_a_stop_string_at_the_last_token_is_a_stop() -> None:
    engine = FakeEngine({"?": by_byte("abSTOP")})
    (one,) = make_llm(engine).generate("?", max_tokens=6, stop=["STOP"])
    assert (one.text, one.finish_reason) == ("ab", FinishReason.STOP)
    (other,) = make_llm(engine).generate("?", max_tokens=5, stop=["STOP"])
    assert (other.text, other.finish_reason) == ("abSTO", FinishReason.LENGTH)


def test_counts_add_up(llm: LLM) -> None:
    """Catches drafts counted as accepted that a cut dropped, and steps without tokens."""
    (one,) = llm.generate("hello", max_tokens=50)
    tally, usage = one.tally, one.usage
    assert usage.prompt_tokens == 5
    assert usage.completion_tokens == len(one.token_ids) == tally.tokens == 50
    assert usage.accepted_drafts + usage.rejected_drafts == sum(tally.offered) == 3 * tally.steps
    assert usage.completion_tokens - usage.accepted_drafts in (tally.steps, tally.steps - 1)
    assert sum(tally.accepted) >= usage.accepted_drafts
    assert list(tally.accepted) == sorted(tally.accepted, reverse=True)


def test_speculation_off_for_one_request_only(llm: LLM, engine: FakeEngine) -> None:
    off = llm.stream("hello", max_tokens=12, speculative=False)
    on = llm.stream("hello", max_tokens=12)
    pairs = list(zip_longest(off, on))
    assert all(delta.update.drafted == 0 for delta, _ in pairs if delta)
    assert all(delta.update.drafted == 3 for _, delta in pairs if delta)
    assert "".join(delta.text for delta, _ in pairs if delta) == "".join(d.text for _, d in pairs if d)


def test_a_closed_stream_leaves_nothing_and_others_go_on(llm: LLM, engine: FakeEngine) -> None:
    """Catches a request that stays in its slot, and one that loses updates to another's steps."""
    first, second = llm.stream("one", max_tokens=40), llm.stream("two", max_tokens=40)
    text = next(first).text
    parts = [next(second).text]
    first.close()  # type: ignore[attr-defined]
    parts += [delta.text for delta in second]
    assert expected("one", 40).startswith(text)
    assert "".join(parts) == expected("two", 40)
    assert engine.aborted == ["stream-0"]
    assert at_rest(engine)


def test_a_seed_decides_the_verification(llm: LLM, engine: FakeEngine) -> None:
    """Catches a default verification that would tie a seeded text to its drafts."""
    llm.generate("a", temperature=1.0, seed=3)
    llm.generate("a", temperature=1.0)
    llm.generate("a", seed=3)
    modes = [request.sampling.mode() for request in engine.added]
    assert modes == [Verification.COUPLED, Verification.REJECTION, Verification.GREEDY]
    assert [request.sampling.seed for request in engine.added] == [3, None, 3]


def test_numbers_that_no_device_could_hold_are_brought_down(llm: LLM, engine: FakeEngine) -> None:
    """Catches an overflow in the engine's tables, which would end every request."""
    llm.generate("abc", max_tokens=10**30, top_k=10**30)
    assert engine.added[-1].max_tokens == CONTEXT
    assert engine.added[-1].sampling.top_k == 288
    llm.generate("abc", max_tokens=None, top_k=-1)
    assert engine.added[-1].sampling.top_k == 0


def test_one_failed_request_leaves_the_others() -> None:
    engine = FakeEngine(poison="bad")
    good, bad = make_llm(engine).generate(["good", "bad"], max_tokens=20)
    assert good.text == expected("good", 20)
    assert (bad.finish_reason, bad.error) == (FinishReason.ERROR, "the logits are not finite")
    assert at_rest(engine)


def test_an_exception_of_the_engine_leaves_it_empty(llm: LLM, engine: FakeEngine) -> None:
    engine.fail = deque([None, None, RuntimeError("boom")])
    with pytest.raises(RuntimeError, match="boom"):
        llm.generate(["a", "b"], max_tokens=40)
    assert engine.aborted == ["generate-0", "generate-1"]
    assert at_rest(engine)
    assert llm.generate("a", max_tokens=4)[0].text == expected("a", 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
        ({"max_tokens": 1.5}, "max_tokens is 1.5; it must be an integer"),
        ({"max_tokens": True}, "max_tokens is True; it must be an integer"),
        ({"temperature": -0.1}, "temperature is -0.1; it must be from 0 to 2"),
        ({"temperature": 2.1}, "temperature is 2.1; it must be from 0 to 2"),
        ({"temperature": float("nan")}, "temperature is nan; it must be a finite number"),
        ({"temperature": "1"}, "temperature is '1'; it must be a finite number"),
        ({"top_p": 0.0}, "top_p is 0.0; it must be above 0 and at most 1"),
        ({"top_p": 1.01}, "top_p is 1.01; it must be above 0 and at most 1"),
        ({"min_p": -0.5}, "min_p is -0.5; it must be from 0 to 1"),
        ({"min_p": 1.5}, "min_p is 1.5; it must be from 0 to 1"),
        ({"top_k": -2}, "top_k is -2; it must be at least 1, or 0 or -1 for off"),
        ({"seed": 2**63}, "seed is 9223372036854775808; it must be from -2**63 to 2**63 - 1"),
        ({"seed": "7"}, "seed is '7'; it must be an integer"),
        ({"stop": ["a", ""]}, "stop has ''; each must be a string of one character or more"),
        ({"stop": ["a"] * 17}, "stop has 17 strings; at most 16 are allowed"),
    ],
)
def test_a_bad_option_is_named(
    llm: LLM, engine: FakeEngine, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        llm.generate("a", **options)
    assert str(caught.value) == message
    assert caught.value.parameter == next(iter(options))
    assert not engine.added


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "prompt is empty; it needs at least one token"),
        ([], "prompt is empty; it needs at least one token"),
        ([5, 288], "prompt has the token id 288 at index 1; ids must be integers from 0 to 287"),
        ([-1], "prompt has the token id -1 at index 0; ids must be integers from 0 to 287"),
        ([True], "prompt has the token id True at index 0; ids must be integers from 0 to 287"),
        ([1] * 512, "prompt has 512 tokens; it must have fewer than the context of 512 tokens"),
        ("\udc00", "prompt cannot be encoded; the text is not Unicode: it holds half of a surrogate pair"),
        (7, "prompt is 7; it must be a text or a list of token ids"),
    ],
)
def test_a_bad_prompt_is_refused_before_any_runs(
    llm: LLM, engine: FakeEngine, prompt: object, message: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        llm.generate(["good", prompt])  # type: ignore[arg-type]
    assert str(caught.value) == message
    assert not engine.added


def test_the_longest_prompt_gives_one_token(llm: LLM) -> None:
    (one,) = llm.generate([[1] * 511], max_tokens=9)
    assert (len(one.token_ids), one.finish_reason) == (1, FinishReason.LENGTH)
