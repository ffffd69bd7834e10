"""LSAC's options beyond its paper: heads, networks, pessimism, temperature, actors per chain, embeddings."""

import dataclasses
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small
from commands import lsac as command
from linear import actor_of, chains_of, f32, return_critics_of
from random_keys import uses_a_key_twice
from replays import replay_of, spec_of
from safetensors.numpy import load_file
from scipy import stats

from lsac.agents.lsac import acting, embedding
from lsac.agents.lsac import agent as lsac
from lsac.agents.lsac import chains as ch
from lsac.agents.lsac import state as views
from lsac.agents.lsac.config import Config, Released
from lsac.agents.lsac.critics import HistogramCritic, Reading, in_training, make_actor, make_critic
from lsac.errors import InputError
from lsac.nn.batch_norm import AXIS
from lsac.nn.distributions import bin_centres, histogram
from lsac.nn.networks import NARROW_LOG_STD, polyak
from lsac.nn.spheres import UnitLinear
from lsac.presets.lsac import strong
from lsac.replay import ring as rb
from lsac.runs.experiment import Experiment, check

SPEC = spec_of(3, 2)
ONE = spec_of(1, 1)
KEY = jax.random.key(0)
SMALL = {"hidden": (8, 8), "chains": 3, "batch_size": 8, "synthetic": False, "width": 8, "blocks": 1}
STRONG = strong("X-v0").agent
CHOSEN = {f.name: x for f in dataclasses.fields(STRONG) if (x := getattr(STRONG, f.name)) != getattr(Config(), f.name)}
VARIANTS = {
    "histogram": {"head": "histogram", "value_bound": 5.0, "bins": 11},
    "sphere": {"network": "sphere", "actor_network": "sphere"},
    "histogram on spheres": {"network": "sphere", "head": "histogram", "value_bound": 5.0, "bins": 11},
    "batch normalisation": {"network": "batch_norm", "head": "histogram", "value_bound": 5.0, "bins": 11},
    "strong": CHOSEN | {"bins": 11, "actor_batches": 2},
    "pessimism": {"pessimism": 0.8, "endless_pessimism": 0.25, "actor_pessimism": 0.0},
    "temperature": {"temperature": 0.5, "std_init": 0.1, "weight_prior": 1e-4},
    "several batches": {"actor_batches": 2, "slow_evaluation": True, "log_std_min": -10.0, "log_std_max": 2.0},
    "actor per chain": {"actors": "per_chain"},
    "embedding": {"embedding": True, "embedding_period": 2},
    "everything": {
        **{"network": "sphere", "actor_network": "sphere", "head": "histogram", "value_bound": 5.0, "bins": 11},
        **{"embedding": True, "embedding_period": 2, "actors": "per_chain", "slow_evaluation": True},
        **{"endless_pessimism": 0.25, "temperature": 1.0, "synthetic": True, "synthetic_capacity": 32},
    },
}


def replay(count=32, discount=0.9, spec=SPEC):
    layout, rng = rb.layout_of(spec), np.random.default_rng(0)
    rows = rng.normal(size=(count, layout.width)).astype(np.float32)
    rows[:, layout.fields()["action"]] = rng.uniform(-1, 1, (count, spec.action_dim))
    rows[:, layout.fields()["discount"]] = discount
    return replay_of(layout, rows)


# every variant


OFTEN = ("histogram", "strong")
"""The variants that are tried with every change; the others take long to compile."""


@pytest.fixture(
    scope="module",
    params=[name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS],
)
def variant(request):
    config = small.config("lsac", **SMALL | VARIANTS[request.param])
    check(Experiment(config, "Pendulum-v1"))
    agent = lsac.make(config, SPEC)
    return config, agent, jax.jit(agent.update), jax.jit(agent.init)(KEY)


def test_an_update_keeps_the_structure_and_all_numbers_finite(variant):
    _, agent, update, state = variant
    for i in range(3):
        after, metrics = update(state, replay(), jax.random.key(i))
        for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(state), strict=True):
            assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)
        state = after
    assert jax.tree.structure(after) == jax.tree.structure(agent.init(KEY))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((state, metrics)))
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(agent.policy(state)))
    values = agent.values.value(agent.values.critics(state), jnp.ones(3), jnp.zeros(2))
    assert all(np.isfinite(x) and x.shape == () for x in values.values())


def test_no_random_key_is_used_twice(variant):
    _, agent, _, _ = variant

    def whole(key):
        init_key, update_key, act_key = jax.random.split(key, 3)
        state, metrics = agent.update(agent.init(init_key), replay(), update_key)
        return metrics, agent.act(agent.policy(state), agent.memory(), jnp.zeros(3), act_key, True)

    assert not uses_a_key_twice(whole, KEY)


