"""docs/choosing.md against the code: its Python runs, its options exist, its figures are those of the planners."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import recompute_lstm
from keras_recompute.example.arguments import parse_arguments
from keras_recompute.example.cuts import Cut, cuts
from keras_recompute.example.session import Session
from keras_recompute.planning import Chain, mixed_plan, simulate
from keras_recompute.sizes import format_bytes

PAGE = Path(__file__).parents[2] / "docs" / "choosing.md"
TEXT = PAGE.read_text()


def test_the_python_runs(capsys):
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(block, "docs/choosing.md", "exec"), names)
    first, second = capsys.readouterr().out.splitlines()
    assert "within 4.00 MiB" in first
    assert second.startswith("('dense")


def test_the_commands_are_understood():
    commands = re.findall(r"^python3 recompute_lstm\.py (.*)$", TEXT, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        parse_arguments(command.split(), recompute_lstm.__doc__)


def test_the_shown_choice_follows_from_the_predictions():
    session = Session(parse_arguments(["--data", "constant"], recompute_lstm.__doc__), recompute_lstm.build_model)
    for k, shown in ((1, "next faster: 1 checkpoint, {}"), (3, "{} as predicted"), (7, "next cheaper: 7 checkpoints, {}")):
        assert shown.format(format_bytes(session.predicted_bytes(Cut(k)))) in TEXT
    assert f"the fastest of {len(cuts(2048))} plans" in TEXT
    assert f"plan: {Cut(3)} ({Cut(3).why(2048)})" in TEXT


def test_the_table_is_what_the_machine_says():
    chain = Chain.homogeneous(1000, state_bytes=1, activation_bytes=5)
    given = replace(chain, state_bytes=(0, *chain.state_bytes[1:]))
    cases = [(chain, 250, 250), (chain, 105, 105), (given, 101, 100), (chain, 100, 100)]
    shown = re.findall(r"\| x ([0-9.]+) \| `mixed_plan`", TEXT)
    assert len(shown) == len(cases)
    for (on, budget, peak), ratio in zip(cases, shown):
        outcome = simulate(on, mixed_plan(chain, budget_bytes=budget))
        assert outcome.peak_bytes <= peak
        assert f"{outcome.seconds / chain.plain_seconds:.3f}" == ratio


def test_the_pictures_and_programs_are_there():
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (PAGE.parent / target).exists(), target
    for program in re.findall(r"python3 (\S+\.py)", TEXT):
        assert (PAGE.parents[1] / program).exists(), program
