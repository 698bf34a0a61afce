"""Text generation from Python: an engine, its tokenizer, and the loop that feeds and drains them."""

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

from ft.fast import validate, validate_edits
from ft.fast.generation import Completion, Delta, Generation
from ft.fast.request import EngineLike, Request
from ft.fast.table import STOP_IDS
from ft.fast.text.grammar import GrammarCompiler, GrammarError, GrammarSpec, Matcher
from ft.fast.text.stream import TextStream
from ft.fast.text.tokenizer import Tokenizer
from ft.fast.validate import Options

Prompt = str | Sequence[int]
KEPT_COMPILERS = 4
"""Sets of stop ids whose grammar compilers are kept."""


class LLM:
    """Not thread-safe: one thread calls `generate` and `stream`, and none may while a server runs on it.

    context: tokens a request may hold, prompt included. vocabulary: V of the model; ids are 0..V-1.
    """

    engine: EngineLike
    tokenizer: Tokenizer
    context: int
    vocabulary: int

    def __init__(self, model: str | Path | None = None, **flags: Any) -> None:
        """Load a checkpoint. flags: those of `ft serve` with underscores, as fields of `inputs.Flags`.

        Refusal says which flag or checkpoint cannot be used, TokenizerError which of the tokenizer's files;
        TypeError names a flag that does not exist.
        """
        parts = load(None if model is None else Path(model), flags)
        self._set_parts(*parts)

    @classmethod
    def from_engine(cls, engine: EngineLike, tokenizer: Tokenizer, context: int, vocabulary: int) -> "LLM":
        """An LLM on an engine that exists already."""
        llm = cls.__new__(cls)
        llm._set_parts(engine, tokenizer, context, vocabulary)
        return llm

    def _set_parts(self, engine: EngineLike, tokenizer: Tokenizer, context: int, vocabulary: int) -> None:
        self.engine, self.tokenizer = engine, tokenizer
        self.context, self.vocabulary = context, vocabulary
        self._numbers = count()
        self._compilers: OrderedDict[tuple[int, ...], GrammarCompiler] = OrderedDict()
        self._compiling = Lock()
        self._active: dict[str, tuple[Generation, deque[Delta]]] = {}

    def prepare(self, request_id: str, prompt: Prompt, options: Options, plain: bool = True) -> Generation:
        """A checked request, not yet in the engine. plain: a text prompt is a document and no rendered chat.

        ParameterError names the parameter that is out of range.
        """
        try:
            ids = self.tokenizer.encode(prompt, plain) if isinstance(prompt, str) else prompt
        except ValueError as error:
            raise validate.ParameterError("prompt", "cannot be encoded", str(error)) from error
        if not isinstance(ids, Sequence):
            raise validate.ParameterError("prompt", f"is {ids!r}", "it must be a text or a list of token ids")
        checked = validate.prompt(ids, self.context, self.vocabulary)
        stop_ids = self._stop_ids(options)
        edits = validate_edits.edits(options, self.tokenizer, checked, self.vocabulary)
        validate.compatible(options, validate_edits.thinks(self.tokenizer, checked))
        logprobs, processed = validate.logprobs(options, self.vocabulary)
        request = Request(
            id=request_id,
            prompt=checked,
            max_tokens=validate.max_tokens(options.max_tokens, self.context),
            sampling=validate.sampling(options, self.vocabulary, edits),
            stop_ids=stop_ids,
            drafts=None if options.speculative else 0,
            logprobs=logprobs,
            processed_logprobs=processed,
            grammar=None if options.grammar is None else self._matcher(options.grammar, stop_ids),
        )
        stop = validate.stop_strings(options.stop)
        return Generation(request, TextStream(self.tokenizer, stop, stop_ids))

    def _stop_ids(self, options: Options) -> tuple[int, ...]:
        """The checkpoint's, unless they are to be ignored, and those of the request."""
        own = () if options.ignore_eos else self.tokenizer.stop_ids
        more = validate_edits.token_ids("stop_token_ids", options.stop_token_ids, self.vocabulary)
        found = tuple(dict.fromkeys((*own, *more)))
        if len(found) > STOP_IDS:
            limit = f"at most {STOP_IDS} are matched, the checkpoint's own {len(own)} included"
            raise validate.ParameterError("stop_token_ids", f"makes {len(found)} stop ids", limit)
        return found

    def _matcher(self, spec: GrammarSpec, stop_ids: tuple[int, ...]) -> Matcher:
        """A fresh matcher. ParameterError for a grammar that cannot be used."""
        try:
            with self._compiling:
                if stop_ids not in self._compilers:
                    if self.tokenizer.file is None:
                        raise GrammarError("the tokenizer was not read from a file")
                    self._compilers[stop_ids] = GrammarCompiler(
                        self.tokenizer.file, self.vocabulary, stop_ids
                    )
                    while len(self._compilers) > KEPT_COMPILERS:
                        self._compilers.popitem(last=False)
                self._compilers.move_to_end(stop_ids)
                compiler = self._compilers[stop_ids]
            return compiler.matcher(spec)
        except GrammarError as error:
            raise validate.ParameterError("response_format", "cannot be used", str(error)) from error

    def generate(
        self, prompts: str | Sequence[str] | Sequence[Sequence[int]], **options: Any
    ) -> list[Completion]:
        """Continue the prompts, all together. options: fields of `validate.Options`, the same for each.

        A request that fails in the engine gives a completion with its error. ParameterError for a bad
        parameter, ValueError for a request that can never run; then nothing is generated.
        """
        listed: Sequence[Prompt] = [prompts] if isinstance(prompts, str) else prompts
        wishes = Options(**options)
        generations = [self.prepare(f"generate-{next(self._numbers)}", prompt, wishes) for prompt in listed]
        try:
            for generation in generations:
                self._add(generation)
            while any(generation.finish is None for generation in generations):
                self._step()
        finally:
            self._remove(generations)
        return [generation.completion() for generation in generations]

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[Delta]:
        """Continue one prompt, a delta for each step. Closing the iterator ends the request.

        Options and errors are those of `generate`; the request joins the engine when the first delta is asked for.
        """
        return self._deltas(self.prepare(f"stream-{next(self._numbers)}", prompt, Options(**options)))

    def _deltas(self, generation: Generation) -> Iterator[Delta]:
        try:
            arrived = self._add(generation)
            while arrived or generation.finish is None:
                while arrived:
                    yield arrived.popleft()
                if generation.finish is None:
                    self._step()
        finally:
            self._remove([generation])

    def _add(self, generation: Generation) -> deque[Delta]:
        self.engine.add(generation.request)
        arrived: deque[Delta] = deque()
        self._active[generation.request.id] = generation, arrived
        return arrived

    def _step(self) -> None:
        for update in self.engine.step():
            generation, arrived = self._active.get(update.request_id, (None, None))
            if generation is None or arrived is None:
                continue
            delta = generation.take(update)
            arrived.append(delta)
            if delta.finish is not None:
                del self._active[update.request_id]
                if update.finish is None:
                    self.engine.abort(update.request_id)

    def _remove(self, generations: Sequence[Generation]) -> None:
        """Take back what has not finished, and let the engine come to rest when nothing else runs."""
        for generation in generations:
            if self._active.pop(generation.request.id, None):
                self.engine.abort(generation.request.id)
        while not self._active and not self.engine.idle:
            self._step()


def load(model: Path | None, flags: dict[str, Any]) -> tuple[EngineLike, Tokenizer, int, int]:
    """Engine, tokenizer, context and vocabulary for the flags."""
    from ft.fast.build import build
    from ft.fast.facts import make_plan
    from ft.fast.inputs import Flags

    chosen = Flags(model=model, **flags)
    plan = make_plan(chosen)
    tokenizer = Tokenizer.load(chosen.folder)
    engine = build(plan)
    return engine, tokenizer, plan.context, engine.runtime.vocabulary
