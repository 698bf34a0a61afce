"""Log probabilities over HTTP on the demo checkpoint: the shapes of both endpoints, and drafts change no number."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from ft.fast.llm import LLM
from ft.fast.request import TokenLogprobs
from ft.fast.server.replies import ChatReply, TextReply

from .asking import GREEDY, LAWS, LENGTH, PROMPT, SEEDED, ask, both, official, streamed
from .fake import TOKENIZER, by_byte

CHAT = "chat/completions"


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_log_probabilities_are_the_same_with_drafts(
    client: TestClient, law: dict[str, Any], mode: str
) -> None:
    (choice,) = both(client, **law, logprobs=3, logprobs_mode=mode)
    report = choice["logprobs"]
    assert len(report["tokens"]) == len(report["token_logprobs"]) == len(report["text_offset"]) == LENGTH
    assert "".join(report["tokens"]) == choice["text"]
    assert report["text_offset"][0] == 0 and report["text_offset"][1] == len(report["tokens"][0])
    assert all(len(top) == 3 for top in report["top_logprobs"])
    assert min(report["token_logprobs"]) < -0.01
    assert all(value <= 0 for value in report["token_logprobs"])
    if law == GREEDY:
        assert all(
            value == max(top.values())
            for value, top in zip(report["token_logprobs"], report["top_logprobs"], strict=True)
        )


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_log_probabilities_of_a_chat_are_the_same_with_drafts(
    client: TestClient, law: dict[str, Any]
) -> None:
    (choice,) = both(client, CHAT, **law, logprobs=True, top_logprobs=3)
    report = choice["logprobs"]
    assert report.keys() == {"content", "refusal"} and report["refusal"] is None
    entries = report["content"]
    assert len(entries) == LENGTH
    assert all(entry.keys() == {"token", "logprob", "bytes", "top_logprobs"} for entry in entries)
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == choice["message"]["content"]
    assert min(entry["logprob"] for entry in entries) < -0.01
    for entry in entries:
        values = [one["logprob"] for one in entry["top_logprobs"]]
        assert len(values) == 3 and values == sorted(values, reverse=True)
        own = {name: entry[name] for name in ("token", "logprob", "bytes")}
        assert own in entry["top_logprobs"] or entry["logprob"] <= values[-1]


def test_log_probabilities_of_a_stream_are_those_of_the_whole(client: TestClient) -> None:
    whole = ask(client, **SEEDED, logprobs=2)["choices"][0]["logprobs"]
    chunks = streamed(client, **SEEDED, logprobs=2)
    parts = [choice["logprobs"] for choice in chunks if choice["logprobs"]]
    assert len(parts) > 1
    for name, values in whole.items():
        assert [value for part in parts for value in part[name]] == values


def test_log_probabilities_of_a_streamed_chat_are_those_of_the_whole(client: TestClient) -> None:
    """Both choices, each under its index."""
    report = {"logprobs": True, "top_logprobs": 1, "n": 2, "max_tokens": 16}
    for choice in ask(client, CHAT, **SEEDED, **report)["choices"]:
        chunks = [
            one for one in streamed(client, CHAT, **SEEDED, **report) if one["index"] == choice["index"]
        ]
        parts = [one["logprobs"]["content"] for one in chunks if one["logprobs"]]
        assert len(parts) > 1
        assert [entry for part in parts for entry in part] == choice["logprobs"]["content"]


def test_text_that_is_held_back_does_not_hold_log_probabilities_back(client: TestClient) -> None:
    text = ask(client, **GREEDY)["choices"][0]["text"]
    chunks = streamed(client, **GREEDY, logprobs=0, stop=text[:30] + "\0", speculative=False)
    first = chunks[0]
    assert first["text"] == "" and len(first["logprobs"]["tokens"]) == 1
    assert sum(len(chunk["logprobs"]["tokens"]) for chunk in chunks if chunk["logprobs"]) == LENGTH
    chunks = streamed(client, CHAT, **GREEDY, logprobs=True, max_tokens=3, stop='"""\n\0')
    assert all("content" in chunk["delta"] for chunk in chunks if chunk["logprobs"])


def test_log_probabilities_of_a_cut_text_end_with_it(client: TestClient) -> None:
    text = ask(client, **GREEDY)["choices"][0]["text"]
    (choice,) = both(client, **GREEDY, logprobs=0, stop=text[12:16])
    assert choice["finish_reason"] == "stop"
    assert len("".join(choice["logprobs"]["tokens"])) >= len(choice["text"])
    assert len(choice["logprobs"]["tokens"]) < LENGTH


def test_what_is_impossible_has_a_number_that_json_can_hold(client: TestClient) -> None:
    ids = list(range(300, 303))
    (choice,) = both(
        client, **GREEDY, logprobs=5, logprobs_mode="processed", allowed_token_ids=ids, max_tokens=4
    )
    for top in choice["logprobs"]["top_logprobs"]:
        assert sorted(top.values())[:2] == [-9999.0, -9999.0] and len(top) == 5


def test_offsets_count_whole_characters() -> None:
    """Catches offsets that count every byte of a character as one, so that all that follows is off."""
    report = [TokenLogprobs(token, -0.5) for token in by_byte("é😀x")]
    reply = TextReply("fake", TOKENIZER.piece)
    parts = [reply.part(0, "", None, report[:4]), reply.part(0, "", None, report[4:])]
    assert [place for part in parts for place in part["logprobs"]["text_offset"]] == [0, 0, 1, 1, 1, 1, 2]


def test_a_token_without_text_is_told_from_others() -> None:
    stop, other = TOKENIZER.stop_ids
    report = [TokenLogprobs(stop, -0.5, ((stop, -0.5), (other, -2.0)))]
    text = TextReply("fake", TOKENIZER.piece).part(0, "", None, report)["logprobs"]
    assert text["top_logprobs"] == [{f"token:{stop}": -0.5, f"token:{other}": -2.0}]
    (entry,) = ChatReply("fake", TOKENIZER.piece).part(0, "", None, report)["logprobs"]["content"]
    assert (entry["token"], entry["bytes"]) == (f"token:{stop}", [])
    assert len({one["token"] for one in entry["top_logprobs"]}) == 2


def test_the_official_client_reads_log_probabilities_and_choices(client: TestClient) -> None:
    user = official(client)
    answer = user.completions.create(model="demo", prompt=PROMPT, logprobs=2, n=2, max_tokens=8, seed=1)
    assert len(answer.choices) == 2
    report = answer.choices[0].logprobs
    assert report is not None and report.top_logprobs is not None and len(report.top_logprobs) == 8
    chat = user.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": PROMPT}],
        logprobs=True,
        top_logprobs=2,
        n=2,
        max_tokens=8,
        seed=1,
    )
    assert [choice.index for choice in chat.choices] == [0, 1]
    for choice in chat.choices:
        assert choice.logprobs is not None and choice.logprobs.content is not None
        assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)


def test_log_probabilities_from_python() -> None:
    llm = LLM(
        speculative_algorithm="mtp", speculative_num_steps=3, max_running_requests=2, context_length=256
    )
    (drafted,) = llm.generate(PROMPT, max_tokens=12, logprobs=2)
    (plain,) = llm.generate(PROMPT, max_tokens=12, logprobs=2, speculative=False)
    assert drafted.logprobs == plain.logprobs
    assert tuple(one.token for one in drafted.logprobs) == drafted.token_ids
    assert all(len(one.top) == 2 and one.top[0] == (one.token, one.logprob) for one in drafted.logprobs)
    assert llm.generate(PROMPT, max_tokens=2)[0].logprobs == ()
