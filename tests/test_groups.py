"""Simulators, groups and pools: what reaches an environment, which transitions come back, from which random stream."""

import dataclasses
import itertools
import signal
import subprocess
import tempfile
import time
from multiprocessing import Pipe

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
from gymnasium import spaces

from lsac import streams
from lsac.collect.actors import make_actors
from lsac.collect.groups import Discounts, Group, Step, Trace, evaluation_states
from lsac.collect.handles import ProcessWorker
from lsac.collect.pool import PATIENCE, Pool, evaluation_groups, group_size, training_groups
from lsac.collect.wire import Episode, GroupPlan
from lsac.envs.gymnasium import Simulator, Spaces
from lsac.envs.sources import Source, given
from lsac.errors import CheckpointError, EnvironmentFault
from lsac.replay.ring import FIRST, PACKED, layout_of
from lsac.runs.experiment import Experiment, make_agent
from lsac.train.run import judged_episodes
from lsac.types import Agent, Entropy, Values, memoryless

GAMMA = 0.9


class Counter(gym.Env):
    """Shows (its number, its episode, the step in it), always in the same buffer; the reward is the step.

    An episode ends after `length` steps, in the way that `ends` says: terminated, truncated.
    """

    def __init__(self, number=0.0, length=3, ends=(True, False), action_space=None):
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32) if action_space is None else action_space
        self.length, self.ends = length, ends
        self.buffer = np.array([number, -1.0, 0.0], np.float32)
        self.actions = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.buffer[1:] = self.buffer[1] + 1, 0
        return self.buffer, {}

    def step(self, action):
        self.actions.append(action)
        self.buffer[2] += 1
        terminated, truncated = self.ends if self.buffer[2] == self.length else (False, False)
        return self.buffer, float(self.buffer[2]), terminated, truncated, {}


class Drawing(gym.Env):
    """One-step episodes whose observation is drawn from the environment's own generator."""

    def __init__(self):
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random(1), {}

    def step(self, action):
        return np.zeros(1), 0.0, True, False, {}


# one environment