@pytest.mark.parametrize(
    "options",
    [
        {"head": "histogram", "value_bound": 5.0},
        {"network": "sphere", "width": 16, "head": "histogram", "value_bound": 5.0},
        pytest.param({"network": "sphere", "width": 16}, marks=pytest.mark.slow),
        pytest.param({"embedding": True, "hidden": (16, 16)}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_variants_learn_a_fixed_batch(options):
    """Updates towards rewards alone (discount 0) bring the error down."""
    agent = lsac.make(small.config("lsac", synthetic=False, critic_lr=1e-2, moment_eps=1e-16, **options), SPEC)
    update, state = jax.jit(agent.update), agent.init(KEY)
    data, errors = replay(discount=0.0), []
    for i in range(200):
        state, metrics = update(state, data, jax.random.key(i))
        errors.append(float(metrics["critic_loss"]))
    assert np.mean(errors[-20:]) < 0.7 * np.mean(errors[:20])


def test_rows_on_spheres_stay_there_in_critics_targets_and_actor(variant):
    """Rows of target networks are means of such rows, so they are a little shorter."""
    config, _, update, state = variant
    first = state
    for i in range(3):
        state, _ = update(state, replay(), jax.random.key(i))

    def rows(*trees):
        layers = jax.tree.leaves(trees, is_leaf=lambda x: isinstance(x, UnitLinear))
        return [np.asarray(x.weight) for x in layers if isinstance(x, UnitLinear)]

    trained = rows(state.chains.critics, state.actor)
    unit = {"mlp": 0, "sphere": config.blocks * 2 + 2, "batch_norm": config.blocks * 2 + 1}[config.network]
    assert len(trained) == unit + (4 if config.actor_network == "sphere" else 0)
    for now, before in zip(trained, rows(first.chains.critics, first.actor), strict=True):
        np.testing.assert_allclose(np.linalg.norm(now, axis=-1), 1.0, rtol=1e-5)
        assert np.abs(now - before).max() > 0, "they moved"
    for now in rows(state.chains.targets, state.target_actor):
        np.testing.assert_allclose(np.linalg.norm(now, axis=-1), 1.0, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"head": "histogram"}, "--value-bound 0: must be greater than 0, because --head histogram has a range"),
        (
            {"head": "histogram", "value_bound": 5.0, "distributional": False},
            "--no-distributional: a histogram is a distribution; leave out --head histogram",
        ),
        *(
            ({"exchange_every": 5} | options, f"--exchange-every 5: must be 0 with {option}")
            for option, options in {
                "--head histogram": {"head": "histogram", "value_bound": 5.0},
                "--network batch_norm": {"network": "batch_norm"},
                "--embedding": {"embedding": True},
                "--temperature": {"temperature": 1.0},
                "--actors per_chain": {"actors": "per_chain"},
                "--value-bound": {"value_bound": 1.0},
                "--pessimism": {"endless_pessimism": 0.5},
                "--weight-prior": {"weight_prior": 0.1},
                "--sampler underdamped": {"sampler": "underdamped"},
                "--sampler adam": {"sampler": "adam"},
            }.items()
        ),
        *(
            (
                {"head": "histogram", "value_bound": 5.0, "released": published},
                "--head histogram: not with --released.std-without-gradient or --released.shared-averages, which are "
                "about the std of a Gaussian",
            )
            for published in (Released(std_without_gradient=True), Released(shared_averages=True))
        ),
        *(
            (
                {"temperature": 1.0} | options,
                "--temperature 1.0: not with --no-distributional, --sampler adam or --released.shared-averages",
            )
            for options in (
                {"distributional": False},
                {"sampler": "adam"},
                {"released": Released(shared_averages=True)},
            )
        ),
        (
            {"network": "sphere", "sampler": "underdamped"},
            "--sampler underdamped: would leave the unit rows of --network sphere",
        ),
        ({"embedding": True, "hidden": (8,)}, "--hidden 8: needs at least two layers with --embedding"),
        ({"embedding": True, "network": "batch_norm"}, "--embedding: not with --network batch_norm"),
        *(
            (
                {"network": "batch_norm", "released": published},
                "--network batch_norm: not with --released.q-ascent, --released.weight-norm or --released.delay",
            )
            for published in (Released(q_ascent=True), Released(weight_norm=1e-4), Released(delay=2))
        ),
        ({"actor_batches": 11}, "--actor-batches 11: must not be more than --chains 10"),
        (
            {"actors": "per_chain", "actor_chain": "mean"},
            "--actor-chain mean: must be uniform with several chains per update",
        ),
        ({"actors": "per_chain", "actor_batches": 2}, "--actor-batches 2: must be 1 with --actors per_chain"),
        ({"log_std_min": 1.0}, "--log-std-min 1.0: must be less than --log-std-max 0.5"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, sentence):
    with pytest.raises(InputError) as error:
        check(Experiment(Config(**options), "Pendulum-v1"))
    assert str(error.value) == sentence


@pytest.mark.slow
def test_a_run_with_everything_is_resumed_exactly(tmp_path):
    wanted = {**SMALL, **VARIANTS["everything"], "hidden": (8, 8)}
    options = small.flags("lsac", **wanted, steps=96, log_every=16, checkpoint_every=32, eval_every=32)
    options = [x for x in options if x not in ("--embedding", "True", "--slow-evaluation", "--synthetic")]
    options += ["--embedding", "--slow-evaluation", "--refresh-every", "40"]
    words = ("train", "lsac", "--env", "Pendulum-v1", *options, "--normalise-observations", "--scale-rewards", "--out")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert command(*words, whole).code == 0
    shorter = [x if x != "96" else "48" for x in words]
    assert command(*shorter, parts).code == 0
    assert command("resume", parts, "--steps", "96").code == 0
    one, other = (load_file(max((run / "checkpoints").glob("step-*.safetensors"))) for run in (whole, parts))
    assert one.keys() == other.keys()
    for name, values in one.items():
        np.testing.assert_array_equal(values, other[name], err_msg=name)


# heads


def test_a_histogram_is_a_gaussian_over_bins_around_the_target():
    """Eleven bins of width 1 over ±5, and a std of 0.75."""
    found = np.asarray(histogram(f32(0.3, 7.0, -5.0), 5.0, 11))
    edges = np.arange(-5.5, 6.0)
    for row, y in zip(found, (0.3, 5.0, -5.0), strict=True):
        mass = np.diff(stats.norm.cdf(edges, y, 0.75))
        np.testing.assert_allclose(row, mass / mass.sum(), atol=1e-6)
    assert found[0] @ np.arange(-5, 6) == pytest.approx(0.3, abs=0.01)


def test_a_histogram_critic_predicts_mean_and_std_of_its_bins():
    critic = HistogramCritic(lambda x: x[:5], 2.0)
    probability = np.exp([0.1, 0.5, -1.0, 0.0, 2.0])
    probability /= probability.sum()
    mean, std = critic(f32(0.1, 0.5, -1.0, 0.0), f32(2.0))
    centre = np.arange(-2.0, 3.0)
    np.testing.assert_allclose(bin_centres(2.0, 5), centre)
    assert float(mean) == pytest.approx(probability @ centre, rel=1e-5)
    assert float(std) == pytest.approx(np.sqrt(probability @ centre**2 - (probability @ centre) ** 2), rel=1e-4)


def test_a_histogram_critic_learns_by_cross_entropy():
    """The gradient of its logits is their probabilities minus those of the target, over the batch."""
    config = Config(head="histogram", value_bound=2.0, bins=5, hidden=())
    critic = make_critic(config, ONE, KEY)
    batch = rb.sample(replay(spec=ONE), KEY, 6)
    y = f32(-3.0, -1.0, 0.0, 0.4, 1.0, 2.0)
    zero = jnp.zeros(())
    grads, (_, _, mean, _) = jax.grad(ch.critic_loss, has_aux=True)(critic, batch, y, 99.0 * y, zero, zero, config)
    logits = np.stack([critic.logits(o, a) for o, a in zip(batch.obs, batch.action, strict=True)])
    probability = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    by_logit = (probability - np.asarray(histogram(y, 2.0, 5))) / 6
    np.testing.assert_allclose(grads.mlp.layers[0].bias, by_logit.sum(axis=0), atol=1e-6)
    np.testing.assert_allclose(mean, probability @ np.arange(-2.0, 3.0), rtol=1e-4, atol=1e-5)


def test_the_first_std_is_that_of_the_option_and_of_the_running_means():
    config = Config(std_init=0.1, hidden=(), network="mlp", chains=2)
    critic = make_critic(config, ONE, KEY)
    critic = jax.tree.map(jnp.zeros_like, critic)
    assert float(critic(f32(1.0), f32(1.0))[1]) == pytest.approx(0.1, rel=1e-5)
    chains = ch.init(config, ONE, KEY)
    np.testing.assert_allclose(chains.std_mean, 0.1)
    np.testing.assert_allclose(chains.var_mean, 0.01)
    large = jax.tree.map(jnp.zeros_like, make_critic(dataclasses.replace(config, std_init=1e4), ONE, KEY))
    assert float(large(f32(1.0), f32(1.0))[1]) == pytest.approx(1e4)


def test_a_gaussian_critic_on_spheres_has_a_wider_range():
    critic = make_critic(Config(network="sphere", width=8), ONE, KEY)
    mean, _ = critic(f32(0.5), f32(-1.0))
    assert float(mean) == pytest.approx(5.0 * float(critic.mlp(f32(0.5, -1.0))[0]), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "scale"),
    [({"distributional": False}, 1.0), ({}, 0.5 + 0.1), ({"head": "histogram", "value_bound": 5.0, "bins": 5}, 1.0)],
)
def test_the_prior_pulls_parameters_that_are_not_on_spheres_towards_zero(options, scale):
    """By p ω / |D| times the parameter: the loss is the mean over |D| transitions of −ω log p, the prior stands beside
    all of them. ω is σ² + ε, whose running mean starts at 0.5, or 1."""
    sizes = {"network": "sphere", "width": 8, "blocks": 1, "chains": 1, "critics_per_chain": 1}
    plain = Config(**sizes, **options, sampler="sgld", critic_lr=1.0, inverse_temperature=1e30)
    batch = jax.tree.map(lambda x: x[None], rb.sample(replay(spec=ONE), KEY, 4))
    chains, generated = ch.init(plain, ONE, KEY), jnp.zeros(4, bool)
    bootstrap = ch.Bootstrap(make_actor(plain, ONE, KEY), jnp.float32(0.0))
    with_prior, without = (
        ch.move(config, chains, bootstrap, batch, generated, jnp.float32(50.0), KEY)[0].critics.mlp
        for config in (dataclasses.replace(plain, weight_prior=20.0), plain)
    )
    last = chains.critics.mlp.last.weight
    np.testing.assert_allclose(without.last.weight - with_prior.last.weight, 20.0 * scale / 50.0 * last, atol=1e-5)
    np.testing.assert_allclose(with_prior.embed.weight, without.embed.weight, atol=1e-7)


# pessimism and bounds

PAIR = return_critics_of((0, 0, 3, 1), (0, 0, 1, 2))
"""Two critics: Q = 3 with σ = 1, and Q = 1 with σ = 2."""


@pytest.mark.parametrize(("kappa", "q"), [(1.0, 1.0), (0.0, 2.0), (0.25, 1.75)])
def test_values_lie_between_the_minimum_and_the_mean(kappa, q):
    obs, action = jnp.zeros((1, 1)), jnp.zeros((1, 1))
    for pessimism in (kappa, jnp.float32(kappa)):
        reading = Reading(pessimism)
        assert float(reading.q(PAIR, obs, action)[0]) == pytest.approx(q)
        mean, std = reading.predicted(PAIR, obs, action)
        assert (float(mean[0]), float(std[0])) == (pytest.approx(q), pytest.approx(2.0, rel=1e-5))


def state_of(agent, critics, **others):
    first = agent.init(KEY)
    chains = first.chains._replace(critics=critics, targets=critics)
    return first._replace(chains=chains, log_alpha=jnp.float32(-30.0), **others)


PLAIN = {
    **{"hidden": (), "activation": "relu", "chains": 2, "sampler": "sgld", "critic_lr": 0.1, "critic_lr_end": 0.1},
    **{"inverse_temperature": 1e30, "batch_size": 4, "synthetic": False, "distributional": False},
}
QUIET = actor_of(0.0, 0.0, -20.0, NARROW_LOG_STD)


def target_error(config, terminated, reward=0.0):
    """(Q − y)² of chains whose critics say 3 and 1, after one update on transitions with a discount of ½."""
    agent = lsac.make(config, ONE)
    critics = chains_of(*[[(0, 0, 3, 1), (0, 0, 1, 1)]] * config.chains)
    state = state_of(agent, critics, actor=QUIET, target_actor=QUIET)
    rows = np.array([[1.0, 0.5, reward, 0.5, 1.0]] * 4, np.float32)
    if terminated is not None:
        rows_seen = rows.copy()
        rows_seen[1, 3] = 0.0 if terminated else 0.5
        layout = rb.layout_of(ONE)
        state = agent.observe(state, layout.unpack(jnp.asarray(rows_seen)), jnp.zeros(4, bool))
    _, metrics = jax.jit(agent.update)(state, replay_of(rb.layout_of(ONE), rows), KEY)
    return float(metrics["critic_loss"]), metrics


@pytest.mark.parametrize("terminated", [False, True])
def test_without_a_choice_for_endless_tasks_pessimism_is_the_same_everywhere(terminated):
    error, _ = target_error(Config(**PLAIN, pessimism=0.25), terminated)
    y = 0.5 * 1.75
    assert error == pytest.approx(((3 - y) ** 2 + (1 - y) ** 2) / 2, rel=1e-4)


@pytest.mark.parametrize(("terminated", "value"), [(False, 1.75), (True, 1.0)])
def test_targets_are_less_pessimistic_until_an_episode_terminates(terminated, value):
    error, _ = target_error(Config(**PLAIN, endless_pessimism=0.25), terminated)
    y = 0.5 * value
    assert error == pytest.approx(((3 - y) ** 2 + (1 - y) ** 2) / 2, rel=1e-4)


@pytest.mark.parametrize(("reward", "y", "share"), [(0.0, 0.5, 0.0), (9.0, 4.0, 1.0), (-9.0, -4.0, 1.0)])
def test_targets_are_clipped_to_the_bound(reward, y, share):
    error, metrics = target_error(Config(**PLAIN, value_bound=4.0), None, reward)
    assert error == pytest.approx(((3 - y) ** 2 + (1 - y) ** 2) / 2, rel=1e-4)
    assert float(metrics["bounded_targets"]) == share


def test_sampled_targets_are_clipped_to_the_bound_too():
    targets = chains_of(*[[(0, 0, 3.0, 50.0)]] * 2)
    config = Config(chains=2, critics_per_chain=1, value_bound=4.0)
    batch = jax.tree.map(lambda x: jnp.stack([x] * 2), rb.sample(replay(spec=ONE), KEY, 64))
    y_q, y_z, *_ = ch.targets_of(config, targets, ch.Bootstrap(QUIET, jnp.float32(0.0)), batch, KEY)
    assert float(jnp.max(jnp.abs(y_z))) == 4.0
    assert float(jnp.max(jnp.abs(y_q))) < 5.0


# batch normalisation


@pytest.mark.slow
def test_with_batch_normalisation_both_halves_of_the_bellman_equation_share_their_statistics():
    """Q and its targets by the definition, from one batch of (s, a) and (s', a')."""
    config = Config(
        **{"network": "batch_norm", "width": 8, "blocks": 1, "chains": 2, "critics_per_chain": 1, "batch_size": 6},
        **{"sampler": "sgld", "inverse_temperature": 1e30, "distributional": False, "synthetic": False},
    )
    chains = ch.init(config, SPEC, KEY)
    actor = make_actor(config, SPEC, KEY)
    batch = jax.tree.map(lambda x: jnp.stack([x] * 2), rb.sample(replay(), KEY, 6))
    bootstrap = ch.Bootstrap(actor, jnp.float32(0.0))
    after, metrics = ch.move(config, chains, bootstrap, batch, jnp.zeros(6, bool), jnp.float32(9.0), KEY)
    made = ch.targets_of(config, chains.targets, bootstrap, batch, jax.random.split(KEY)[0])
    errors, means = [], []
    for c in range(2):
        critic = jax.tree.map(lambda x, c=c: x[c, 0], chains.critics)
        obs = jnp.concatenate([batch.obs[c], batch.next_obs[c]])
        action = jnp.concatenate([batch.action[c], made.next_pairs[1][c]])
        q, _ = jax.vmap(in_training(critic), axis_name=AXIS)(obs, action)
        y = batch.reward[c] + batch.discount[c] * q[6:]  # targets and critics are the same at first
        np.testing.assert_allclose(made.y_q[c], y, rtol=1e-4, atol=1e-5)
        errors.append(np.mean((q[:6] - y) ** 2))
        means.append(np.mean(np.concatenate([obs, action], axis=1), axis=0))
    assert float(metrics["critic_loss"]) == pytest.approx(np.mean(errors), rel=1e-4)
    # running statistics go a hundredth of the way from 0 towards those of the batch
    np.testing.assert_allclose(after.critics.mlp.input_norm.mean[:, 0], 0.01 * np.stack(means), rtol=1e-3, atol=1e-7)
    assert not np.allclose(after.critics.mlp.embed.weight, chains.critics.mlp.embed.weight, atol=1e-6)


# temperature


@pytest.mark.parametrize(("head", "scale"), [("gaussian", 0.5 + 0.1), ("histogram", 1.0)])
def test_the_noise_is_that_of_the_posterior_at_a_temperature_of_one(head, scale):
    """√(2η/β) with β = |D| / (ω T)."""
    config = Config(
        **{"hidden": (64,), "chains": 2, "sampler": "sgld", "critic_lr": 1e-6, "critic_lr_end": 1e-6, "head": head},
        **{"value_bound": 5.0, "temperature": 3.0, "synthetic": False, "batch_size": 4},
    )
    chains = ch.init(config, SPEC, KEY)
    np.testing.assert_allclose(
        ch.inverse_temperatures(config, chains, jnp.float32(50.0)), 50.0 / (3.0 * scale), rtol=1e-5
    )
    agent = lsac.make(config, SPEC)
    state = agent.init(KEY)
    after, _ = jax.jit(agent.update)(state, replay(50), KEY)
    moved = np.concatenate(
        [
            np.ravel(a - b)
            for a, b in zip(*map(jax.tree.leaves, (after.chains.critics, state.chains.critics)), strict=True)
        ]
    )
    assert moved.std() == pytest.approx(np.sqrt(2e-6 * 3.0 * scale / 50.0), rel=0.05)


def test_without_a_temperature_all_critics_have_the_constant_one():
    config = Config(chains=3, hidden=(4,), inverse_temperature=7.0)
    np.testing.assert_allclose(
        ch.inverse_temperatures(config, ch.init(config, ONE, KEY), jnp.float32(9.0)), np.full((3, 2), 7.0)
    )
    _, metrics = target_error(Config(**PLAIN), None)
    assert not {"inverse_temperature", "bounded_targets"} & metrics.keys()


# actors


def uphill(*slopes):
    """Chains whose Q is a slope times the action."""
    return chains_of(*([(0, slope, 0, 1), (0, slope, 0, 1)] for slope in slopes))


def test_with_several_batches_the_actor_follows_the_mean_of_that_many_chains():
    """Slopes 1, 10 and 100: the gradient of the mean of the action, up to its slope, is the mean of those drawn."""
    config = Config(**PLAIN | {"chains": 3}, actor_batches=2)
    critics, actor = uphill(1, 10, 100), actor_of(0.0, 0.0, -20.0, NARROW_LOG_STD)
    agent = lsac.make(config, ONE)
    state, batch = (
        state_of(agent, critics, actor=actor),
        jax.tree.map(lambda x: jnp.stack([x] * 3), rb.sample(replay(spec=ONE), KEY, 4)),
    )
    found = set()
    for i in range(12):
        keys = tuple(jax.random.split(jax.random.key(i)))
        step = lsac.improved_actor(config, lsac.adam(0.1), state, critics, batch, Reading(), keys)
        found.add(round(float(step.grads.mlp.layers[0].bias[0]), 2))
    assert found == {-5.5, -50.5, -55.0}


def test_each_of_several_chains_judges_its_own_batch():
    """Q = s a in all chains; the observations of a chain are its number."""
    config = Config(**PLAIN | {"chains": 3}, actor_batches=3)
    base = rb.sample(replay(spec=ONE), KEY, 4)
    batch = jax.tree.map(lambda x: jnp.stack([x] * 3), base)
    batch = batch._replace(obs=jnp.broadcast_to(jnp.arange(3.0)[:, None, None], (3, 4, 1)))
    critics = uphill(1, 10, 100)
    agent = lsac.make(config, ONE)
    state = state_of(agent, critics, actor=actor_of(0.0, 0.0, -20.0, NARROW_LOG_STD))
    step = lsac.improved_actor(config, lsac.adam(0.1), state, critics, batch, Reading(), tuple(jax.random.split(KEY)))
    by_state = float(step.grads.mlp.layers[0].weight[0, 0])  # −mean of slope · s
    assert by_state == pytest.approx(-(0 * 1 + 1 * 10 + 2 * 100) / 3, rel=1e-4)


def test_every_chain_has_its_own_actor_that_follows_it_alone():
    config = Config(**PLAIN, actors="per_chain", actor_lr=0.01)
    agent = lsac.make(config, ONE)
    actors = jax.tree.map(lambda x: jnp.stack([x] * 2), QUIET)
    state = state_of(agent, uphill(1, -1), actor=actors, target_actor=actors)
    after, _ = jax.jit(agent.update)(state, replay(spec=ONE), KEY)
    np.testing.assert_allclose(after.actor.mlp.layers[0].bias[:, 0], [0.01, -0.01], rtol=1e-3)
    expected = polyak(actors, after.actor, config.tau)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), after.target_actor, expected)


