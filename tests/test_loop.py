"""Which policy acts when, and how often the loop learns: seen through an agent whose policy counts its updates."""

import dataclasses
import time
import types
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lsac.agents import AGENTS
from lsac.envs.gymnasium import Spaces
from lsac.envs.sources import Environments, Source, given
from lsac.replay import ring as rb
from lsac.runs.experiment import Experiment
from lsac.train import logger
from lsac.train import run as running
from lsac.train.logger import TimeLeft
from lsac.train.refresh import Fitting, Refresher, Schedule
from lsac.train.run import Observer, run
from lsac.train.stopping import Stop
from lsac.types import Agent, Entropy, Refresh, Values, memoryless

CHUNK, CHUNKS, UPDATES = 8, 7, 4


@dataclass(frozen=True)
class Config:
    scale: float = 0.001
    """action per update"""


@dataclass(frozen=True)
class OnPolicyConfig:
    on_policy: ClassVar[bool] = True
    scale: float = 0.001
    """action per update"""
    updates: int | None = None
    """updates of the run"""

    def for_run(self, updates):
        return replace(self, updates=updates)


def make(config, spec):
    return Agent(
        init=lambda key: jnp.zeros(1),
        policy=lambda state: state,
        act=memoryless(lambda policy, obs, key, explore: policy * config.scale),
        update=lambda state, replay, key: (state + 1.0, {"updates": state[0]}),
    )


def train(experiment):
    """A run without a folder: what is left of it, and its lines of metrics."""
    environments, lines = given(lambda: gym.make(experiment.env))._replace(evaluation=None), []
    result = run(experiment, environments, observer=Observer(lambda progress: lines.extend(progress.lines)))
    assert result.finished
    return result, lines


def updates_behind_each_chunk(monkeypatch, learning_starts):
    """The number of updates that the policy of every chunk had seen, and the learner after the run."""
    monkeypatch.setitem(AGENTS, "counting", types.SimpleNamespace(Config=Config, make=make))
    experiment = Experiment(
        Config(),
        "lsac/TimeLimited-v0",
        steps=CHUNK * CHUNKS,
        seeds=2,
        num_envs=2,
        chunk=CHUNK,
        utd=UPDATES / CHUNK,
        learning_starts=learning_starts,
        eval_every=0,
    )
    learner = train(experiment)[0].learner
    actions = learner.replay.layout.transitions(rb.stored_of_seeds(learner.replay)).action
    return np.round(actions.reshape(2, CHUNKS, CHUNK) / Config.scale, 3), learner


def test_a_chunk_is_collected_with_the_policy_of_the_chunk_before_the_last(monkeypatch):
    counts, learner = updates_behind_each_chunk(monkeypatch, learning_starts=0)
    expected = np.array([0, 0, 1, 2, 3, 4, 5]) * UPDATES
    np.testing.assert_array_equal(counts, np.broadcast_to(expected[:, None], counts.shape))
    np.testing.assert_array_equal(learner.state, [[CHUNKS * UPDATES]] * 2)


def test_an_on_policy_chunk_is_collected_with_the_policy_of_the_chunk_before_and_learned_from_alone(monkeypatch):
    """Every update remembers how many updates were behind the actions that it saw."""
    made = []

    def make_on_policy(config, spec):
        made.append(config.updates)

        def update(state, replay, key):
            actions = rb.everything(replay)[0].action / config.scale
            told = {"least": jnp.min(actions), "most": jnp.max(actions), "rows": jnp.float32(actions.shape[0])}
            return state + 1.0, told | {"stride": jnp.float32(replay.stride)}

        return make(config, spec)._replace(update=update)

    monkeypatch.setitem(AGENTS, "reading", types.SimpleNamespace(Config=OnPolicyConfig, make=make_on_policy))
    experiment = Experiment(
        *(OnPolicyConfig(), "lsac/TimeLimited-v0"),
        **{"steps": CHUNK * CHUNKS, "seeds": 2, "num_envs": 2, "chunk": CHUNK, "log_every": CHUNK},
        **{"learning_starts": 0, "eval_every": 0},
    )
    result, lines = train(experiment)
    for seed in (0, 1):
        seen = [
            {k: round(x[f"train/{k}"], 3) for k in ("least", "most", "rows", "stride")}
            for x in lines
            if x["seed"] == seed
        ]
        assert seen == [{"least": i, "most": i, "rows": CHUNK, "stride": 2} for i in range(CHUNKS)]
    assert CHUNKS in made, "the agent that learns is told how many updates the run has"
    assert result.learner.updates == CHUNKS