BOXES = {
    "plus-minus 1": ([-1.0], [1.0]),
    "plus-minus 0.4": ([-0.4] * 17, [0.4] * 17),
    "asymmetric": ([-2.0, 0.0, 5.0], [1.0, 10.0, 6.0]),
    "a matrix": ([[-2.0, 0.0], [1.0, -3.0]], [[2.0, 1.0], [2.0, 7.0]]),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", BOXES)
def test_actions_are_rescaled_from_plus_minus_one_to_the_box(name, dtype):
    low, high = (np.array(bound, dtype) for bound in BOXES[name])
    env = Counter(action_space=spaces.Box(low, high, dtype=dtype))
    simulator = Simulator(env)
    assert simulator.spaces.spec(GAMMA).action_dim == simulator.spaces.action_dim == low.size
    simulator.reset(0)
    for value, expected in {-1: low, 0: (low + high) / 2, 0.5: 0.25 * low + 0.75 * high, 1: high}.items():
        simulator.step(np.full(low.size, value, np.float32))
        np.testing.assert_allclose(env.actions[-1], expected, rtol=1e-6, atol=1e-6)
        assert env.actions[-1].dtype == dtype
        assert env.actions[-1].shape == low.shape


def test_every_dimension_of_an_action_keeps_its_place():
    env = Counter(action_space=spaces.Box(np.zeros(3, np.float32), np.array([1, 10, 100], np.float32)))
    simulator = Simulator(env)
    simulator.reset(0)
    simulator.step(np.array([1.0, 0.0, -1.0], np.float32))
    np.testing.assert_allclose(env.actions[-1], [1, 5, 0])


def test_actions_beyond_plus_minus_one_are_clipped():
    simulator = Simulator(Counter(action_space=spaces.Box(-0.4, 0.4, (2,), np.float32)))
    np.testing.assert_allclose(simulator.spaces.scaled(np.array([-7.0, 1.5], np.float32)), [-0.4, 0.4], rtol=1e-6)


def test_dict_observation_becomes_one_vector_in_the_order_of_its_space():
    env = Counter()
    env.observation_space = spaces.Dict(
        goal=spaces.Box(-9, 9, (2,), np.float64), agent=spaces.Box(-9, 9, (1, 2), np.float32)
    )
    assert Spaces(env).spec(GAMMA).obs_dim == 4
    simulator = Simulator(env)
    flat = simulator.spaces.flat({"agent": np.array([[3.0, 4.0]], np.float32), "goal": np.array([1.0, 2.0])})
    assert flat.dtype == np.float32
    np.testing.assert_array_equal(flat, [1, 2, 3, 4])


def test_observation_is_copied_out_of_a_buffer_that_the_environment_reuses():
    simulator = Simulator(Counter())
    first = simulator.reset(0)
    second, *_ = simulator.step(np.zeros(1, np.float32))
    simulator.step(np.zeros(1, np.float32))
    np.testing.assert_array_equal(first, [0, 0, 0])
    np.testing.assert_array_equal(second, [0, 0, 1])


# a group

CONSTANT = Agent(
    init=lambda key: jnp.zeros(1),
    policy=lambda state: state,
    act=memoryless(
        lambda policy, obs, key, explore: policy + 0.5 * jax.random.uniform(key, (1,)) if explore else policy
    ),
    update=lambda state, replay, key: (state, {}),
)
"""The policy is the action itself; exploring adds up to 0.5."""

ACTORS = make_actors(CONSTANT, 1)
POLICY = jnp.array([0.25])


def group_of(envs, seed=0, numbers=None, stride=None, time_limits_terminate=False, actors=ACTORS):
    plan = GroupPlan(seed, 0, numbers or list(range(len(envs))), stride or len(envs))
    simulators = [Simulator(env) for env in envs]
    group = Group(plan, simulators, actors, Discounts(GAMMA, time_limits_terminate), np.zeros(2, np.int64))
    group.reset(0)
    return group


def collect(group, count=8, step=0, random=False):
    """Fields [T, E, …] and the finished episodes."""
    stored, episodes = group.collect(POLICY, step, count, random)
    assert {name: x.dtype for name, x in stored.items()} == {PACKED: np.float32, FIRST: np.bool_}
    assert {x.shape[:2] for x in stored.values()} == {(count, len(group.simulators))}
    return group.layout.transitions(stored), episodes


def test_a_time_limit_is_an_end_on_request():
    t, _ = collect(group_of([Counter(length=3, ends=(False, True))], time_limits_terminate=True), count=5)
    np.testing.assert_allclose(t.discount[:, 0], [GAMMA, GAMMA, 0.0, GAMMA, GAMMA])


@pytest.mark.parametrize(
    ("ends", "discount"), [((True, False), 0.0), ((False, True), GAMMA), ((True, True), 0.0)], ids=str
)
def test_the_end_of_an_episode_keeps_its_true_last_observation_and_only_a_termination_has_no_future(ends, discount):
    t, episodes = collect(group_of([Counter(length=3, ends=ends)]), count=5)
    np.testing.assert_array_equal(t.obs[:, 0, 1:], [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]])
    np.testing.assert_array_equal(t.next_obs[:, 0, 1:], [[0, 1], [0, 2], [0, 3], [1, 1], [1, 2]])
    np.testing.assert_array_equal(t.discount[:, 0], np.float32([GAMMA, GAMMA, discount, GAMMA, GAMMA]))
    np.testing.assert_array_equal(t.reward[:, 0], [1, 2, 3, 1, 2])
    assert episodes == [Episode(step=2, reward=6.0, length=3)]


@pytest.mark.parametrize("ends", [(True, False), (False, True)], ids=str)
def test_the_first_step_of_every_episode_is_marked_across_chunks(ends):
    group = group_of([Counter(length=3, ends=ends), Counter(length=4, ends=ends)])
    marks = [group.collect(POLICY, step, 4, random=False)[0][FIRST] for step in (0, 8)]
    steps = np.arange(8)
    np.testing.assert_array_equal(np.concatenate(marks), np.stack([steps % 3 == 0, steps % 4 == 0], axis=1))


