"""LSAC from images: what of an image reaches the chains, and what of their losses reaches the encoder.

Unless a test says otherwise, critics and actor are linear in features, vector and action, there are two chains of two
critics, and the actor takes its mean action.
"""

import dataclasses
import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from linear import actor_of, chains_of, f32, mean_head
from random_keys import uses_a_key_twice
from replays import rows_in, spec_of

from lsac.agents import lsac
from lsac.agents.lsac import agent as vectors
from lsac.agents.lsac import chains, pixels, synthesis
from lsac.agents.lsac.config import Config, EncoderOptions
from lsac.errors import InputError
from lsac.nn.convolutions import centred
from lsac.nn.networks import NARROW_LOG_STD
from lsac.options import check_options, read_options
from lsac.replay import ring as rb
from lsac.types import EnvSpec, Pixels, Transition

GAMMA, COUNT, FEATURES = 0.9, 40, 3
SPEC = EnvSpec(obs_shape=(1,), frame=(20, 20, 1), frame_stack=2, action_dim=2, gamma=GAMMA)
LAYOUT, KEY = rb.layout_of(SPEC), jax.random.key(0)
ENCODER = EncoderOptions(filters=2, feature_dim=FEATURES, lr=1e-3, batch_size=8, shift=2, feature_rows=20)
GENERATOR = synthesis.Config(width=16, dim_t=16, blocks=1, train_steps=20, batch_size=16, sampler_steps=3)
OPTIONS = {
    "hidden": (),
    "chains": 2,
    "batch_size": 4,
    "sampler": "sgld",
    "distributional": False,
    "synthetic": False,
    "log_std_min": -20.0,
    "log_std_max": -19.9,
    "alpha_init": 1e-8,
    "alpha_lr": 0.0,
    "generator": GENERATOR,
    "encoder": ENCODER,
}


def config_of(**options):
    return Config(**OPTIONS | options)


def stored(seed=0, count=COUNT, discount=GAMMA):
    """Random transitions in episodes of four steps."""
    rng, made = np.random.default_rng(seed), LAYOUT.empty(count)
    views = LAYOUT.views(made)
    made[rb.PACKED][:] = rng.normal(size=(count, LAYOUT.width))
    views["action"][:] = rng.uniform(-1, 1, (count, 2))
    views["discount"][:] = np.where(np.arange(count) % 4 == 3, 0.0, discount)
    views[rb.FIRST][:] = np.arange(count) % 4 == 0
    views[rb.FRAME][:] = rng.integers(0, 256, (count, 20, 20, 1))
    return made


REPLAY = rb.holding(LAYOUT, stored(), COUNT)


class Case:
    """An agent with these options, its update compiled once for all tests."""

    def __init__(self, **options):
        self.config = config_of(**options)
        self.agent = lsac.make(self.config, SPEC)
        self.first = self.agent.init(KEY)
        self.update = jax.jit(self.agent.update)
        self.inner_spec = pixels.spec_of_features(self.config, SPEC)

    def batch(self, state, key, replay=REPLAY):
        """The images of an update's pool, and the pool as the chains see it."""
        images = pixels.drawn(self.config, replay, jax.random.split(key, 3)[0], self.config.encoder.batch_size)
        obs, next_obs = (pixels.encoded(self.config, state.encoder, x) for x in (images.obs, images.next_obs))
        return images, images._replace(obs=obs, next_obs=next_obs)


@functools.cache
def case(**options):
    return Case(**options)


def signature(tree):
    leaves, structure = jax.tree.flatten(jax.eval_shape(lambda: tree))
    return structure, [(x.shape, x.dtype, x.weak_type) for x in leaves]


def same(one, other):
    return all(np.array_equal(*pair) for pair in zip(*(jax.tree.leaves(x) for x in (one, other)), strict=True))


# the encoder