@pytest.mark.parametrize("learning_starts", [2 * CHUNK, 2 * CHUNK - 1])
def test_actions_are_random_and_nothing_is_learned_before_learning_starts(monkeypatch, learning_starts):
    counts, learner = updates_behind_each_chunk(monkeypatch, learning_starts)
    assert np.unique(counts[:, :2]).size == 2 * 2 * CHUNK
    expected = np.array([0, 0, 1, 2, 3]) * UPDATES
    np.testing.assert_array_equal(counts[:, 2:], np.broadcast_to(expected[:, None], (2, 5, CHUNK)))
    np.testing.assert_array_equal(learner.state, [[(CHUNKS - 2) * UPDATES]] * 2)
    assert learner.updates == (CHUNKS - 2) * UPDATES


def refresh_of(finish, generate):
    """A refresh every 24 steps, in three pieces of ten steps that only count themselves."""
    return Refresh(
        **{"every": 24, "growth": 0.0, "title": "counting", "steps": 30, "pieces": 3},
        begin=lambda state, replay, key: jnp.zeros(()),
        advance=lambda work, replay, piece: work + piece.astype(jnp.float32),
        finish=finish,
        generate=generate,
        compact=lambda state: state,
    )


@pytest.mark.parametrize("fault", [None, ValueError("no simulator")], ids=["inspected", "failed"])
def test_an_agent_goes_on_with_what_an_inspection_of_its_generated_transitions_found(fault, monkeypatch):
    """The agent shows its number of updates as what it generated; refreshes at 24 and 48. It is told of an error of
    100 times that, plus 1 for the second seed, and adds it to its number of updates."""

    def make_generating(config, spec):
        layout = rb.layout_of(spec)

        def finish(state, work):
            return state, {"fitted": state[0] + 0 * work}, layout.unpack(jnp.zeros((3, layout.width)))

        def generate(state, key):
            return state, layout.unpack(jnp.zeros((3, layout.width)) + state[0])

        def judge(state, error):
            return state + error, {"told": error}

        return make(config, spec)._replace(refresh=refresh_of(finish, generate)._replace(judge=judge))

    monkeypatch.setitem(AGENTS, "generating", types.SimpleNamespace(Config=Config, make=make_generating))

    def inspect(sample):
        if fault:
            raise fault
        return {"dynamics_error": 100 * sample.generated[:, 0, 0] + np.arange(2)}

    monkeypatch.setattr(running, "inspector", lambda source, repeat: inspect)
    experiment = Experiment(
        *(Config(), "lsac/TimeLimited-v0"),
        **{"steps": CHUNK * CHUNKS, "seeds": 2, "chunk": CHUNK, "log_every": CHUNK, "learning_starts": 0},
        eval_every=0,
    )
    (result, lines), first = train(experiment), 24.0
    told = {
        name: [(x["step"], x["seed"], x[f"train/{name}"]) for x in lines if f"train/{name}" in x]
        for name in ("fitted", "dynamics_error", "told")
    }
    if fault:
        assert told["dynamics_error"] == told["told"] == []
        np.testing.assert_array_equal(result.learner.state, [[CHUNK * CHUNKS]] * 2)
    else:
        second = 48.0 + 100 * first
        expected = [(24, 0, 100 * first), (24, 1, 100 * first + 1), (48, 0, 100 * second)]
        assert told["told"] == told["dynamics_error"] == [*expected, (48, 1, 100 * (second + 1) + 1)]
        assert told["fitted"] == [(24, 0, first), (24, 1, first), (48, 0, second), (48, 1, second + 1)]