def test_an_episode_goes_on_from_one_chunk_to_the_next():
    group = group_of([Counter(length=3)])
    collect(group, count=2)
    t, episodes = collect(group, count=2, step=2)
    np.testing.assert_array_equal(t.obs[:, 0, 1:], [[0, 2], [1, 0]])
    assert episodes == [Episode(step=2, reward=6.0, length=3)]


def test_environments_of_a_group_end_their_episodes_by_themselves():
    t, episodes = collect(group_of([Counter(0, length=2), Counter(1, length=3)]), count=4)
    np.testing.assert_array_equal(t.obs[:, 0], [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]])
    np.testing.assert_array_equal(t.obs[:, 1], [[1, 0, 0], [1, 0, 1], [1, 0, 2], [1, 1, 0]])
    assert episodes == [Episode(2, 3.0, 2), Episode(4, 6.0, 3), Episode(6, 3.0, 2)]


def test_the_action_in_a_transition_is_the_one_the_environment_was_given():
    env = Counter(action_space=spaces.Box(-0.4, 0.4, (1,), np.float32))
    t, _ = collect(group_of([env]))
    np.testing.assert_allclose(np.concatenate(env.actions), 0.4 * t.action[:, 0, 0], rtol=1e-6)


def test_exploring_noise_is_new_for_every_step_and_every_environment():
    t, _ = collect(group_of([Counter(), Counter()]))
    noise = t.action[..., 0] - 0.25
    assert np.unique(noise).size == 16
    assert noise.min() >= 0
    assert noise.max() <= 0.5


def test_random_actions_ignore_the_policy_and_fill_plus_minus_one():
    t, _ = collect(group_of([Counter(), Counter()]), count=64, random=True)
    action = t.action[..., 0]
    assert np.unique(action).size == 128
    assert action.min() < -0.9
    assert action.max() > 0.9
    assert abs(action.mean()) < 0.2


def test_noise_depends_on_the_step_and_not_on_how_steps_are_cut_into_chunks():
    whole, _ = collect(group_of([Counter(), Counter()]), count=8)
    group = group_of([Counter(), Counter()])
    parts = [collect(group, count=4, step=step)[0] for step in (0, 8)]
    np.testing.assert_array_equal(np.concatenate([part.action for part in parts]), whole.action)


def test_evaluation_gives_one_episode_per_environment_without_noise():
    envs = [Counter(0, length=2), Counter(1, length=4, ends=(False, True))]
    returns, lengths, _ = group_of(envs).evaluate(POLICY, step=0, deterministic=True)
    np.testing.assert_array_equal(returns, [3.0, 10.0])
    np.testing.assert_array_equal(lengths, [2, 4])
    assert {float(action[0]) for env in envs for action in env.actions} == {0.25}


# the returns that values are compared with

REWARDS, NEG_LOG_PROBS = (1.0, 2.0, 4.0, 8.0, -1.0, 0.5, 3.0), (100.0, 0.1, 0.2, -0.4, 0.8, 1.6, 3.2)


def trace_of(length, terminated, rewards=None, neg_log_probs=None):
    each = zip(range(length), rewards or [2.0] * length, neg_log_probs or [0.5] * length, strict=True)
    steps = [Step(np.full(1, t, np.float32), np.full(1, -t, np.float32), r, h) for t, r, h in each]
    return Trace(steps, terminated)


def test_a_state_comes_with_its_action_and_the_discounted_rewards_and_entropy_that_followed():
    """By hand, γ = ½: the reward of the action itself counts, its own −log π does not."""
    last, first = evaluation_states(trace_of(7, True, REWARDS, NEG_LOG_PROBS), 0.5)
    np.testing.assert_allclose(last, [5, -5, 0.5 + 3.0 / 2, 3.2 / 2])
    rewards = 1.0 + 2.0 / 2 + 4.0 / 4 + 8.0 / 8 - 1.0 / 16 + 0.5 / 32 + 3.0 / 64
    entropy = 0.1 / 2 + 0.2 / 4 - 0.4 / 8 + 0.8 / 16 + 1.6 / 32 + 3.2 / 64
    np.testing.assert_allclose(first, [0, 0, rewards, entropy])


