"""One request on its way from updates to text: what is shown, what is counted, and how it ended."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ft.fast.request import FinishReason, Request, TokenLogprobs, Update
from ft.fast.tally import Tally, tally
from ft.fast.text.stream import TextStream


@dataclass(frozen=True)
class Usage:
    """Tokens of one request, or of several added up.

    completion_tokens includes the stop id. accepted_drafts: drafts that stand in the output;
    rejected_drafts: all others that were offered.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    accepted_drafts: int = 0
    rejected_drafts: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
            self.accepted_drafts + other.accepted_drafts,
            self.rejected_drafts + other.rejected_drafts,
        )


@dataclass(frozen=True)
class Completion:
    """A finished request. token_ids: all that was generated, a stop id included; text: without it.

    tally: steps, and acceptance by position as the verify judged it, before any cut. error: why the engine
    failed, with finish_reason ERROR. logprobs: one a token, where asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    tally: Tally
    error: str | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True)
class Delta:
    """What one step adds to a request: text that is safe to show, and the update cut to the output's end."""

    text: str
    update: Update

    @property
    def finish(self) -> FinishReason | None:
        return self.update.finish


class Generation:
    """A request, the text it has so far, and its updates cut to what belongs to the output."""

    def __init__(self, request: Request, text: TextStream) -> None:
        self.request = request
        self.updates: list[Update] = []
        self._text = text
        self._shown: list[str] = []
        self._started = time.perf_counter()
        self._seconds = 0.0

    @property
    def finish(self) -> FinishReason | None:
        return self.updates[-1].finish if self.updates else None

    def take(self, update: Update) -> Delta:
        """Account for an update. When the delta has a finish and the update has none, a stop string ended the
        request here, and the caller must abort it in the engine."""
        piece = self._text.push(update.tokens)
        text, stopped = piece.text, piece.stopped
        if update.finish is not None and not stopped:
            last = self._text.finish()
            text, stopped = text + last.text, last.stopped
        failed = update.finish in (FinishReason.ERROR, FinishReason.ABORT)
        finish = FinishReason.STOP if stopped and not failed else update.finish
        cut = replace(
            update,
            tokens=update.tokens[: piece.tokens],
            logprobs=update.logprobs[: piece.tokens],
            finish=finish,
        )
        self.updates.append(cut)
        self._shown.append(text)
        if finish is not None:
            self._seconds = time.perf_counter() - self._started
        return Delta(text, cut)

    def completion(self) -> Completion:
        """The whole, once finished. ValueError before that."""
        if self.finish is None:
            raise ValueError(f"request {self.request.id} has not finished")
        return Completion(
            text="".join(self._shown),
            token_ids=tuple(token for update in self.updates for token in update.tokens),
            finish_reason=self.finish,
            usage=usage(len(self.request.prompt), self.updates),
            tally=tally(self.updates, self._seconds),
            error=self.updates[-1].error,
            logprobs=tuple(one for update in self.updates for one in update.logprobs),
        )


def usage(prompt_tokens: int, updates: Sequence[Update]) -> Usage:
    """The tokens of one request whose updates are cut to its output."""
    drafted = sum(update.drafted for update in updates)
    accepted = sum(map(accepted_in_output, updates))
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=sum(len(update.tokens) for update in updates),
        cached_tokens=updates[0].cached_tokens if updates else 0,
        accepted_drafts=accepted,
        rejected_drafts=drafted - accepted,
    )


def accepted_in_output(update: Update) -> int:
    """Drafts of one step that stand in the output: a cut may drop accepted ones."""
    return min(update.accepted, len(update.tokens))