@pytest.mark.parametrize(("shares", "warnings"), [((0.0, 0.0), 1), ((0.0, 0.25), 0)])
def test_a_run_warns_once_if_no_seed_uses_its_generated_transitions(shares, warnings, monkeypatch):
    found = {"dynamics_error": np.array([17.0, 15.2])}
    monkeypatch.setattr(running, "inspector", lambda source, repeat: lambda sample: dict(found))
    judge = lambda state, error: (state, {"synthetic_share": jnp.where(error > 16, *shares)})  # noqa: E731
    (experiment, *more), said = refreshing(monkeypatch, judge), []
    run(dataclasses.replace(experiment, seeds=2), *more, observer=Observer(say=said.append))
    found = [text for text in said if "generated transitions are wrong" in text]
    assert len(found) == warnings
    assert all(text.startswith("warning: ") and "dynamics error 15.2;" in text for text in found)


def refreshing(monkeypatch, judge=None):
    """An experiment of an agent that refreshes at steps 24 and 48, and an environment for it."""

    def make_refreshing(config, spec):
        layout = rb.layout_of(spec)
        shown = lambda: layout.unpack(jnp.zeros((3, layout.width)))  # noqa: E731
        refresh = refresh_of(lambda state, work: (state, {"work": work}, shown()), lambda state, key: (state, shown()))
        return make(config, spec)._replace(refresh=refresh._replace(judge=judge))

    monkeypatch.setitem(AGENTS, "refreshing", types.SimpleNamespace(Config=Config, make=make_refreshing))
    experiment = Experiment(
        *(Config(), "lsac/TimeLimited-v0"),
        **{"steps": CHUNK * CHUNKS - 3, "chunk": CHUNK, "log_every": CHUNK, "learning_starts": 8, "eval_every": 0},
    )
    return experiment, given(lambda: gym.make("lsac/TimeLimited-v0"))


