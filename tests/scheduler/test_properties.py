"""Properties of the scheduler over random engines and random traffic, shrunk by hypothesis when one does not hold.

After every operation the harness checks every invariant; at the end everything drains, every output is what a correct
engine generates, and nothing is held.
"""

from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.scheduler.traffic import Traffic


class SchedulerMachine(RuleBasedStateMachine):
    """One engine under traffic. Rules that come twice are drawn twice as often."""

    traffic: Traffic

    @initialize(data=st.data())
    def engine(self, data: st.DataObject) -> None:
        self.traffic = Traffic(self._dice(data))

    def _dice(self, data: st.DataObject) -> Any:
        def choose(options: Sequence[Any]) -> Any:
            return data.draw(st.sampled_from(options))

        return choose

    def _with(self, data: st.DataObject) -> Traffic:
        self.traffic.choose = self._dice(data)
        self.traffic.tick()
        return self.traffic

    @rule(data=st.data(), count=st.integers(1, 4))
    def add(self, data: st.DataObject, count: int) -> None:
        traffic = self._with(data)
        for _ in range(count):
            traffic.add()

    @rule(data=st.data(), steps=st.integers(1, 8))
    def run(self, data: st.DataObject, steps: int) -> None:
        """Plans as far ahead as allowed, then the oldest result, some steps in a row."""
        traffic = self._with(data)
        for _ in range(steps):
            while traffic.harness.plan() is not None:
                pass
            traffic.commit()

    @rule(data=st.data())
    def plan(self, data: st.DataObject) -> None:
        self._with(data).plan()

    @rule(data=st.data())
    def plan_that_fails(self, data: st.DataObject) -> None:
        self._with(data).plan_that_fails()

    @precondition(lambda self: self.traffic.harness.results)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self._with(data).commit()

    @precondition(lambda self: self.traffic.harness.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self._with(data).abort()

    @precondition(lambda self: self.traffic.unfinished())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self._with(data).finish()

    @precondition(lambda self: self.traffic.gates)
    @rule(data=st.data())
    def turn_gate(self, data: st.DataObject) -> None:
        self._with(data).turn_gate()

    @rule(data=st.data())
    def explain(self, data: st.DataObject) -> None:
        self._with(data).explain()

    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        self._with(data).reset()

    @invariant()
    def every_ledger_sums_to_its_capacity(self) -> None:
        for pool in self.traffic.harness.memory.pools:
            assert pool.ledger().total == pool.capacity, pool.name

    def teardown(self) -> None:
        if hasattr(self, "traffic"):
            self.traffic.drain()


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=400, stateful_step_count=40)