def test_targets_of_a_chain_come_from_its_own_slow_actor():
    """Q = a: the targets of chain 0 take the action tanh(1), those of chain 1 the action tanh(−1)."""
    config = Config(chains=2, critics_per_chain=1, actors="per_chain")
    means = [actor_of(0.0, mean, -20.0, NARROW_LOG_STD) for mean in (1.0, -1.0)]
    actors = jax.tree.map(lambda *x: jnp.stack(x), *means)
    batch = jax.tree.map(lambda x: jnp.stack([x] * 2), rb.sample(replay(spec=ONE), KEY, 4))
    critics = chains_of([(0, 1, 0, 1)], [(0, 1, 0, 1)])
    y_q, *_ = ch.targets_of(config, critics, ch.Bootstrap(actors, jnp.float32(0.0)), batch, KEY)
    expected = batch.reward + batch.discount * np.tanh([[1.0], [-1.0]]).astype(np.float32)
    np.testing.assert_allclose(y_q, expected, rtol=1e-5)


def test_an_episode_is_played_by_one_actor_that_is_drawn_at_its_start():
    config = Config(chains=4, hidden=(), activation="relu", actors="per_chain", synthetic=False)
    agent = lsac.make(config, ONE)
    actors = jax.tree.map(lambda *x: jnp.stack(x), *(actor_of(0, i / 4, -20, NARROW_LOG_STD) for i in range(4)))
    policy = agent.policy(agent.init(KEY)._replace(actor=actors))
    for explore in (True, False):
        first = jax.jit(lambda key, e=explore: agent.act(policy, agent.memory(), jnp.zeros(1), key, e))
        later = jax.jit(lambda m, key, e=explore: agent.act(policy, m, jnp.zeros(1), key, e))
        drawn = [first(key) for key in jax.random.split(KEY, 200)]
        chains = np.array([float(memory) for _, memory in drawn])
        assert stats.chisquare(np.bincount(chains.astype(int), minlength=4)).pvalue > 1e-4
        for action, memory in drawn[:20]:
            assert float(action[0]) == pytest.approx(np.tanh(float(memory) / 4), abs=1e-5)
            again, kept = later(memory, jax.random.key(99))
            assert float(kept) == float(memory)
            assert float(again[0]) == pytest.approx(float(action[0]), abs=1e-5)


