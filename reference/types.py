"""Values that cross layers, frozen: a step of rows, a proposal, a verdict, sampling parameters.

Shape letters (docs/words.md): B requests, R rows a request, k drafts, V vocabulary, H hidden, K candidates.
"""

from dataclasses import dataclass, field
from enum import IntEnum

from torch import Tensor


@dataclass(frozen=True)
class Step:
    """Rows of B requests for one forward. A prompt chunk and a verify differ in numbers only.

    token_ids, positions: int64 [B, R]; `positions` is the index of the row in its own request and decides
        KV slots and masks. Rows at or beyond `valid` of their request are padding.
    rope_positions: int64 [3, B, R], the temporal, height and width axes; equal to `positions` in plain text.
    valid: int64 [B], real rows of each request, 0..R.
    slots: int64 [B], the request slot that holds each request's state.
    taps: layers whose outputs (residual included) the step must hand to the draft.
    prefill: every valid row is known to be kept, so a recurrence may take its chunk form.
    bound: an upper bound, known to the host, of the positions of valid rows plus one; None when unknown.
    """

    token_ids: Tensor
    positions: Tensor
    rope_positions: Tensor
    valid: Tensor
    slots: Tensor
    taps: tuple[int, ...] = ()
    prefill: bool = False
    bound: int | None = None

    @property
    def requests(self) -> int:
        return self.token_ids.shape[0]

    @property
    def rows(self) -> int:
        return self.token_ids.shape[1]


@dataclass(frozen=True)
class Features:
    """What a target forward hands to the draft.

    final_hidden: [B, R, H] after the final norm, the vector that the head reads.
    layer_outputs: tapped layer -> [B, R, H], residual included.
    """

    final_hidden: Tensor
    layer_outputs: dict[int, Tensor] = field(default_factory=dict)

    def layer_output(self, layer: int) -> Tensor:
        """The tapped output of `layer` [B, R, H]. KeyError names a layer that the step did not tap."""
        if layer not in self.layer_outputs:
            raise KeyError(f"layer {layer} was not tapped; tapped layers: {sorted(self.layer_outputs)}")
        return self.layer_outputs[layer]


@dataclass(frozen=True)
class Proposal:
    """Drafts of one step.

    tokens: int64 [B, k]. counts: int64 [B], how many leading drafts of each request are real (k_eff).
    candidates: int64 [B, k, K] and q: fp32 [B, k, K]: the sparse law each draft was drawn from
    (specs: verify_sampling 4.6). None means a point mass at the draft.
    """

    tokens: Tensor
    counts: Tensor
    candidates: Tensor | None = None
    q: Tensor | None = None


@dataclass(frozen=True)
class Verdict:
    """Outcome of one verify.

    accepted: int64 [B], drafts accepted by the rule (n). emitted: int64 [B, k+1], the run, -1 beyond n+1.
    cut: int64 [B], tokens emitted after stops and limits (m), 1 <= m <= n+1, 0 for an inactive request.
    """

    accepted: Tensor
    emitted: Tensor
    cut: Tensor


class Verification(IntEnum):
    """How drafts are judged (verify_sampling 3, 4, 13)."""

    GREEDY = 0
    REJECTION = 1
    COUPLED = 2
    BLOCK = 3


@dataclass(frozen=True)
class ThinkingBudget:
    """Output tokens a request may think before `end` (token ids, at least one) is forced upon it."""

    tokens: int
    end: tuple[int, ...]


@dataclass(frozen=True)
class Edits:
    """What changes the logits of a row before its law is made: stages 1 to 4 and 6 of verify_sampling 2.

    logit_bias: (id, addend) pairs, each id once. allowed_ids: all others are banned; None bans none. min_tokens: no
    stop id before so many output tokens. repetition_penalty divides and multiplies what prompt or output
    hold already; frequency_penalty and presence_penalty are subtracted a count and once, of output tokens.
    bad_words: token sequences whose last token is banned after the others, at least one token each.
    """

    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_ids: tuple[int, ...] | None = None
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    bad_words: tuple[tuple[int, ...], ...] = ()
    thinking: ThinkingBudget | None = None


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters of one request, after validation.

    temperature 0 is greedy. top_k 0 and top_p 1 and min_p 0 switch their filter off. `seed` None asks for
    a fresh one. `verification` None follows the rule: greedy at temperature 0, coupled when a seed is set,
    rejection otherwise. `edits` apply before all of these.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    verification: Verification | None = None
    edits: Edits = Edits()

    def mode(self) -> Verification:
        """The verification that applies to this request."""
        if self.temperature < GREEDY_TEMPERATURE:
            return Verification.GREEDY
        if self.verification is not None:
            return self.verification
        return Verification.REJECTION if self.seed is None else Verification.COUPLED


GREEDY_TEMPERATURE = 1e-5
"""Temperatures below this are greedy, in plain decoding and in verification alike (verify_sampling 2)."""


class Stream(IntEnum):
    """Independent random streams of one request and position (verify_sampling 10).

    Draws of the first three are keyed by the step as well: a step may look at numbers that decide nothing in it
    (block verification does), and the next step must not see them again. Coupled noise is keyed by
    position alone, so that it is the same at every k.
    """

    DRAFT = 0
    COIN = 1
    FINAL = 2
    COUPLED = 3