class Corridor(gym.Env):
    """Shows how many of its ten steps are done. An action of 0 is worth 5, any other 1."""

    observation_space = gym.spaces.Box(0.0, 10.0, (1,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.full(1, self.t, np.float32), 5.0 if action[0] == 0.0 else 1.0, self.t == 10, False, {}


def test_an_agent_that_knows_its_soft_values_has_no_bias(monkeypatch):
    """Its exploring actions are uniform in [−1, 1], so −log π = log 2; α is a tenth of 1 + the number of updates, and
    Q(s, a) = Σ γᵏ + α Σ γᵏ log 2, the second sum without k = 0. At first that is less than the spread, which is 3."""
    gamma, log_2 = 0.5, float(np.log(2.0))

    def value(alpha, obs, action):
        left = 10.0 - obs[0]
        total = (1.0 - gamma**left) / (1.0 - gamma)
        return {"q": total + alpha * log_2 * (total - 1.0), "q_spread": jnp.float32(3.0)}

    def make_knowing(config, spec):
        alpha = lambda state: 0.1 * (1.0 + state[0])  # noqa: E731
        act = lambda policy, obs, key, explore: jax.random.uniform(key, (1,), minval=-1.0) if explore else jnp.zeros(1)  # noqa: E731
        entropy = Entropy(alpha, lambda policy, memory, obs, key: jnp.float32(log_2))
        return make(config, spec)._replace(act=memoryless(act), values=Values(alpha, value, entropy))

    monkeypatch.setitem(AGENTS, "knowing", types.SimpleNamespace(Config=Config, make=make_knowing))
    experiment = Experiment(
        *(Config(), "corridor"),
        **{"steps": 2 * CHUNK, "seeds": 2, "chunk": CHUNK, "learning_starts": 0, "gamma": gamma},
        **{"eval_every": CHUNK, "eval_episodes": 10, "log_every": CHUNK},
    )
    here = Source(Corridor, None)
    environments = Environments("corridor", here, here, Spaces(Corridor()))
    lines, said = [], []
    observer = Observer(lambda progress: lines.extend(progress.lines), said.append)
    assert run(experiment, environments, observer=observer).finished
    lines = [line for line in lines if "eval/q" in line]
    assert [(line["step"], line["seed"]) for line in lines] == [(CHUNK * i, seed) for i in range(3) for seed in (0, 1)]
    for line in lines:
        assert (line["eval/mean_reward"], line["eval/mean_ep_length"]) == (50.0, 10.0), "of the deterministic policy"
        alpha, totals = 0.1 * (1 + line["step"]), np.array([(1 - gamma**left) / (1 - gamma) for left in (5, 10)])
        assert line["eval/mc_return"] == pytest.approx(np.mean(totals + alpha * log_2 * (totals - 1)), rel=1e-6)
        for name in ("q_bias", "q_bias_std", "q_bias_normalised", "q_error"):
            assert line[f"eval/{name}"] == pytest.approx(0.0, abs=1e-6), name
    apart = [text for text in said if text.startswith("warning: seed")]
    assert [text.split(":")[1] for text in apart] == [" seed 0", " seed 1"], "once each"
    assert all("its critics disagree by 3 about a value of 2 (step 0)" in text for text in apart)


def test_a_refresh_tells_its_progress_and_the_time_left_counts_it(monkeypatch):
    told, seen = [], []
    result = run(*refreshing(monkeypatch), observer=Observer(seen.append, fitting=told.append))
    fit = [Fitting("counting", done, 30) for done in (0, 10, 20, 30)]
    assert told == fit * 2
    assert [line["train/work"] for p in seen for line in p.lines if "train/work" in line] == [3.0, 3.0]
    assert {p.steps for p in seen} == {result.step} == {56}, "rounded up to whole chunks"
    known = [p.step for p in seen if p.seconds_left is not None]
    assert known == [24, 32, 40, 48, 56], "not before the first of the refreshes"
    assert seen[-1].seconds_left == 0.0


def test_a_stop_during_a_refresh_is_noticed_between_two_pieces(monkeypatch):
    stop, told = Stop(), []

    def fitting(progress):
        told.append(progress.done)
        if progress.done == 20:
            stop.request()

    result = run(*refreshing(monkeypatch), observer=Observer(fitting=fitting), stop=stop)
    assert (result.finished, result.step, told) == (False, 24, [0, 10, 20])
    assert result.learner.refresher.refreshed_at == 0, "a resume repeats the refresh"


class At(NamedTuple):
    """A refresher with refreshes left at a step."""

    count: int

    def left(self, step, end, learning_starts):
        return self.count


def time_left(lines, refreshes=(), left=0):
    """The estimate after lines of (second, step, updates), each refresh of the given duration before the last line."""
    with pytest.MonkeyPatch.context() as patch:
        estimate = TimeLeft(Experiment(Config(), "X-v0", steps=1_000, chunk=10, learning_starts=100), At(left))
        patch.setattr(logger.time, "monotonic", lambda: 50.0)
        estimate.start(0)
        for i, (second, step, updates) in enumerate(lines):
            if i == len(lines) - 1:
                for seconds in refreshes:
                    estimate.refreshed(seconds)
            patch.setattr(logger.time, "monotonic", lambda second=second: 50.0 + second)
            estimate.advance(step, updates)
        return estimate.at(lines[-1][1])


@pytest.mark.parametrize(
    ("lines", "more", "expected"),
    [
        ([(1, 50, 0)], {}, None),
        ([(1, 50, 0), (2, 100, 0)], {}, None),
        ([(1, 50, 0), (2, 100, 0), (12, 200, 100)], {}, 80.0),
        ([(2, 100, 0), (12, 200, 100), (13, 300, 200)], {}, 38.5),
        ([(2, 100, 0), (12, 200, 100)], {"left": 3}, None),
        ([(2, 100, 0), (32, 200, 100)], {"left": 3, "refreshes": (20.0,)}, 80.0 + 60.0),
        ([(2, 100, 0), (42, 200, 100)], {"left": 0, "refreshes": (20.0, 10.0)}, 80.0),
    ],
)
def test_time_left_is_that_of_updates_and_refreshes(lines, more, expected):
    assert time_left(lines, **more) == (expected if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("step", "end", "starts", "count"),
    [(0, 100, 0, 9), (5, 100, 0, 9), (10, 100, 0, 8), (0, 100, 25, 7), (0, 101, 0, 10), (95, 100, 0, 0)],
)
def test_refreshes_left_are_those_of_the_rest_of_the_run(step, end, starts, count):
    """One that is due at the very end is not made."""
    refresher = Refresher(make(Config(), None), None, [0], None)
    assert refresher.left(step, end, starts) == 0
    refresher.schedule = Schedule(10)
    assert refresher.left(step, end, starts) == count


def test_refreshes_come_less_often_as_the_steps_grow():
    """The 10 000 steps after each refresh up to the tenth are a fifth of the steps so far or more; a fifth of 100 000
    is 20 000, of 160 000 is 32 000, which is rounded down to 30 000."""
    tenths = [*range(1, 11), 12, 14, 16, 19, 22, 26, 31, 37, 44, 52, 62, 74, 88, 105]
    schedule = Schedule(10_000, 0.2)
    for count, at in enumerate(tenths, start=1):
        assert schedule.until(10_000 * at - 1)[0] == count - 1
        assert schedule.until(10_000 * at) == (count, 10_000 * at)


@pytest.mark.parametrize("growth", [0.0, 1e-9, 0.3, 2.5])
def test_a_schedule_is_that_of_its_rule_one_refresh_at_a_time(growth):
    every, at, count = 7, 0, 0
    schedule = Schedule(every, growth)
    for step in range(2_000):
        if step == at + every * max(1, int(growth * at / every)):
            count, at = count + 1, step
        assert schedule.until(step) == (count, at)


@pytest.mark.parametrize("growth", [0.0, 0.2])
def test_a_schedule_is_quick_for_the_largest_number_in_a_file(growth):
    started = time.perf_counter()
    assert Schedule(1, growth).until(2**62)[1] <= 2**62
    assert Schedule(1, growth).until(-5) == (0, 0)
    assert time.perf_counter() - started < 1.0


@pytest.mark.parametrize("chunk", [16, 32])
def test_the_first_refresh_can_be_at_the_step_at_which_learning_starts(chunk):
    refresher = Refresher(make(Config(), None), None, [0], None)
    refresher.schedule = Schedule(10_000)
    first = -(-10_000 // chunk) * chunk
    assert [refresher.last(step, chunk, 10_000) for step in (first - chunk, first, 19_999)] == [0, first, first]
    assert refresher.last(9_999, chunk, 0) == 0
    assert refresher.last(first, chunk, 10_001 + chunk) == 0
    assert refresher.left(0, 100_000, 10_000) == 9


# planned updates


@pytest.mark.parametrize("start", [0, 8, 16, 24, 32])
@pytest.mark.parametrize("learning_starts", [0, 8, 9, 16, 33, 56])
@pytest.mark.parametrize("steps", [1, 8, 31, 56])
def test_planned_updates_are_those_that_the_loop_makes(steps, learning_starts, start):
    """The loop learns from every chunk that starts at `learning_starts` or later."""
    e = Experiment(Config(), "X-v0", steps=steps, chunk=8, utd=0.5, learning_starts=learning_starts)
    made, step = 0, start
    while step < e.steps:
        made += e.updates_per_chunk if step >= e.learning_starts else 0
        step += e.chunk
    assert e.planned_updates(start) == made


@pytest.mark.parametrize("learning_starts", [0, 9, 16, 56])
def test_planned_updates_are_made(learning_starts, monkeypatch):
    _, learner = updates_behind_each_chunk(monkeypatch, learning_starts)
    e = Experiment(Config(), "X-v0", steps=CHUNK * CHUNKS, chunk=CHUNK, utd=0.5, learning_starts=learning_starts)
    assert learner.updates == e.planned_updates() == max(0, CHUNKS - -(-learning_starts // CHUNK)) * UPDATES
