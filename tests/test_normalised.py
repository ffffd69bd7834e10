"""Agents on normalised observations and scaled rewards: whose statistics those are, and where they are applied."""

import dataclasses
import json
import signal
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
import torture
from commands import lsac
from replays import replay_of, spec_of, stored_of
from safetensors.numpy import load_file

from lsac.agents import AGENTS, sac
from lsac.agents.lsac import agent as lsac_agent
from lsac.agents.lsac import batches
from lsac.agents.normalised import normalised
from lsac.collect import snapshot
from lsac.nn import normalisation
from lsac.nn.normalisation import Moments
from lsac.replay import ring as rb
from lsac.train.learner import Learner, Sizes
from lsac.train.loop import Loop

GAMMA = 0.9
SPEC = spec_of(3, 2, GAMMA)
LAYOUT = rb.layout_of(SPEC)
CHUNK, CAPACITY, UPDATES, SEEDS = 16, 32, 2, [4, 5]
MEAN, STD = np.array([100.0, -3.0, 0.0]), np.array([1.0, 50.0, 0.01])
OFTEN = ("sac", "lsac")
"""Algorithms that are tried with every change."""
OFF_POLICY = [
    name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow)
    for name in AGENTS
    if not small.on_policy(name)
]


def transitions(seed, count=CHUNK):
    """[count, width] random rows whose observations are far from 0 and of unlike sizes; one in four is terminal."""
    rng, where = np.random.default_rng(seed), LAYOUT.fields()
    rows = rng.normal(size=(count, LAYOUT.width))
    for name in ("obs", "next_obs"):
        rows[:, where[name]] = MEAN + STD * rows[:, where[name]]
    rows[:, where["action"]] = rng.uniform(-1, 1, size=(count, SPEC.action_dim))
    rows[:, where["discount"]] = np.where(np.arange(count) % 4 == 3, 0.0, GAMMA)[:, None]
    return rows.astype(np.float32)


def obs_of(rows):
    return rows[..., LAYOUT.fields()["obs"]].astype(np.float64)


def by_hand(moments, obs):
    """Normalised observations, in NumPy."""
    mean, variance = (np.asarray(x, np.float64) for x in moments[:2])
    return np.clip((obs - mean) / np.sqrt(variance + 1e-8), -10.0, 10.0).astype(np.float32)


def normalised_rows(moments, rows):
    rows = rows.copy()
    for name in ("obs", "next_obs"):
        where = LAYOUT.fields()[name]
        rows[..., where] = by_hand(moments, rows[..., where])
    return rows


SOME = Moments(*(jnp.asarray(x, jnp.float32) for x in (MEAN + 0.5 * STD, (2.0 * STD) ** 2, 100.0)))
"""Moments that a replay might have led to."""


def signature(tree):
    leaves, structure = jax.tree.flatten(jax.eval_shape(lambda: tree))
    return structure, [(x.shape, x.dtype, x.weak_type) for x in leaves]


@pytest.fixture(scope="module", params=OFF_POLICY)
def case(request):
    """An algorithm with and without normalisation, and a learner of two seeds after four chunks.

    Two chunks are stored before the first update, and the ring holds two: the first half of all is gone.
    """
    inner = AGENTS[request.param].make(small.config(request.param), SPEC)
    agent = normalised(inner, SPEC, observations=True)
    learner = Learner(agent, SPEC, SEEDS, Sizes(CAPACITY, CHUNK, UPDATES))
    first = jax.tree.map(np.array, learner.state)
    chunks = [np.stack([transitions(10 * c + seed) for seed in SEEDS]) for c in range(4)]
    stored = []
    for rows in chunks[:2]:
        learner.store(stored_of(rows))
        stored.append((jax.tree.map(np.array, learner.state), np.array(learner.policies)))
    metrics = [jax.device_get(learner.learn(stored_of(rows))) for rows in chunks[2:]]
    state = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), learner.state)
    return SimpleNamespace(
        **{"inner": inner, "agent": agent, "learner": learner, "first": first, "stored": stored, "metrics": metrics},
        **{"chunks": chunks, "state": state},
    )


def seed_of(tree, row):
    return jax.tree.map(lambda leaf: leaf[row], tree)


# the contract


