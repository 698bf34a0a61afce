"""An engine without a model: the next token is a function of the first prompt token and the position.

So a continuation of a prefix is the continuation of the whole, and every run length gives the same tokens.
Results come one step behind, runs vary in length, and ends are cut as on a device.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ft.fast.llm import LLM
from ft.fast.request import FinishReason, Request, Update
from ft.fast.text.tokenizer import Tokenizer

TOKENIZER = Tokenizer.load(Path(__file__).resolve().parents[1] / "goldens" / "tokenizer")
SINGLE = {TOKENIZER.piece(token): token for token in range(256)}
END = 258
CONTEXT = 512
VOCABULARY = 288
PAGE = 4


def by_byte(text: str) -> tuple[int, ...]:
    """One token a byte."""
    return tuple(SINGLE[bytes([byte])] for byte in text.encode())


def letter(first: int, position: int) -> int:
    """The token at a position of a sequence that begins with `first`: a letter or a space."""
    return by_byte("abcdefghijklmnopqrstuvwxyz ")[(first * 7 + position * position + position // 3) % 27]


@dataclass
class Row:
    """A request in a slot. launched: what the device has emitted; landed steps are a prefix of it."""

    request: Request
    script: Sequence[int]
    cached: int
    launched: int = 0
    ended: bool = False

    @property
    def next(self) -> int:
        position = len(self.request.prompt) + self.launched
        if self.launched < len(self.script):
            return self.script[self.launched]
        return letter(self.request.prompt[0], position)


@dataclass
class FakeEngine:
    """scripts: prompt text -> the tokens that follow it. fail: exceptions for the next steps, None for a good
    one; broken: an exception for every step. poison: prompts whose request ends in an error. run: a fixed
    run length instead of varied ones. calls: steps asked for, failed ones included."""

    scripts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    drafts: int = 3
    slots: int = 4
    step_seconds: float = 0.0
    run: int | None = None
    fail: deque[Exception | None] = field(default_factory=deque)
    broken: Exception | None = None
    poison: str | None = None
    added: list[Request] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    steps: int = 0
    calls: int = 0

    def __post_init__(self) -> None:
        self.waiting: deque[Request] = deque()
        self.rows: dict[str, Row] = {}
        self.flight: list[Update] = []
        self.published: list[tuple[int, ...]] = []

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.rows or self.flight)

    @property
    def free_slots(self) -> int:
        return self.slots - len(self.rows)

    def add(self, request: Request) -> None:
        if len(request.prompt) + request.max_tokens > 10_000:
            raise ValueError("the pool is too small")
        self.added.append(request)
        self.waiting.append(request)

    def abort(self, request_id: str) -> None:
        if self.rows.pop(request_id, None) is None and all(one.id != request_id for one in self.waiting):
            return
        self.aborted.append(request_id)
        self.waiting = deque(one for one in self.waiting if one.id != request_id)
        self.flight.append(Update(request_id, (), finish=FinishReason.ABORT))

    def step(self) -> list[Update]:
        self.calls += 1
        time.sleep(self.step_seconds)
        error = self.broken or (self.fail.popleft() if self.fail else None)
        if error is not None:
            raise error
        self.steps += 1
        while self.waiting and self.free_slots:
            self._admit(self.waiting.popleft())
        landed, self.flight = self.flight, [self._launch(row) for row in self.rows.values() if not row.ended]
        for update in landed:
            if update.finish is not None and update.request_id in self.rows:
                self._retire(self.rows.pop(update.request_id))
        return landed

    def _admit(self, request: Request) -> None:
        script = self.scripts.get(TOKENIZER.decode(request.prompt), ())
        cached = max((common(request.prompt, done) for done in self.published), default=0)
        cached = min(cached, len(request.prompt) - 1) // PAGE * PAGE
        self.rows[request.id] = Row(request, script, cached)

    def _retire(self, row: Row) -> None:
        self.published.append(row.request.prompt)

    def _launch(self, row: Row) -> Update:
        """The next run of a request, cut where it ends."""
        request = row.request
        if TOKENIZER.decode(request.prompt) == self.poison:
            row.ended = True
            return Update(request.id, (), finish=FinishReason.ERROR, error="the logits are not finite")
        drafts = self.drafts if request.drafts is None else min(self.drafts, request.drafts)
        length = min(self.run or 1 + (row.launched * 5 + self.steps) % (drafts + 1), drafts + 1)
        tokens: list[int] = []
        finish = None
        while len(tokens) < length and finish is None:
            tokens.append(row.next)
            row.launched += 1
            if tokens[-1] in request.stop_ids:
                finish = FinishReason.STOP
            elif row.launched >= request.max_tokens or len(request.prompt) + row.launched >= CONTEXT:
                finish = FinishReason.LENGTH
        row.ended = finish is not None
        return Update(request.id, tuple(tokens), drafts, length - 1, finish, cached_tokens=row.cached)


def common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common prefix."""
    pairs = zip(left, right, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def expected(prompt: str, length: int, script: Sequence[int] = ()) -> str:
    """What any engine of this kind writes after a prompt."""
    row = Row(Request("", by_byte(prompt), length), script, 0)
    tokens = []
    for row.launched in range(length):
        tokens.append(row.next)
    return TOKENIZER.decode(tokens)


def make_llm(engine: FakeEngine) -> LLM:
    return LLM.from_engine(engine, TOKENIZER, CONTEXT, VOCABULARY)
