"""Trajectories out of the replay, and generalised advantages worked out by hand."""

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
from replays import replay_of, spec_of

from lsac.collect.pool import Pool, training_groups
from lsac.envs.gymnasium import Spaces
from lsac.envs.sources import Source
from lsac.replay import ring as rb
from lsac.replay import rollouts
from lsac.runs.experiment import Experiment

SPEC = spec_of(1, 1)
gae = jax.jit(rollouts.gae)


def f32(values):
    return jnp.asarray(np.array(values, np.float32))


def column(*values):
    """One simulator's steps."""
    return f32(values)[:, None]


def replay_of_steps(streams):
    """A full replay of simulators' steps (obs, reward, discount, next_obs, first), one list per simulator."""
    steps = [step for together in zip(*streams, strict=True) for step in together]
    rows = [[obs, 0.0, reward, discount, after] for obs, reward, discount, after, _ in steps]
    first = [flag for *_, flag in steps]
    return replay_of(rb.layout_of(SPEC), f32(rows), stride=len(streams), first=first)


# the rollout


def test_rows_of_one_simulator_become_one_column():
    one = [(0, 10, 0.9, 1, True), (1, 11, 0.9, 2, False), (2, 12, 0.9, 3, False)]
    other = [(5, 20, 0.9, 6, False), (6, 21, 0.9, 7, False), (7, 22, 0.9, 8, False)]
    rollout = rollouts.read(replay_of_steps([one, other]))
    np.testing.assert_array_equal(rollout.steps.obs[..., 0], [[0, 5], [1, 6], [2, 7]])
    np.testing.assert_array_equal(rollout.steps.reward, [[10, 20], [11, 21], [12, 22]])
    np.testing.assert_array_equal(rollout.continues, [[True, True], [True, True], [False, False]])


