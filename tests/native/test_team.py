"""The thread team: limits, idling, fork, several at once."""

from __future__ import annotations

import itertools
import os
import threading
import time

import numpy as np
import pytest

from edge_infer import _native
from edge_infer.errors import ConfigError, ExecutionError
from edge_infer.models.builder import ProgramBuilder
from edge_infer.models.values import Linear

RNG = np.random.default_rng(2)
TABLE = RNG.standard_normal((50, 64)).astype(np.float32)
HEAD96 = RNG.standard_normal((30, 96)).astype(np.float32)
HEAD = RNG.standard_normal((500, 64)).astype(np.float32)


def program(team):
    p = ProgramBuilder(max_rows=8, max_outputs=8)
    x = p.embed(Linear(_native.Weight.from_numpy(TABLE)), width=64)
    p.output("y", p.linear(p.gather(x), Linear(_native.Weight.from_numpy(HEAD))))
    return p.create(team, None, []), p.outputs["y"]


def step(native, output, tokens) -> np.ndarray:
    n = len(tokens)
    index = np.arange(n, dtype=np.int32)
    native.step(
        tokens=np.asarray(tokens, np.int32),
        decode_rows=0,
        positions=index[None],
        cache_index=index,
        visible_end=index + 1,
        sequence=np.zeros(n, np.int32),
        tables=[],
        lengths=[],
        output_rows=index,
    )
    return np.array(native.output(output))


def test_thread_counts() -> None:
    for bad in (0, -1, 1025):
        with pytest.raises(ConfigError):
            _native.Team(bad)
    with pytest.raises(ConfigError):
        _native.Team(2, [-1])
    for threads in (1, 2, 3, 5):  # more than CPUs as well
        y = step(*program(_native.Team(threads)), [1, 2, 3])
        np.testing.assert_allclose(y, TABLE[[1, 2, 3]] @ HEAD.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("unit", [1, 2])
def test_every_block_goes_to_one_thread(threads: int, unit: int) -> None:
    team = _native.Team(threads)
    for total in (0, 1, 2, 3, 5, 16, 17, 129, 1001):
        for _ in range(20):
            pieces = team.share(total, unit)
            assert len(pieces) == threads
            flat = sorted(itertools.chain.from_iterable(pieces))
            assert [b for b, _ in flat] == [0, *(e for _, e in flat)][: len(flat)]
            assert (flat[-1][1] if flat else 0) == total
            assert all(b % unit == 0 and b < e for b, e in flat)
    with pytest.raises(ConfigError):
        team.share(-1, unit)


def test_a_thread_reads_its_own_blocks_in_order() -> None:
    (pieces,) = _native.Team(1).share(64, 1)
    assert [b for b, _ in pieces] == [0, *(e for _, e in pieces)][:-1]
    assert pieces[0] == (0, 16) and pieces[-1] == (63, 64)  # ever smaller ones


@pytest.mark.parametrize("whole_row", [False, True])
def test_heads_of_a_row_are_shared_out(whole_row: bool) -> None:
    """Fewer rows than threads: row operations divide heads, unless one of them needs whole rows."""
    wide = RNG.standard_normal((96, 64)).astype(np.float32)

    def run(threads: int) -> list[np.ndarray]:
        p = ProgramBuilder(max_rows=8, max_outputs=8)
        x = p.embed(Linear(_native.Weight.from_numpy(TABLE)), width=64)
        q = p.linear(x, Linear(_native.Weight.from_numpy(wide)))
        q = p.rms_norm(q, None, 1e-6, heads=12, in_place=True)
        if whole_row:
            q = p.rms_norm(q, None, 1e-6, in_place=True)
        q = p.rms_norm(q, None, 1e-6, heads=12 if not whole_row else 4, in_place=True)
        p.output("y", p.linear(p.gather(q), Linear(_native.Weight.from_numpy(HEAD96))))
        native = p.create(_native.Team(threads), None, [])
        return [step(native, p.outputs["y"], tokens) for tokens in ([1], [2, 3], [4] * 5)]

    want = run(1)
    for threads in (2, 3, 5):
        for _ in range(10):
            for got, one in zip(run(threads), want, strict=True):
                np.testing.assert_array_equal(got, one)


def test_idle_team_uses_no_cpu() -> None:
    native, output = program(_native.Team(2))
    step(native, output, [1])
    time.sleep(0.05)  # the spin after a step is over
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.05


def test_caller_keeps_its_cpus() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    native, output = program(_native.Team(1, cpus[:1]))
    step(native, output, [1])
    assert sorted(os.sched_getaffinity(0)) == cpus


def test_two_models_from_two_threads() -> None:
    models = [program(_native.Team(2)) for _ in range(2)]
    shared = _native.Team(2)
    models += [program(shared), program(shared)]
    want = TABLE[[4, 5]] @ HEAD.T
    wrong: list[str] = []

    def work(model) -> None:
        for _ in range(50):
            if not np.allclose(step(*model, [4, 5]), want, rtol=1e-4, atol=1e-4):
                wrong.append("different")

    threads = [threading.Thread(target=work, args=(m,)) for m in models]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_fork_is_a_named_error() -> None:
    native, output = program(_native.Team(2))
    step(native, output, [1])
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            step(native, output, [1])
            os.write(write, b"ran")
        except ExecutionError as e:
            os.write(write, e.code.encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 100) == b"execution_failed"
    step(native, output, [1])  # the parent goes on


class Steps:
    """Steps of 10 ms on a team of four, in each of which the threads lose ``lost`` of the time."""

    def __init__(self) -> None:
        self.elastic, self.now = _native.Elastic(4), 100.0

    def run(self, lost: float) -> int:
        threads = self.elastic.threads(self.now)
        end = self.now + 0.01
        stalled = lost * 0.01 * max(1, threads - 1)
        self.elastic.finished(threads, self.now, end, stalled)
        self.now = end
        return threads


def test_threads_without_cpus_are_left_out() -> None:
    steps = Steps()
    assert [steps.run(0.9) for _ in range(3)] == [4, 4, 4]
    assert [steps.run(0.9) for _ in range(3)] == [2, 2, 2]
    assert [steps.run(0.9) for _ in range(10)] == [1] * 10


def test_all_threads_are_tried_again_ever_less_often_and_stay_when_they_have_cpus() -> None:
    steps = Steps()
    for _ in range(3):
        steps.run(0.9)
    counts = [steps.run(0.9 if steps.elastic.threads(steps.now) == 4 else 0.0) for _ in range(4000)]
    tries = [i for i, n in enumerate(counts) if n == 4]
    gaps = [b - a for a, b in itertools.pairwise(tries)]
    assert set(counts) == {2, 4}
    assert gaps[0] < gaps[-1] <= 402
    assert gaps == sorted(gaps)
    while steps.run(0.1) != 4:
        pass
    assert [steps.run(0.4) for _ in range(100)] == [4] * 100


def test_a_single_slow_step_changes_nothing() -> None:
    steps = Steps()
    for _ in range(50):
        assert [steps.run(lost) for lost in (0.99, 0.99, 0.2)] == [4, 4, 4]


def test_steps_are_the_same_when_other_threads_keep_the_cpus() -> None:
    """More threads than CPUs, and pinned to one: some are left out sooner or later."""
    cpu = min(os.sched_getaffinity(0))
    native, output = program(_native.Team(6, [cpu] * 6))
    alone, output_alone = program(_native.Team(1, []))
    want = step(alone, output_alone, [1, 2, 3]).copy()
    for _ in range(100):
        np.testing.assert_array_equal(step(native, output, [1, 2, 3]), want)