def test_densities_are_those_of_the_actor_that_plays():
    config = Config(chains=2, hidden=(), actors="per_chain", synthetic=False)
    agent = lsac.make(config, ONE)
    actors = jax.tree.map(lambda *x: jnp.stack(x), *(actor_of(0, 0, s, NARROW_LOG_STD) for s in (-1.0, 0.0)))
    policy = agent.policy(agent.init(KEY)._replace(actor=actors))
    for chain, log_std in enumerate((-1.0, 0.0)):
        memory = jnp.float32(chain)
        found = agent.values.entropy.neg_log_prob(policy, memory, jnp.zeros(1), KEY)
        noise = float(jax.random.normal(jax.random.split(KEY)[1], (1,))[0])  # the other key is that of the chain
        u = np.exp(log_std) * noise
        expected = -(stats.norm.logpdf(noise) - log_std - np.log(1 - np.tanh(u) ** 2))
        assert float(found) == pytest.approx(expected, rel=1e-4)
        action, _ = agent.act(policy, memory, jnp.zeros(1), KEY, True)
        assert float(action[0]) == pytest.approx(np.tanh(u), rel=1e-5)


def test_the_slow_actor_plays_evaluations_only():
    config = Config(hidden=(), slow_evaluation=True, synthetic=False)
    fast, slow = (actor_of(0.0, mean, -20.0, NARROW_LOG_STD) for mean in (1.0, -1.0))
    policy = acting.Policy(fast, slow, None, None)
    explored, _ = acting.act(config, policy, (), jnp.zeros(1), KEY, True)
    played, _ = acting.act(config, policy, (), jnp.zeros(1), KEY, False)
    assert float(explored[0]) == pytest.approx(np.tanh(1.0), abs=1e-5)
    assert float(played[0]) == pytest.approx(np.tanh(-1.0), abs=1e-5)
    state = lsac.make(config, ONE).init(KEY)._replace(target_actor=slow)
    assert eqx.tree_equal(lsac.make(config, ONE).policy(state).slow, slow)