def test_after_a_truncation_only_states_count_whose_rest_was_seen():
    """0.5⁷ < 0.01: a state needs seven steps; with γ = 1, it needs the whole episode."""

    def kept(length, terminated, gamma=0.5):
        return [int(state[0]) for state in evaluation_states(trace_of(length, terminated), gamma)]

    assert kept(20, True) == [15, 10, 5, 0]
    assert kept(17, False) == [10, 5, 0]
    assert kept(16, False) == [5, 0]
    assert kept(6, False) == []
    assert kept(20, False, gamma=1.0) == [0]
    assert kept(20, True, gamma=1.0) == [15, 10, 5, 0]
    _, first = evaluation_states(trace_of(12, False), 0.5)
    np.testing.assert_allclose(first[2:], [2 * (2 - 0.5**11), 0.5 * (1 - 0.5**11)])


def neg_log_prob(policy, memory, obs, key):
    """Not that of `CONSTANT`, but a number by which the observation and the key are known again."""
    return obs[2] + jax.random.uniform(key, ())


EXPLORED = Values(lambda state: state, lambda critics, obs, action: {"q": obs[0]})
SOFT = EXPLORED._replace(entropy=Entropy(lambda state: jnp.float32(0.0), neg_log_prob))


def judged(values, step=0, seed=0, envs=3, value_episodes=2, **options):
    """One evaluation of episodes of seven steps: what it returned, and the environments."""
    made = [Counter(i, length=7, **options) for i in range(envs)]
    plan = GroupPlan(seed, 0, list(range(envs)), envs, value_episodes)
    actors = make_actors(CONSTANT._replace(values=values), 1)
    group = Group(plan, [Simulator(env) for env in made], actors, Discounts(0.5), np.zeros(2, np.int64))
    return group.evaluate(POLICY, step, deterministic=True), made


def test_values_of_an_exploring_policy_are_compared_with_further_episodes_that_it_plays():
    """In the first two of three simulators, after the deterministic episodes, which stay what is counted."""
    played, envs = judged(SOFT)
    np.testing.assert_array_equal(played.returns, [28.0] * 3)
    np.testing.assert_array_equal(played.lengths, [7] * 3)
    assert [len(env.actions) for env in envs] == [14, 14, 7]
    assert {float(action[0]) for env in envs for action in env.actions[:7]} == {0.25}
    explored = [np.concatenate(env.actions[7:]) for env in envs[:2]]
    assert np.unique(explored).size == 14
    np.testing.assert_array_equal(played.states[:, :3], [[0, 1, 5], [0, 1, 0], [1, 1, 5], [1, 1, 0]])
    np.testing.assert_allclose(played.states[:, 3], [explored[i][t] for i in range(2) for t in (5, 0)], rtol=1e-6)


@pytest.mark.parametrize("soft", [True, False])
def test_the_entropy_of_later_actions_is_that_of_the_actions_that_were_played(soft):
    """The key of an action is that of its −log π: here (action − 0.25)/0.5 is the number that the key gives."""
    played, envs = judged(SOFT if soft else EXPLORED)
    for state in played.states:
        i, _, t, action, rewards, entropy = state
        noise = (np.concatenate(envs[int(i)].actions[7:]) - 0.25) / 0.5
        assert action == pytest.approx(0.25 + 0.5 * noise[int(t)], abs=1e-6)
        later = range(int(t) + 1, 7)
        assert rewards == pytest.approx(sum(0.5 ** (k - t) * (k + 1) for k in (int(t), *later)), rel=1e-6)
        expected = sum(0.5 ** (k - t) * (k + noise[k]) for k in later)
        assert entropy == pytest.approx(expected if soft else 0.0, rel=1e-5)


def test_values_of_a_deterministic_policy_are_compared_with_the_deterministic_episodes():
    played, envs = judged(EXPLORED._replace(deterministic=True))
    assert [len(env.actions) for env in envs] == [7] * 3
    np.testing.assert_array_equal(played.states[:, 0], [0, 0, 1, 1])
    assert set(played.states[:, 3]) == {0.25}
    assert set(played.states[:, 5]) == {0.0}


