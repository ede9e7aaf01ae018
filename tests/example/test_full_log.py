"""A disk that is full, or files that are used up, are no lack of memory: the line names what there
is too little of.
"""

from __future__ import annotations

import errno
import os

import pytest
from fake_training import PROGRAM
from small_disks import fill, small_disk

from keras_recompute.errors import InvalidArgumentError
from lstm_example import run as course
from lstm_example.arguments import parse_arguments
from lstm_example.event_log import Log, LogError, check_log
from lstm_example.memory_check import is_out_of_memory

tf = pytest.importorskip("tensorflow")


def test_a_log_on_a_full_disk_names_the_disk(tmp_path):
    with small_disk(tmp_path, "64k") as folder:
        log = Log(folder / "log")
        log.add(1, {"loss": 1.0, "bits_per_byte": None})
        fill(folder / "other", free_bytes=0)
        for write in (
            lambda: [log.add(n, {"loss": 1.0}) for n in range(200)],
            lambda: log.add_program(1, PROGRAM),
        ):
            with pytest.raises(LogError) as raised:
                write()
            line = course._line(raised.value, None)
            assert line == f"--log {folder / 'log'}: it cannot be written (No space left on device)"
        with pytest.raises(LogError, match="No space left on device"):
            Log(folder / "another")


def test_a_log_that_cannot_be_is_refused_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    for name in ("x" * 300, "file", "file/inside"):
        with pytest.raises(InvalidArgumentError, match=r"--log .*: it cannot be written"):
            check_log(tmp_path / name)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE])
def test_what_is_used_up_is_named(code):
    error = tf.errors.ResourceExhaustedError(
        None, None, f"/a/file; {os.strerror(code)}\n\tFailed to flush 2 events"
    )
    assert not is_out_of_memory(error)
    assert os.strerror(code) in course._line(error, None)


def test_memory_is_still_memory():
    options = parse_arguments([], "")
    session = type("S", (), {"options": options})()
    compiled = type(
        "S", (), {"options": parse_arguments(["--device", "h100", "--batch-size", "9999999"], "")}
    )()
    assert " TiB for a training step and 763 GiB for its data" in course._line(
        MemoryError(), compiled
    )
    for error in (
        MemoryError(),
        tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[1]"),
    ):
        assert is_out_of_memory(error)
        assert course._line(error, session).startswith("out of memory: the run needs")