def test_the_slow_actor_sees_the_embedding_that_it_was_trained_with(embedded_case):
    config, _, _, state = embedded_case
    config = dataclasses.replace(config, slow_evaluation=True)
    other = jax.tree.map(lambda x: 1.5 * x + 0.1, (state.target_actor, state.embedding.target))
    state = state._replace(target_actor=other[0], embedding=state.embedding._replace(target=other[1]))
    obs = jnp.array([0.1, -0.2, 0.3])
    found, _ = acting.act(config, acting.policy(config, state), (), obs, KEY, False)
    mean, _ = other[0](jnp.concatenate([obs, other[1].state(obs)]))
    np.testing.assert_allclose(found, np.tanh(mean), rtol=1e-4, atol=1e-6)
    assert acting.policy(dataclasses.replace(config, slow_evaluation=False), state).slow_encoder is None


def test_bounds_of_the_log_std_and_the_target_entropy_come_from_the_options():
    actor = make_actor(Config(log_std_min=-3.0, log_std_max=1.0), ONE, KEY)
    assert (actor.log_std_min, actor.log_std_max) == (-3.0, 1.0)
    obs = replay()
    falls = []
    for per_action in (-0.5, 40.0):
        agent = lsac.make(small.config("lsac", **SMALL, entropy_per_action=per_action), SPEC)
        state = agent.init(KEY)
        after, metrics = jax.jit(agent.update)(state, obs, KEY)
        falls.append(float(after.log_alpha) < float(state.log_alpha))
        assert (float(metrics["entropy"]) > 2 * per_action) == falls[-1]
    assert falls == [True, False]


