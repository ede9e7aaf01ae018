"""Five thousand damaged files of each format: a reader refuses each with ReportError or reads it,
and never hangs.

What a reader lets through must also be fit to be shown: every survivor's sums are made, and some
are printed.
"""

from __future__ import annotations

import io
import random
import signal
import sys
from typing import Iterator

import pytest
from rich.console import Console

from keras_recompute.errors import ReportError
from keras_recompute.liveness import Profile, Program, read_hlo_proto, reconcile, write_profile_pop
from keras_recompute.report import category_rows, print_liveness, summary_rows

CASES = 5_000  # of each format
SECONDS = 60  # for all cases of one format; measured: 2, on two shared cores
PRINT_EVERY = 50


def damaged(data: bytes, seed: int) -> Iterator[bytes]:
    """Yield ``data`` cut short, with bits flipped, or with a stretch moved; the same for the same
    seed.
    """
    chance = random.Random(seed)
    for _ in range(CASES):
        kind, copy = chance.randrange(4), bytearray(data)
        if kind == 0:
            del copy[chance.randrange(len(data)) :]
        elif kind == 1:
            start = chance.randrange(len(data))
            del copy[start : start + chance.randrange(1, 40)]
        else:
            for _ in range(chance.choice((1, 1, 2, 8, 64))):
                copy[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        yield bytes(copy)


@pytest.fixture
def deadline():
    """Fail where the test takes longer than SECONDS, wherever it then is."""
    if sys.platform == "win32":
        pytest.skip("Windows has no alarm signal")

    def late(*_):
        raise AssertionError(f"a reader hangs: {SECONDS} seconds are over")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("deadline")
@pytest.mark.parametrize(
    "kind",
    [
        "liveness.json",
        "profile.pop",
        pytest.param("hlo_proto.pb", marks=pytest.mark.long(every_case=True)),
    ],
)
def test_damaged_files(kind, scan_bytes, scan_program, tmp_path):
    write_profile_pop(scan_program, tmp_path / "profile.pop")
    whole, read = {
        "liveness.json": (scan_program.to_json().encode(), Program.from_json),
        "profile.pop": (
            (tmp_path / "profile.pop").read_bytes(),
            lambda data: Profile.from_bytes(data).program,
        ),
        "hlo_proto.pb": (scan_bytes, read_hlo_proto),
    }[kind]
    refused = survived = 0
    for number, data in enumerate(damaged(whole, seed=len(whole))):
        try:
            program = read(data)
        except ReportError:
            refused += 1
            continue
        except Exception as error:
            raise AssertionError(
                f"case {number} of {kind} raised {type(error).__name__}"
            ) from error
        survived += 1
        assert (
            len(reconcile(program)) + len(summary_rows(program)) + len(category_rows(program)) > 0
        )
        if survived % PRINT_EVERY == 0:
            print_liveness(program, Console(file=io.StringIO(), width=80))
    assert refused + survived == CASES
    assert min(refused, survived) > CASES // 20  # neither nothing damaged nor nothing left to show
