"""Fidelity of generated transitions, checked on data whose fidelity is known."""

import warnings

import gymnasium
import jax
import numpy as np
import pytest
from replays import replay_of, spec_of
from scipy import stats

from lsac.agents.lsac import synthesis
from lsac.envs import ids
from lsac.errors import InputError
from lsac.replay import ring as rb
from lsac.train import fidelity


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its log where it runs


def collect(env_id, count, seed=0):
    """Rows of a uniformly random policy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # v4 is superseded
        env = gymnasium.make(env_id)
    rng = np.random.default_rng(seed)
    low, high = env.action_space.low, env.action_space.high
    layout = rb.layout_of(spec_of(env.observation_space.shape[0], low.size))
    rows, (obs, _) = [], env.reset(seed=seed)
    for _ in range(count):
        action = rng.uniform(-1, 1, low.shape).astype(np.float32)
        next_obs, reward, ended, cut, _ = env.step(low + (action + 1) / 2 * (high - low))
        rows.append(np.concatenate([obs, action, [reward], [0.0 if ended else 0.99], next_obs]))
        obs = env.reset()[0] if ended or cut else next_obs
    env.close()
    return layout, np.array(rows, np.float32)


def simulator(env_id):
    return ids.build(ids.find(env_id))


@pytest.mark.parametrize("env_id", ["HalfCheetah-v4", "Hopper-v5"])
def test_the_simulator_confirms_real_transitions_and_refutes_shuffled_ones(env_id):
    layout, rows = collect(env_id, 300)
    scale = fidelity.unit(layout, rows)
    env = simulator(env_id)
    real = fidelity.dynamics_error(env, rows)
    fake = fidelity.dynamics_error(env, fidelity.shuffled(layout, rows), scale)
    assert max(real.values()) < 1e-4
    assert min(fake["next_obs_rmse"], fake["reward_rmse"]) > 1.0

    rng = np.random.default_rng(0)
    where = layout.fields()["next_obs"]
    off = rows.copy()
    off[:, where] += 0.1 * scale.change * rng.choice([-1, 1], off[:, where].shape)
    assert fidelity.dynamics_error(env, off, scale)["next_obs_rmse"] == pytest.approx(0.1, rel=1e-3)


def test_the_action_matters():
    layout, rows = collect("HalfCheetah-v4", 50)
    where = layout.fields()["action"]
    rows[:, where] = rows[:, where] * 0.5
    assert fidelity.dynamics_error(simulator("HalfCheetah-v4"), rows)["next_obs_rmse"] > 0.1


def test_an_environment_without_a_recipe_is_refused():
    with pytest.raises(InputError, match='env is "Pendulum-v1"'):
        fidelity.dynamics_error(simulator("Pendulum-v1"), np.zeros((1, 9)))
    assert not fidelity.knows("Pendulum-v1")


def test_an_inspection_tells_good_from_bad_and_seed_from_seed():
    """Seed 0 is shown real transitions as if they were generated, seed 1 shuffled ones."""
    layout, rows = collect("Humanoid-v4", 60)
    made = np.stack([rows, fidelity.shuffled(layout, rows, seed=1)])
    found = fidelity.inspect(simulator("Humanoid-v4"), np.stack([rows, rows]), made)
    assert found["dynamics_error"][0] < 1e-3
    assert found["dynamics_error"][1] == pytest.approx(found["dynamics_error_shuffled"][1], rel=0.3)
    assert found["reward_error"][0] < 1e-3 < found["reward_error"][1]


def test_the_unit_of_errors_is_that_of_all_real_transitions():
    env, (layout, rows) = simulator("Hopper-v4"), collect("Hopper-v4", 60)
    made = fidelity.shuffled(layout, rows[:10], seed=1)
    (error,) = fidelity.inspect(env, rows[None], made[None])["dynamics_error"]
    of_all, of_few = (fidelity.dynamics_error(env, made, fidelity.unit(layout, x)) for x in (rows, rows[:10]))
    assert error == pytest.approx(of_all["next_obs_median"])
    assert error != pytest.approx(of_few["next_obs_median"])


@pytest.mark.parametrize("sizes", [(1, 1), (7, 5), (200, 300)])
def test_kolmogorov_smirnov_agrees_with_scipy_also_where_values_repeat(sizes):
    rng = np.random.default_rng(sum(sizes))
    x, y = (rng.normal(shift, 1.0, size).round(1) for shift, size in zip((0.0, 0.3), sizes, strict=True))
    assert fidelity.kolmogorov_smirnov(x, y) == pytest.approx(stats.ks_2samp(x, y).statistic)


def test_marginals_and_correlations_on_known_gaussians():
    rng = np.random.default_rng(0)
    real = rng.normal(size=(20_000, 3)) * np.array([1.0, 10.0, 0.0]) + np.array([0.0, 5.0, 7.0])
    again = rng.normal(size=(20_000, 3)) * np.array([1.0, 10.0, 1e-7]) + np.array([0.0, 5.0, 7.0])
    same = fidelity.marginals(real, again)
    assert max(same.values()) < 0.03
    assert fidelity.correlation_gap(real, again) < 0.03

    moved = again + np.array([0.0, 5.0, 0.0])  # half a deviation: a Kolmogorov distance of 2Φ(¼) − 1
    gaps = fidelity.marginals(real, moved)
    assert gaps["mean_max"] == pytest.approx(0.5, abs=0.03)
    assert gaps["mean_avg"] == pytest.approx(0.25, abs=0.03)
    assert gaps["ks_max"] == pytest.approx(0.1974, abs=0.02)
    wider = again * np.array([1.3, 1.0, 1.0])
    assert fidelity.marginals(real, wider)["std_max"] == pytest.approx(0.3, abs=0.03)
    tilted = again.copy()
    tilted[:, 1] += 10.0 * tilted[:, 0]
    assert fidelity.correlation_gap(real, tilted) == pytest.approx(0.5**0.5, abs=0.03)


@pytest.mark.computing
def test_a_generator_fitted_to_a_replay_makes_transitions_like_those_it_has_not_seen():
    layout, rows = collect("HalfCheetah-v4", 12_000)
    spec = spec_of(17, 6)
    assert layout == rb.layout_of(spec)
    rows = np.random.default_rng(0).permutation(rows)
    seen, held_out = rows[:8_000], rows[8_000:]
    config = synthesis.Config(
        width=128, dim_t=64, blocks=2, train_steps=1_500, batch_size=256, lr=2e-3, compute_dtype="float32"
    )
    replay = replay_of(layout, seen)
    state = jax.jit(lambda key: synthesis.init(config, spec, key))(jax.random.key(0))
    state, _ = jax.jit(lambda *inputs: synthesis.fit(config, spec, *inputs))(state, replay, jax.random.key(1))
    made = np.asarray(synthesis.generate(config, spec, state, 4_000, jax.random.key(2)))

    gaps = fidelity.marginals(held_out, made)
    assert gaps["mean_max"] < 0.15
    assert gaps["std_max"] < 0.25
    assert gaps["ks_max"] < 0.15
    apart = np.stack([np.random.default_rng(i).permutation(x) for i, x in enumerate(held_out.T)], axis=1)
    assert fidelity.correlation_gap(held_out, made) < 0.35 < fidelity.correlation_gap(held_out, apart)

    found = fidelity.inspect(simulator("HalfCheetah-v4"), held_out[None, :500], made[None, :500])
    assert found["dynamics_error"] < 0.4 * found["dynamics_error_shuffled"]
    assert found["reward_error"] < 0.5