@pytest.mark.parametrize(
    ("step", "next_is_first", "continues"),
    [
        ((0, 1, 0.9, 1), False, True),
        ((0, 1, 0.0, 1), True, False),  # a termination, although the reset gives the very same observation
        ((0, 1, 0.9, 1), True, False),  # a time limit, and again the very same observation
        ((0, 1, 0.9, 4), True, False),  # a time limit: the next step begins elsewhere
        ((0, 1, 0.9, np.nextafter(np.float32(1), np.float32(2))), False, True),  # observations say nothing
    ],
    ids=["goes on", "terminated", "cut where the next begins", "cut", "rounded"],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_step_continues_unless_the_next_one_is_the_first_of_an_episode(step, first, next_is_first, continues):
    rollout = rollouts.read(replay_of_steps([[(*step, first), (1, 1, 0.9, 2, next_is_first)]]))
    np.testing.assert_array_equal(rollout.continues, [[continues], [False]])


def test_the_flags_of_a_simulator_concern_no_other():
    flags = np.random.default_rng(0).random((6, 3)) < 0.4
    streams = [[(t, 0, 0.9, t + 1, flags[t, e]) for t in range(6)] for e in range(3)]
    rollout = rollouts.read(replay_of_steps(streams))
    assert flags[1:].any()
    for e in range(3):
        np.testing.assert_array_equal(rollout.continues[:, e], [*(not flags[t + 1, e] for t in range(5)), False])


class Counter(gym.Env):
    """Shows which simulator it is and how often it was stepped; every episode has seven steps."""

    made = 0

    def __init__(self):
        self.number, self.t = Counter.made, 0
        Counter.made += 1
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def obs(self):
        return np.array([self.number, self.t], np.float32)

    def reset(self, *, seed=None, options=None):
        self.t += 100
        return self.obs(), {}

    def step(self, action):
        self.t += 1
        return self.obs(), 0.0, False, self.t % 100 == 7, {}


@pytest.mark.parametrize("num_envs", [1, 6])
def test_what_simulators_deliver_is_read_as_their_trajectories(num_envs):
    """Six simulators are two groups. Rows come ordered by time, then by simulator, as `Replay.stride` promises."""
    Counter.made = 0
    source = Source(Counter, None)
    experiment = Experiment(small.config("ppo"), "counter", num_envs=num_envs, chunk=10 * num_envs, learning_starts=0)
    spec = Spaces(Counter()).spec(experiment.gamma)
    pool = Pool(experiment, spec, source, training_groups([0, 1], num_envs), workers=1)
    try:
        pool.reset(0)
        pool.collect(np.zeros(pool.policy_shape, np.float32), step=0, count=10, random=False)
        stored, _ = pool.collected()
    finally:
        pool.close()
    assert stored[rb.PACKED].shape[:2] == (2, 10 * num_envs)
    for seed in range(2):
        mine = {name: x[seed] for name, x in stored.items()}
        replay = rb.holding(rb.layout_of(spec), mine, 10 * num_envs, num_envs)
        rollout = rollouts.read(replay)
        obs = np.asarray(rollout.steps.obs)
        assert obs.shape == (10, num_envs, 2)
        assert np.unique(obs[..., 0], axis=0).shape[0] == 1, "a column is one simulator"
        assert np.unique(obs[0, :, 0]).size == num_envs
        went_on = np.array([True] * 6 + [False] + [True] * 2 + [False])
        np.testing.assert_array_equal(rollout.continues, np.broadcast_to(went_on[:, None], (10, num_envs)))
        begins = np.array([True] + [False] * 6 + [True] + [False] * 2)
        np.testing.assert_array_equal(
            rb.everything(replay)[1].reshape(10, num_envs), begins[:, None].repeat(num_envs, 1)
        )


# advantages


def test_advantages_of_an_unbroken_stretch_by_hand():
    # γ = 0.5, λ = 0.5; δ = 1 + 0.5·2 − 4 = −2, 2 + 0.5·6 − 2 = 3, 3 + 0.5·8 − 6 = 1 (bootstrapped at the chunk's end)
    # A = 1, 3 + 0.25·1 = 3.25, −2 + 0.25·3.25 = −1.1875
    advantage = gae(column(1, 2, 3), column(0.5, 0.5, 0.5), column(4, 2, 6), column(2, 6, 8), column(1, 1, 0) > 0, 0.5)
    np.testing.assert_allclose(advantage[:, 0], [-1.1875, 3.25, 1.0], rtol=1e-6)


def test_a_termination_neither_bootstraps_nor_lets_the_next_episode_in():
    # δ = 1 − 4 = −3 although V(s') = 100; then 2 + 0.5·6 − 2 = 3
    advantage = gae(column(1, 2), column(0.0, 0.5), column(4, 2), column(100, 6), column(0, 0) > 0, 0.5)
    np.testing.assert_allclose(advantage[:, 0], [-3, 3], rtol=1e-6)


def test_a_time_limit_bootstraps_but_lets_the_next_episode_not_in():
    # δ = 1 + 0.5·100 − 4 = 47; the second step's 3 stays out of it
    advantage = gae(column(1, 2), column(0.5, 0.5), column(4, 2), column(100, 6), column(0, 0) > 0, 0.5)
    np.testing.assert_allclose(advantage[:, 0], [47, 3], rtol=1e-6)


def test_what_follows_a_termination_may_be_no_number():
    advantage = gae(column(1, 2), column(0.0, 0.5), column(4, 2), column(np.nan, 6), column(0, 0) > 0, 0.5)
    np.testing.assert_allclose(advantage[:, 0], [-3, 3], rtol=1e-6)


def test_lambda_one_is_the_return_and_lambda_zero_the_td_error():
    rng = np.random.default_rng(0)
    reward, value = rng.normal(size=(2, 6))
    discount, continues = np.full(6, 0.9), np.array([1, 1, 1, 1, 1, 0]) > 0
    after = np.append(value[1:], 7.0)
    inputs = (column(*reward), column(*discount), column(*value), column(*after), jnp.asarray(continues)[:, None])
    returns = [sum(0.9 ** (k - t) * reward[k] for k in range(t, 6)) + 0.9 ** (6 - t) * 7.0 for t in range(6)]
    np.testing.assert_allclose(gae(*inputs, 1.0)[:, 0], np.array(returns) - value, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gae(*inputs, 0.0)[:, 0], reward + 0.9 * after - value, rtol=1e-5, atol=1e-6)


def test_long_chunks_of_many_episodes_against_a_plain_loop():
    rng = np.random.default_rng(1)
    reward, value, after = (rng.normal(size=(37, 3)) for _ in range(3))
    discount = np.where(rng.random((37, 3)) < 0.1, 0.0, 0.9)
    continues = (rng.random((37, 3)) < 0.8) & (discount != 0)
    wanted, later = np.zeros((37, 3)), np.zeros(3)
    for t in reversed(range(37)):
        later = reward[t] + discount[t] * after[t] - value[t] + np.where(continues[t], 0.95 * discount[t] * later, 0.0)
        wanted[t] = later
    found = gae(f32(reward), f32(discount), f32(value), f32(after), jnp.asarray(continues), 0.95)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


# minibatches


def test_minibatches_hold_every_step_once_and_in_another_order():
    steps = {"number": jnp.arange(12, dtype=jnp.float32).reshape(4, 3), "twice": 2.0 * jnp.arange(12.0).reshape(4, 3)}
    batches = rollouts.minibatches(steps, 3, jax.random.key(0))
    assert batches["number"].shape == (3, 4)
    np.testing.assert_array_equal(np.sort(batches["number"].ravel()), np.arange(12))
    np.testing.assert_array_equal(batches["twice"], 2.0 * batches["number"])
    other = rollouts.minibatches(steps, 3, jax.random.key(1))
    assert not np.array_equal(batches["number"], other["number"])


def test_minibatches_must_be_equal():
    with pytest.raises(ValueError, match=r"^12 steps cannot be split into 5 equal minibatches$"):
        rollouts.minibatches(jnp.zeros((4, 3)), 5, jax.random.key(0))
