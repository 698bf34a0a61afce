"""Parameters at the ends of their ranges, over HTTP and from Python, as they arrive at the engine."""

from typing import Any

import pytest

from ft.fast.request import Request
from ft.fast.text.grammar import Matcher
from ft.fast.validate import ParameterError
from ft.reference.types import Edits, ThinkingBudget, Verification

from .fake import TOKENIZER, FakeEngine, make_llm
from .live import MODEL, Live


def arrived(live: Live, **parameters: Any) -> list[Request]:
    """What one request makes the engine do."""
    before = len(live.engine.added)
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 3, **parameters}
    answer = live.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return live.engine.added[before:]


@pytest.mark.parametrize(
    ("parameters", "edits"),
    [
        ({"frequency_penalty": 2}, Edits(frequency_penalty=2.0)),
        ({"frequency_penalty": -2.0}, Edits(frequency_penalty=-2.0)),
        ({"presence_penalty": 2}, Edits(presence_penalty=2.0)),
        ({"presence_penalty": -2}, Edits(presence_penalty=-2.0)),
        ({"repetition_penalty": 10}, Edits(repetition_penalty=10.0)),
        ({"repetition_penalty": 0.01}, Edits(repetition_penalty=0.01)),
        ({"repetition_penalty": 1}, Edits()),
        ({"logit_bias": {"0": -100, "287": 100}}, Edits(logit_bias=((0, -100.0), (287, 100.0)))),
        ({"logit_bias": {}}, Edits()),
        ({"allowed_token_ids": [287]}, Edits(allowed_ids=(287,))),
        ({"allowed_token_ids": [1, 0, 1] * 999}, Edits(allowed_ids=(1, 0))),
        ({"min_tokens": 3}, Edits(min_tokens=3)),
        ({"min_tokens": 0}, Edits()),
        ({"bad_words": ["\n"]}, Edits(bad_words=((198,), (220, 198)))),
        ({"bad_words": []}, Edits()),
        ({"thinking_token_budget": 0}, Edits()),
        ({"prompt": "<think>", "thinking_token_budget": 0}, Edits(thinking=ThinkingBudget(0, (260,)))),
        ({"prompt": "<think></think>", "thinking_token_budget": 9}, Edits()),
    ],
    ids=str,
)
def test_an_edit_arrives_as_it_was_sent(live: Live, parameters: dict[str, Any], edits: Edits) -> None:
    (request,) = arrived(live, **parameters)
    assert request.sampling.edits == edits


@pytest.mark.parametrize(
    ("parameters", "mode"),
    [
        ({}, Verification.REJECTION),
        ({"seed": 1}, Verification.COUPLED),
        ({"seed": 1, "verification": "rejection"}, Verification.REJECTION),
        ({"verification": "coupled"}, Verification.COUPLED),
        ({"verification": "block"}, Verification.BLOCK),
        ({"verification": "block", "temperature": 0}, Verification.GREEDY),
    ],
    ids=str,
)
def test_the_verification(live: Live, parameters: dict[str, Any], mode: Verification) -> None:
    (request,) = arrived(live, **parameters)
    assert request.sampling.mode() == mode


def test_the_report(live: Live) -> None:
    for parameters, expected in (
        ({}, (None, False)),
        ({"logprobs": 0}, (0, False)),
        ({"logprobs": 5, "logprobs_mode": "processed"}, (5, True)),
        ({"logprobs": None, "logprobs_mode": "raw"}, (None, False)),
    ):
        (request,) = arrived(live, **parameters)
        assert (request.logprobs, request.processed_logprobs) == expected


def test_stop_ids_join_the_checkpoints_own(live: Live) -> None:
    own = TOKENIZER.stop_ids
    (request,) = arrived(live, stop_token_ids=[7, 7, own[0], *range(20, 33)])
    assert request.stop_ids == (*own, 7, *range(20, 33)) and len(request.stop_ids) == 16
    (request,) = arrived(live, stop_token_ids=[7], ignore_eos=True)
    assert request.stop_ids == (7,)


def test_choices_wrap_their_seeds_and_share_no_grammar(live: Live) -> None:
    """Catches choices that advance one state, and a seed that leaves 64 bits."""
    form = {"type": "regex", "regex": "[a-z ]*"}
    requests = arrived(live, n=3, best_of=3, seed=2**63 - 1, response_format=form)
    assert [request.sampling.seed for request in requests] == [2**63 - 1, -(2**63), 1 - 2**63]
    assert all(isinstance(request.grammar, Matcher) for request in requests)
    assert len({id(request.grammar) for request in requests}) == 3
    assert len(arrived(live, n=16, prompt=["a"] * 8, max_tokens=1)) == 128


def test_text_is_no_structured_output(live: Live) -> None:
    (request,) = arrived(live, response_format={"type": "text"}, ignore_eos=True, min_tokens=2)
    assert request.grammar is None


def test_numbers_that_no_table_could_hold_are_brought_down() -> None:
    """Catches an overflow in the engine's tables, which would end every request."""
    engine = FakeEngine()
    llm = make_llm(engine)
    llm.generate("<think>", max_tokens=None, min_tokens=2**70, thinking_token_budget=2**70)
    edits = engine.added[-1].sampling.edits
    assert edits.thinking is not None
    assert edits.min_tokens == edits.thinking.tokens == 2**31 - 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bad_words": "path"}, "bad_words is 'path'; it must be a list of strings"),
        (
            {"bad_words": ["\udc00"]},
            "bad_words has '\\udc00', which cannot be encoded; the text is not Unicode",
        ),
        ({"logprobs": 21}, "logprobs is 21; it must be from 0 to 20"),
        ({"logit_bias": {True: 1.0}}, "logit_bias has the token id True; ids are 0 to 287"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_only_python_can_send(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        make_llm(FakeEngine()).generate("a", **options)
    assert str(caught.value).startswith(message)