# embedding


@pytest.fixture(scope="module")
def embedded_case():
    config = small.config("lsac", **SMALL, embedding=True, embedding_period=2)
    agent = lsac.make(config, SPEC)
    return config, agent, jax.jit(agent.update), jax.jit(agent.init)(KEY)


def test_the_embedding_predicts_that_of_the_next_state(embedded_case):
    *_, state = embedded_case
    encoders, batch = state.embedding.trained, rb.sample(replay(), KEY, 5)

    def normed(x):
        return np.asarray(x) / np.abs(x).mean()

    errors = []
    for obs, action, following in zip(batch.obs, batch.action, batch.next_obs, strict=True):
        now, then = (normed(encoders.of_state(x)) for x in (obs, following))
        errors.append(np.mean((encoders.of_pair(jnp.concatenate([jnp.asarray(now), action])) - then) ** 2))
    assert float(embedding.loss(encoders, batch)) == pytest.approx(np.mean(errors), rel=1e-4)


def test_the_target_of_the_embedding_is_constant(embedded_case):
    """A change of f(s') through its own weights must not count."""
    *_, state = embedded_case
    batch = rb.sample(replay(), KEY, 5)

    def with_constant_targets(encoders):
        targets = jax.vmap(state.embedding.trained.state)(batch.next_obs)
        predicted = jax.vmap(lambda o, a: encoders.pair(encoders.state(o), a))(batch.obs, batch.action)
        return jnp.mean((predicted - targets) ** 2)

    mine, wanted = (
        jax.grad(f)(state.embedding.trained) for f in (lambda e: embedding.loss(e, batch), with_constant_targets)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-7), mine, wanted)