@pytest.mark.parametrize("values", [SOFT, EXPLORED._replace(deterministic=True)], ids=["exploring", "deterministic"])
def test_an_evaluation_that_compares_no_values_plays_nothing_more(values):
    played, envs = judged(values, value_episodes=0)
    assert [len(env.actions) for env in envs] == [7] * 3
    assert played.states.shape == (0, 6)


def test_noise_in_episodes_for_values_is_new_in_every_evaluation_and_the_same_when_it_is_repeated():
    first, again, later, other = (
        judged(SOFT, step=step, seed=seed)[0].states for step, seed in ((0, 0), (0, 0), (8, 0), (0, 1))
    )
    np.testing.assert_array_equal(first, again)
    assert np.unique(np.concatenate([first, later, other])[:, 3]).size == 12


def test_episodes_for_values_start_from_their_own_stream():
    class Seeded(Counter):
        def reset(self, *, seed=None, options=None):
            self.seeds = [*getattr(self, "seeds", []), seed]
            return super().reset(seed=seed)

    env = Seeded(length=7)
    actors = make_actors(CONSTANT._replace(values=SOFT), 1)
    group = Group(GroupPlan(3, 0, [4], 1, 1), [Simulator(env)], actors, Discounts(0.5), np.zeros(2, np.int64))
    group.evaluate(POLICY, 40, deterministic=True)
    assert env.seeds == [streams.reset_seed(3, 4, 40, purpose) for purpose in (streams.EVALUATE, streams.VALUES)]


def test_a_memory_is_new_for_the_episodes_for_values():
    env = Counter(length=7)
    actors = make_actors(COUNTING._replace(values=EXPLORED), 1)
    group = Group(GroupPlan(0, 0, [0], 1, 1), [Simulator(env)], actors, Discounts(0.5), np.zeros(2, np.int64))
    group.evaluate(POLICY, 0, deterministic=True)
    np.testing.assert_allclose(np.concatenate(env.actions), [0.01 * (t % 7) for t in range(14)], rtol=1e-6)


def test_a_reward_that_is_not_finite_in_an_episode_for_values_is_refused_with_its_place():
    class Late(Counter):
        def step(self, action):
            obs, reward, *rest = super().step(action)
            return obs, np.inf if obs[1] == 1 and obs[2] == 2 else reward, *rest

    actors = make_actors(CONSTANT._replace(values=SOFT), 1)
    group = Group(GroupPlan(3, 0, [4], 1, 1), [Simulator(Late())], actors, Discounts(0.5), np.zeros(2, np.int64))
    with pytest.raises(
        EnvironmentFault, match=r"^environment 4 of seed 3, step 40: the return of its evaluation is inf$"
    ):
        group.evaluate(POLICY, 40, deterministic=True)


@pytest.mark.parametrize("field", ["observation", "reward"])
def test_a_number_that_is_not_finite_is_refused_with_its_place(field):
    class Broken(Counter):
        def step(self, action):
            obs, reward, *rest = super().step(action)
            if obs[2] == 2:
                obs, reward = (obs * np.nan, reward) if field == "observation" else (obs, np.inf)
            return obs, reward, *rest

    group = group_of([Counter(), Broken()], seed=3, numbers=[4, 5], stride=6)
    with pytest.raises(EnvironmentFault, match=f"environment 5 of seed 3, step 6: the {field} contains (nan|inf)"):
        collect(group)


# streams


def first_obs(seed, env, step=0, purpose=streams.ACT):
    group = group_of([Drawing()], seed=seed, numbers=[env])
    group.reset(step, purpose)
    return float(collect(group, count=1)[0].obs[0, 0, 0])


def test_every_environment_of_every_seed_starts_from_its_own_stream():
    assert len({first_obs(seed, env) for seed, env in itertools.product(range(4), range(6))}) == 24


def test_a_stream_is_the_same_every_time_and_new_for_every_restart_and_purpose():
    assert first_obs(1, 2) == first_obs(1, 2)
    assert len({first_obs(1, 2), first_obs(1, 2, step=32), first_obs(1, 2, purpose=streams.EVALUATE)}) == 3