def test_features_are_normalised_and_bounded_and_the_vector_is_added_as_it_is():
    encoder = case().first.encoder
    gain, shift = np.array([1.0, 2.0, 0.5]), np.array([0.0, 0.3, -0.2])
    encoder = eqx.tree_at(lambda e: (e.norm.weight, e.norm.bias), encoder, (f32(*gain), f32(*shift)))
    obs = Pixels(jnp.asarray(np.random.default_rng(1).integers(0, 256, (20, 20, 2)), jnp.uint8), f32(7.0))
    found = np.asarray(encoder(obs))
    convolved = np.asarray(encoder.convs(centred(obs.image)), np.float64)
    x = np.asarray(encoder.projection.weight) @ convolved + np.asarray(encoder.projection.bias)
    expected = np.tanh(gain * (x - x.mean()) / np.sqrt(x.var() + 1e-5) + shift)
    np.testing.assert_allclose(found[:3], expected, rtol=1e-4)
    assert found.shape == (4,)
    assert found[3] == 7.0


def test_the_agent_of_vectors_sees_features_and_is_chosen_by_the_environment():
    inner = case().inner_spec
    assert (inner.obs_shape, inner.frame, inner.action_dim, inner.gamma) == ((4,), None, 2, GAMMA)
    assert case().first.inner.actor.mlp.layers[0].weight.shape == (4, 4)
    on_vectors = lsac.make(config_of(), spec_of(3, 2))
    assert on_vectors.values is not None
    assert isinstance(on_vectors.init(KEY), vectors.State)
    assert case().agent.values is None


def test_every_image_of_a_pool_is_shifted_on_its_own():
    images = pixels.drawn(config_of(), REPLAY, KEY, 16)
    still = pixels.drawn(config_of(encoder=dataclasses.replace(ENCODER, shift=0)), REPLAY, KEY, 16)
    moves = []
    for moved, before in ((images.obs, still.obs), (images.next_obs, still.next_obs)):
        np.testing.assert_array_equal(moved.vector, before.vector)
        for now, then in zip(np.asarray(moved.image), np.asarray(before.image), strict=True):
            padded = np.pad(then, ((2, 2), (2, 2), (0, 0)), mode="edge")
            at = [(i, j) for i in range(5) for j in range(5) if np.array_equal(padded[i : i + 20, j : j + 20], now)]
            assert len(at) == 1
            moves += at
    assert len(set(moves)) > 12
    assert moves[:16] != moves[16:]


def test_acting_is_that_of_the_agent_of_vectors_on_features():
    for actors in ("shared", "per_chain"):
        c = Case(actors=actors)
        inner = vectors.make(c.config, c.inner_spec)
        obs = jax.tree.map(lambda x: x[3], rb.take(REPLAY, jnp.arange(8)).obs)
        policy, memory = c.agent.policy(c.first), c.agent.memory()
        found, after = c.agent.act(policy, memory, obs, KEY, True)
        seen = c.first.encoder(obs)
        expected, then = inner.act(inner.policy(c.first.inner), inner.memory(), seen, KEY, True)
        np.testing.assert_array_equal(found, expected)
        assert same(after, then)
        darker = obs._replace(image=obs.image // 2)
        assert not np.array_equal(found, c.agent.act(policy, memory, darker, KEY, True)[0])


def test_the_policy_only_selects_float32_arrays_and_has_the_encoder():
    c = case()
    paths, tree = jax.tree.flatten_with_path(c.first)
    names = [jax.tree_util.keystr(path) for path, _ in paths]
    chosen = set(jax.tree.leaves(c.agent.policy(jax.tree.unflatten(tree, names))))
    assert {name for name in names if name.startswith(".encoder.")} < chosen < set(names)
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(c.agent.policy(c.first)))


def test_only_discounts_are_observed():
    c = Case(endless_pessimism=0.5)
    rows = stored()[rb.PACKED]
    for last, expected in ((3, 0.0), (4, 1.0)):  # the fourth step is the first that terminates
        seen = c.agent.observe(c.first, LAYOUT.unpack(jnp.asarray(rows[:last])), jnp.zeros(last, bool))
        assert float(seen.inner.terminated) == expected
        assert signature(seen) == signature(c.first)


