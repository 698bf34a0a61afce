"""Flags, checkpoint and device to a plan or to a refusal that says what to do. No file and no device is touched."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ft.fast import budget, demo
from ft.fast.capabilities import BACKENDS, PREFILL_GRID, PROPOSERS
from ft.fast.inputs import CheckpointFacts, DeviceFacts, Flags
from ft.fast.plan import Plan, batch_sizes, render, resolve
from ft.fast.pools.paged import KEY_BLOCK
from ft.fast.refusal import Refusal

SMALL = CheckpointFacts(
    family="qwen3_5", vocabulary=1024, hidden=64, context=2048,
    attention_layers=2, kv_heads=2, head_dim=32,
    linear_layers=6, linear_key_heads=2, linear_value_heads=4, linear_key_dim=16, linear_value_dim=16,
    conv_channels=128, conv_taps=4, widest=256, parameters=1_000_000, draft_parameters=100_000,
    mtp_layers=1, has_mtp=True, stored_bytes=2_200_000,
)  # fmt: skip
CPU = DeviceFacts("cpu", "cpu", 8 << 30)
CUDA = DeviceFacts("cuda", "cuda:0", 100 << 30, packages=frozenset({"triton"}))
MTP = Flags(speculative_algorithm="mtp")


def refusal(flags: Flags, checkpoint: CheckpointFacts = SMALL, device: DeviceFacts = CPU) -> list[str]:
    with pytest.raises(Refusal) as caught:
        resolve(flags, checkpoint, device)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(caught.value.problems)
    return lines


def test_everything_left_open_on_a_cpu() -> None:
    plan = resolve(Flags(), SMALL, CPU)
    expected = Plan(
        model=demo.FOLDER, family="qwen3_5", algorithm="off", drafts=0, draft_model=None,
        device="cpu", dtype="float32", backend="torch", cache="naive", page_size=16, pages=16 * 2048 // 16,
        context=2048, max_running_requests=16, max_prefill_length=2048, prefill_grid=64,
        batch_sizes=(1, 2, 4, 8, 16), price=plan.price,
    )  # fmt: skip
    assert plan == expected


def test_everything_left_open_on_a_gpu() -> None:
    plan = resolve(MTP, SMALL, CUDA)
    assert (plan.device, plan.dtype, plan.backend) == ("cuda:0", "bfloat16", "triton")
    assert (plan.algorithm, plan.drafts) == ("mtp", 3)
    assert plan.batch_sizes == (16,)


def test_flags_are_obeyed() -> None:
    flags = Flags(
        model=Path("some/checkpoint"), speculative_algorithm="mtp", speculative_num_steps=7, cache_type="naive",
        attention_backend="torch", max_running_requests=3, max_prefill_length=128, page_size=4, num_tokens=601,
        dtype="bfloat16", context_length=600, dummy_weight=True,
    )  # fmt: skip
    plan = resolve(flags, SMALL, CPU)
    assert (plan.model, plan.drafts, plan.dtype, plan.dummy_weight) == (
        Path("some/checkpoint"),
        7,
        "bfloat16",
        True,
    )
    assert (plan.page_size, plan.pages, plan.context, plan.max_prefill_length) == (4, 151, 600, 128)
    assert plan.batch_sizes == (1, 2, 3)


@pytest.mark.parametrize("drafts", [1, 3, 15])
def test_drafts_in_range(drafts: int) -> None:
    assert resolve(replace(MTP, speculative_num_steps=drafts), SMALL, CPU).drafts == drafts


NO_MTP = replace(SMALL, has_mtp=False, mtp_layers=0)
LOST_MTP = replace(SMALL, has_mtp=False)

REFUSED = {
    "unknown proposer": (
        Flags(speculative_algorithm="ngram"), SMALL,
        "--speculative-algorithm ngram: there is no such choice; choose from: off, mtp",
    ),
    "no drafts": (
        replace(MTP, speculative_num_steps=0), SMALL,
        "--speculative-num-steps 0: mtp drafts 1 to 15 tokens a step; choose k from 1 to 15",
    ),
    "too many drafts": (
        replace(MTP, speculative_num_steps=16), SMALL,
        "--speculative-num-steps 16: mtp drafts 1 to 15 tokens a step; choose k from 1 to 15",
    ),
    "drafts without a proposer": (
        Flags(speculative_num_steps=3), SMALL,
        ("--speculative-num-steps 3: no tokens are drafted without a proposer; leave it out, or name a "
        "--speculative-algorithm"),
    ),
    "no MTP layer": (
        MTP, NO_MTP,
        (
            "--speculative-algorithm mtp: the checkpoint has no MTP layer; take another, or "
            "--speculative-algorithm off"
        ),
    ),
    "MTP announced, not stored": (
        MTP, LOST_MTP,
        (
            "--speculative-algorithm mtp: the checkpoint's config announces an MTP layer, and there are no mtp.* "
            "tensors; take another, or --speculative-algorithm off"
        ),
    ),
    "MTP stored, not announced": (
        MTP, replace(SMALL, mtp_layers=0),
        (
            "--speculative-algorithm mtp: the checkpoint has mtp.* tensors, and its config announces no MTP layer; "
            "set mtp_num_hidden_layers to 1 in its config.json"
        ),
    ),
    "draft model for mtp": (
        replace(MTP, speculative_draft_model_path=Path("d")), SMALL,
        ("--speculative-draft-model-path d: mtp takes no draft model: it drafts with the target's own layer; "
        "leave it out"),
    ),
    "draft model for nothing": (
        Flags(speculative_draft_model_path=Path("d")), SMALL,
        "--speculative-draft-model-path d: off takes no draft model: nothing is drafted; leave it out",
    ),
    "token map": (
        replace(MTP, speculative_token_map=Path("map.json")), SMALL,
        ("--speculative-token-map map.json: no proposer drafts from a part of the vocabulary; leave it out; the "
        "whole vocabulary is drafted from"),
    ),
    "cache": (
        Flags(cache_type="lru"), SMALL, "--cache-type lru: there is no such choice; choose from: naive",
    ),
    "backend": (
        Flags(attention_backend="metal"), SMALL,
        "--attention-backend metal: there is no such choice; choose from: triton, torch",
    ),
    "backend of another device": (
        Flags(attention_backend="triton"), SMALL,
        "--device cpu: backend triton does not support it; choose from: cuda",
    ),
    "dtype": (
        Flags(dtype="float16"), SMALL,
        "--dtype float16: backend torch does not support it; choose from: float32, bfloat16",
    ),
    "page size": (
        Flags(page_size=7), SMALL, "--page-size 7: backend torch does not support it; choose from: 1, 4, 16, 64",
    ),
    "requests": (
        Flags(max_running_requests=0), SMALL, "--max-running-requests 0: the least is 1; choose 1 or more",
    ),
    "prefill off the grid": (
        Flags(max_prefill_length=100), SMALL,
        ("--max-prefill-length 100: prompts are cut on a grid of 64 tokens, and a step takes whole cells; choose a "
        "positive multiple, such as 64"),
    ),
    "no prefill": (
        Flags(max_prefill_length=0), SMALL,
        ("--max-prefill-length 0: prompts are cut on a grid of 64 tokens, and a step takes whole cells; choose a "
        "positive multiple, such as 64"),
    ),
    "no tokens": (Flags(num_tokens=0), SMALL, "--num-tokens 0: the least is 1; choose 1 or more"),
    "a longer context than the checkpoint's": (
        Flags(context_length=9000), SMALL,
        "--context-length 9000: the checkpoint's context is 2048; choose 2048 or less, or leave it out",
    ),
    "context": (Flags(context_length=1), SMALL, "--context-length 1: the least is 2; choose 2 or more"),
    "memory ratio": (
        Flags(memory_ratio=1.5), SMALL,
        "--memory-ratio 1.5: it is the part of the free memory to take, 0.001 to 1; choose 0.9 when in doubt",
    ),
    "port": (Flags(port=65536), SMALL, "--port 65536: ports are 0 to 65535; choose 1919, or 0 for any free one"),
    "empty key": (Flags(api_key=" "), SMALL, "--api-key ' ': it is empty; give it some text or leave it out"),
    "fewer tokens than one context": (
        Flags(num_tokens=1000), SMALL,
        ("--num-tokens 1000: one request may need the whole context of 2048 tokens; choose 2048 or more, or "
        "--context-length 1000"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    flags, checkpoint, text = REFUSED[case]
    assert refusal(flags, checkpoint) == [text]


def test_all_problems_come_at_once() -> None:
    flags = Flags(
        speculative_algorithm="mtp", speculative_num_steps=99, cache_type="lru", page_size=7, max_running_requests=-1,
        memory_ratio=float("nan"), port=-1,
    )  # fmt: skip
    subjects = [line.split()[0] for line in refusal(flags, NO_MTP)]
    assert subjects == [
        "--speculative-num-steps", "--speculative-algorithm", "--cache-type", "--page-size",
        "--max-running-requests", "--memory-ratio", "--port",
    ]  # fmt: skip


def test_a_backend_whose_package_is_missing_is_refused_and_not_chosen() -> None:
    bare = replace(CUDA, packages=frozenset())
    assert resolve(Flags(), SMALL, bare).backend == "torch"
    (line,) = refusal(Flags(attention_backend="triton"), device=bare)
    assert line == (
        "--attention-backend triton: it needs triton, which is not installed; pip install triton, or choose torch"
    )


def test_an_unknown_device_kind_is_refused() -> None:
    (line,) = refusal(Flags(), device=DeviceFacts("mps", "mps", 8 << 30))
    assert line == "--device mps: backend torch does not support it; choose from: cpu, cuda"


def test_too_many_tokens_name_what_fits() -> None:
    (line,) = refusal(Flags(num_tokens=1 << 40))
    fitting = int(line.rsplit("choose ", 1)[1].split()[0])
    assert resolve(Flags(num_tokens=fitting), SMALL, CPU).pages * 16 == fitting
    assert refusal(Flags(num_tokens=fitting + 1))


def test_too_little_memory_names_a_context_that_fits() -> None:
    fixed = resolve(Flags(), SMALL, CPU).price.fixed
    tight = DeviceFacts("cuda", "cuda:0", (fixed + 1_000_000) * 10 // 9)
    flags = Flags(dtype="float32")
    (line,) = refusal(flags, device=tight)
    assert "2048 tokens" in line
    context = int(line.split("--context-length ")[1].split(",")[0])
    assert 0 < context < 2048
    assert resolve(replace(flags, context_length=context), SMALL, tight).context == context


def test_no_memory_at_all() -> None:
    (line,) = refusal(Flags(max_running_requests=1), device=DeviceFacts("cpu", "cpu", 1000))
    assert line.startswith("--memory-ratio 0.9 of 1 MiB free on cpu: ")
    assert line.endswith("; try a higher ratio or a smaller checkpoint")


@given(
    requests=st.integers(1, 40),
    drafts=st.integers(0, 15),
    page_size=st.sampled_from([1, 4, 16, 64]),
    context=st.integers(2, 2048),
    free=st.integers(1 << 26, 1 << 33),
    kind=st.sampled_from(["cpu", "cuda"]),
)
def test_a_plan_keeps_within_its_means(
    requests: int, drafts: int, page_size: int, context: int, free: int, kind: str
) -> None:
    flags = Flags(
        speculative_algorithm="mtp" if drafts else "off", speculative_num_steps=drafts, page_size=page_size,
        context_length=context, max_running_requests=requests,
    )  # fmt: skip
    try:
        plan = resolve(flags, SMALL, DeviceFacts(kind, kind, free))
    except Refusal as refused:
        assert str(refused).startswith("--memory-ratio")
        return
    pools = (plan.pages + 1) * page_size * plan.price.per_token
    assert plan.price.fixed + pools <= budget.usable_bytes(free, flags.memory_ratio)
    one = -(-context // page_size)
    assert one <= plan.pages <= requests * one
    assert plan.batch_sizes[-1] == requests
    assert list(plan.batch_sizes) == sorted(set(plan.batch_sizes))


def test_a_cpu_does_not_give_all_it_has() -> None:
    large = replace(SMALL, attention_layers=4, kv_heads=8, head_dim=128, context=4096)
    plan = resolve(Flags(), large, DeviceFacts("cpu", "cpu", 1 << 40))
    assert plan.pages * plan.page_size * plan.price.per_token <= budget.CPU_POOL_BYTES
    longer = replace(large, context=1 << 18)
    assert resolve(Flags(), longer, DeviceFacts("cpu", "cpu", 1 << 40)).pages * 16 == 1 << 18


def test_batch_sizes() -> None:
    backend = BACKENDS["torch"]
    assert batch_sizes(1, backend, "cpu") == (1,)
    assert batch_sizes(12, backend, "cpu") == (1, 2, 4, 8, 12)
    assert batch_sizes(12, backend, "cuda") == (12,)


def test_capability_rows_hold_together() -> None:
    for backend in BACKENDS.values():
        assert all(KEY_BLOCK % size == 0 for size in backend.page_sizes)
        assert set(backend.one_batch_on) <= set(backend.devices)
    for proposer in PROPOSERS.values():
        assert proposer.default_drafts in proposer.drafts
    assert KEY_BLOCK % PREFILL_GRID == 0


def test_the_table_names_every_choice() -> None:
    plan = resolve(replace(MTP, served_model_name="x"), SMALL, CPU)
    lines = render(plan).splitlines()
    starts = {len(line) - len(line.split("  ", 1)[1].lstrip()) for line in lines}
    assert len(starts) == 1, "the second column is aligned"
    text = render(plan)
    for shown in (
        plan.model, plan.family, "mtp, 3 drafts", plan.device, plan.dtype, plan.backend, plan.cache, plan.pages,
        plan.page_size, plan.context, "16 at once", "1, 2, 4, 8, 16", plan.max_prefill_length, plan.prefill_grid, "MiB",
    ):  # fmt: skip
        assert str(shown) in text
    assert "off" in render(resolve(Flags(), SMALL, CPU))


def test_names_for_clients() -> None:
    assert Flags().name == "ft-demo-qwen3_5"
    assert Flags(model=Path("a/b")).name == "b"
    assert Flags(model=Path("a/b"), served_model_name="c").name == "c"
    assert Flags().folder == demo.FOLDER
