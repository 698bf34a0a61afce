"""Text deltas from runs of tokens: whole characters only, and nothing that a stop string may still swallow.

A stop string matches where its last character appears first; among those that end there, the longest. That
does not depend on how the text is cut into tokens or the tokens into runs.
"""

import codecs
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ft.fast.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Piece:
    """text: what may be shown now. tokens: how many tokens of the run belong to the output. stopped: a stop
    id or a stop string was met, and it ends the output."""

    text: str
    tokens: int
    stopped: bool


class TextStream:
    """The text of one request as it grows."""

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), stop_ids: Collection[int] = ()
    ) -> None:
        self._piece = tokenizer.piece
        self._stop_ids = frozenset(stop_ids)
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._matchers = [Matcher(text) for text in stop]
        self._held = ""
        self._ended = False

    def push(self, run: Sequence[int]) -> Piece:
        """Take a run of tokens. Nothing that follows a stop belongs to the output."""
        text, kept = "", 0
        for token in run:
            if self._ended:
                break
            kept += 1
            if token in self._stop_ids:
                text += self._end()
            else:
                text += self._take(self._characters.decode(self._piece(token)))
        return Piece(text, kept, self._ended)

    def finish(self) -> Piece:
        """What was held back, once no more tokens come: half a character becomes U+FFFD, as in a whole decode."""
        if self._ended:
            return Piece("", 0, True)
        text = self._take(self._characters.decode(b"", final=True))
        stopped = self._ended
        if not stopped:
            text, self._held = text + self._held, ""
        self._ended = True
        return Piece(text, 0, stopped)

    def _end(self) -> str:
        text = self.finish().text
        self._ended = True
        return text

    def _take(self, new: str) -> str:
        """Add characters; returns what no stop string can swallow any more."""
        if not self._matchers:
            return new
        text = self._held + new
        for end in range(len(self._held) + 1, len(text) + 1):
            lengths = [matcher.length for matcher in self._matchers if matcher.advance(text[end - 1])]
            if lengths:
                self._held, self._ended = "", True
                return text[: end - max(lengths)]
        safe = len(text) - max(matcher.matched for matcher in self._matchers)
        self._held = text[safe:]
        return text[:safe]


class Matcher:
    """Finds one string in a stream of characters. matched: how much of it the stream now ends with."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.length = len(text)
        self.matched = 0
        self._shorter = _borders(text)

    def advance(self, character: str) -> bool:
        """Take a character; true when the string is complete."""
        matched = self.matched
        while matched and self.text[matched] != character:
            matched = self._shorter[matched - 1]
        self.matched = matched + (self.text[matched] == character)
        return self.matched == self.length


def _borders(text: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(text)
    for end in range(1, len(text)):
        length = borders[end - 1]
        while length and text[length] != text[end]:
            length = borders[length - 1]
        borders[end] = length + (text[length] == text[end])
    return borders
