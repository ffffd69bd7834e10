"""The transition generator: scales, codec, fit and generate, on replays small enough to reason about."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from random_keys import uses_a_key_twice
from replays import replay_of, spec_of, stored_of

from lsac.agents.lsac import synthesis
from lsac.errors import InputError
from lsac.nn.diffusion import edm_loss, preconditioned
from lsac.replay import ring as rb

GAMMA = 0.99
SPEC = spec_of(2, 1, GAMMA)
LAYOUT = rb.layout_of(SPEC)
SMALL = synthesis.Config(
    width=64, dim_t=32, blocks=1, train_steps=20, batch_size=32, compute_dtype="float32", sampler_steps=8
)
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compiles 3 × faster
scales = jit(synthesis.scales, static_argnums=(0, 1))
fit = jit(synthesis.fit, static_argnums=(0, 1))
generate = jit(synthesis.generate, static_argnums=(0, 1, 3))


def dynamics(obs, action):
    return obs @ np.array([[0.9, 0.1], [-0.2, 0.8]]) + action @ np.array([[0.5, -0.1]])


def transitions(count, seed=0):
    """s ~ correlated Gaussian, s' = M s + b a, r = s₀ − a², terminal where s'₀ > 4."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(count, 2)) @ np.array([[2.0, 0.5], [0.0, 0.3]]) + np.array([1.0, -5.0])
    action = rng.uniform(-1, 1, (count, 1))
    next_obs = dynamics(obs, action)
    reward = obs[:, 0] - action[:, 0] ** 2
    discount = np.where(next_obs[:, 0] > 4.0, 0.0, GAMMA)
    columns = (obs, action, reward[:, None], discount[:, None], next_obs)
    return np.concatenate(columns, axis=1).astype(np.float32)


def filled(capacity, chunks, chunk=50):
    replay, add = rb.make(rb.layout_of(SPEC), capacity), jax.jit(rb.add)
    for i in range(chunks):
        replay = add(replay, stored_of(transitions(chunk, seed=i)))
    return replay


def arbitrary_state(seed):
    """Cheaper than to compile `init`, which the cold start of another test does."""
    rng = np.random.default_rng(seed)
    make = functools.partial(synthesis.init, SMALL, SPEC)
    state = jax.eval_shape(make, jax.random.key(0))
    model = jax.tree.map(lambda x: jnp.asarray(rng.normal(0.0, 0.1, x.shape), x.dtype), state.model)
    zeros = jax.tree.map(lambda x: jnp.asarray(np.zeros(x.shape, x.dtype)), state.optimiser)
    ones = jnp.ones(LAYOUT.width)
    made = synthesis.Scales(0.0 * ones, ones, -9.0 * ones, 9.0 * ones)
    return synthesis.State(model, model, zeros, made, jnp.float32(0.5))


@functools.cache
def seeds():
    """Two seeds: their states, replays (of unequal fill) and keys."""
    states = [arbitrary_state(0), arbitrary_state(1)]
    return states, [filled(200, 3), filled(200, 5)], list(jax.random.split(jax.random.key(5)))


def numpy_vectors(rows):
    rows = np.asarray(rows, np.float64)
    parts = {name: rows[:, where] for name, where in LAYOUT.fields().items()}
    ends = (parts["discount"] == 0).astype(float)
    return np.concatenate([parts["obs"], parts["action"], parts["reward"], parts["next_obs"], ends], axis=1)