def test_later_episodes_go_on_in_the_stream_and_do_not_repeat_it():
    t, _ = collect(group_of([Drawing(), Drawing()]))
    assert np.unique(t.obs).size == 16


# a policy with a memory

COUNTING = CONSTANT._replace(
    act=lambda policy, memory, obs, key, explore: (0.01 * memory, memory + 1.0),
    memory=lambda: jnp.zeros(1),
)
"""Acts by how many observations of the episode it has seen."""


@pytest.mark.parametrize("random", [False, True], ids=["its own actions", "random actions"])
def test_a_memory_lasts_as_long_as_its_episode_whoever_acts(random):
    envs = [Counter(length=3), Counter(length=4, ends=(False, True))]
    group = group_of(envs, actors=make_actors(COUNTING, 1))
    collect(group, count=5, random=random)
    t, _ = collect(group, count=5, step=10)
    seen = np.arange(5, 10)
    np.testing.assert_allclose(t.action[..., 0], 0.01 * np.stack([seen % 3, seen % 4], axis=1), rtol=1e-6)
    np.testing.assert_allclose(t.action[..., 0], 0.01 * t.obs[..., 2], rtol=1e-6)


def test_an_evaluation_begins_with_a_new_memory():
    env = Counter(length=4)
    group = group_of([env], actors=make_actors(COUNTING, 1))
    for _ in range(2):
        env.actions.clear()
        group.evaluate(POLICY, step=0, deterministic=True)
        np.testing.assert_allclose(np.concatenate(env.actions), [0, 0.01, 0.02, 0.03], rtol=1e-6)


class Remembered(Counter):
    """Can be captured."""

    def get_state(self):
        return {"buffer": self.buffer.copy()}

    def set_state(self, state):
        self.buffer[:] = state["buffer"]


def test_a_captured_group_continues_in_another():
    """With its observations, running episodes and memories."""
    groups = [group_of([Remembered(length=3), Remembered(length=4)], actors=make_actors(COUNTING, 1)) for _ in "ab"]
    collect(groups[0], count=5)
    state = groups[0].capture()
    assert [x.shape for x in (state.obs, state.counts, *state.memory)] == [(2, 3), (2, 2), (2, 1)]
    groups[1].restore(state)
    (mine, ended), (theirs, ended_there) = (collect(group, count=6, step=10) for group in groups)
    jax.tree.map(np.testing.assert_array_equal, mine, theirs)
    assert ended == ended_there != []


def test_a_group_with_a_simulator_that_cannot_be_captured_is_not_captured():
    assert group_of([Remembered(), Counter()]).capture() is None


@pytest.mark.parametrize("field", ["obs", "counts", "memory"])
def test_captured_arrays_of_another_group_are_rejected(field):
    group = group_of([Remembered()], actors=make_actors(COUNTING, 1))
    state = group.capture()
    wrong = [] if field == "memory" else getattr(state, field)[..., :-1]
    with pytest.raises(CheckpointError, match=r"^the captured arrays of a group of simulators are .*, not "):
        group.restore(state._replace(**{field: wrong}))


@pytest.mark.parametrize("field", ["obs", "memory"])
def test_captured_arrays_of_another_dtype_are_rejected(field):
    group = group_of([Remembered()], actors=make_actors(COUNTING, 1))
    state = group.capture()
    wrong = jax.tree.map(lambda x: x.astype(np.float16), getattr(state, field))
    with pytest.raises(CheckpointError, match=r"are .*'float16.*, not "):
        group.restore(state._replace(**{field: wrong}))


def test_an_evaluation_keeps_only_the_steps_that_it_needs():
    """Those of images fill gigabytes."""
    group = group_of([Counter(length=4), Counter(length=5)])
    actor, policy = group._actors.exploit.actor(jax.random.key(0), np.arange(2, dtype=np.int32)), POLICY
    assert [len(trace.steps) for trace in group.play(actor, policy, 0, 0)] == [4, 5]
    for kept, lengths in ((0, [0, 0]), (1, [4, 0]), (2, [4, 5])):
        assert [len(trace.steps) for trace in group.play(actor, policy, 0, 0, kept)] == lengths
        assert group._lengths.tolist() == [4, 5]