# the gradient of the encoder


@pytest.mark.parametrize("discount", [0.0, 0.5], ids=["terminating", "going on"])
def test_the_gradient_by_a_feature_is_that_of_the_mean_loss_of_all_chains_by_hand(discount):
    """Q = w_s s + w_a a + b with σ = 1.5, so that ω/(σ² + ε) is 1: the slope at s_i is the mean of (Q − y) w_s / B."""
    critics = [[(1, 2, 0, 1.5), (-1, 1, 0.5, 1.5)], [(0.5, -3, 3, 1.5), (2, 1, 0, 1.5)]]
    slow = [[(1, 0, 4, 1), (2, 0, 3, 1)], [(-1, 0, 2, 1), (0, 0, 5, 1)]]
    config = config_of(distributional=True, log_std_min=NARROW_LOG_STD[0], log_std_max=NARROW_LOG_STD[1])
    inner = vectors.make(config, spec_of(1, 1)).init(KEY)
    quiet = actor_of(0.0, 0.0, -20.0, NARROW_LOG_STD)  # takes the action 0
    moments = {"std_mean": jnp.full((2, 2), 1.5), "var_mean": jnp.full((2, 2), 1.5**2)}
    inner = inner._replace(
        chains=inner.chains._replace(critics=chains_of(*critics), targets=chains_of(*slow), **moments),
        target_actor=quiet,
        log_alpha=jnp.float32(-30.0),
    )
    s, a, r, after = (np.random.default_rng(i).normal(size=5) for i in range(4))
    batch = Transition(f32(*s)[:, None], f32(*a)[:, None], f32(*r), jnp.full(5, discount), f32(*after)[:, None])
    found = jax.jit(pixels.slope, static_argnums=0)(config, inner, batch, KEY)
    expected = np.zeros(5)
    for chain, older in zip(critics, slow, strict=True):
        y = r + discount * np.min([w_s * after + b for w_s, _, b, _ in older], axis=0)
        for w_s, w_a, b, _ in chain:
            expected += (w_s * s + w_a * a + b - y) * w_s / 4 / 5
    np.testing.assert_allclose(np.asarray(found)[:, 0], expected, rtol=1e-4)


def test_the_encoder_goes_down_the_mean_squared_error_of_all_critics_with_constant_targets():
    """Of its first step Adam remembers a tenth of the gradient. Its slope along itself is that of finite differences of
    the loss in NumPy, whose targets stay those of the first encoder."""
    c = case(critic_lr=0.5)  # the chains' own step must not count yet
    images, batch = c.batch(c.first, KEY)
    after, metrics = c.update(c.first, REPLAY, KEY)
    grads = jax.tree.map(lambda x: 10 * x, optax.tree.get(after.encoder_opt, "mu"))
    heads = mean_head(c.first.inner.chains.critics).astype(np.float64).reshape(4, -1)
    slow = mean_head(c.first.inner.chains.targets).astype(np.float64)
    layer = c.first.inner.target_actor.mlp.layers[0]
    next_obs = np.asarray(batch.next_obs, np.float64)
    next_action = np.tanh(next_obs @ np.asarray(layer.weight)[:2].T + np.asarray(layer.bias)[:2])
    following = np.einsum("nx,ckx->ckn", np.concatenate([next_obs, next_action, np.ones((8, 1))], 1), slow)
    y = np.asarray(batch.reward) + np.asarray(batch.discount) * following.min(1)  # [C, B]

    def loss(encoder):
        obs = np.asarray(pixels.encoded(c.config, encoder, images.obs), np.float64)
        q = np.concatenate([obs, np.asarray(batch.action), np.ones((8, 1))], 1) @ heads.T
        return 0.5 * np.mean((q.T.reshape(2, 2, 8) - y[:, None]) ** 2)

    size = float(optax.tree.norm(grads))
    assert float(metrics["encoder_grad_norm"]) == pytest.approx(size, rel=1e-4)
    there, back = (jax.tree.map(lambda p, g, h=h: p + h * g / size, c.first.encoder, grads) for h in (0.003, -0.003))
    assert (loss(there) - loss(back)) / 0.006 == pytest.approx(size, rel=0.02)
    for part in ("convs", "projection", "norm"):
        assert float(optax.tree.norm(getattr(grads, part))) > 0.0, part
    for p, q, g in zip(*map(jax.tree.leaves, (c.first.encoder, after.encoder, grads)), strict=True):
        # the first step of Adam
        np.testing.assert_allclose(q - p, -1e-3 * g / (jnp.abs(g) + 1e-8), atol=1e-6)


