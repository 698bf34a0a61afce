"""Verification by the Triton kernels: few launches, nothing sorted, nothing that waits for the host."""

from torch import Tensor

from ft.fast.drafting import CANDIDATES
from ft.fast.sampling import SamplingRows
from ft.fast.verify import Judged
from ft.kernels.verify import Workspace, verify, workspace
from ft.reference.types import Proposal


class TritonVerify:
    """Implements sampler.Verify. Buffers are made at the first step of a shape and kept."""

    def __init__(self) -> None:
        self._spaces: dict[tuple[int, ...], Workspace] = {}

    def __call__(self, logits: Tensor, proposal: Proposal, rows: SamplingRows, positions: Tensor) -> Judged:
        """See verify.verify."""
        drafts = proposal.tokens.clamp(0, logits.shape[2] - 1)
        accepted, emitted, broken = verify(
            logits.contiguous(),
            drafts,
            proposal.counts,
            proposal.candidates,
            proposal.q,
            rows.temperature,
            rows.top_k,
            rows.top_p,
            rows.min_p,
            rows.seed,
            rows.mode,
            positions,
            None,
            None,
            self._space(logits),
            rows.modes,
            rows.filtered,
        )
        return Judged(accepted, emitted, broken)

    def _space(self, logits: Tensor) -> Workspace:
        requests, rows, vocabulary = logits.shape
        shape = (requests, rows, vocabulary)
        if shape not in self._spaces:
            choices = min(CANDIDATES, vocabulary)
            self._spaces[shape] = workspace(requests, rows, vocabulary, logits.device, choices)
        return self._spaces[shape]