# a pool


def pool_of(source, plans, workers=1):
    """A pool, and policies for it."""
    experiment = Experiment(small.config("sac"), "Pendulum-v1", gamma=GAMMA)
    pool = Pool(experiment, Spaces(source.make()).spec(GAMMA), source, plans, workers)
    assert pool.policy_shape[0] == 1 + max(plan.seed_index for plan in plans)
    return pool, 0.1 * np.random.default_rng(0).normal(size=pool.policy_shape)


def collected(pool, policies, step, count, random):
    pool.collect(policies, step, count, random)
    return pool.collected()


def test_three_environments_are_split_two_and_one():
    assert training_groups([7, 9], 3) == [
        GroupPlan(7, 0, [0, 1], 3),
        GroupPlan(7, 0, [2], 3),
        GroupPlan(9, 1, [0, 1], 3),
        GroupPlan(9, 1, [2], 3),
    ]


def test_every_simulator_that_shows_images_is_a_group_so_that_each_can_have_a_process():
    spec = Spaces(gym.make("Pendulum-v1")).spec(GAMMA)
    assert group_size(spec) == 2
    assert group_size(dataclasses.replace(spec, frame=(24, 24, 3))) == 1
    assert [plan.envs for plan in training_groups([7], 3, action_repeat=2, size=1)] == [[0], [1], [2]]
    assert [plan.envs for plan in evaluation_groups([7], 2, 1, size=1)] == [[0], [1]]
    assert [plan.value_episodes for plan in evaluation_groups([7], 3, 2, size=1)] == [1, 1, 0]


@pytest.mark.parametrize(("value_episodes", "shares"), [(0, [0, 0, 0]), (1, [1, 0, 0]), (3, [2, 1, 0]), (5, [2, 2, 1])])
def test_episodes_whose_values_are_judged_are_the_first_of_an_evaluation(value_episodes, shares):
    assert [plan.value_episodes for plan in evaluation_groups([7, 9], 5, value_episodes)] == shares * 2


@pytest.mark.parametrize(("name", "count"), [("sac", 2), ("td3", 20)])
def test_one_in_ten_episodes_explores_for_values_unless_they_are_those_of_the_deterministic_policy(name, count):
    agent = make_agent(Experiment(small.config(name), "Pendulum-v1"), Spaces(gym.make("Pendulum-v1")).spec(GAMMA))
    assert judged_episodes(agent, 20) == count
    assert judged_episodes(agent._replace(values=None), 20) == 0


def test_transitions_come_back_step_by_step_and_within_a_step_environment_by_environment():
    numbers = itertools.count()
    source = Source(lambda: Counter(next(numbers) - 1, length=2), None)  # the first one is only asked for its sizes
    pool, policies = pool_of(source, training_groups([7, 9], 6))
    pool.reset(0)
    stored, episodes = collected(pool, policies, step=0, count=3, random=True)
    pool.close()
    t = layout_of(Spaces(Counter()).spec(GAMMA)).transitions(stored)
    assert {name: x.shape for name, x in stored.items()} == {PACKED: (2, 18, 9), FIRST: (2, 18)}
    np.testing.assert_array_equal(t.obs[0, :, 0], np.tile(np.arange(6), 3))
    np.testing.assert_array_equal(t.obs[1, :, 0], np.tile(np.arange(6, 12), 3))
    np.testing.assert_array_equal(t.reward, np.repeat([[1, 2, 1]], 6, axis=1).repeat(2, axis=0))
    np.testing.assert_array_equal(stored[FIRST], np.repeat([[True, False, True]], 6, axis=1).repeat(2, axis=0))
    assert episodes == [[Episode(6, 3.0, 2)] * 6] * 2


def test_evaluations_come_back_as_seeds_times_episodes():
    lengths = itertools.count(1)
    source = Source(lambda: Counter(length=next(lengths) - 1), None)
    pool, policies = pool_of(source, evaluation_groups([7, 9], 3))
    pool.evaluate(policies, step=0, deterministic=True)
    played = pool.evaluated()
    pool.close()
    np.testing.assert_array_equal([seed.lengths for seed in played], [[1, 2, 3], [4, 5, 6]])
    np.testing.assert_array_equal([seed.returns for seed in played], [[1, 3, 6], [10, 15, 21]])