def test_without_a_gradient_the_noise_moves_the_chains_and_not_the_encoder():
    c = case(inverse_temperature=1e-2)
    critics = c.first.inner.chains.critics
    layer = critics.mlp.layers[0]
    blind = eqx.tree_at(lambda m: m.mlp.layers[0].weight, critics, layer.weight.at[..., :FEATURES].set(0.0))
    inner = c.first.inner._replace(chains=c.first.inner.chains._replace(critics=blind))
    after, metrics = c.update(c.first._replace(inner=inner), REPLAY, KEY)
    assert same(after.encoder, c.first.encoder)
    assert float(metrics["encoder_grad_norm"]) == 0.0
    moved = np.asarray(after.inner.chains.critics.mlp.layers[0].weight - blind.mlp.layers[0].weight)
    assert np.std(moved) > 0.1  # √(2 η / β) is 0.45
    seeing, metrics = c.update(c.first, REPLAY, KEY)
    assert not same(seeing.encoder, c.first.encoder)
    assert float(metrics["encoder_grad_norm"]) > 0.0


def test_targets_are_constant_also_where_batch_normalisation_joins_them_with_the_batch():
    config = config_of(network="batch_norm", width=8, blocks=1)
    inner = vectors.make(config, spec_of(2, 1)).init(KEY)
    batch = rb.layout_of(spec_of(2, 1)).unpack(f32(*np.random.default_rng(0).normal(size=(6, 7))))
    shared = jax.tree.map(lambda x: jnp.stack([x, x]), batch)
    bootstrap = chains.Bootstrap(inner.target_actor, jnp.exp(inner.log_alpha))
    targets = jax.jit(lambda key: chains.targets_of(config, inner.chains.targets, bootstrap, shared, key))(KEY)

    def loss(obs):
        total = jnp.zeros(())
        for c, k in itertools.product(range(2), range(2)):
            critic, std_mean, var_mean = jax.tree.map(lambda x, c=c, k=k: x[c, k], moved)
            y_q, y_z, (next_obs, next_action) = jax.tree.map(lambda x, c=c: x[c], targets[:3])
            both = batch._replace(
                obs=jnp.concatenate([obs, next_obs]), action=jnp.concatenate([batch.action, next_action])
            )
            total += chains.critic_loss(critic, both, y_q, y_z, std_mean, var_mean, config)[0] / 4
        return total

    moved = inner.chains.critics, inner.chains.std_mean, inner.chains.var_mean
    expected = jax.jit(jax.grad(loss))(batch.obs)
    found = jax.jit(pixels.slope, static_argnums=0)(config, inner, batch, KEY)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
    assert float(jnp.max(jnp.abs(found))) > 1e-2


# what the chains see


