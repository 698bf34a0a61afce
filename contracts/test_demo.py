"""The demo checkpoint, trained on real text: greedy and seeded text with drafts equals text without, prompt by
prompt, for 50 held-out prompts of 200 tokens each."""

import json
from pathlib import Path

import pytest

from ft.contracts.compare import assert_tokens
from ft.contracts.matrix import devices
from ft.contracts.rig import Setting, run, tokens
from ft.fast import demo
from ft.fast.request import Request
from ft.fast.text.tokenizer import Tokenizer
from ft.reference.types import Sampling

PROMPTS = Path(demo.__file__).parent / "prompts.json"
LENGTH = 200
SERVED = {"cpu": ("float32",), "cuda": ("float32", "bfloat16")}
"""Dtypes by device; bf16 on a CPU is left to the tiny checkpoints, which take a hundredth of the time."""
PLACES = [(device, dtype) for device in devices() for dtype in SERVED[device]]
SAMPLINGS = {
    "greedy": (Sampling(),),
    "seeded": (
        Sampling(temperature=1.0, seed=1),
        Sampling(temperature=0.7, top_p=0.9, seed=2),
        Sampling(temperature=1.3, top_k=40, min_p=0.02, seed=3),
    ),
}


def requests(samplings: tuple[Sampling, ...]) -> list[Request]:
    tokenizer = Tokenizer.load(demo.FOLDER)
    texts = [item["text"] for item in json.loads(PROMPTS.read_text())]
    assert len(texts) == 50
    return [
        Request(str(index), tuple(tokenizer.encode(text)), LENGTH, samplings[index % len(samplings)])
        for index, text in enumerate(texts)
    ]


@pytest.mark.parametrize("kind", SAMPLINGS)
@pytest.mark.parametrize(("device", "dtype"), PLACES)
def test_demo_text_is_the_same_with_drafts(
    kind: str, device: str, dtype: str, pytestconfig: pytest.Config
) -> None:
    if pytestconfig.getoption("--device") not in (None, device):
        pytest.skip(f"--device {pytestconfig.getoption('--device')} was asked for")
    listed = requests(SAMPLINGS[kind])
    setting = Setting(
        demo.FOLDER, proposer="mtp", drafts=3, device=device, dtype=dtype, requests=16, page_size=16
    )
    plain = run(setting.off().engine(), listed, joining=16)
    drafted = run(setting.engine(), listed, joining=5)
    for request in listed:
        name = f"{kind}, prompt {request.id}"
        assert_tokens(name, tokens(plain[request.id]), tokens(drafted[request.id]))
        assert len(tokens(plain[request.id])) == LENGTH
    steps = sum(len(updates) for updates in drafted.values())
    assert steps < 0.7 * len(listed) * LENGTH, f"{steps} steps for {len(listed) * LENGTH} tokens"