def pendulum_rows(seeds):
    pool, policies = pool_of(Source(lambda: gym.make("Pendulum-v1"), None), training_groups(seeds, 6))
    pool.reset(0)
    stored, _ = collected(pool, policies, step=0, count=4, random=True)
    pool.close()
    return stored[PACKED]


def test_a_seed_sees_the_same_whichever_seeds_run_beside_it():
    both, alone = pendulum_rows([0, 1]), pendulum_rows([1])
    np.testing.assert_array_equal(both[1], alone[0])
    assert np.unique(both[:, :6, 0]).size == 12  # cos θ of every environment's first observation
    assert np.unique(both[..., 3]).size == 48  # every action


def test_transitions_do_not_depend_on_the_number_of_workers():
    source, plans = given("Pendulum-v1").training, training_groups([0], 6)
    pools = [pool_of(source, plans, workers) for workers in (1, 2)]
    results = []
    try:
        for pool, policies in pools:
            pool.reset(0)
            parts = [
                collected(pool, policies, step, 5, random=random)[0][PACKED]
                for step, random in ((0, True), (30, False))
            ]
            results.append(np.concatenate(parts, axis=1))
    finally:
        for pool, _ in pools:
            pool.close()
    assert results[0].shape == (1, 60, 9)
    np.testing.assert_array_equal(*results)
    assert np.unique(results[0][..., 3]).size == 60


def test_simulators_captured_in_one_pool_continue_in_one_with_other_workers():
    source, plans = given("Pendulum-v1").training, training_groups([0, 1], 6)
    (one, policies), (other, _) = pools = [pool_of(source, plans, workers) for workers in (1, 3)]
    try:
        one.reset(0)
        collected(one, policies, 0, 3, random=False)
        states = one.capture()
        other.restore(states)
        mine, theirs = (collected(pool, policies, 18, 3, random=False)[0] for pool, _ in pools)
        with pytest.raises(CheckpointError, match=r"^the checkpoint has 10 simulators, but this run has 12$"):
            one.restore(states[:-1])
    finally:
        for pool, _ in pools:
            pool.close()
    for name in mine:
        np.testing.assert_array_equal(mine[name], theirs[name])


def test_simulators_captured_in_larger_groups_continue_in_those_of_this_version():
    source, plans = given("Pendulum-v1").training, training_groups([0, 1], 4)
    larger = [GroupPlan(seed, seed, [0, 1, 2, 3], 4) for seed in (0, 1)]
    (one, policies), (other, _) = pools = [pool_of(source, p, workers=1) for p in (larger, plans)]
    try:
        one.reset(0)
        collected(one, policies, 0, 3, random=True)
        states = one.capture()
        other.restore(states)
        mine, theirs = (collected(pool, policies, 12, 3, random=True)[0] for pool, _ in pools)
        torn = [states[0]._replace(obs=states[0].obs[:, :2]), states[1]]
        with pytest.raises(CheckpointError, match=r"^the captured arrays of the simulators do not fit together"):
            other.restore(torn)
    finally:
        for pool, _ in pools:
            pool.close()
    for name in mine:
        np.testing.assert_array_equal(mine[name], theirs[name])


def test_busy_workers_do_not_wait_for_one_another_at_the_end(tmp_path):
    """Each of three processes would take a minute."""
    pool, ends = Pool.__new__(Pool), []
    pool._workers, pool._memory = [], tempfile.TemporaryDirectory(dir=tmp_path)
    for _ in range(3):
        worker = ProcessWorker.__new__(ProcessWorker)
        worker._process = subprocess.Popen(["sleep", "60"])
        worker._mine, theirs = Pipe()
        pool._workers.append(worker)
        ends.append(theirs)
    before = time.monotonic()
    pool.close()
    assert time.monotonic() - before < 2 * PATIENCE
    assert [worker._process.poll() for worker in pool._workers] == [-signal.SIGKILL] * 3
