"""Coupled text over many seeds: temperatures, filters and penalties; alone and in company; every proposer and k.

`--seeds 200` is the full run; fewer by default. `--first-seed` shares them out among processes.
"""

from dataclasses import replace
from functools import cache

import pytest

from ft.contracts.checks.texts import prompts
from ft.contracts.compare import assert_tokens
from ft.contracts.matrix import devices, folder_of, variants
from ft.contracts.rig import Setting, run, tokens
from ft.contracts.test_demo import requests as demo_requests
from ft.fast import demo
from ft.fast.request import Request
from ft.reference.types import Edits, Sampling

LENGTH = 100
PENALTIES = Edits(repetition_penalty=1.1, frequency_penalty=0.2, presence_penalty=0.2)
KINDS = tuple(
    replace(sampling, temperature=temperature)
    for temperature in (0.7, 1.0, 1.5)
    for sampling in (
        Sampling(),
        Sampling(top_p=0.9),
        Sampling(top_k=40),
        Sampling(min_p=0.05),
        Sampling(top_k=50, top_p=0.95, min_p=0.01, edits=PENALTIES),
    )
)
CHECKPOINTS = ("dense", "moe", "demo")
SETTINGS = [("off", 0)]
SETTINGS += [(proposer, drafts) for proposer in ("mtp", "oracle", "scripted") for drafts in (1, 3, 7)]


def setting_of(checkpoint: str, device: str) -> Setting:
    """The device's own choice of dtype and backend."""
    served = {"cpu": Setting(demo.FOLDER, page_size=16)}
    served["cuda"] = replace(served["cpu"], device="cuda", dtype="bfloat16", backend="triton")
    if checkpoint == "demo":
        return served[device]
    variant = next(variant for variant in variants() if variant.name == checkpoint)
    return replace(served[device], folder=folder_of(variant), family=variant.family, page_size=4)


@cache
def requests_of(checkpoint: str, seeds: range) -> tuple[Request, ...]:
    """One request a seed, prompts and kinds in turn."""
    if checkpoint == "demo":
        texts = [request.prompt[:120] for request in demo_requests((Sampling(),))]
    else:
        vocabulary = next(variant.vocabulary for variant in variants() if variant.name == checkpoint)
        lengths = (3, 5, 9, 17, 33, 64, 65)
        texts = prompts(vocabulary, [lengths[seed % len(lengths)] for seed in range(seeds.stop)], seed=41)
    return tuple(
        Request(str(seed), texts[seed % len(texts)], LENGTH, replace(KINDS[seed % len(KINDS)], seed=seed))
        for seed in seeds
    )


@cache
def plain_texts(checkpoint: str, device: str, seeds: range) -> dict[str, list[int]]:
    """Each request alone, without drafts."""
    engine = setting_of(checkpoint, device).engine()
    return {
        request.id: tokens(run(engine, [request])[request.id]) for request in requests_of(checkpoint, seeds)
    }


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
@pytest.mark.parametrize(("proposer", "drafts"), SETTINGS)
def test_seeded_text_over_many_seeds(
    checkpoint: str, proposer: str, drafts: int, device: str, pytestconfig: pytest.Config
) -> None:
    """In a batch of five; a tenth of them once more alone, another tenth for each setting."""
    if pytestconfig.getoption("--device") not in (None, device):
        pytest.skip(f"--device {pytestconfig.getoption('--device')} was asked for")
    first = pytestconfig.getoption("--first-seed")
    seeds = range(first, first + pytestconfig.getoption("--seeds"))
    listed = requests_of(checkpoint, seeds)
    plain = plain_texts(checkpoint, device, seeds)
    setting = replace(setting_of(checkpoint, device), proposer=proposer, drafts=drafts)
    for group in range(0, len(listed), 50):
        known = {request.prompt: plain[request.id] for request in listed[group : group + 50]}
        engine = setting.engine(known)
        together = run(engine, listed[group : group + 50], joining=5)
        for index, request in enumerate(listed[group : group + 50]):
            name = f"{checkpoint}, {proposer} k = {drafts}, seed {request.id}"
            assert_tokens(name, plain[request.id], tokens(together[request.id]))
            if index % len(SETTINGS) == SETTINGS.index((proposer, drafts)):
                assert_tokens(f"{name}, alone", plain[request.id], tokens(run(engine, [request])[request.id]))