def test_copies_change_together_every_so_many_updates(embedded_case):
    _, _, update, state = embedded_case
    states = [state]
    for i in range(4):
        states.append(update(states[-1], replay(), jax.random.key(i))[0])

    def same(one, other):
        return all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True))

    for before, after in itertools.pairwise(states):
        due = int(after.updates) % 2 == 0
        assert same(after.embedding.frozen, after.embedding.trained if due else before.embedding.frozen)
        assert same(after.embedding.target, before.embedding.frozen if due else before.embedding.target)
        assert same(after.chains.targets, after.chains.critics if due else before.chains.targets)
        assert same(after.target_actor, after.actor if due else before.target_actor)
        assert not same(after.embedding.trained, before.embedding.trained)


def test_actor_and_critics_see_the_frozen_copy_and_targets_the_older_one(embedded_case):
    config, _, _, state = embedded_case
    other = jax.tree.map(lambda x: x + 0.1, state.embedding.frozen)
    state = state._replace(embedding=state.embedding._replace(target=other))
    batch = rb.sample(replay(), KEY, 5)
    seen = views.embedded(state, batch)
    frozen = state.embedding.frozen
    for row in range(5):
        np.testing.assert_allclose(
            seen.obs[row], np.append(batch.obs[row], frozen.state(batch.obs[row])), rtol=1e-4, atol=1e-5
        )
        older = other.state(batch.next_obs[row])
        np.testing.assert_allclose(seen.next_obs[row], np.append(batch.next_obs[row], older), rtol=1e-4, atol=1e-5)
    for reading, encoders in (
        (views.actor_reading(config, state), frozen),
        (views.target_reading(config, state), other),
    ):
        obs, action = reading.see(seen.obs, batch.action)
        pair = encoders.pair(seen.obs[0, 3:], batch.action[0])
        np.testing.assert_allclose(obs[0], np.append(seen.obs[0], pair), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(action, batch.action)


def test_a_network_beside_embeddings_normalises_a_layer_of_its_plain_inputs():
    def make(size_in, hidden, key):
        assert (size_in, hidden) == (4 + 2 * embedding.WIDTH, (5,))
        return lambda x: x

    network = embedding.critic_input(SPEC, (4, 5), make, KEY)
    obs, pair, action = np.arange(3.0), np.arange(2.0 * embedding.WIDTH), np.array([7.0, 8.0])
    found = network(jnp.asarray(np.concatenate([obs, pair, action]), jnp.float32))
    first = np.asarray(network.first.weight) @ np.concatenate([obs, action]) + network.first.bias
    np.testing.assert_allclose(found, np.concatenate([first / np.abs(first).mean(), pair]), rtol=1e-4)


def test_values_and_actions_are_those_of_the_embedded_observation(embedded_case):
    _, agent, _, state = embedded_case
    obs, action = jnp.array([0.1, -0.2, 0.3]), jnp.array([0.5, -0.5])
    frozen = state.embedding.frozen
    z = frozen.state(obs)
    seen = jnp.concatenate([obs, z, frozen.pair(z, action)])
    expected = ch.value(state.chains.critics, seen, action)
    found = agent.values.value(agent.values.critics(state), obs, action)
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(float(value), rel=1e-4), name
    mean, _ = state.actor(jnp.concatenate([obs, z]))
    np.testing.assert_allclose(
        agent.act(agent.policy(state), (), obs, KEY, False)[0], np.tanh(mean), rtol=1e-4, atol=1e-6
    )
