"""The command ``keras-recompute``: its help, its version, and the command lines of reports and IPU
scripts behind it.
"""

from __future__ import annotations

import keras_recompute as kr
from keras_recompute.__main__ import main


def test_the_version_is_the_package_s(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"keras-recompute {kr.__version__}\n"


def test_the_help_lists_every_command_under_its_own_name(capsys):
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    for command in ("show", "compare", "top", "open", "export", "fits", "doctor", "run"):
        assert f"    keras-recompute {command} " in listed
    assert "PROGRAM" not in listed


def test_what_is_wrong_is_one_line_with_the_command_s_name(capsys):
    for argv, says in (
        (["shew"], "invalid choice: 'shew'"),
        (["show", "nowhere"], "no liveness report could be read from 'nowhere'"),
        (["run"], "no script is named"),
        (["run", "nowhere.py"], "'nowhere.py' cannot be read"),
        (["doctor", "nowhere.py"], "'nowhere.py' is no file: give a script, or module:function"),
    ):
        assert main(argv) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert "keras-recompute" in err
        assert says in err