def test_state_keeps_its_structure_and_all_numbers_are_finite(case):
    before = jax.eval_shape(jax.vmap(case.agent.init), jax.random.split(jax.random.key(0)))
    assert signature(case.learner.state) == signature(before) == signature(case.first)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(case.learner.state))
    assert bool(np.all(case.learner.finite))
    for line in case.metrics:
        assert all(np.isfinite(values).all() and values.shape == (2,) for values in line.values())


def test_moments_are_those_of_all_observations_ever_collected(case):
    """Of every seed's own, also of those that were only stored, and of those that the ring has lost."""
    for count, state in ((1, case.stored[0][0]), (2, case.stored[1][0]), (4, case.learner.state)):
        for row in range(2):
            obs = obs_of(np.concatenate([chunk[row] for chunk in case.chunks[:count]]))
            moments = seed_of(state.moments, row)
            assert moments.samples == count * CHUNK
            np.testing.assert_allclose(moments.mean, obs.mean(0), rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(moments.variance, obs.var(0), rtol=1e-3)


def test_storing_changes_nothing_but_the_moments_and_the_policies_have_them(case):
    after, policies = case.stored[1]
    for a, b in zip(jax.tree.leaves(after.agent), jax.tree.leaves(case.first.agent), strict=True):
        np.testing.assert_array_equal(a, b)
    for row in range(2):
        expected = snapshot.flatten(case.agent.policy(jax.tree.map(jnp.asarray, seed_of(after, row))))
        np.testing.assert_array_equal(policies[row], expected)
    assert not np.array_equal(policies, case.stored[0][1])


def test_policy_only_selects_and_has_the_moments(case):
    paths, tree = jax.tree.flatten_with_path(case.state)
    names = [jax.tree_util.keystr(path) for path, _ in paths]
    chosen = jax.tree.leaves(case.agent.policy(jax.tree.unflatten(tree, names)))
    assert set(chosen) <= set(names)
    assert {name for name in chosen if "moments" in name} == {name for name in names if name.startswith(".moments")}
    assert len({name for name in chosen if "moments" in name}) == 3


# where observations are normalised


@pytest.mark.parametrize("explore", [True, False])
def test_acting_is_what_the_algorithm_does_on_normalised_observations(case, explore):
    """The last observation is so far away that it is clipped."""
    state = case.state._replace(moments=SOME)
    obs = np.concatenate([obs_of(case.chunks[0][0])[:7], [MEAN + 1e5 * STD]]).astype(np.float32)
    keys = jax.random.split(jax.random.key(0), 8)

    def actions(agent, policy, obs):
        return jax.jit(jax.vmap(lambda o, k: agent.act(policy, (), o, k, explore)[0]))(obs, keys)

    scaled = by_hand(SOME, obs)
    assert np.abs(scaled).max() == 10.0
    found = actions(case.agent, case.agent.policy(state), obs)
    expected = actions(case.inner, case.inner.policy(state.agent), scaled)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert not np.allclose(found, actions(case.inner, case.inner.policy(state.agent), obs), atol=1e-3)


def test_values_are_those_of_normalised_observations(case):
    state = case.state._replace(moments=SOME)
    obs, action = jnp.asarray(obs_of(case.chunks[0][0])[0], jnp.float32), jnp.array([0.5, -0.5])
    found = case.agent.values.value(case.agent.values.critics(state), obs, action)
    expected = case.inner.values.value(case.inner.values.critics(state.agent), by_hand(SOME, np.asarray(obs)), action)
    assert found.keys() == expected.keys()
    for name in found:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_values_are_compared_with_the_episodes_and_the_entropy_of_the_algorithm(case):
    """−log π is that of the policy at the normalised observation, α that of the state inside."""
    state, key = case.state._replace(moments=SOME), jax.random.key(3)
    found, inner = case.agent.values, case.inner.values
    assert found.deterministic == inner.deterministic
    assert (found.entropy is None) == (inner.entropy is None)
    if inner.entropy is None:
        return
    obs = jnp.asarray(obs_of(case.chunks[0][0])[0], jnp.float32)
    policy, scaled = case.inner.policy(state.agent), by_hand(SOME, np.asarray(obs))
    expected = inner.entropy.neg_log_prob(policy, (), scaled, key)
    np.testing.assert_allclose(found.entropy.neg_log_prob(case.agent.policy(state), (), obs, key), expected, rtol=1e-3)
    assert abs(float(expected - inner.entropy.neg_log_prob(policy, (), obs, key))) > 1e-3
    assert found.entropy.alpha(state) == inner.entropy.alpha(state.agent)


def test_an_update_is_that_of_the_algorithm_on_normalised_transitions(case):
    rows, state = transitions(77, CAPACITY), case.state._replace(moments=SOME)
    key = jax.random.key(3)
    after, metrics = jax.jit(case.agent.update)(state, replay_of(LAYOUT, rows), key)
    plain = jax.jit(case.inner.update)
    expected, wanted = plain(state.agent, replay_of(LAYOUT, normalised_rows(SOME, rows)), key)
    assert metrics.keys() == wanted.keys()
    for name in metrics:
        np.testing.assert_allclose(metrics[name], wanted[name], rtol=1e-3, atol=1e-4, err_msg=name)
    raw = plain(state.agent, replay_of(LAYOUT, rows), key)[1]
    assert any(not np.allclose(metrics[name], raw[name], rtol=0.01) for name in metrics)
    for a, b in zip(jax.tree.leaves(after.moments), SOME, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(jax.tree.leaves(after.agent), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=2e-3)


def test_the_critic_loss_of_sac_by_hand():
    """On the rows that the update draws, normalised in NumPy."""
    config = small.config("sac")
    agent = normalised(sac.make(config, SPEC), SPEC, observations=True)
    state, rows = agent.init(jax.random.key(0))._replace(moments=SOME), transitions(5, CAPACITY)
    replay, key = replay_of(LAYOUT, rows), jax.random.key(1)
    _, metrics = jax.jit(agent.update)(state, replay, key)

    batch_key, target_key, _ = jax.random.split(key, 3)
    index = np.asarray(rb.indices(replay, batch_key, (config.batch_size,)))
    batch = LAYOUT.unpack(jnp.asarray(normalised_rows(SOME, rows)[index]))
    inner = state.agent
    target = np.asarray(sac.td_target(inner.targets, inner.actor, jnp.exp(inner.log_alpha), batch, target_key))
    q = np.stack([jax.vmap(seed_of(inner.critics, k))(batch.obs, batch.action) for k in range(2)])
    assert metrics["critic_loss"] == pytest.approx(0.5 * np.sum(np.mean((q - target) ** 2, axis=1)), rel=1e-4)
    raw = LAYOUT.unpack(jnp.asarray(rows[index]))
    assert metrics["critic_loss"] != pytest.approx(float(sac.critic_loss(inner.critics, raw, target)[0]), rel=0.01)


# the generator of LSAC


@pytest.fixture(scope="module")
def lsac_case():
    config = small.config("lsac", action_gradient=False)
    inner = lsac_agent.make(config, SPEC)
    agent = normalised(inner, SPEC, observations=True)
    state = jax.jit(agent.init)(jax.random.key(0))._replace(moments=SOME)
    return SimpleNamespace(config=config, inner=inner, agent=agent, state=state, rows=transitions(8, CAPACITY))


def test_the_generator_sees_observations_and_rewards_as_they_are(lsac_case):
    agent, state, key = lsac_case.agent, lsac_case.state, jax.random.key(2)
    replay, fit = replay_of(LAYOUT, lsac_case.rows), jax.jit(agent.refresh.fit)
    kept = agent.refresh.compact(state)
    assert kept.agent.generated is None
    after, metrics, real = fit(kept, replay, key)
    alone, expected, _ = jax.jit(lsac_case.inner.refresh.fit)(kept.agent, replay, key)
    jax.tree.map(np.testing.assert_array_equal, (after.agent.generator, metrics), (alone.generator, expected))
    np.testing.assert_allclose(
        after.agent.generator.scales.mean[:3], obs_of(lsac_case.rows).mean(0), rtol=1e-4, atol=1e-4
    )
    held = {row.tobytes() for row in lsac_case.rows}
    assert {row.tobytes() for row in np.asarray(LAYOUT.pack(real))} <= held
    changed = dataclasses.replace(replay, moments=SOME, reward_scale=jnp.float32(4.0))
    again, _, sample = fit(kept, changed, key)
    jax.tree.map(np.testing.assert_array_equal, (again, sample), (after, real))

    full, shown = jax.jit(agent.refresh.generate)(after, jax.random.key(3))
    assert signature(full) == signature(state)
    assert np.abs(np.asarray(shown.obs)[:, 0] - 100.0).max() < 50.0, "made on the scale of the simulator"
    np.testing.assert_array_equal(full.moments.mean, SOME.mean)
    judged, metrics = jax.jit(agent.refresh.judge)(full, jnp.float32(0.9))
    assert float(judged.agent.share) == float(metrics["synthetic_share"]) == pytest.approx(0.1)
    assert signature(judged) == signature(state)


def test_generated_transitions_are_normalised_when_they_are_used(lsac_case):
    config, rows = lsac_case.config, jnp.asarray(transitions(9, lsac_case.config.synthetic_capacity))
    state = lsac_case.state.agent._replace(generated=rows, share=jnp.float32(0.5))
    replay = replay_of(LAYOUT, lsac_case.rows)
    drawn = jax.jit(lambda state, replay, key: batches.batches(config, state, replay, key)[0])
    raw = drawn(state, replay, jax.random.key(0))
    found = drawn(state, dataclasses.replace(replay, moments=SOME), jax.random.key(0))
    real, made = ({row.tobytes() for row in obs_of(np.asarray(x)).astype(np.float32)} for x in (lsac_case.rows, rows))
    split = batches.real_rows(config)
    assert {row.tobytes() for row in np.asarray(raw.obs[:, :split]).reshape(-1, 3)} <= real
    assert {row.tobytes() for row in np.asarray(raw.obs[:, split:]).reshape(-1, 3)} <= made
    for name in ("obs", "next_obs"):
        wanted = by_hand(SOME, np.asarray(getattr(raw, name), np.float64))
        np.testing.assert_allclose(getattr(found, name), wanted, rtol=1e-4, atol=1e-4)
    for name in ("action", "reward", "discount"):
        np.testing.assert_array_equal(getattr(found, name), getattr(raw, name))
    scaled = drawn(state, dataclasses.replace(replay, reward_scale=jnp.float32(4.0)), jax.random.key(0))
    np.testing.assert_array_equal(scaled.reward, raw.reward / 4.0)  # of both halves


# scaled rewards


def returns_by_hand(reward, first):
    """[T, E] discounted returns so far, which start anew with every episode."""
    found = np.zeros(reward.shape)
    for t, (r, start) in enumerate(zip(reward, first, strict=True)):
        found[t] = r if t == 0 else r + np.where(start, 0.0, GAMMA * found[t - 1])
    return found


def test_rewards_are_divided_by_the_scale_of_all_returns_so_far():
    """Of two simulators, whose episodes go on from one chunk to the next."""
    rng = np.random.default_rng(3)
    reward, first = rng.normal(1.0, 2.0, (12, 2)).astype(np.float32), rng.uniform(size=(12, 2)) < 0.2
    first[0] = True
    statistics = normalisation.no_returns(2)
    for part in (slice(0, 5), slice(5, 6), slice(6, 12)):
        statistics = normalisation.with_rewards(statistics, jnp.asarray(reward[part]), jnp.asarray(first[part]), GAMMA)
    expected = returns_by_hand(reward, first)
    np.testing.assert_allclose(statistics.current, expected[-1], rtol=1e-5)
    assert float(statistics.moments.variance) == pytest.approx(expected.var(), rel=1e-5)
    assert float(statistics.largest) == pytest.approx(np.abs(expected).max(), rel=1e-6)
    assert float(normalisation.reward_scale(statistics, 1e6)) == pytest.approx(expected.std(), rel=1e-5)
    assert float(normalisation.reward_scale(statistics, 0.5)) == pytest.approx(2 * np.abs(expected).max(), rel=1e-6)


@pytest.fixture(scope="module")
def scaled_case():
    """SAC with scaled rewards after two chunks, one of them only stored; the steps of two simulators take turns."""
    inner = sac.make(small.config("sac"), SPEC)
    agent = normalised(inner, SPEC, rewards=True, num_envs=2)
    learner = Learner(agent, SPEC, SEEDS, Sizes(CAPACITY, CHUNK, UPDATES, 2))
    chunks = [stored_of(np.stack([transitions(10 * c + seed) for seed in SEEDS])) for c in range(2)]
    chunks = [chunk | {rb.FIRST: jnp.asarray(np.tile(np.arange(CHUNK) % 7 == 2, (2, 1)))} for chunk in chunks]
    learner.store(chunks[0])
    metrics = jax.device_get(learner.learn(chunks[1]))
    return SimpleNamespace(inner=inner, agent=agent, learner=learner, chunks=chunks, metrics=metrics)


def test_the_scale_is_that_of_each_seed_and_is_logged(scaled_case):
    for row in range(2):
        reward, first = (
            np.concatenate([x[row] for x in parts]).reshape(-1, 2)
            for parts in (
                [LAYOUT.transitions(chunk).reward for chunk in scaled_case.chunks],
                [chunk[rb.FIRST] for chunk in scaled_case.chunks],
            )
        )
        returns = returns_by_hand(reward, first)
        expected = max(returns.std(), np.abs(returns).max() / 5.0)
        assert scaled_case.metrics["reward_scale"][row] == pytest.approx(expected, rel=1e-4)


def test_an_update_sees_scaled_rewards_and_values_are_in_the_unit_of_the_reward(scaled_case):
    agent, key, rows = scaled_case.agent, jax.random.key(1), transitions(5, CAPACITY)
    state = seed_of(scaled_case.learner.state, 0)
    scale = normalisation.reward_scale(state.returns, 5.0)
    divided = rows.copy()
    divided[:, LAYOUT.fields()["reward"]] /= float(scale)
    _, metrics = jax.jit(agent.update)(state, replay_of(LAYOUT, rows), key)
    _, expected = jax.jit(scaled_case.inner.update)(state.agent, replay_of(LAYOUT, divided), key)
    assert float(metrics["critic_loss"]) == pytest.approx(float(expected["critic_loss"]), rel=1e-4)
    obs, action = jnp.ones(3), jnp.zeros(2)
    mine = agent.values.value(agent.values.critics(state), obs, action)["q"]
    assert float(mine) == pytest.approx(float(scale * sac.value(state.agent.critics, obs, action)["q"]), rel=1e-5)
    alpha = agent.values.entropy.alpha(state)
    assert float(alpha) == pytest.approx(float(scale * jnp.exp(state.agent.log_alpha)), rel=1e-5)
    assert float(scale) != pytest.approx(1.0, rel=0.1)


# whole runs


def test_a_run_with_the_option_is_stopped_and_resumed_exactly(tmp_path, monkeypatch):
    options = small.flags("sac", steps=96, log_every=16, checkpoint_every=32, eval_every=0)
    command = ("train", "sac", "--env", "Pendulum-v1", *options, "--normalise-observations", "--scale-rewards", "--out")
    alone, folder = tmp_path / "alone", tmp_path / "stopped"
    assert lsac(*command, alone).code == 0
    assert json.loads((alone / "config.json").read_text())["experiment"]["normalise_observations"] is True

    receive, chunks = Loop._receive, []

    def interrupt(self):
        receive(self)
        chunks.append(self.step)
        if len(chunks) in (2, 6):  # before the first update, and after it
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Loop, "_receive", interrupt)
    result, stops = lsac(*command, folder), 0
    while result.code == 75:
        result, stops = lsac("resume", folder), stops + 1
    assert (result.code, stops) == (0, 2)
    assert torture.fingerprint(folder) == torture.fingerprint(alone)

    arrays = load_file(max((folder / "checkpoints").glob("step-*.safetensors")))
    np.testing.assert_array_equal(arrays[".agent.moments.samples"], [96.0, 96.0])
    assert np.all(np.abs(arrays[".agent.moments.mean"]) <= [1.0, 1.0, 8.0])
    result = lsac("eval", folder, "--episodes", "1")
    assert (result.code, len(result.out.splitlines())) == (0, 3)


@pytest.mark.parametrize("algorithm", [name for name in AGENTS if small.on_policy(name)])
def test_an_on_policy_agent_refuses_the_option(algorithm, tmp_path):
    out = tmp_path / "run"
    options = (*small.flags(algorithm, steps=64, eval_every=0), "--normalise-observations")
    result = lsac("train", algorithm, "--env", "Pendulum-v1", *options, "--out", out)
    expected = "lsac: --normalise-observations: this agent does so by itself, see --obs-clip"
    assert (result.code, result.sentence) == (2, expected)
    assert not out.exists()
