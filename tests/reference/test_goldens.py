"""The reference against stored values of transformers: logits, layers, greedy texts, MTP chains."""

from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from ft.reference.loop import generate, prefill, step_of
from ft.reference.proposers.mtp import DraftNetwork
from ft.reference.types import Sampling

from .rig import CASES, Model, error, golden, run, step_of_requests

LIMITS = {torch.float64: 1e-5, torch.float32: 1e-3}
"""What the values' makers suggest. Measured: 5e-14 and 4e-5."""

PROMPTS = ("short", "long")
DRAFTS = 3


@dataclass
class Replay:
    """A chooser that drafts stored tokens and keeps the logits it saw."""

    tokens: list[int]
    seen: list[Tensor] = field(default_factory=list)

    def choose(
        self, logits: Tensor, positions: Tensor, slots: Tensor, drafted: Tensor
    ) -> tuple[Tensor, None, None]:
        self.seen.append(logits[0])
        return torch.tensor([self.tokens[len(self.seen) - 1]]), None, None


class Recorder:
    """A draft network that keeps the hidden rows its head reads."""

    def __init__(self, network: DraftNetwork) -> None:
        self.network = network
        self.hidden: list[Tensor] = []
        self.reset, self.forward, self.state = network.reset, network.forward, network.state

    def logits(self, hidden: Tensor) -> Tensor:
        self.hidden.append(hidden[None])
        return self.network.logits(hidden)


def target_errors(model: Model, expected: dict[str, Tensor], prompt: str) -> dict[str, float]:
    """Largest difference of logits, hidden and every layer output of a stored prompt."""
    layers = range(model.config.layers)
    target = model.target()
    step = step_of_requests([expected[f"{prompt}.ids"].tolist()], [0], [0])
    features = run(target, replace(step, taps=tuple(layers)))
    actual = {"logits": target.logits(features.final_hidden), "hidden": features.final_hidden}
    actual |= {f"layer{layer}": features.layer_output(layer) for layer in layers}
    return {name: error(expected[f"{prompt}.{name}.f64"], value[0]) for name, value in actual.items()}


@dataclass(frozen=True)
class Chain:
    """What three chained drafts at an anchor were drawn from: logits [3, V], hidden [3, H]."""

    logits: Tensor
    hidden: Tensor


def mtp_chain(model: Model, expected: dict[str, Tensor], row: int) -> Chain:
    """The chain at stored anchor `row`, with the stored tokens drafted whatever the logits say."""
    anchor, sequence = int(expected["mtp.anchors"][row]), expected["mtp.seq"].tolist()
    target, chooser = model.target(), Replay(expected["mtp.tokens"][row].tolist())
    proposer = model.proposer(target, chooser)
    recorder = Recorder(proposer.network)
    proposer.network = recorder
    prefill(target, proposer, sequence[: anchor + 1], 64, 0)
    proposer.propose(step_of([sequence[anchor]], anchor, 0, ()), torch.tensor([DRAFTS]))
    return Chain(torch.stack(chooser.seen), torch.cat(recorder.hidden))


def mtp_errors(chain: Chain, expected: dict[str, Tensor], row: int) -> dict[str, float]:
    return {
        "logits": error(expected["mtp.logits.f64"][row], chain.logits),
        "hidden": error(expected["mtp.hidden.f64"][row], chain.hidden),
    }


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("case", CASES)
def test_logits_hidden_and_layers(case: str, prompt: str, dtype: torch.dtype) -> None:
    for name, worst in target_errors(*golden(case, dtype), prompt).items():
        assert worst < LIMITS[dtype], f"{name}: {worst:.2e}"


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("case", CASES)
def test_mtp_chains(case: str, dtype: torch.dtype) -> None:
    model, expected = golden(case, dtype)
    for row in range(len(expected["mtp.anchors"])):
        chain = mtp_chain(model, expected, row)
        for name, worst in mtp_errors(chain, expected, row).items():
            assert worst < LIMITS[dtype], f"anchor {row}, {name}: {worst:.2e}"
        sure = expected["mtp.gap"][row] > 2 * LIMITS[dtype]
        assert sure.all(), "no near tie among the stored drafts"
        assert torch.equal(chain.logits.argmax(-1), expected["mtp.tokens"][row])


@pytest.mark.parametrize("drafts", [0, DRAFTS])
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("case", CASES)
def test_greedy_text_with_and_without_drafts(case: str, prompt: str, drafts: int) -> None:
    model, expected = golden(case, torch.float32)
    target = model.target()
    text = generate(
        target,
        model.proposer(target) if drafts else None,
        expected[f"{prompt}.ids"].tolist(),
        Sampling(),
        drafts=drafts,
        max_tokens=len(expected[f"{prompt}.greedy"]),
        context=model.config.context,
        chunk=64,
    )
    assert float(expected[f"{prompt}.greedy_gap"].min()) > 2 * LIMITS[torch.float32], "no near tie"
    assert list(text.tokens) == expected[f"{prompt}.greedy"].tolist()
