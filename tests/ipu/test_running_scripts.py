"""``python3 -m keras_recompute.ipu`` runs a script as ``python3`` does.

Arguments, exit codes and tracebacks are the same.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(folder: Path, *command: str, sdk: Path | None = None) -> tuple[int, str, str]:
    """Return exit code, output and errors of ``python3 COMMAND`` in ``folder``."""
    paths = [str(path) for path in (sdk, ROOT) if path]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    return done.returncode, done.stdout, done.stderr


SCRIPTS = {
    "what a script sees": """
        import sys, beside
        print(__name__, __file__, sys.argv, sys.path[0], beside.here)
        print(sys.modules["__main__"].__file__)
        print("tensorflow" in sys.modules, __builtins__.__name__)
        def f(x: int): ...
        print(f.__annotations__, __spec__, __package__, __doc__)
        print(__loader__.get_source("__main__")[:12])
        """,
    "a traceback": """
        def f():
            raise ValueError("ö")
        f()
        """,
    "a chain of errors": """
        try:
            {}["k"]
        except KeyError:
            raise RuntimeError("after")
        """,
    "a syntax error": "x = (\n",
    "an exit code": "import sys; sys.exit(7)",
    "a message and an exit": "import sys; sys.exit('no more')",
    "an interruption": """
        import atexit, os, signal
        atexit.register(lambda: print("bye"))
        os.kill(os.getpid(), signal.SIGINT)
        import time; time.sleep(5)
        """,
    "an excepthook of its own": """
        import sys
        sys.excepthook = lambda t, e, tb: print("mine", t.__name__, tb.tb_frame.f_code.co_filename)
        1 / 0
        """,
}


@pytest.mark.parametrize("what", SCRIPTS)
def test_a_script_runs_as_under_python3(tmp_path, what):
    import textwrap

    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "beside.py").write_text("here = True")
    (inside / "script.py").write_text(textwrap.dedent(SCRIPTS[what]).lstrip())
    plain = run(tmp_path, "inside/script.py", "--a", "b c")
    assert run(tmp_path, "-m", "keras_recompute.ipu", "inside/script.py", "--a", "b c") == plain
    assert plain[0] != 0 or "['inside/script.py', '--a', 'b c']" in plain[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no script is named"),
        (["missing.py"], "'missing.py' cannot be read: No such file or directory"),
        (["."], "'.' cannot be read: Is a directory"),
        (["--fast", "x.py"], "unknown option --fast"),
    ],
)
def test_a_script_that_is_not_there_is_one_line_and_exit_code_2(tmp_path, arguments, said):
    code, output, errors = run(tmp_path, "-m", "keras_recompute.ipu", *arguments)
    assert (code, output) == (2, "")
    assert errors.count("\n") == 1
    assert said in errors


def test_help(tmp_path):
    code, output, errors = run(tmp_path, "-m", "keras_recompute.ipu", "--help")
    assert (code, errors) == (0, "")
    assert "python3 -m keras_recompute.ipu SCRIPT [ARGS...]" in output


@pytest.fixture
def sdk(tmp_path) -> Path:
    """A folder with a TensorFlow that has Graphcore's modules, as the Poplar SDK's has."""
    package = tmp_path / "sdk" / "tensorflow" / "python" / "ipu"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").write_text("whose = 'the SDK'\n")
    return tmp_path / "sdk"


def test_beside_the_sdk_nothing_is_done_but_said(tmp_path, sdk):
    (tmp_path / "script.py").write_text("from tensorflow.python import ipu; print(ipu.whose)\n")
    code, output, errors = run(tmp_path, "-m", "keras_recompute.ipu", "script.py", sdk=sdk)
    assert (code, output) == (0, "the SDK\n")
    assert errors == (
        "keras_recompute.ipu installs nothing: this TensorFlow is the Poplar SDK's and has "
        "Graphcore's modules\n"
    )
    code, output, errors = run(
        tmp_path,
        "-c",
        "from keras_recompute.ipu import install; import sys; print(install(), len(sys.meta_path))",
        sdk=sdk,
    )
    before = run(tmp_path, "-c", "import keras_recompute, sys; print(False, len(sys.meta_path))")[1]
    assert (code, output) == (0, before)
    assert "installs nothing" in errors


@pytest.mark.long
def test_names_wait_for_tensorflow(tmp_path):
    """What a script sets before it imports TensorFlow must count, so nothing is loaded before."""
    (tmp_path / "script.py").write_text(
        "import sys\n"
        "print({'tensorflow', 'keras'} & set(sys.modules))\n"
        "import os; os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'\n"
        "import ipu_tensorflow_addons.keras.layers as layers\n"
        "import tensorflow as tf\n"
        "from tensorflow.keras import ipu\n"
        "print(ipu is tf.keras.ipu, layers.LSTM is layers.PopnnLSTM, tf.__spec__.name)\n"
    )
    code, output, _ = run(tmp_path, "-m", "keras_recompute.ipu", "script.py")
    assert (code, output) == (0, "set()\nTrue True tensorflow\n")


@pytest.mark.long
@pytest.mark.parametrize(
    ("first", "loaded"), [("keras", ""), ("tensorflow.keras", ""), ("keras", "import tensorflow\n")]
)
def test_keras_or_tensorflow_may_be_imported_first(tmp_path, first, loaded):
    """Keras loads TensorFlow, and our modules need both."""
    (tmp_path / "script.py").write_text(
        f"{loaded}import keras_recompute.ipu as stand_in\n"
        f"stand_in.install()\n"
        f"import {first}\n"
        "from tensorflow.python import ipu\n"
        "import tensorflow as tf\n"
        "print(ipu.config.IPUConfig.__name__, tf.keras.ipu.PipelineStage.__name__)\n"
    )
    code, output, errors = run(tmp_path, "script.py")
    assert (code, output) == (0, "IPUConfig PipelineStage\n"), errors


@pytest.mark.long
@pytest.mark.parametrize("generations", [1, 2])
def test_python_processes_that_a_script_starts_find_the_names(tmp_path, generations):
    """From another working directory than the one in which the package was found."""
    (tmp_path / "child.py").write_text(
        "import sys, subprocess\nif int(sys.argv[1]):\n    "
        "sys.exit(subprocess.call([sys.executable, sys.argv[0], str(int(sys.argv[1]) - 1)], "
        "cwd='/'))\nfrom tensorflow.python import ipu\nimport ipu_tensorflow_addons.keras.layers "
        "as layers\nprint(ipu.config.IPUConfig.__name__, layers.LSTM.__name__, [p for p in "
        "sys.path if p.endswith('subprocess_hook')])\n"
    )
    child = str(tmp_path / "child.py")
    code, output, errors = run(tmp_path, "-m", "keras_recompute.ipu", child, str(generations))
    assert (code, output) == (0, "IPUConfig PopnnLSTM []\n"), errors


def test_a_child_is_started_as_without_the_wrapper(tmp_path):
    """TensorFlow is not loaded, and what customises Python for this site is."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys; sys.customised = __file__\n")
    (tmp_path / "script.py").write_text(
        "import os, subprocess, sys\n"
        "os.environ['PYTHONPATH'] += os.pathsep + 'site'\n"
        "child = 'import sys; print(sys.customised, "
        'sys.modules["sitecustomize"].__file__, "tensorflow" in sys.modules)\'\n'
        "sys.exit(subprocess.call([sys.executable, '-c', child]))\n"
    )
    code, output, errors = run(tmp_path, "-m", "keras_recompute.ipu", "script.py")
    site = str(tmp_path / "site" / "sitecustomize.py")
    assert (code, output, errors) == (0, f"{site} {site} False\n", "")


def test_beside_the_sdk_children_are_left_alone(tmp_path, sdk):
    (tmp_path / "script.py").write_text("import os; print(os.environ['PYTHONPATH'])\n")
    code, output, _ = run(tmp_path, "-m", "keras_recompute.ipu", "script.py", sdk=sdk)
    assert (code, output) == (0, f"{sdk}{os.pathsep}{ROOT}\n")
