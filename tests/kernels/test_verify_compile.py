"""The verify kernels compile for an H200 where there is none: the interpreter takes what the compiler refuses."""

import os
import subprocess
import sys
from pathlib import Path

COMPILE = """
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from ft.kernels import verify as kernels

class Absent:
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0

driver.set_active(Absent())
launch = JITFunction.run
JITFunction.run = lambda self, *args, grid, warmup, **options: launch(self, *args, grid=grid, warmup=True, **options)

def number(value, dtype): return torch.full((2,), value, dtype=dtype)

for rows, dtype, modes, filtered, told in (
    (4, torch.bfloat16, {0, 1, 2, 3}, True, True),
    (4, torch.float32, {1, 2}, False, False),
    (1, torch.float32, {0, 1, 2, 3}, True, False),
):
    vocabulary = 70000 if rows > 1 else 500
    space = kernels.workspace(2, rows, vocabulary, "cpu")
    real, whole, drafts = torch.float32, torch.int64, rows - 1
    kernels.verify(
        torch.zeros(2, rows, vocabulary, dtype=dtype), torch.zeros(2, drafts, dtype=whole), number(drafts, whole),
        torch.zeros(2, drafts, 16, dtype=whole) if told else None, torch.zeros(2, drafts, 16) if told else None,
        number(1, real), number(20, whole), number(0.9, real), number(0, real), number(1, whole), number(1, whole),
        number(9, whole), None, None, space, modes, filtered,
    )
"""


def test_kernels_compile_for_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(list(tmp_path.rglob("*.cubin"))) >= 12
