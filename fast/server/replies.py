"""What clients get: the objects of both endpoints, whole and in chunks.

Beyond OpenAI's fields, `ft` beside `usage` tells the steps, the tokens a step and the drafts by position.
"""

import codecs
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from ft.fast.generation import Completion, Usage
from ft.fast.request import FinishReason, TokenLogprobs

LEAST_LOGPROB = -9999.0


class Reply:
    """Shapes of one HTTP answer. Subclasses fill in the choices. piece: the bytes of a token. choices: how many
    a prompt has; their prompt counts once."""

    prefix: str
    whole_object: str
    chunk_object: str

    def __init__(self, model: str, piece: Callable[[int], bytes]) -> None:
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self.model = model
        self.created = int(time.time())
        self.piece = piece
        self.choices = 1

    def whole(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        choices = [self.choice(index, completion) for index, completion in enumerate(completions)]
        return self._object(self.whole_object, choices) | counts(completions, self.choices)

    def chunk(
        self, index: int, text: str, finish: FinishReason | None, logprobs: Sequence[TokenLogprobs] = ()
    ) -> dict[str, Any]:
        """New text of one choice, or its end."""
        return self._object(self.chunk_object, [self.part(index, text, finish, logprobs)])

    def opening(self, index: int) -> list[dict[str, Any]]:
        """Chunks before the first text of a choice."""
        return []

    def closing(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """The chunk that carries the usage."""
        return self._object(self.chunk_object, []) | counts(completions, self.choices)

    def choice(self, index: int, completion: Completion) -> dict[str, Any]:
        raise NotImplementedError

    def part(
        self, index: int, text: str, finish: FinishReason | None, logprobs: Sequence[TokenLogprobs]
    ) -> dict[str, Any]:
        raise NotImplementedError

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


class Offset:
    """Characters of a text whose bytes come token by token; a character counts once its last byte is there."""

    def __init__(self) -> None:
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._place = 0

    def before(self, piece: bytes) -> int:
        """The characters so far; then those of `piece` are added."""
        place = self._place
        self._place += len(self._characters.decode(piece))
        return place


class TextReply(Reply):
    """/v1/completions."""

    prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def __init__(self, model: str, piece: Callable[[int], bytes]) -> None:
        super().__init__(model, piece)
        self._offsets: dict[int, Offset] = {}

    def choice(self, index: int, completion: Completion) -> dict[str, Any]:
        return self.part(index, completion.text, completion.finish_reason, completion.logprobs)

    def part(
        self, index: int, text: str, finish: FinishReason | None, logprobs: Sequence[TokenLogprobs]
    ) -> dict[str, Any]:
        reported = self._logprobs(index, logprobs) if logprobs else None
        return {"index": index, "text": text, "logprobs": reported, "finish_reason": finish}

    def _logprobs(self, index: int, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """Lists, one entry a token; text_offset counts characters from the start of the choice's text."""
        offset = self._offsets.setdefault(index, Offset())
        offsets = [offset.before(self.piece(one.token)) for one in logprobs]
        return {
            "tokens": [self._spelled(one.token) for one in logprobs],
            "token_logprobs": [finite(one.logprob) for one in logprobs],
            "top_logprobs": [
                {self._spelled(token): finite(value) for token, value in one.top} for one in logprobs
            ],
            "text_offset": offsets,
        }

    def _spelled(self, token: int) -> str:
        """The text of a token; its bytes where they are no text, so that no two tokens look the same."""
        piece = self.piece(token)
        try:
            return piece.decode() or unspelled(token)
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


class ChatReply(Reply):
    """/v1/chat/completions."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self, index: int) -> list[dict[str, Any]]:
        return [self._object(self.chunk_object, [_delta(index, {"role": "assistant", "content": ""}, None)])]

    def choice(self, index: int, completion: Completion) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": completion.text, "refusal": None},
            "logprobs": self._logprobs(completion.logprobs),
            "finish_reason": completion.finish_reason,
        }

    def part(
        self, index: int, text: str, finish: FinishReason | None, logprobs: Sequence[TokenLogprobs]
    ) -> dict[str, Any]:
        content = {"content": text} if text or logprobs else {}
        return _delta(index, content, finish, self._logprobs(logprobs))

    def _logprobs(self, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        if not logprobs:
            return None
        content = [
            self._entry(one.token, one.logprob)
            | {"top_logprobs": [self._entry(token, value) for token, value in one.top]}
            for one in logprobs
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        piece = self.piece(token)
        return {
            "token": piece.decode("utf-8", "replace") or unspelled(token),
            "logprob": finite(logprob),
            "bytes": list(piece),
        }


def unspelled(token: int) -> str:
    """What stands for a token that adds no text, such as a stop id."""
    return f"token:{token}"


def finite(logprob: float) -> float:
    """JSON has no infinity; clients know this number for it."""
    return max(logprob, LEAST_LOGPROB)


def _delta(
    index: int, delta: dict[str, str], finish: FinishReason | None, logprobs: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def counts(completions: Sequence[Completion], choices: int) -> dict[str, Any]:
    """usage and ft, added up over the choices."""
    total = sum((completion.usage for completion in completions), Usage())
    prompts = sum((completion.usage for completion in completions[::choices]), Usage())
    steps = sum(completion.tally.steps for completion in completions)
    usage = {
        "prompt_tokens": prompts.prompt_tokens,
        "completion_tokens": total.completion_tokens,
        "total_tokens": prompts.prompt_tokens + total.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": prompts.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": total.accepted_drafts,
            "rejected_prediction_tokens": total.rejected_drafts,
        },
    }
    speculation = {
        "steps": steps,
        "tokens_per_step": total.completion_tokens / steps if steps else 0.0,
        "offered_by_position": add_up([completion.tally.offered for completion in completions]),
        "accepted_by_position": add_up([completion.tally.accepted for completion in completions]),
    }
    return {"usage": usage, "ft": speculation}


def add_up(rows: Sequence[Sequence[int]]) -> list[int]:
    """Sums by position of rows that may differ in length."""
    width = max(map(len, rows), default=0)
    return [sum(row[place] for row in rows if place < len(row)) for place in range(width)]
