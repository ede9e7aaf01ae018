"""A simulator that runs any plan on any chain, enforces the rules, and counts bytes and seconds.

Memory holds stored states and kept activations; one state is in hand. While a step runs, forward or
backward, its working bytes are alive too.

The rules: a step starts from its input in hand. Nothing is stored, kept or freed twice. A step runs
backward once, after its successor and with its activations kept. A finished step does not run
again. Nothing is left over at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, NoReturn

from ..errors import InvalidPlanError
from .actions import Action, Advance, Backward, Free, Keep, Restore, Store
from .chain import Chain


@dataclass(frozen=True)
class Outcome:
    """What a plan costs on a chain in bytes, steps and seconds; returned by ``simulate``.

    Seconds are in the unit of the chain's costs.
    """

    peak_bytes: int
    forward_steps: int
    replayed_steps: int
    seconds: float


def simulate(chain: Chain, plan: Iterable[Action]) -> Outcome:
    """Run ``plan`` on ``chain`` and return its peak bytes, steps and seconds.

    Args:
        chain: What the steps cost.
        plan: A Plan or any iterable of actions, read once.

    Returns:
        An ``Outcome``. Its ``replayed_steps`` are the forward steps beyond one per step.

    Raises:
        InvalidPlanError: The plan breaks a rule or leaves work undone; names the action and the
            step.

    Examples:
        >>> chain = kr.planning.Chain.homogeneous(4, state_bytes=1, activation_bytes=5)
        >>> plan = kr.planning.uniform_plan(4, checkpoints=1)
        >>> kr.planning.simulate(chain, plan)  # at the peak 1 state and 2 * 5 bytes
        Outcome(peak_bytes=11, forward_steps=6, replayed_steps=2, seconds=14)
    """
    machine = _Machine(chain)
    for position, action in enumerate(plan):
        machine.run(position, action)
    machine.finish()
    return Outcome(
        peak_bytes=machine.peak_bytes,
        forward_steps=machine.forward_steps,
        replayed_steps=machine.forward_steps - len(chain),
        seconds=machine.seconds,
    )


class _Machine:
    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.in_hand: int | None = 0
        self.stored: set[int] = set()
        self.kept: set[int] = set()
        self.unfinished = len(chain)
        self.held_bytes = self.peak_bytes = chain.fixed_bytes
        self.forward_steps = 0
        self.seconds: float = 0
        self.where = ""

    def run(self, position: int, action: Action) -> None:
        self.where = f"action {position}, {action!r}"
        if isinstance(action, (Advance, Keep, Backward)):
            if not 0 <= action.begin < action.end <= len(self.chain):
                self.reject(
                    f"steps {action.begin} to {action.end - 1} are not within the "
                    f"{len(self.chain)} steps of the chain"
                )
            if isinstance(action, Backward):
                for step in reversed(range(action.begin, action.end)):
                    self.backward(step)
            else:
                for step in range(action.begin, action.end):
                    self.forward(step, keep=isinstance(action, Keep))
        elif isinstance(action, Store):
            self.store(action.step)
        elif isinstance(action, Restore):
            if action.step not in self.stored:
                self.reject(
                    f"the input of step {action.step} is not stored: store it before, and free it "
                    "after"
                )
            self.in_hand = action.step
        elif isinstance(action, Free):
            if action.step not in self.stored:
                self.reject(f"the input of step {action.step} is not stored, so it cannot be freed")
            self.stored.remove(action.step)
            self.held_bytes -= self.chain.state_bytes[action.step]
        else:
            self.reject("this is not an action of a plan")

    def store(self, step: int) -> None:
        if step != self.in_hand or step >= len(self.chain):
            self.reject(
                f"the input of step {step} is not in hand ({self.hand()}): store it when the step "
                "before has run"
            )
        if step in self.stored:
            self.reject(f"the input of step {step} is already stored: store it once")
        self.stored.add(step)
        self.held_bytes += self.chain.state_bytes[step]
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)

    def forward(self, step: int, *, keep: bool) -> None:
        if step != self.in_hand:
            self.reject(
                f"the input of step {step} is not in hand ({self.hand()}): restore it or advance "
                "to it"
            )
        if step >= self.unfinished:
            self.reject(f"step {step} has run backward already, so nothing needs it any more")
        if keep:
            if step in self.kept:
                self.reject(f"the activations of step {step} are already kept: keep them once")
            self.kept.add(step)
            self.held_bytes += self.chain.activation_bytes[step]
        self.peak_bytes = max(self.peak_bytes, self.held_bytes + self.chain.working_bytes[step])
        self.in_hand = step + 1
        self.forward_steps += 1
        self.seconds += self.chain.forward_seconds[step]

    def backward(self, step: int) -> None:
        # Gradients arrive in reverse order.
        if step != self.unfinished - 1:
            self.reject(
                f"step {step} cannot run backward now: the next one is step {self.unfinished - 1}"
            )
        if step not in self.kept:
            self.reject(
                f"the activations of step {step} are not kept: run it forward with Keep first"
            )
        self.peak_bytes = max(self.peak_bytes, self.held_bytes + self.chain.working_bytes[step])
        self.kept.remove(step)
        self.held_bytes -= self.chain.activation_bytes[step]
        # No step after this one may run again, as nothing needs its result.
        self.unfinished = step
        self.in_hand = None
        self.seconds += self.chain.backward_seconds[step]

    def finish(self) -> None:
        self.where = "the end of the plan"
        if self.unfinished:
            self.reject(f"step {self.unfinished - 1} has not run backward: add the missing actions")
        if self.stored:
            self.reject(f"the input of step {min(self.stored)} is still stored: free it")

    def hand(self) -> str:
        return (
            "nothing is"
            if self.in_hand is None
            else f"the output of step {self.in_hand - 1} is"
            if self.in_hand
            else "input is"
        )

    def reject(self, why: str) -> NoReturn:
        raise InvalidPlanError(f"{self.where}: {why}")
