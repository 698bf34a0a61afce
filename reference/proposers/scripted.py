"""A proposer whose accept counts are chosen: every accept path of a verify can be walked on purpose."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ft.reference.proposers.oracle import OracleProposer, pad
from ft.reference.types import Features, Proposal, Step, Verdict


@dataclass
class ScriptedProposer:
    """On step i of a slot exactly accepts[i] drafts are right and the next is (right + 1) mod V; i cycles.

    oracle: knows the texts. Drafts after the wrong one are right again, so that a rule that forgets to stop
    at the first reject would accept them.
    """

    oracle: OracleProposer
    accepts: Sequence[int]
    vocabulary: int
    taken: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, texts: Mapping[int, Sequence[int]], accepts: Sequence[int], vocabulary: int
    ) -> "ScriptedProposer":
        """For the known texts of each slot, prompt included."""
        return cls(OracleProposer(texts), accepts, vocabulary)

    @property
    def name(self) -> str:
        return "scripted"

    @property
    def taps(self) -> tuple[int, ...]:
        return ()

    @property
    def radix_lookahead(self) -> bool:
        return False

    def on_prefill(self, step: Step, features: Features, next_ids: Tensor) -> None:
        """Nothing to take in."""

    def propose(self, step: Step, counts: Tensor) -> Proposal:
        """Right drafts with one planted error a request."""
        runs = []
        for index, count in enumerate(counts):
            run = self.oracle.continuation(step, index, int(count))
            slot = int(step.slots[index])
            turn = self.taken.get(slot, 0)
            self.taken[slot] = turn + 1
            wrong = self.accepts[turn % len(self.accepts)]
            if wrong < len(run):
                run[wrong] = (run[wrong] + 1) % self.vocabulary
            runs.append(run)
        return pad(runs)

    def post_verify(self, step: Step, features: Features, verdict: Verdict) -> None:
        """Nothing to bring forward."""