@pytest.mark.parametrize("chunks", [1, 3, 4, 7], ids=("barely", "partly", "just full", "wrapped"))
def test_scales_are_those_of_the_filled_rows_only(chunks):
    replay = filled(200, chunks)
    everything = np.concatenate([transitions(50, seed=i) for i in range(chunks)])
    vectors = numpy_vectors(everything[-200:])
    mean, std, low, high = map(np.asarray, scales(SMALL, SPEC, replay))
    np.testing.assert_allclose(mean[:-1], vectors.mean(0)[:-1], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(std[:-1], vectors.std(0)[:-1] + 1e-5, rtol=1e-4)
    np.testing.assert_allclose([low, high], [vectors.min(0), vectors.max(0)], rtol=1e-6)


def test_terminals_and_on_request_rewards_are_not_scaled():
    replay = filled(200, 3)
    mean, std, *_ = map(np.asarray, scales(SMALL, SPEC, replay))
    assert (mean[-1], std[-1]) == (0.0, 1.0)
    assert std[3] != 1.0
    mean, std, *_ = map(np.asarray, scales(replace(SMALL, normalize_reward=False), SPEC, replay))
    assert (mean[3], std[3], mean[-1], std[-1]) == (0.0, 1.0, 0.0, 1.0)
    mean, std, *_ = map(np.asarray, scales(replace(SMALL, model_terminals=False), SPEC, replay))
    assert mean.shape == (LAYOUT.width - 1,)
    assert np.all(mean != 0.0)


def test_a_constant_dimension_is_reproduced():
    rows = np.zeros((200, LAYOUT.width), np.float32)
    rows[:150] = transitions(150)
    rows[:150, [0, 5]] = 1234.5678
    replay = replay_of(LAYOUT, rows, size=150)
    mean, std, *_ = scales(SMALL, SPEC, replay)
    assert np.all((rows[:150, 0] - np.asarray(mean)[0]) / np.asarray(std)[0] == 0.0)
    np.testing.assert_allclose(std[0], 1e-5, rtol=1e-6)
    state, metrics = fit(SMALL, SPEC, seeds()[0][0], replay, jax.random.key(1))
    assert jnp.isfinite(metrics["diffusion_loss"])
    made = generate(SMALL, SPEC, state, 100, jax.random.key(2))
    np.testing.assert_allclose(np.asarray(made)[:, [0, 5]], 1234.5678, rtol=1e-6)


@pytest.mark.parametrize("options", [{}, {"model_terminals": False}, {"model_change": True}], ids=str)
def test_decode_undoes_encode(options):
    config, rows = replace(SMALL, **options), transitions(100)

    @jax.jit
    def there_and_back(rows):
        back = synthesis.decode(config, SPEC, synthesis.encode(config, LAYOUT.unpack(rows)))
        rate = synthesis.terminal_rate(replay_of(LAYOUT, rows))
        return LAYOUT.pack(back._replace(discount=synthesis.discounts(config, SPEC, back.discount, rate)))

    back, discount = there_and_back(rows), LAYOUT.fields()["discount"]
    assert np.any(rows[:, discount] == 0.0)
    if not config.model_terminals:
        rows[:, discount] = GAMMA
    np.testing.assert_allclose(back, rows, rtol=1e-5, atol=1e-6)


def test_decode_clips_actions_and_nothing_else():
    vectors = np.zeros((4, LAYOUT.width), np.float32)
    vectors[:, [0, 2, -1]] = np.array([-1.5, -0.5, 0.5, 1.5])[:, None]
    made = jax.jit(lambda x: synthesis.decode(SMALL, SPEC, x))(vectors)
    np.testing.assert_allclose(np.asarray(made.action)[:, 0], [-1.0, -0.5, 0.5, 1.0])
    np.testing.assert_allclose([made.obs[:, 0], made.discount], [vectors[:, 0]] * 2)


@pytest.mark.parametrize(
    ("options", "rate", "ends"),
    [
        ({"match_terminals": True}, 0.0, []),
        ({"match_terminals": True}, 0.2, [3]),
        ({"match_terminals": True}, 0.41, [1, 3]),
        ({"match_terminals": True}, 1.0, [0, 1, 2, 3, 4]),
        ({}, 0.0, [1, 3]),
        ({}, 1.0, [1, 3]),
        ({"match_terminals": True, "model_terminals": False}, 1.0, []),
        ({"model_terminals": False}, 1.0, []),
    ],
    ids=str,
)
def test_the_largest_flags_are_terminations_as_many_as_in_the_replay_or_all_over_a_half(options, rate, ends):
    flags = jnp.array([-0.3, 0.51, 0.49, 1.7, 0.2])
    found = synthesis.discounts(replace(SMALL, **options), SPEC, flags, jnp.float32(rate))
    np.testing.assert_allclose(found, np.where(np.isin(np.arange(5), ends), 0.0, GAMMA))


def test_equal_flags_do_not_make_more_terminations():
    found = synthesis.discounts(replace(SMALL, match_terminals=True), SPEC, jnp.ones(1_000), jnp.float32(0.003))
    assert np.sum(np.asarray(found) == 0.0) == 3


@pytest.mark.parametrize("rate", [0.0, 0.002, 0.3])
def test_generated_transitions_terminate_at_the_rate_of_the_replay(rate):
    """After 20 steps the flags are noise; over ½ are neither 0.2 % nor 30 %. Only filled slots count."""
    rows = np.concatenate([transitions(1_000), np.zeros((200, LAYOUT.width), np.float32)])
    rows[:1_000, 4] = np.where(np.arange(1_000) < 1_000 * rate, 0.0, GAMMA)
    replay = replay_of(LAYOUT, rows, size=1_000)
    config = replace(SMALL, sample_batch=300)
    state, _ = fit(config, SPEC, seeds()[0][0], replay, jax.random.key(1))
    assert float(state.terminal_rate) == pytest.approx(rate)
    made = {
        match: np.asarray(generate(replace(config, match_terminals=match), SPEC, state, 1_000, jax.random.key(2)))
        for match in (True, False)
    }
    assert np.sum(made[True][:, 4] == 0.0) == round(1_000 * rate)
    assert set(made[True][:, 4]) <= {np.float32(0.0), np.float32(GAMMA)}
    assert abs(np.mean(made[False][:, 4] == 0.0) - rate) > 0.05
    np.testing.assert_array_equal(*(np.delete(x, 4, axis=1) for x in made.values()))


def test_average_ramps_up_to_its_decay():
    decay = synthesis.ema_decay(SMALL, jnp.array([0, 9, 90, 100_000]))
    np.testing.assert_allclose(decay, [0.1, 10 / 19, 0.91, 0.995], rtol=1e-6)


def test_learning_rate_falls_along_a_cosine():
    rate = synthesis.learning_rate(SMALL, jnp.array([0, 5, 10, 20]))
    np.testing.assert_allclose(rate / SMALL.lr, [1.0, 0.5 + 0.5**1.5, 0.5, 0.0], atol=1e-6)


def test_large_gradients_are_clipped_before_the_moments():
    optimiser = synthesis._optimiser(SMALL)
    with jax.numpy_dtype_promotion("standard"):
        adam = optimiser.update(jnp.full(4, 100.0), optimiser.init(jnp.zeros(4)))[1][1]
    np.testing.assert_allclose(adam.mu, 0.1 * 0.5, rtol=1e-5)  # a vector of norm 1 is four times ½
    np.testing.assert_allclose(adam.nu, 0.01 * 0.25, rtol=1e-5)


def test_the_loss_of_a_fit_is_that_of_its_last_tenth_or_of_its_last_step():
    losses = jnp.arange(40.0)
    for steps, expected in ((40, 37.5), (4, 3.0)):
        work = synthesis.Fit(None, None, losses[:steps].reshape(-1, 2))
        found = synthesis.finish(replace(SMALL, train_steps=steps), work)[1]
        assert float(found["diffusion_loss"]) == expected


def test_the_first_state_scales_nothing():
    state = jit(lambda key: synthesis.init(SMALL, SPEC, key)._replace(model=None, ema=None, optimiser=None))
    scales, rate = state(jax.random.key(0))[3:]
    ones = np.ones(LAYOUT.width)
    np.testing.assert_array_equal(scales, [0 * ones, ones, -ones, ones])
    assert float(rate) == 0.0


def test_no_random_key_is_used_twice_in_a_cold_start():
    work = functools.partial(synthesis.begin, replace(SMALL, warm_start=False), SPEC)
    assert not uses_a_key_twice(work, seeds()[0][0], seeds()[1][0], jax.random.key(0))


@pytest.mark.parametrize("sampler", ["heun", "dpm2m"])
def test_the_sampler_has_its_noise_levels_and_its_churn_from_the_options(sampler, monkeypatch):
    seen = []

    def spy(denoise, key, shape, *others):
        seen.append((shape, *others))
        return jnp.zeros(shape)

    monkeypatch.setattr(synthesis.diffusion, f"sample_{sampler}", spy)
    levels = {"sampler_steps": 3, "sigma_min": 0.1, "sigma_max": 7.0}
    churn = {"churn": 1.0, "churn_low": 2.0, "churn_high": 3.0, "churn_noise": 4.0}
    config = replace(SMALL, sampler=sampler, sample_batch=4, **levels, **churn)
    rows = synthesis.generate(config, SPEC, seeds()[0][0], 10, jax.random.key(0))
    assert rows.shape == (10, LAYOUT.width)
    (shape, schedule, *given) = seen[0]
    assert shape == (4, LAYOUT.width)
    np.testing.assert_allclose(schedule[np.array([0, 2, 3])], [7.0, 0.1, 0.0], rtol=1e-5)
    assert given == ([(1.0, 2.0, 3.0, 4.0)] if sampler == "heun" else [])


def test_train_steps_must_be_a_multiple_of_the_average_interval():
    words = r"^--generator.train-steps 25: must be a multiple of --generator.ema-every 10$"
    with pytest.raises(InputError, match=words):
        replace(SMALL, train_steps=25).check()


@pytest.mark.parametrize(("given", "expected"), [("auto", "float32"), ("float32", "float32"), ("bfloat16", "bfloat16")])
def test_the_denoiser_has_the_dtype_that_the_option_means(given, expected):
    config = replace(SMALL, compute_dtype=given)
    state = jax.eval_shape(functools.partial(synthesis.init, config, SPEC), jax.random.key(0))
    assert state.model.compute_dtype == state.ema.compute_dtype == expected


def test_the_published_budget():
    paper = synthesis.PAPER
    assert (paper.width, paper.dim_t, paper.blocks, paper.train_steps) == (1024, 256, 6, 100_000)
    assert (paper.sampler, paper.sampler_steps, paper.sigma_min, paper.sigma_max) == (
        "heun",
        128,
        0.002,
        80.0,
    )
    assert (paper.churn, paper.churn_low, paper.churn_high, paper.churn_noise) == (80.0, 0.05, 50.0, 1.003)
    assert not paper.warm_start
    assert paper.squash_beyond == 0.0
    assert not paper.match_terminals


def leaves_close(a, b, rtol=0.0, atol=0.0):
    """Whether two trees have the same structure and all their numbers are close."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    alike = all(np.allclose(np.asarray(x), y, rtol=rtol, atol=atol) for x, y in pairs)
    return alike and jax.tree.structure(a) == jax.tree.structure(b)


def test_seeds_side_by_side_equal_seeds_in_turn():
    states, replays, keys = seeds()
    stacked = [jax.tree.map(lambda *x: np.stack(x), *part) for part in (states, replays)]

    def both(state, replay, key):
        state, metrics = synthesis.fit(SMALL, SPEC, state, replay, key)
        return state, metrics, synthesis.generate(SMALL, SPEC, state, 100, key)

    together = jax.device_get(jit(jax.vmap(both))(*stacked, jnp.stack(keys)))
    for i, (state, replay, key) in enumerate(zip(*seeds(), strict=True)):
        state, metrics = fit(SMALL, SPEC, state, replay, key)
        alone = state, metrics, generate(SMALL, SPEC, state, 100, key)
        assert leaves_close(alone, jax.tree.map(lambda x, i=i: x[i], together), rtol=1e-3, atol=1e-4)


def test_same_key_same_rows():
    (state, _), (replay, _), (key, other) = seeds()
    first, again, new = (fit(SMALL, SPEC, state, replay, k)[0] for k in (key, key, other))
    assert leaves_close(first, again)
    assert not np.allclose(first.model.leave.weight, new.model.leave.weight)
    rows = [generate(SMALL, SPEC, first, 100, k) for k in (key, key, other)]
    np.testing.assert_array_equal(rows[0], rows[1])
    assert not np.allclose(rows[0], rows[2])


def scanned(config, state, replay, key):
    """The fit as one scan over all its steps, without pieces."""
    scales = synthesis.scales(config, SPEC, replay)
    optimiser = synthesis._optimiser(config)

    def step(carry, inputs):
        (model, moments), (count, key) = carry, inputs
        batch_key, loss_key = jax.random.split(key)
        rows = synthesis.encode(config, rb.sample(replay, batch_key, config.batch_size))
        batch, rate = synthesis.to_model(config, SPEC, scales, rows), synthesis.learning_rate(config, count)
        loss, grads = jax.value_and_grad(lambda m: edm_loss(preconditioned(m), batch, loss_key))(model)
        updates, moments = optimiser.update(grads, moments)
        return (jax.tree.map(lambda p, u: p - rate * u, model, updates), moments), loss

    def averaged(carry, inputs):
        (model, ema, moments), (counts, keys) = carry, inputs
        (model, moments), losses = jax.lax.scan(step, (model, moments), (counts, keys))
        decay = synthesis.ema_decay(config, counts[0] // config.ema_every)
        return (model, optax.incremental_update(model, ema, 1.0 - decay), moments), losses

    shape = (config.train_steps // config.ema_every, config.ema_every)
    inputs = jnp.arange(config.train_steps).reshape(shape), jax.random.split(jax.random.split(key)[1], shape)
    (model, ema, moments), losses = jax.lax.scan(averaged, (state.model, state.ema, state.optimiser), inputs)
    loss = jnp.mean(losses.reshape(-1)[-max(1, config.train_steps // 10) :])
    return synthesis.State(model, ema, moments, scales, synthesis.terminal_rate(replay)), {"diffusion_loss": loss}


@pytest.mark.parametrize("pieces", [1, 3, 16])
def test_a_fit_in_pieces_is_the_same_fit(pieces):
    """To the bit, also where there are more pieces than updates of the average."""
    config = replace(SMALL, ema_every=2)
    (state, _), (replay, _), (key, _) = seeds()
    advance = jit(lambda work, piece: synthesis.advance(config, SPEC, work, replay, piece, pieces))
    work = jit(synthesis.begin, static_argnums=(0, 1))(config, SPEC, state, replay, key)
    done = []
    for piece in range(pieces):
        work = advance(work, jnp.asarray(piece, jnp.int32))
        done.append(int(np.count_nonzero(work.losses)))
    assert done == [10 * (piece + 1) // pieces * 2 for piece in range(pieces)]
    expected = jit(lambda *args: scanned(config, *args))(state, replay, key)
    found = synthesis.finish(config, work)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found[0]), jax.tree.leaves(expected[0]), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(found[1]["diffusion_loss"], expected[1]["diffusion_loss"], rtol=1e-6)


def test_rows_come_from_the_averaged_parameters():
    (state, other), _, (key, _) = seeds()
    rows, same, new = (
        generate(SMALL, SPEC, s, 100, key)
        for s in (state, state._replace(model=other.model), state._replace(ema=other.ema))
    )
    np.testing.assert_array_equal(rows, same)
    assert not np.allclose(rows, new)


def test_fit_trains_and_averages_but_leaves_the_frequencies():
    (state, _), (replay, _), (key, _) = seeds()
    after, _ = fit(SMALL, SPEC, state, replay, key)
    np.testing.assert_array_equal(after.model.frequencies, state.model.frequencies)
    models = state.model, after.model, after.ema
    before, new, ema = (np.asarray(model.blocks[0].weight) for model in models)
    assert np.max(np.abs(new - before)) > 1e-4
    assert 0.0 < np.max(np.abs(new - ema)) < np.max(np.abs(new - before))


def test_a_warm_start_continues():
    states, (replay, _), (key, _) = seeds()
    before = [np.asarray(state.model.leave.weight) for state in states]
    after = [np.asarray(fit(SMALL, SPEC, state, replay, key)[0].model.leave.weight) for state in states]
    assert all(np.max(np.abs(a - b)) < 0.02 for a, b in zip(after, before, strict=True))
    assert np.max(np.abs(after[0] - after[1])) > 0.1


def test_heun_in_several_batches():
    config = replace(SMALL, sampler="heun", sample_batch=4)
    rows = generate(config, SPEC, seeds()[0][0], 10, jax.random.key(0))
    assert rows.shape == (10, LAYOUT.width)
    assert rows.dtype == jnp.float32
    assert len(np.unique(np.asarray(rows[:, 0]))) == 10


def test_generated_transitions_resemble_the_real_ones():
    """Means, deviations, correlations, rare terminals and dynamics, against an untrained model.

    The fit starts cold, so what it is given to start from must not matter.
    """
    config = replace(SMALL, train_steps=600, batch_size=256, lr=2e-3, sampler_steps=24, warm_start=False)
    config = replace(config, match_terminals=False)  # the flags themselves are tested, too
    real = transitions(4_000)
    replay = rb.add(rb.make(rb.layout_of(SPEC), 8_000), stored_of(real))
    untrained, other = seeds()[0]
    trained, _ = fit(config, SPEC, untrained, replay, jax.random.key(1))
    assert leaves_close(trained, fit(config, SPEC, other, replay, jax.random.key(1))[0])

    def gaps(state):
        made = np.asarray(generate(config, SPEC, state, 4_000, jax.random.key(2)), np.float64)
        x, y = numpy_vectors(real)[:, :-1], numpy_vectors(made)[:, :-1]
        obs, action, next_obs = y[:, :2], y[:, 2:3], y[:, 4:6]
        error = np.std(next_obs - dynamics(obs, action), axis=0) / np.std(next_obs - obs, axis=0)
        ends = numpy_vectors(real)[:, -1].mean(), numpy_vectors(made)[:, -1].mean()
        return {
            "mean": np.max(np.abs(x.mean(0) - y.mean(0)) / x.std(0)),
            "std": np.max(np.abs(y.std(0) / x.std(0) - 1)),
            "correlation": np.max(np.abs(np.corrcoef(x.T) - np.corrcoef(y.T))),
            "ends": abs(ends[0] - ends[1]) / ends[0],
            "dynamics": np.max(error),
        }

    good, bad = gaps(trained), gaps(untrained)
    limits = {"mean": 0.1, "std": 0.15, "correlation": 0.1, "ends": 0.4, "dynamics": 0.45}
    assert all(good[name] < limit < bad[name] for name, limit in limits.items()), (good, bad)


def test_layers_are_as_wide_as_wanted_unless_a_transition_is_wider():
    assert [synthesis.channels(512, size) for size in (42, 512, 513, 771)] == [512, 512, 768, 1024]
    for config in (synthesis.Config(), synthesis.PAPER):
        small, large = (
            jax.eval_shape(functools.partial(synthesis.init, config, spec_of(obs_dim, 17)), jax.random.key(0)).model
            for obs_dim in (17, 376)  # those of HalfCheetah and Humanoid
        )
        assert small.enter.weight.shape == (256, 53)
        assert small.leave.weight.shape == (53, config.width)
        assert large.enter.weight.shape == (1024, 771)
        assert large.leave.weight.shape == (771, 1792)


@pytest.mark.slow
def test_a_transition_longer_than_the_layers_still_stays_where_the_data_are(monkeypatch):
    """96 numbers on a plane of 12 dimensions, through layers that are 32 and 64 wide if nothing widens them."""
    spec = spec_of(40, 15)
    layout, rng = rb.layout_of(spec), np.random.default_rng(0)
    rows = (0.05 * rng.normal(size=(2_000, 12)) @ rng.normal(size=(12, layout.width))).astype(np.float32)
    replay, config = replay_of(layout, rows), replace(SMALL, train_steps=300, batch_size=128, lr=2e-3)
    config = replace(config, sampler_steps=12, model_terminals=False, squash_beyond=0.0)

    def variance_beside_the_plane():
        state = synthesis.init(config, spec, jax.random.key(0))
        state, _ = jit(synthesis.fit, static_argnums=(0, 1))(config, spec, state, replay, jax.random.key(1))
        made = jit(synthesis.generate, static_argnums=(0, 1, 3))(config, spec, state, 500, jax.random.key(2))
        vectors = (synthesis.encode(config, layout.unpack(r)) for r in (jnp.asarray(rows), made))
        x, y = (np.asarray(synthesis.to_model(config, spec, state.scales, v)) for v in vectors)
        beside = np.linalg.svd(x)[2][12:]
        assert np.var(x @ beside.T) < 1e-6
        return np.var(y @ beside.T)

    assert variance_beside_the_plane() < 0.2
    monkeypatch.setattr(synthesis, "channels", lambda wanted, needed: wanted)
    assert variance_beside_the_plane() > 0.7


def test_squash_is_the_identity_up_to_its_bound_and_logarithmic_beyond():
    x = jnp.array([-63.0, -3.5, -3.0, -0.1, 0.0, 1e-7, 2.9, 3.0, 4.0, 1e6])
    y = synthesis.squash(x, 3.0)
    np.testing.assert_array_equal(y[2:8], x[2:8])
    np.testing.assert_allclose(
        y[np.array([0, 1, 8])], [-3 - np.log(61.0), -3 - np.log(1.5), 3 + np.log(2.0)], rtol=1e-6
    )
    np.testing.assert_allclose(synthesis.expand(y, 3.0), x, rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"normalize_reward": False}, {"model_terminals": False}], ids=str)
def test_scaled_numbers_are_squashed_and_come_back(options):
    """With a bound below 1, which would squash a terminal flag, and a reward that is scaled or not."""
    config, rows = replace(SMALL, squash_beyond=0.5, **options), transitions(300)
    found = scales(config, SPEC, replay_of(LAYOUT, rows))
    vectors = synthesis.encode(config, LAYOUT.unpack(jnp.asarray(rows)))
    x = np.asarray(synthesis.to_model(config, SPEC, found, vectors))
    plain = (np.asarray(vectors) - found.mean[None]) / found.std[None]
    same = [np.array_equal(a, b) for a, b in zip(x.T, plain.T, strict=True)]
    expected = [False] * 3 + [not config.normalize_reward] + [False] * 2 + [True] * config.model_terminals
    assert same == expected
    np.testing.assert_allclose(synthesis.from_model(config, SPEC, found, x), vectors, rtol=1e-4, atol=1e-4)


def test_a_squashed_number_does_not_leave_the_range_of_the_replay():
    rows, config = transitions(300), replace(SMALL, squash_beyond=3.0)
    found = scales(config, SPEC, replay_of(LAYOUT, rows))
    for sign in (-1.0, 1.0):
        vectors = np.asarray(synthesis.from_model(config, SPEC, found, jnp.full((1, LAYOUT.width), sign * 50.0)))[0]
        extremes = numpy_vectors(rows).max(0) if sign > 0 else numpy_vectors(rows).min(0)
        np.testing.assert_allclose(vectors[:-1], extremes[:-1], rtol=1e-6)
        assert vectors[-1] == sign * 50.0, "flags are compared with each other"
    assert synthesis.from_model(SMALL, SPEC, found, jnp.full((1, LAYOUT.width), 50.0))[0, 0] > rows[:, 0].max()


@pytest.mark.slow
def test_rare_large_numbers_are_generated_as_often_and_as_large_as_they_are():
    """A force that is 0 in 99 of 100 rows and 10 to 15 standard deviations in the others."""
    rows, rng = transitions(10_000), np.random.default_rng(1)
    rows[:, 1] = np.where(rng.random(10_000) < 0.01, rng.uniform(20.0, 60.0, 10_000), 0.0)

    def gaps(beyond):
        """Of the number and the spread of the forces, relative to what they are."""
        config = replace(SMALL, train_steps=1_200, batch_size=256, lr=2e-3, sampler_steps=16, squash_beyond=beyond)
        state = synthesis.init(config, SPEC, jax.random.key(0))
        state, _ = fit(config, SPEC, state, replay_of(LAYOUT, rows), jax.random.key(1))
        made = np.asarray(generate(config, SPEC, state, 10_000, jax.random.key(2)))[:, 1]
        pairs = ((made > 10.0).mean(), (rows[:, 1] > 10.0).mean()), (made.std(), rows[:, 1].std())
        return [abs(found / real - 1.0) for found, real in pairs]

    assert max(gaps(3.0)) < 0.2 < min(gaps(0.0))