def test_the_chains_learn_as_the_agent_of_vectors_does_from_constant_features():
    c = case()
    _, batch = c.batch(c.first, KEY)
    layout = rb.layout_of(c.inner_spec)
    pool = rb.holding(layout, {rb.PACKED: layout.pack(batch), rb.FIRST: jnp.zeros(8, bool)}, 8)
    expected, numbers = jax.jit(vectors.make(c.config, c.inner_spec).update)(
        c.first.inner, pool, jax.random.split(KEY, 3)[1]
    )
    after, metrics = c.update(c.first, REPLAY, KEY)
    for a, b in zip(*map(jax.tree.leaves, (after.inner, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert metrics.keys() == numbers.keys() | {"encoder_grad_norm", "feature_std"}
    assert float(metrics["critic_loss"]) == pytest.approx(float(numbers["critic_loss"]), rel=1e-4)
    std = np.std(np.asarray(batch.obs)[:, :FEATURES], axis=0).mean()
    assert float(metrics["feature_std"]) == pytest.approx(std, rel=1e-4)
    assert signature(after) == signature(c.first)
    assert not uses_a_key_twice(c.agent.update, c.first, REPLAY, KEY)


def test_the_temperature_knows_the_true_number_of_transitions():
    c = case(temperature=2.0, distributional=True)
    for count in (COUNT, 24):
        replay = dataclasses.replace(REPLAY, size=jnp.int32(count))
        _, metrics = c.update(c.first, replay, KEY)
        # β = |D| / (ω T), with ω = 0.5 + 0.1
        assert float(metrics["inverse_temperature"]) == pytest.approx(count / (2.0 * 0.6), rel=1e-4)


def test_scaled_rewards_are_divided_once_for_the_chains_and_for_the_encoder():
    c = case()
    halved = stored()
    LAYOUT.views(halved)["reward"][:] /= 2
    expected, _ = c.update(c.first, rb.holding(LAYOUT, halved, COUNT), KEY)
    found, _ = c.update(c.first, dataclasses.replace(REPLAY, reward_scale=jnp.float32(2.0)), KEY)
    for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


# the generator


def uniform(level):
    """A replay whose images all show this level of grey."""
    made = stored()
    made[rb.FRAME][:] = level
    return rb.holding(LAYOUT, made, COUNT)


@pytest.fixture(scope="module")
def generating():
    """An agent with a generator, before and after a refresh on grey images, with D' and without."""
    c = Case(synthetic=True, synthetic_capacity=32)
    refresh = c.agent.refresh
    kept, metrics, real = jax.jit(refresh.fit)(refresh.compact(c.first), uniform(40), KEY)
    state, sample = jax.jit(refresh.generate)(kept, jax.random.key(1))
    return c, kept, state, metrics, real, sample


def test_a_refresh_fits_and_generates_features_of_the_current_encoder(generating):
    c, kept, state, metrics, real, sample = generating
    of_grey = c.first.encoder(Pixels(jnp.full((20, 20, 2), 40, jnp.uint8), jnp.zeros(0)))
    rows = rb.layout_of(c.inner_spec).unpack(state.inner.generated)
    for batch in (real, sample, rows):
        for obs in (batch.obs, batch.next_obs):
            np.testing.assert_allclose(obs[:, :FEATURES], jnp.broadcast_to(of_grey, (len(obs), 3)), atol=1e-3)
    assert float(jnp.std(rows.obs[:, FEATURES])) > 0.1
    assert float(metrics["diffusion_loss"]) > 0.0  # that of the last steps; without steps it would be 0
    assert not same(kept.inner.generator.model, c.first.inner.generator.model)
    assert float(state.inner.share) == 0.5
    assert signature(state) == signature(c.first)
    assert kept.inner.generated is None
    assert same(state.encoder, c.first.encoder)


def test_generated_features_are_learned_from_and_stay_until_the_next_refresh(generating):
    c, _, state, _, _, _ = generating
    after, metrics = c.update(state, REPLAY, KEY)
    assert float(metrics["critic_loss_synthetic"]) > 0.0
    assert not same(after.encoder, state.encoder)
    np.testing.assert_array_equal(after.inner.generated, state.inner.generated)
    assert np.any(np.asarray(after.inner.moved) != 0.0)
    # a second refresh uses the encoder of its time
    shifted = eqx.tree_at(lambda e: e.norm.bias, after.encoder, f32(1.0, -1.0, 0.0))
    work = jax.jit(c.agent.refresh.begin)(c.agent.refresh.compact(after._replace(encoder=shifted)), uniform(40), KEY)
    expected = shifted(Pixels(jnp.full((20, 20, 2), 40, jnp.uint8), jnp.zeros(0)))
    found = rows_in(work.features)[:, :FEATURES]
    np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), rtol=1e-4, atol=1e-5)


def test_a_fit_sees_at_most_as_many_transitions_as_the_replay_holds_with_their_own_rewards():
    c = case()
    for held, count in ((40, 20), (12, 12)):
        replay = dataclasses.replace(REPLAY, size=jnp.int32(held), reward_scale=jnp.float32(3.0))
        features = pixels.features_of(c.config, SPEC, c.first.encoder, replay, KEY)
        assert (int(features.size), features.capacity) == (count, 20)
        rewards = {round(float(r), 4) for r in LAYOUT.unpack(stored()[rb.PACKED])[2]}
        rows = rb.layout_of(c.inner_spec).unpack(rows_in(features))
        assert {round(float(r), 4) for r in rows.reward} <= rewards
        assert len({float(r) for r in rows.reward}) > 5


# options


def test_configurations_from_before_images_are_read():
    before = dataclasses.asdict(Config())
    del before["encoder"]
    assert read_options(Config, before, "a file") == Config()
    assert read_options(Config, dataclasses.asdict(config_of()), "a file") == config_of()
    check_options(config_of(hidden=(8,)))
    with pytest.raises(InputError, match=r"--encoder\.feature-dim 1: must be at least 2"):
        check_options(Config(encoder=EncoderOptions(feature_dim=1)))


# learning


def brightness(seed, informative=True):
    """Episodes of one step, whose best action is the brightness of the frame."""
    rng, layout = np.random.default_rng(seed), rb.layout_of(GREY)
    made = layout.empty(512)
    views, level, action = layout.views(made), rng.uniform(size=512), rng.uniform(-1, 1, 512)
    views["action"][:, 0], views["reward"][:] = action, -((action - (2 * level - 1)) ** 2)
    shown = level if informative else rng.uniform(size=512)
    views[rb.FIRST][:], views[rb.FRAME][:] = True, (255 * shown).astype(np.uint8)[:, None, None, None]
    return rb.holding(layout, made, 512)


GREY = EnvSpec(obs_shape=(0,), frame=(20, 20, 1), action_dim=1, gamma=GAMMA)


@pytest.mark.slow
def test_images_that_tell_the_best_action_are_learned_from():
    config = Config(
        hidden=(32, 32),
        chains=2,
        batch_size=32,
        synthetic=False,
        actor_lr=3e-3,
        critic_lr=3e-3,
        critic_lr_end=3e-3,
        alpha_init=0.01,
        alpha_lr=0.0,
        tau=0.05,
        encoder=EncoderOptions(filters=4, feature_dim=8, lr=1e-3, batch_size=32, shift=2),
    )
    agent, levels = lsac.make(config, GREY), np.linspace(0, 1, 21)
    frames = jnp.asarray(np.tile((255 * levels).astype(np.uint8)[:, None, None, None], (1, 20, 20, 1)))

    def error(state):
        obs = Pixels(frames, jnp.zeros((21, 0)))
        keys = jax.random.split(KEY, 21)
        action = jax.vmap(lambda o, k: agent.act(agent.policy(state), (), o, k, False)[0][0])(obs, keys)
        return float(np.mean(np.abs(np.asarray(action) - (2 * levels - 1))))

    train = jax.jit(lambda state, replay, keys: jax.lax.scan(lambda s, k: agent.update(s, replay, k), state, keys))
    first, keys = agent.init(KEY), jax.random.split(jax.random.key(1), 200)
    learned, metrics = train(first, brightness(0), keys)
    unrelated, _ = train(first, brightness(0, informative=False), keys)
    assert error(first) > 0.4
    assert error(learned) < 0.12
    assert error(unrelated) > 0.35
    assert float(metrics["feature_std"][-1]) > 3 * float(metrics["feature_std"][0])  # the encoder tells levels apart
