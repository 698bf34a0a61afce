"""The text that the demo learns: Python sources of the standard library and of installed distributions whose
licences are permissive, told apart by an explicit list. Files are split into training and held-out by their hash.
"""

import hashlib
import importlib.metadata
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LICENCES = {
    "absl-py": "Apache-2.0",
    "accelerate": "Apache-2.0",
    "aiohttp": "Apache-2.0",
    "anyio": "MIT",
    "attrs": "MIT",
    "botorch": "MIT",
    "build": "MIT",
    "chex": "Apache-2.0",
    "click": "BSD-3-Clause",
    "cloudpickle": "BSD-3-Clause",
    "contourpy": "BSD-3-Clause",
    "coverage": "Apache-2.0",
    "cupy-cuda13x": "MIT",
    "cycler": "BSD-3-Clause",
    "cython": "Apache-2.0",
    "diffrax": "Apache-2.0",
    "e3nn": "MIT",
    "einops": "MIT",
    "equinox": "Apache-2.0",
    "etils": "Apache-2.0",
    "flax": "Apache-2.0",
    "fonttools": "MIT",
    "formulaic": "MIT",
    "fsspec": "BSD-3-Clause",
    "gpytorch": "MIT",
    "h5py": "BSD-3-Clause",
    "huggingface-hub": "Apache-2.0",
    "imageio": "BSD-2-Clause",
    "jax": "Apache-2.0",
    "jaxlib": "Apache-2.0",
    "jaxtyping": "MIT",
    "jinja2": "BSD-3-Clause",
    "joblib": "BSD-3-Clause",
    "lightning": "Apache-2.0",
    "linear-operator": "MIT",
    "lineax": "Apache-2.0",
    "markdown": "BSD-3-Clause",
    "markdown-it-py": "MIT",
    "matplotlib": "PSF-2.0",
    "meson": "Apache-2.0",
    "mpmath": "BSD-3-Clause",
    "networkx": "BSD-3-Clause",
    "numba": "BSD-2-Clause",
    "numpy": "BSD-3-Clause",
    "numpyro": "Apache-2.0",
    "onnx": "Apache-2.0",
    "onnx-ir": "Apache-2.0",
    "onnxruntime": "MIT",
    "onnxscript": "MIT",
    "optax": "Apache-2.0",
    "optimistix": "Apache-2.0",
    "orbax-checkpoint": "Apache-2.0",
    "packaging": "Apache-2.0",
    "pandas": "BSD-3-Clause",
    "patsy": "BSD-2-Clause",
    "peft": "Apache-2.0",
    "pip": "MIT",
    "psutil": "BSD-3-Clause",
    "pyarrow": "Apache-2.0",
    "pygments": "BSD-2-Clause",
    "pyparsing": "MIT",
    "pytest": "MIT",
    "pytorch-lightning": "Apache-2.0",
    "regex": "Apache-2.0",
    "requests": "Apache-2.0",
    "rich": "MIT",
    "sacrebleu": "Apache-2.0",
    "safetensors": "Apache-2.0",
    "scikit-image": "BSD-3-Clause",
    "scikit-learn": "BSD-3-Clause",
    "scipy": "BSD-3-Clause",
    "seaborn": "BSD-3-Clause",
    "sentence-transformers": "Apache-2.0",
    "setuptools": "MIT",
    "statsmodels": "BSD-3-Clause",
    "sympy": "BSD-3-Clause",
    "tensorboard": "Apache-2.0",
    "tensorstore": "Apache-2.0",
    "timm": "Apache-2.0",
    "torch": "BSD-3-Clause",
    "torch-geometric": "MIT",
    "torchaudio": "BSD-2-Clause",
    "torchdiffeq": "MIT",
    "torchmetrics": "Apache-2.0",
    "torchvision": "BSD-3-Clause",
    "transformers": "Apache-2.0",
    "treescope": "Apache-2.0",
    "triton": "MIT",
    "typer": "MIT",
    "urllib3": "MIT",
    "werkzeug": "BSD-3-Clause",
    "wheel": "MIT",
    "xarray": "Apache-2.0",
}
"""Distribution -> licence. What is not installed is passed over; what is not listed is not read."""

STANDARD_LIBRARY = "python standard library"
LARGEST_FILE = 400_000
MOST_OF_ONE = 48_000_000
HELD_OUT_IN = 100
"""One file in this many is held out."""


@dataclass(frozen=True)
class Source:
    """One file of text."""

    package: str
    licence: str
    name: str
    text: str
    held_out: bool


@dataclass(frozen=True)
class Used:
    """What was read of one package."""

    package: str
    version: str
    licence: str
    files: int
    bytes: int


def sources() -> tuple[list[Source], list[Used]]:
    """Every distinct file once, in a fixed order, and what was used of each package."""
    seen: set[str] = set()
    chosen: list[Source] = []
    used: list[Used] = []
    for package, version, licence, files in packages():
        before, size = len(chosen), 0
        for path in files:
            text = _text(path)
            digest = hashlib.sha256(text.encode()).hexdigest()
            if not text.strip() or digest in seen or size > MOST_OF_ONE:
                continue
            seen.add(digest)
            size += len(text)
            held_out = int(digest[:8], 16) % HELD_OUT_IN == 0
            chosen.append(Source(package, licence, path.name, text, held_out))
        if len(chosen) > before:
            used.append(Used(package, version, licence, len(chosen) - before, size))
    return chosen, used


def packages() -> Iterator[tuple[str, str, str, list[Path]]]:
    """Name, version, licence and Python files of each package."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = [path for path in sorted(library.rglob("*.py")) if "site-packages" not in path.parts]
    yield STANDARD_LIBRARY, sysconfig.get_python_version(), "PSF-2.0", files
    for name, licence in sorted(LICENCES.items()):
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        listed = distribution.files or []
        paths = [Path(str(distribution.locate_file(item))) for item in listed if item.suffix == ".py"]
        yield name, distribution.version, licence, sorted(paths)


def _text(path: Path) -> str:
    """The file's text, or nothing when it is too large, not UTF-8 or made of long lines of data."""
    try:
        text = path.read_text() if path.stat().st_size <= LARGEST_FILE else ""
    except (OSError, UnicodeDecodeError):
        return ""
    lines = text.count("\n") + 1
    return text if len(text) / lines < 200 else ""
