"""A Python 3.8 with stock TensorFlow 2.6, into which the double of the Poplar SDK is put.

    python3 tests/ipu/sdk/environment.py makes it, once, in the user's cache; downloads TensorFlow
        2.6

The tests look for it there, or take the Python that KERAS_RECOMPUTE_PYTHON38 names; they never make
it themselves.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
VARIABLE = "KERAS_RECOMPUTE_PYTHON38"
CACHED = Path(
    os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache",
    "keras-recompute",
    "python3.8-tensorflow2.6",
)
_ASK = (
    "import sys, tensorflow as tf; print(tf.__file__); "
    "sys.exit(sys.version_info[:2] != (3, 8) or tf.__version__[:4] != '2.6.')"
)


def find() -> tuple[str, Path] | str:
    """Return the Python and its TensorFlow's folder, or why there is none."""
    python = os.environ.get(VARIABLE) or str(CACHED / "bin" / "python")
    if shutil.which(python) is None:
        return (
            f"no Python 3.8 with TensorFlow 2.6: {VARIABLE} names none, and "
            "tests/ipu/sdk/environment.py was not run"
        )
    asked = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, check=False)
    if asked.returncode:
        return f"{python} is no Python 3.8 with TensorFlow 2.6"
    return python, Path(asked.stdout.strip()).parent


def put_double(tensorflow: Path, folder: Path) -> Path:
    """Return a folder that Python searches first, with the double in a copy of ``tensorflow``.

    The copy consists of links.
    """
    copy = folder / "sdk"
    shutil.copytree(
        HERE,
        copy,
        ignore=shutil.ignore_patterns("__pycache__", "environment.py", "requirements.txt"),
    )
    for part in (Path(), Path("python")):
        (copy / "tensorflow" / part).mkdir()
        for entry in (tensorflow / part).iterdir():
            if part / entry.name != Path("python") and entry.name != "__pycache__":
                (copy / "tensorflow" / part / entry.name).symlink_to(entry)
    (copy / "tensorflow_python_ipu").rename(copy / "tensorflow" / "python" / "ipu")
    return copy


def make() -> int:
    """Create the environment in the cache; print why and return 1 without Python 3.8."""
    candidates = [
        shutil.which("python3.8"),
        *sorted((Path.home() / ".pyenv" / "versions").glob("3.8.*/bin/python")),
    ]
    python = next(
        (str(candidate) for candidate in candidates if candidate and _is_3_8(str(candidate))), None
    )
    if python is None:
        print(
            "no Python 3.8 was found: the tests of the Poplar SDK's side will be skipped",
            file=sys.stderr,
        )
        return 1
    if not (CACHED / "bin" / "python").exists():
        subprocess.run([python, "-m", "venv", str(CACHED)], check=True)
    subprocess.run(
        [str(CACHED / "bin" / "pip"), "install", "--quiet", "-r", str(HERE / "requirements.txt")],
        check=True,
    )
    print(CACHED / "bin" / "python")
    return 0


def _is_3_8(python: str) -> bool:
    """Return whether ``python`` runs and is a Python 3.8.

    A version manager's placeholder may not run.
    """
    asked = subprocess.run(
        [python, "-c", "import sys; sys.exit(sys.version_info[:2] != (3, 8))"],
        check=False,
        capture_output=True,
    )
    return asked.returncode == 0


if __name__ == "__main__":
    sys.exit(make())
