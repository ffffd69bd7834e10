"""LSAC's update against numbers worked out by hand, on linear networks of one state and one action.

A critic is Q(s, a) = w_s s + w_a a + b with a constant σ, and an actor has mean = m_s s + m_0 and a constant log std.
Unless a test says otherwise, there are two chains of two critics, all data are real, the sampler is plain and has no
noise to speak of, and the running means of σ and σ² are those of the critics. A critic's step is then −η times its
gradient, and that of Q's coefficients is the mean of (Q − y)(s, a, 1).
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import linear
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from linear import (
    chains_of,
    f32,
    mean_head,
    numbers,
    numpy_actions,
    return_critics_of,
    return_gradients,
    std_head,
    with_layer,
)
from random_keys import uses_a_key_twice
from replays import repeated, replay_of, spec_of
from scipy import stats

from lsac.agents.lsac import agent as lsac
from lsac.agents.lsac import batches, refreshing, synthesis
from lsac.agents.lsac import chains as ch
from lsac.agents.lsac.config import Config, Released
from lsac.nn.networks import NARROW_LOG_STD, gaussian_critic
from lsac.nn.normalisation import Moments
from lsac.replay import ring as rb
from lsac.types import Transition

SPEC = dataclasses.replace(spec_of(1, 1), log_action_scale=0.7)
LAYOUT = rb.layout_of(SPEC)
KEY = jax.random.key(0)
ETA, ACTOR_LR, ALPHA_LR, TAU, BATCH = 0.1, 0.01, 0.5, 0.25, 4
NO_NOISE = 1e30
GENERATOR = synthesis.Config(width=2, dim_t=2, blocks=1)
OPTIONS = {
    "hidden": (),
    "activation": "relu",
    "chains": 2,
    "sampler": "sgld",
    "critic_lr": ETA,
    "critic_lr_end": 0.02,
    "anneal_from": 10,
    "anneal_to": 50,
    "inverse_temperature": NO_NOISE,
    "batch_size": BATCH,
    "synthetic": False,
    "actor_lr": ACTOR_LR,
    "alpha_lr": ALPHA_LR,
    "tau": TAU,
    "generator": GENERATOR,
}
SEEN = np.array([1.0, 0.5, 1.0])
"""(s, a, 1) of the transitions of `repeated`: the gradient of Q."""
TOLERANCE = 4.5
"""Standard errors between an estimate and its truth."""


def actor_of(m_0, log_std, m_s=0.0):
    return linear.actor_of(m_s, m_0, log_std, NARROW_LOG_STD)


QUIET = actor_of(0.0, -20.0)
"""An actor that always takes the action 0."""


class Case:
    """An agent with these options, its update compiled once for all tests."""

    def __init__(self, **options):
        self.config = Config(**OPTIONS | options)
        self.agent = lsac.make(self.config, SPEC)
        # an update has no use for the generator
        self.first = lsac.make(dataclasses.replace(self.config, synthetic=False), SPEC).init(KEY)
        self.update = jax.jit(self.agent.update)
        self.many = jax.jit(jax.vmap(self.agent.update, in_axes=(None, None, 0)))

    def state(self, critics, actor=QUIET, log_alpha=-30.0, updates=0, **others):
        """The first state with these networks; an entropy weight of e⁻³⁰ is none."""
        std = np.log1p(np.exp(std_head(critics)[..., 2]))
        chains = {"targets": critics, "std_mean": f32(*std), "var_mean": f32(*std**2)}
        chains |= {name: others.pop(name) for name in ch.Chains._fields if name in others}
        fields = {"actor": actor, "target_actor": actor, "updates": jnp.int32(updates)} | others
        chains = self.first.chains._replace(critics=critics, **chains)
        return self.first._replace(chains=chains, log_alpha=jnp.float32(log_alpha), **fields)


@functools.cache
def case(**options):
    return Case(**options)


MANY = jax.random.split(KEY, 256)
"""Keys for as many updates from one state."""


def replay_with(*rows):
    """A replay of rows (s, a, r, discount, s')."""
    return replay_of(LAYOUT, np.array(rows, np.float32))


def batch_of(obs, action):
    """A batch whose other fields nobody reads."""
    nothing = jnp.zeros(len(obs))
    return Transition(f32(*obs)[:, None], f32(*action)[:, None], nothing, nothing, nothing[:, None])


def steps_of_means(before, after):
    """[C, K, 3] the steps of the coefficients of Q."""
    return mean_head(after.chains.critics) - mean_head(before.chains.critics)


def flat(*values):
    """Two chains of two critics with these constant values [2, 2] and σ = 1."""
    return chains_of(*([(0, 0, b, 1) for b in chain] for chain in values))


# the actor


@pytest.mark.parametrize("chains", [1, 2], ids=["one chain", "the mean of two"])
def test_actor_loss_and_its_gradient_by_hand(chains):
    coefficients = [[(1, 2, 0, 1), (-1, 1, 0, 5)], [(0, -3, 3, 1), (2, 1, 0, 1)]][:chains]
    m_s, m_0, log_std, alpha = 0.4, 0.2, -0.5, 0.3
    s = np.array([0.5, -1.0, 2.0, 9.0])
    a, log_prob = numpy_actions(m_s, m_0, log_std, s, KEY)
    q = np.array([[w_s * s + w_a * a + b for w_s, w_a, b, _ in chain] for chain in coefficients])  # [C, K, B]
    lower = np.argmin(q, axis=1)
    by_action = np.mean([np.array([w for _, w, _, _ in c])[k] for c, k in zip(coefficients, lower, strict=True)], 0)
    assert all(len(set(k)) == 2 for k in lower), "the sample must exercise both critics"

    of = jax.value_and_grad(lsac.actor_loss, has_aux=True)
    actor, obs = actor_of(m_0, log_std, m_s), f32(*s)[:, None]
    (loss, (mean_log_prob, saturated)), grads = of(actor, chains_of(*coefficients), jnp.float32(alpha), obs, KEY)
    np.testing.assert_allclose(loss, np.mean(alpha * log_prob - np.mean(np.min(q, axis=1), axis=0)), rtol=1e-5)
    np.testing.assert_allclose(mean_log_prob, np.mean(log_prob), rtol=1e-5)
    assert float(saturated) == np.mean(np.abs(a) > 0.99) == 0.25

    # u = m + e^l z, a = tanh u: log π falls by l and by log(1 − a²), whose derivative by u is −2a
    by_u = alpha * 2 * a - by_action * (1 - a**2)
    noise = np.arctanh(a) - (m_s * s + m_0)
    layer = grads.mlp.layers[0]
    np.testing.assert_allclose(layer.weight[0, 0], np.mean(by_u * s), rtol=1e-3)
    np.testing.assert_allclose(layer.bias, [np.mean(by_u), np.mean(by_u * noise) - alpha], rtol=1e-3)


def test_the_actor_goes_towards_what_the_drawn_chain_prefers():
    # all critics say y at the action 0.5 already; the first chain's Q is 3 at the actor's action 0, the second's 4
    c = case()
    before = c.state(chains_of([(0, 1, 3, 1)] * 2, [(0, -1, 4, 1)] * 2))
    after, metrics = c.many(before, repeated(reward=3.5, discount=0.0), MANY)
    drawn = np.asarray(metrics["actor_loss"])
    assert set(drawn.round(3)) == {-3.0, -4.0}
    step = np.asarray(after.actor.mlp.layers[0].bias[:, 0])
    np.testing.assert_allclose(step, np.where(drawn > -3.5, ACTOR_LR, -ACTOR_LR), rtol=1e-3)


def test_the_actor_goes_towards_more_entropy():
    c = case()
    before = c.state(flat([2, 2], [2, 2]), actor_of(0.0, -3.0), log_alpha=0.0)
    after, _ = c.update(before, repeated(reward=2.0, discount=0.0), KEY)
    step = np.asarray(after.actor.mlp.layers[0].bias - before.actor.mlp.layers[0].bias)
    np.testing.assert_allclose(step[1], ACTOR_LR, rtol=1e-3)


@pytest.fixture(scope="module")
def draws():
    """Updates of three chains from one state: what each chain would have the actor's loss be, and what it was.

    The critics are Q = s + b, other constants b for every chain, and y = 0. The action is 0, so that a step of b tells
    the mean state of the chain's batch.
    """
    constants = np.array([0.0, 5.0, 20.0])
    states = np.random.default_rng(0).uniform(-1, 1, 16)
    c = case(chains=3)
    before = c.state(chains_of(*([(1, 0, b, 1), (1, 0, b + 50, 1)] for b in constants)))
    after, metrics = c.many(before, replay_with(*((s, 0, 0, 0, 0) for s in states)), MANY)
    coefficients = mean_head(after.chains.critics)[:, :, 0]  # of the lower critic
    mean_state = (constants - coefficients[..., 2]) / ETA - constants
    return -(coefficients[..., 0] * mean_state + coefficients[..., 2]), np.asarray(metrics["actor_loss"])


def test_the_actor_sees_the_batch_of_one_chain_and_its_critics_after_their_step(draws):
    expected, loss = draws
    assert np.all(np.sum(np.abs(expected - loss[:, None]) < 1e-3, axis=1) == 1)


def test_the_chain_is_drawn_uniformly(draws):
    expected, loss = draws
    counts = np.bincount(np.argmin(np.abs(expected - loss[:, None]), axis=1), minlength=3)
    assert stats.chisquare(counts).pvalue > 1e-3, counts


@pytest.mark.parametrize(
    ("which", "values", "chosen"),
    [
        ("argmax", (3, 1, 2), 0),
        ("argmax", (1, 100, 200), 2),
        ("overflow", (3, 88.6, 2), 1),
        ("overflow", (3, 88.8, 200), 1),
        ("overflow", (88.8, 88.6, 200), 0),
        ("overflow", (88.6, 1, 200), 2),
    ],
)
def test_the_actor_follows_the_chain_with_the_largest_q_on_its_own_batch(which, values, chosen):
    # Q = s and the lower of two; only on its own batch does a chain have the wanted mean
    rows = f32(*values)[:, None, None] + f32([0], [-4], [4])[None]
    batch = Transition(obs=rows, action=rows, reward=rows, discount=rows, next_obs=-rows)
    critics = chains_of(*([(1, 0, 7, 1), (1, 0, 0, 1)] for _ in values))
    config = Config(chains=3, actor_chain=which)
    followed, obs = lsac.followed(config, critics, batch, KEY)
    assert followed.mlp.layers[0].weight.shape[0] == 1
    np.testing.assert_array_equal(obs, batch.obs[chosen])


def test_the_actor_that_maximises_the_mean_has_the_observations_of_a_random_chain():
    batch = Transition(*(jnp.arange(3.0)[:, None, None] for _ in range(5)))
    critics = chains_of(*([(1, 0, b, 1)] for b in range(3)))
    found = [lsac.followed(Config(chains=3, actor_chain="mean"), critics, batch, k) for k in MANY[:20]]
    assert all(followed is critics for followed, _ in found)
    assert {float(obs[0, 0]) for _, obs in found} == {0.0, 1.0, 2.0}


# the targets

SLOW_ACTOR = actor_of(0.0, -20.0, m_s=0.5)
SLOW_CRITICS = chains_of([(0, 2, 4, 1), (0, 2, 3, 1)], [(1, -1, 2, 1), (1, -1, 5, 1)])


@pytest.mark.parametrize("discount", [0.5, 0.0], ids=["going on", "terminating"])
def test_a_critic_that_says_y_already_has_no_error(discount):
    # from state 1 to state −2, where the slow actor takes tanh(−1), and the slow critics of its own chain value that
    a = np.tanh(-1.0)
    y = 1 + discount * (2 * a + 3), 1 + discount * (-2 - a + 2)
    c = case()
    slow = {"target_actor": SLOW_ACTOR, "targets": SLOW_CRITICS}
    before = c.state(flat([y[0], y[0]], [y[1], y[1]]), actor_of(3.0, -20.0), **slow)
    after, metrics = c.update(before, replay_with((1, 0.5, 1, discount, -2)), KEY)
    np.testing.assert_allclose(metrics["critic_loss"], 0.0, atol=1e-10)
    np.testing.assert_allclose(steps_of_means(before, after), 0.0, atol=1e-6)


def test_targets_have_the_entropy_of_the_slow_actor_weighed_by_alpha_before_its_step():
    # log π = 20 − ½z² − ½log 2π on average 20 − ½ − 0.9189; α is 2 before its step, and 2e^±0.5 after it
    c, alpha, discount = case(), 2.0, 0.9
    slow = {"target_actor": QUIET, "targets": flat([3, 4], [5, 3])}
    before = c.state(flat([0, 0], [0, 0]), actor_of(0.0, -1.0), log_alpha=np.log(alpha), **slow)
    after, _ = c.many(before, repeated(reward=0.7, discount=discount), MANY)
    y = mean_head(after.chains.critics)[:, :, 0, 2] / ETA
    expected = 0.7 + discount * (3 - alpha * (20 - 0.5 - 0.5 * np.log(2 * np.pi)))
    error = discount * alpha * np.sqrt(0.5 / (y.size * BATCH))  # the variance of ½z² is ½
    np.testing.assert_allclose(np.mean(y), expected, atol=TOLERANCE * error)
    np.testing.assert_allclose(np.std(y), discount * alpha * np.sqrt(0.5 / BATCH), rtol=0.2)


def test_chains_draw_their_own_targets_which_their_critics_share():
    # alike in every respect, and all transitions are the same
    c = case()
    before = c.state(chains_of([(0, 1, 0, 1)] * 2, [(0, 1, 0, 1)] * 2), actor_of(0.0, 0.0))
    after, _ = c.update(before, repeated(reward=0.0, discount=0.9), KEY)
    step = steps_of_means(before, after)[..., 2]
    np.testing.assert_allclose(step[:, 0], step[:, 1], rtol=1e-6)
    assert abs(step[0, 0] - step[1, 0]) > 1e-4


def test_actions_for_the_actor_are_not_those_of_the_targets():
    # one actor, one state, and log π read from the actor's entropy and from y = −α log π
    c = case()
    before = c.state(flat([0, 0], [0, 0]), actor_of(0.0, -1.0), log_alpha=0.0)
    after, metrics = c.many(before, repeated(reward=0.0, discount=1.0), MANY)
    of_targets = mean_head(after.chains.critics)[:, :, 0, 2] / ETA
    difference = np.abs(of_targets - np.asarray(metrics["entropy"])[:, None])
    assert np.all(difference > 1e-4)


# target networks and α


def test_target_networks_take_the_share_tau_of_what_just_moved():
    c = case()
    slow = {"target_actor": actor_of(-1.0, 2.0), "targets": flat([-3, 9], [4, 0])}
    before = c.state(chains_of([(0, 1, 1, 1), (0, 0, 5, 2)], [(1, 0, 3, 1), (0, 2, 5, 2)]), actor_of(0.3, -1.0), **slow)
    after, _ = c.update(before, repeated(reward=3.0, discount=0.0), KEY)
    assert np.all(np.any(np.abs(steps_of_means(before, after)) > 1e-2, axis=2)), "critics must move for this to tell"
    np.testing.assert_allclose(*numbers(after.actor, before.actor), atol=1.01 * ACTOR_LR)
    pairs = [
        (before.target_actor, after.actor, after.target_actor),
        (before.chains.targets, after.chains.critics, after.chains.targets),
    ]
    for trees in pairs:
        old, new, slow = numbers(*trees)
        np.testing.assert_allclose(slow, 0.75 * old + 0.25 * new, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("log_std", "direction"), [(-5.0, 1.0), (-0.5, -1.0)], ids=["below", "above"])
def test_alpha_rises_when_entropy_is_below_its_target_and_falls_when_above(log_std, direction):
    c = case()
    before = c.state(flat([2, 2], [2, 2]), actor_of(0.0, log_std), log_alpha=0.7)
    after, metrics = c.update(before, repeated(reward=2.0, discount=0.0), KEY)
    assert np.sign(-1.0 - metrics["entropy"]) == direction
    np.testing.assert_allclose(after.log_alpha - before.log_alpha, direction * ALPHA_LR, rtol=1e-3)


def alpha_gradient(state):
    """The gradient of α's first step, of which Adam's first moment is a tenth."""
    return 10 * float(optax.tree_utils.tree_get(state.alpha_opt, "mu"))


CLIPPED = {"target_entropy": 0.4, "actor_clip": 0.5}


@pytest.mark.parametrize(("options", "target"), [({}, -1.0), (CLIPPED, 0.4)], ids=["default", "given"])
def test_gradient_of_alpha_is_alpha_times_the_entropy_above_its_target(options, target):
    c = case(**options)
    before = c.state(flat([2, 2], [2, 2]), actor_of(0.0, -1.0), log_alpha=np.log(0.6))
    after, metrics = c.update(before, repeated(reward=2.0, discount=0.0), KEY)
    np.testing.assert_allclose(alpha_gradient(after), 0.6 * (metrics["entropy"] - target), rtol=1e-4)


def test_target_entropy_is_minus_the_dimension_of_the_action_in_the_range_of_the_environment_if_wanted():
    spec = dataclasses.replace(spec_of(2, 3), log_action_scale=1.5)
    agent = lsac.make(Config(**OPTIONS, entropy_range="env"), spec)
    replay = replay_of(rb.layout_of(spec), np.ones((4, 9), np.float32))
    after, metrics = jax.jit(agent.update)(agent.init(KEY), replay, KEY)
    np.testing.assert_allclose(alpha_gradient(after), 0.2 * (metrics["entropy"] + 4.5), rtol=1e-4)


def test_the_actor_weighs_entropy_by_alpha_before_its_step():
    c = case()
    before = c.state(flat([2, 2], [2, 2]), actor_of(0.0, -1.0), log_alpha=np.log(0.6))
    after, metrics = c.update(before, repeated(reward=2.0, discount=0.0), KEY)
    assert abs(float(after.log_alpha - before.log_alpha)) > 0.4
    np.testing.assert_allclose(metrics["actor_loss"], -0.6 * metrics["entropy"] - 2, rtol=1e-5)
    np.testing.assert_allclose(metrics["ent_coef"], 0.6, rtol=1e-6)


# the loss of a critic and its running means

DATA = batch_of([1.0, -2.0, 0.5], [0.5, 0.2, -0.9])
Y_Q, Y_Z = np.array([3.0, 1.0, -2.0]), np.array([40.0, -1.0, 0.4])
MEAN_ROW, STD_ROW = np.array([0.5, 1.0, 0.3]), np.array([0.4, -0.3, 0.8])


def loss_by_hand(config, std_mean, var_mean):
    """Gradients [3] by the coefficients of Q and of σ, and the running means, by numpy."""
    seen = np.stack([DATA.obs[:, 0], DATA.action[:, 0], np.ones(3)])
    q, std = MEAN_ROW @ seen, np.log1p(np.exp(STD_ROW @ seen))
    std_mean = std_mean + config.tau * (np.mean(std) - std_mean)
    var_mean = var_mean + config.tau * (np.mean(std**2) - var_mean)
    bound = config.bound_factor * std_mean
    beyond = np.abs(Y_Z - q) > bound
    assert beyond.any(), "the bound must hold some targets"
    assert not beyond.all(), "and not others"
    scale = (std_mean**2 if config.released.shared_averages else var_mean) + config.std_eps
    by_mean, by_std = return_gradients(q, std, Y_Q, Y_Z, bound, scale, config.std_eps)
    if not config.distributional:
        by_mean, by_std = (q - Y_Q) / 3, np.zeros(3)
    if config.released.std_without_gradient:
        by_std = np.zeros(3)
    return seen @ by_mean, seen @ (by_std * (1 - np.exp(-std))), std_mean, var_mean


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tau": 0.1, "bound_factor": 2.0, "std_eps": 0.3},
        {"distributional": False},
        {"released": Released(shared_averages=True)},
        {"released": Released(std_without_gradient=True)},
    ],
    ids=["default", "numbers", "squared error", "shared averages", "std without gradient"],
)
def test_critic_loss_by_hand(options):
    config = Config(**{"tau": TAU} | options)
    critic = single(MEAN_ROW, STD_ROW)
    grads, (std_mean, var_mean, mean, std) = gradient_of_loss(critic, config, 0.9, 3.0)
    by_mean, by_std, new_std_mean, new_var_mean = loss_by_hand(config, 0.9, 3.0)
    np.testing.assert_allclose(mean_head(grads), by_mean, rtol=1e-4)
    np.testing.assert_allclose(std_head(grads), by_std, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose([std_mean, var_mean], [new_std_mean, new_var_mean], rtol=1e-5)
    np.testing.assert_allclose(mean, [1.3, -0.5, -0.35], rtol=1e-5)
    np.testing.assert_allclose(std, np.log1p(np.exp([1.05, -0.06, 1.27])), rtol=1e-5)


def single(mean_row, std_row):
    """A critic without leading axes, with these coefficients of Q and of what softplus turns into σ."""
    shape = jax.eval_shape(lambda: gaussian_critic(1, 1, (), "relu", KEY))
    return with_layer(shape, [mean_row[:2], std_row[:2]], [mean_row[2], std_row[2]])


def gradient_of_loss(critic, config, std_mean, var_mean):
    data = DATA, f32(*Y_Q), f32(*Y_Z), jnp.float32(std_mean), jnp.float32(var_mean), config
    return jax.grad(ch.critic_loss, has_aux=True)(critic, *data)


def test_weight_norm_pulls_every_array_towards_zero_by_its_own_norm():
    critic = single(MEAN_ROW, STD_ROW)
    with_norm, without = (
        gradient_of_loss(critic, Config(tau=TAU, released=Released(weight_norm=w)), 0.9, 3.0)[0] for w in (0.5, 0.0)
    )
    layer, norms = critic.mlp.layers[0], jax.tree.map(jnp.subtract, with_norm, without).mlp.layers[0]
    np.testing.assert_allclose(norms.weight, 0.5 * layer.weight / np.sqrt(0.5**2 + 1 + 0.4**2 + 0.3**2), rtol=1e-3)
    np.testing.assert_allclose(norms.bias, 0.5 * layer.bias / np.sqrt(0.3**2 + 0.8**2), rtol=1e-3)


SPREAD = chains_of([(0, 0, 0, 1.0), (0, 0, 0, 2.0)], [(0, 0, 0, 0.5), (0, 0, 0, 1.5)])
STDS = np.array([[1.0, 2.0], [0.5, 1.5]])
STD_MEAN, VAR_MEAN = np.array([[2.0, 1.0], [3.0, 5.0]]), np.array([[3.0, 4.0], [6.0, 1.0]])


def test_every_critic_has_its_own_running_means_bound_and_scale():
    # targets of a σ so wide that every sampled one is held at the bound b = 3 E σ; ω = E σ² + ε
    c, eps = case(), 0.1
    targets = chains_of([(0, 0, 3, 1e6)] * 2, [(0, 0, 3, 1e6)] * 2)
    before = c.state(SPREAD, targets=targets, std_mean=f32(*STD_MEAN), var_mean=f32(*VAR_MEAN))
    after, metrics = c.update(before, repeated(reward=0.0, discount=1.0), KEY)
    assert float(metrics["clipped_targets"]) == 1.0
    std_mean, var_mean = 0.75 * STD_MEAN + 0.25 * STDS, 0.75 * VAR_MEAN + 0.25 * STDS**2
    np.testing.assert_allclose(after.chains.std_mean, std_mean, rtol=1e-5)
    np.testing.assert_allclose(after.chains.var_mean, var_mean, rtol=1e-5)
    scale = var_mean + eps
    by_mean = -scale * 3 / (STDS**2 + eps)
    by_std = -scale * ((3 * std_mean) ** 2 - STDS**2) / (STDS**3 + eps) * (1 - np.exp(-STDS))
    stds = std_head(after.chains.critics) - std_head(SPREAD)
    np.testing.assert_allclose(steps_of_means(before, after), -ETA * by_mean[..., None] * SEEN, rtol=1e-4)
    np.testing.assert_allclose(stds, -ETA * by_std[..., None] * SEEN, rtol=1e-4)


def test_shared_averages_are_one_number_for_all_chains():
    c = case(released=Released(shared_averages=True))
    before = c.state(SPREAD, std_mean=f32(*STD_MEAN), var_mean=f32(*VAR_MEAN))
    after, _ = c.update(before, repeated(reward=0.0, discount=0.0), KEY)
    np.testing.assert_allclose(
        after.chains.std_mean, np.full((2, 2), np.mean(0.75 * STD_MEAN + 0.25 * STDS)), rtol=1e-5
    )


def test_without_a_distribution_the_mean_descends_half_the_squared_error():
    c = case(distributional=False)
    before = c.state(chains_of([(0, 0, 1, 1.0), (2, 0, 0, 2.0)], [(0, 2, 3, 0.5), (0, 0, -4, 1.5)]))
    after, metrics = c.update(before, repeated(reward=3.0, discount=0.0), KEY)
    assert "clipped_targets" not in metrics, "there is no sampled target"
    error = np.array([[1, 2], [4, -4]]) - 3.0
    np.testing.assert_allclose(steps_of_means(before, after), -ETA * error[..., None] * SEEN, rtol=1e-5)
    np.testing.assert_allclose(std_head(after.chains.critics), std_head(before.chains.critics), atol=1e-12)


def test_q_ascent_raises_the_lower_critic_by_the_sum_over_its_batch():
    c = case(released=Released(q_ascent=True))
    before = c.state(flat([1, 2], [7, 4]))
    after, _ = c.update(before, repeated(reward=3.0, discount=0.0), KEY)
    gradient = np.array([[1, 2], [7, 4]]) - 3.0 - BATCH * np.array([[1, 0], [0, 1]])
    np.testing.assert_allclose(steps_of_means(before, after), -ETA * gradient[..., None] * SEEN, rtol=1e-5)


def parts_of(state):
    """Everything that an update may change, by name."""
    names = ("actor", "target_actor", "log_alpha", "actor_opt", "alpha_opt")
    return state.chains._asdict() | {name: getattr(state, name) for name in names}


def test_the_delay_holds_all_but_critics_and_running_means_back():
    c = case(released=Released(delay=3))
    state = c.state(SPREAD, actor_of(0.3, -1.0), log_alpha=0.0, std_mean=f32(*STD_MEAN), var_mean=f32(*VAR_MEAN))
    replay, moved = repeated(reward=1.0, discount=0.9), []
    for i in range(4):
        after, _ = c.update(state, replay, jax.random.key(i))
        pairs = zip(numbers(*parts_of(after).values()), numbers(*parts_of(state).values()), strict=True)
        moved.append({name for name, (new, old) in zip(parts_of(state), pairs, strict=True) if np.any(new != old)})
        state = after
    assert moved[0] == moved[3] == set(parts_of(state))
    assert moved[1] == moved[2] == {"critics", "sampler", "std_mean", "var_mean"}
    assert int(state.updates) == 4


# the sampler


def at_step(c, state, step):
    sampler = state.chains.sampler._replace(step=jnp.full((2, 2), step, jnp.int32))
    return state._replace(chains=state.chains._replace(sampler=sampler))


@pytest.mark.parametrize(("step", "eta"), [(0, 0.1), (10, 0.1), (30, 0.06), (50, 0.02), (90, 0.02)])
def test_critics_move_by_the_annealed_step_size(step, eta):
    c = case()
    before = at_step(c, c.state(flat([1, 1], [1, 1])), step)
    after, _ = c.update(before, repeated(reward=3.0, discount=0.0), KEY)
    np.testing.assert_allclose(steps_of_means(before, after), np.broadcast_to(2 * eta * SEEN, (2, 2, 3)), rtol=1e-4)
    assert np.all(np.asarray(after.chains.sampler.step) == step + 1)


@pytest.mark.parametrize(("update", "eta"), [(1, 1e-3), (100_001, 1e-3), (550_001, 5.5e-4), (1_000_001, 1e-4)])
def test_default_step_size_is_annealed_from_update_100_000_to_1_000_000(update, eta):
    sampler, _ = ch.sampler_of(Config(sampler="sgld", inverse_temperature=NO_NOISE))
    state = sampler.init(jnp.zeros(()))._replace(step=jnp.int32(update - 1))
    step, _ = sampler.update(jnp.float32(2.0), state, key=KEY)
    np.testing.assert_allclose(step, -2 * eta, rtol=1e-5)


def adaptive_step(g, eta, drift, eps):
    """The first step of the adaptive sampler, from moments of 0."""
    return -eta * (g + drift * 0.1 * g / np.sqrt(0.001 * g**2 + eps))


def test_adaptive_sampler_has_its_drift_and_its_clip_from_the_options():
    # the std head has no gradient, so that the norm is that of e (1, 0.5, 1): 1.5 |e|, clipped to 0.3
    options = {"bias_factor": 2.0, "moment_eps": 1e-4, "clip": "grad_norm", "clip_at": 0.3}
    c = case(sampler="asgld", distributional=False, **options)
    before = c.state(flat([1, 2], [7, 2.9]))
    after, metrics = c.update(before, repeated(reward=3.0, discount=0.0), KEY)
    g = (np.array([[1, 2], [7, 2.9]]) - 3)[..., None] * SEEN
    norm = np.linalg.norm(g, axis=-1, keepdims=True)
    expected = adaptive_step(g * np.minimum(1, 0.3 / norm), ETA, 2.0, 1e-4)
    np.testing.assert_allclose(steps_of_means(before, after), expected, rtol=1e-4)
    np.testing.assert_allclose(metrics["critic_grad_norm"], np.mean(norm), rtol=1e-5)  # before it is clipped


@pytest.mark.parametrize(
    ("clip", "clipped"),
    [
        ("none", 7.3245553),
        ("sum_elementwise", 0.5),
        ("sum_norm", 0.5),
        ("grad_norm", 6.8245553),
        ("plain_norm", 6.8245553),
    ],
)
def test_every_clip_can_be_chosen(clip, clipped):
    # g = 1 and ζ = 0.1/√0.001 = 3.1622777
    options = {"bias_factor": 2.0, "clip": clip, "clip_at": 0.5, "critic_lr": 1.0, "inverse_temperature": NO_NOISE}
    sampler, _ = ch.sampler_of(Config(**options))
    step, _ = sampler.update(jnp.float32(1.0), sampler.init(jnp.zeros(())), key=KEY)
    np.testing.assert_allclose(step, -clipped, rtol=1e-4)


@pytest.mark.parametrize(("clip", "moment"), [("grad_norm", 0.05), ("none", 0.4)])
def test_adam_has_the_same_clip_of_its_gradient(clip, moment):
    sampler, _ = ch.sampler_of(Config(sampler="adam", clip=clip, clip_at=0.5, critic_lr=0.2))
    step, state = sampler.update(jnp.float32(4.0), sampler.init(jnp.zeros(())), key=KEY)
    np.testing.assert_allclose(step, -0.2, rtol=1e-4)
    np.testing.assert_allclose(optax.tree_utils.tree_get(state.memory, "mu"), moment, rtol=1e-5)


def test_without_exchange_all_chains_have_one_temperature_and_else_a_ladder():
    same, ladder = (
        ch.sampler_of(Config(chains=3, inverse_temperature=80.0, ladder_ratio=4.0, exchange_every=every))[1]
        for every in (0, 5)
    )
    np.testing.assert_allclose(same, [80, 80, 80], rtol=1e-6)
    np.testing.assert_allclose(ladder, [80, 20, 5], rtol=1e-6)


def noise_of(c, chains, updates=0):
    """[n, C, K, 3] steps of critics whose Q is right: noise alone."""
    before = c.state(chains_of(*([(0, 0, 0, 1)] * 2 for _ in range(chains))), updates=updates)
    after, _ = c.many(before, repeated(reward=0.0, discount=0.0), MANY)
    return mean_head(after.chains.critics).astype(np.float64)


def test_noise_of_a_step_is_root_two_eta_over_beta_in_every_chain():
    noise = noise_of(case(sampler="asgld", inverse_temperature=50.0), 2)
    variance, error = np.var(noise, axis=(0, 2, 3)), np.sqrt(2 / (noise.size / 2))
    np.testing.assert_allclose(variance / (2 * ETA / 50.0), 1.0, atol=TOLERANCE * error)


def test_every_coefficient_of_every_critic_of_every_chain_has_its_own_noise():
    noise = noise_of(case(sampler="asgld", inverse_temperature=50.0), 2).reshape(256, -1)
    correlation = np.corrcoef(noise.T) - np.eye(noise.shape[1])
    assert np.max(np.abs(correlation)) < TOLERANCE / np.sqrt(256)


# replica exchange: hardly moving critics at β = 2, 0.5 and 0.125, proposals at every second update

EXCHANGE = {
    "chains": 3,
    "sampler": "asgld",
    "critic_lr": 1e-8,
    "critic_lr_end": 1e-8,
    "inverse_temperature": 2.0,
    "exchange_every": 2,
    "ladder_ratio": 4.0,
}


def test_noise_of_a_ladder_grows_by_the_root_of_its_ratio():
    noise = noise_of(case(**EXCHANGE), 3, updates=1)
    variance, error = np.var(noise, axis=(0, 2, 3)), np.sqrt(2 / (noise.size / 3))
    np.testing.assert_allclose(variance / (1e-8 * np.array([1, 4, 16])), 1.0, atol=TOLERANCE * error)


def ladder_state(critics, updates=0, targets=None, var_mean=None, **options):
    """Three chains that differ in all their parts, whatever their critics."""
    c = case(**EXCHANGE, **options)
    label = f32(*([1 + i, 1 + i] for i in range(3)))
    others = {"targets": TARGETS if targets is None else targets, "std_mean": label}
    others["var_mean"] = 10 * label if var_mean is None else var_mean
    state = c.state(critics, updates=updates, **others)
    memory = jax.tree.map(lambda x: x + label.reshape(3, 2, *[1] * (x.ndim - 2)), state.chains.sampler.memory)
    return c, state._replace(chains=state.chains._replace(sampler=state.chains.sampler._replace(memory=memory)))


TARGETS = chains_of(*([(0, 0, b, 1)] * 2 for b in (0, 10, 20)))


@pytest.mark.parametrize(
    ("errors", "updates", "order"),
    [
        ((100, 0, 50), 0, (1, 0, 2)),  # the colder of the first pair has the larger loss
        ((0, 100, 50), 0, (0, 1, 2)),  # it has not, and the second pair is not proposed
        ((100, 0, 50), 1, (0, 1, 2)),  # not at every update
        ((0, 100, 50), 2, (0, 2, 1)),  # the turn of the second pair
        ((0, 50, 100), 2, (0, 1, 2)),
        ((100, 0, 50), 4, (1, 0, 2)),
    ],
)
def test_exchange_gives_the_colder_temperature_to_the_chain_with_the_smaller_loss(errors, updates, order):
    c, before = ladder_state(chains_of(*([(0, 0, e, 1)] * 2 for e in errors)), updates)
    after, _ = c.update(before, repeated(reward=0.0, discount=0.0), KEY)
    order = np.array(order)
    critics = mean_head(after.chains.critics)[..., 2]
    np.testing.assert_allclose(critics, np.array(errors)[order][:, None] + np.zeros((1, 2)), atol=1e-2)
    targets = mean_head(after.chains.targets)[..., 2]
    np.testing.assert_allclose(targets, 7.5 * order[:, None] + 0.25 * critics, atol=1e-2)
    of_batch = np.log1p(np.exp(std_head(before.chains.critics)[..., 2]))
    label = 1.0 + order[:, None]
    np.testing.assert_allclose(after.chains.std_mean, 0.75 * label + 0.25 * of_batch, rtol=1e-4)
    np.testing.assert_allclose(after.chains.var_mean, 7.5 * label + 0.25 * of_batch**2, rtol=1e-4)
    action_weight = lambda moments: np.asarray(moments.mlp.layers[0].weight)[..., 1, 1]  # noqa: E731
    _, v = after.chains.sampler.memory
    np.testing.assert_allclose(action_weight(v), 0.999 * label + np.zeros((1, 2)), atol=1e-2)


def share_of_swaps(c, before, replay):
    """How often the first two chains changed places."""
    after, _ = c.many(before, replay, MANY)
    return np.mean(np.asarray(after.chains.std_mean[:, 0, 0]) > np.asarray(after.chains.std_mean[:, 1, 0]))


def assert_probability(share, p):
    assert 0.1 < p < 0.9
    np.testing.assert_allclose(share, p, atol=TOLERANCE * np.sqrt(p * (1 - p) / len(MANY)))


def test_exchange_is_accepted_with_the_probability_of_its_loss():
    # ½ (y_Z − Q)²/σ² + log σ, of two critics and times ω = E σ² + ε of all chains
    errors, stds = np.array([0.3, 2.6, 0.0]), np.array([0.1, 1.0, 0.2])
    critics = chains_of(*([(2, 0, e - 1, std)] * 2 for e, std in zip(errors, stds, strict=True)))
    c, before = ladder_state(critics, var_mean=jnp.zeros((3, 2)))
    scale = 0.25 * np.mean(stds**2) + 0.1
    loss = scale * 2 * (errors**2 / stds**2 / 2 + np.log(stds))
    assert_probability(share_of_swaps(c, before, replay_with((1, 0.5, 1, 0, 5))), np.exp(-1.5 * (loss[1] - loss[0])))


def test_exchange_without_distributions_is_accepted_with_the_probability_of_the_squared_error():
    # the target critics say 0, 10 and 20, so that y = 1 + ½ · 10 for all chains; it is not sampled
    critics = chains_of(*([(2, 0, 4 + e, 1)] * 2 for e in (0.1, 0.55, 9)))
    targets = chains_of(*([(0, 0, b, 30)] * 2 for b in (0, 10, 20)))
    c, before = ladder_state(critics, targets=targets, distributional=False)
    share = share_of_swaps(c, before, replay_with((1, 0.5, 1, 0.5, 5)))
    assert_probability(share, np.exp(-1.5 * (0.55**2 - 0.1**2)))


def test_exchange_with_distributions_prefers_the_wider_one_where_returns_spread_widely():
    # at the mean of the returns the first chain would be the better one
    wide = chains_of(*([(0, 0, 10, 1e3)] * 2 for _ in range(3)))
    c, before = ladder_state(chains_of(*([(0, 0, 10, std)] * 2 for std in (1, 3, 1))), targets=wide)
    assert share_of_swaps(c, before, repeated(reward=0.0, discount=1.0)) > 0.95
    assert share_of_swaps(c, before, repeated(reward=10.0, discount=0.0)) < 0.05


def test_exchange_compares_losses_on_the_same_data():
    # rewards that differ widely and chains that do not: their losses are the same, and proposals are accepted but for
    # the noise of a step
    c, before = ladder_state(chains_of(*[[(0, 0, 0, 1)] * 2] * 3))
    rows = [(1, 0, reward, 0, 1) for reward in (-3, -2, 0, 1, 2)]
    assert share_of_swaps(c, before, replay_with(*rows)) > 0.95


def test_no_random_key_is_used_twice_when_chains_are_exchanged():
    c, before = ladder_state(TARGETS)
    assert not uses_a_key_twice(c.agent.update, before, repeated(reward=0.0, discount=0.0), KEY)


# batches and metrics

SYNTHETIC = {"batch_size": 5, "synthetic": True, "synthetic_capacity": 4, "action_lr": 0.1}
REAL, MADE = (1.0, 0.5, 1.0, 0.0, 7.0), (2.0, 0.2, 5.0, 0.0, 9.0)


def half_generated(state):
    """With generated transitions that are all the same."""
    return state._replace(generated=f32(*[MADE] * 4), moved=jnp.zeros((4, 1)), share=jnp.float32(0.5))


def test_two_of_five_transitions_are_generated_and_refined_along_the_lower_q_of_their_chain():
    # Q = a: 0.5 on three real transitions and 0.2 + 0.1 on two; in the other chain Q = −2a, refined to 0.1
    c = case(**SYNTHETIC)
    critics = chains_of([(0, 1, 0, 1), (0, -7, 9, 1)], [(0, -2, 0, 1), (0, 7, 9, 1)])
    targets = jax.tree.map(jnp.negative, critics)
    before = half_generated(c.state(critics, targets=targets))
    after, metrics = c.update(before, replay_with(REAL), KEY)
    np.testing.assert_allclose(sorted(set(np.asarray(after.moved[:, 0]).round(6)) - {0.0}), [-0.1, 0.1], rtol=1e-5)
    seen = [np.array([REAL, REAL, REAL, (2, a, 5, 0, 2), (2, a, 5, 0, 2)]) for a in (0.3, 0.1)]
    coefficients = mean_head(before.chains.critics)
    error, q = np.zeros((2, 2, 5)), np.zeros((2, 2, 5))
    for i, rows in enumerate(seen):
        for k in range(2):
            w_s, w_a, b = coefficients[i, k]
            q[i, k] = w_s * rows[:, 0] + w_a * rows[:, 1] + b
            error[i, k] = q[i, k] - rows[:, 2]
            gradient = np.mean(error[i, k][:, None] * np.stack([rows[:, 0], rows[:, 1], np.ones(5)], 1), axis=0)
            np.testing.assert_allclose(steps_of_means(before, after)[i, k], -ETA * gradient, rtol=1e-4)
    np.testing.assert_allclose(metrics["q_mean"], np.mean(q), rtol=1e-5)
    np.testing.assert_allclose(metrics["critic_loss"], np.mean(error[:, :, :3] ** 2), rtol=1e-5)
    np.testing.assert_allclose(metrics["critic_loss_synthetic"], np.mean(error[:, :, 3:] ** 2), rtol=1e-5)


def test_refined_action_is_one_step_up_the_lower_q_and_stays_in_the_box():
    # the first critic is the lower one in state 0 below the action 0.6, the second elsewhere
    critics = return_critics_of((0, 3, 0, 1), (-1, -2, 3, 1))
    batch = batch_of([0, 0, 0, 9, 9, 9], [0.2, -0.7, 0.95, 0.2, 0.95, -0.95])
    np.testing.assert_allclose(ch.refined(critics, batch, 0.1)[:, 0], [0.3, -0.6, 0.85, 0.1, 0.85, -1.0], rtol=1e-5)


def test_a_slope_of_epsilon_moves_an_action_by_half_the_step_size():
    gentle, batch = return_critics_of((0, 1e-8, 0, 1)), batch_of([0, 0, 0], [0.2, -0.7, 0.98])
    np.testing.assert_allclose(ch.refined(gentle, batch, 0.1)[:, 0], [0.25, -0.65, 1.0], rtol=1e-5)


def test_actions_of_the_synthetic_buffer_stay_in_the_box_however_far_they_were_moved():
    c = case(**SYNTHETIC)
    state = half_generated(c.first)._replace(moved=f32([5], [-5], [0.1], [-0.1]))
    np.testing.assert_allclose(
        batches.synthetic_rows(LAYOUT, state, jnp.arange(4)).action[:, 0], [1.0, -1.0, 0.3, 0.1], rtol=1e-6
    )


def test_the_actor_sees_generated_states_too():
    c = case(**SYNTHETIC)
    before = half_generated(c.state(chains_of(*[[(1, 0, 0, 1)] * 2] * 2)))
    after, metrics = c.update(before, replay_with(REAL), KEY)
    w_s, _, b = mean_head(after.chains.critics)[0, 0]
    np.testing.assert_allclose(metrics["actor_loss"], -(w_s * 1.4 + b), rtol=1e-5)


@pytest.mark.parametrize(("share", "count"), [(0.5, 2), (0.2, 1), (0.0, 0)])
def test_as_many_transitions_as_the_share_says_are_generated_and_only_they_are_written_back(share, count):
    # Q = s: 1 on real transitions, whose y is 1, and 2 on generated ones, whose y is 5
    c = case(**SYNTHETIC)
    before = half_generated(c.state(chains_of(*[[(1, 1e-3, 0, 1)] * 2] * 2)))._replace(share=jnp.float32(share))
    after, metrics = c.update(before, replay_with(REAL), KEY)
    np.testing.assert_allclose(metrics["q_mean"], (5 + count) / 5, rtol=1e-3)
    np.testing.assert_allclose(metrics["critic_loss"], 0.0, atol=1e-5)
    np.testing.assert_allclose(metrics["critic_loss_synthetic"], 9.0 if count else 0.0, rtol=1e-3)
    moved = np.count_nonzero(after.moved)
    assert moved == 2 if count == 1 else 2 <= moved <= 4 if count else not moved
    assert float(c.first.share) == 0.0


def test_q_ascent_is_on_the_generated_half():
    c = case(**SYNTHETIC | {"released": Released(q_ascent=True)})
    critics = chains_of([(0, 1, 0, 1), (0, 0, 9, 1)], [(0, -2, 0, 1), (0, 0, 9, 1)])
    before = half_generated(c.state(critics, targets=flat([1, 0], [1, 0])))
    plain, _ = case(**SYNTHETIC).update(before, replay_with(REAL), KEY)
    after, _ = c.update(before, replay_with(REAL), KEY)
    raised = mean_head(after.chains.critics) - mean_head(plain.chains.critics)
    sums = [[[4, 0.6, 2], [0, 0, 0]], [[4, 0.2, 2], [0, 0, 0]]]
    np.testing.assert_allclose(raised, ETA * np.array(sums), rtol=1e-4, atol=1e-6)


def test_metrics_of_the_critics_by_hand():
    # Q = b and y = 3 on every transition, so that b and σ alone decide; y_Z = 3 too, as nothing follows
    b, eps = np.array([[-1.0, 2.5], [5.0, -2.0]]), 0.1
    c = case()
    before = c.state(
        chains_of(*([(0, 0, q, s) for q, s in zip(*chain, strict=True)] for chain in zip(b, STDS, strict=True)))
    )
    _, metrics = c.update(before, repeated(reward=3.0, discount=0.0), KEY)
    by_mean, scale = b - 3, STDS**2 + eps
    distance = np.minimum(np.abs(3 - b), 3 * STDS)
    by_std = -scale * (distance**2 - STDS**2) / (STDS**3 + eps) * (1 - np.exp(-STDS))
    norm = np.hypot(by_mean, by_std) * np.linalg.norm(SEEN)
    found = [metrics[name] for name in ("critic_loss", "q_mean", "q_std", "critic_grad_norm")]
    np.testing.assert_allclose(found, [np.mean((b - 3) ** 2), np.mean(b), np.mean(STDS), np.mean(norm)], rtol=1e-4)
    assert float(metrics["clipped_targets"]) == 0.75  # 3 + 1 > 3 · 1, 5 − 3 > 3 · 0.5 and 3 + 2 > 3 · 1.5
    assert "critic_loss_synthetic" not in metrics


@pytest.mark.parametrize(("m_0", "saturation"), [(2.6, 0.0), (2.7, 1.0), (-2.7, 1.0)])
def test_metrics_of_the_actor_by_hand(m_0, saturation):
    # tanh 2.6 = 0.989, tanh 2.7 = 0.991; the actor's gradient is −w_a (1 − a²) (s, 1)
    c = case()
    before = c.state(chains_of(*[[(0, 20, 0, 1)] * 2] * 2), actor_of(m_0, -20.0))
    _, metrics = c.update(before, repeated(reward=10.0, discount=0.0), KEY)
    norm = 20 * (1 - np.tanh(m_0) ** 2) * np.sqrt(2)
    np.testing.assert_allclose(metrics["actor_grad_norm"], norm, rtol=1e-3)
    np.testing.assert_allclose(metrics["actor_loss"], -20 * np.tanh(m_0), rtol=1e-5)
    assert float(metrics["saturation"]) == saturation


def test_gradient_of_the_actor_is_clipped_by_its_norm_and_logged_as_it_was():
    c = case(**CLIPPED)
    before = c.state(chains_of(*[[(0, 20, 0, 1)] * 2] * 2))
    after, metrics = c.update(before, repeated(reward=10.0, discount=0.0), KEY)
    np.testing.assert_allclose(metrics["actor_grad_norm"], 20 * np.sqrt(2), rtol=1e-3)
    moment = optax.tree_utils.tree_get(after.actor_opt, "mu")
    np.testing.assert_allclose(np.linalg.norm(numbers(moment)[0]), 0.1 * 0.5, rtol=1e-4)


def test_entropy_is_minus_the_mean_log_density():
    c = case()
    _, metrics = c.many(c.state(flat([2, 2], [2, 2])), repeated(reward=2.0, discount=0.0), MANY)
    error = np.sqrt(0.5 / (256 * BATCH))
    expected = -(20 - 0.5 - 0.5 * np.log(2 * np.pi))
    np.testing.assert_allclose(np.mean(metrics["entropy"]), expected, atol=TOLERANCE * error)


# the first state


def test_the_first_state_has_the_sizes_of_the_options_and_copies_for_targets():
    options = {"hidden": (5, 4), "activation": "tanh", "chains": 3, "critics_per_chain": 1}
    state = lsac.make(Config(alpha_init=0.7, synthetic=False, **options), spec_of(2, 3)).init(KEY)
    networks = (state.actor, (2, 5, 4, 6), ()), (state.chains.critics, (5, 5, 4, 2), (3, 1))
    for network, sizes, leading in networks:
        assert network.mlp.activation == "tanh"
        shapes = [layer.weight.shape for layer in network.mlp.layers]
        assert shapes == [(*leading, m, n) for n, m in itertools.pairwise(sizes)]
    for one, other in ((state.actor, state.target_actor), (state.chains.critics, state.chains.targets)):
        np.testing.assert_array_equal(*numbers(one, other))
    assert (state.actor.log_std_min, state.actor.log_std_max) == (-20.0, 0.5)
    np.testing.assert_allclose(state.log_alpha, np.log(0.7), rtol=1e-6)
    np.testing.assert_allclose(state.chains.std_mean, np.full((3, 1), 0.7), rtol=1e-6)
    np.testing.assert_allclose(state.chains.var_mean, np.full((3, 1), 0.5), rtol=1e-6)
    assert int(state.updates) == 0


def test_the_synthetic_buffer_has_its_capacity_and_there_is_none_without():
    for synthetic, rows in ((True, 6), (False, 0)):
        agent = lsac.make(
            Config(synthetic=synthetic, synthetic_capacity=6, chains=3, generator=GENERATOR), spec_of(2, 3)
        )
        state = jax.jit(lambda key, init=agent.init: init(key)._replace(generator=None))(KEY)
        np.testing.assert_array_equal(state.generated, np.zeros((rows, 9)))
        np.testing.assert_array_equal(state.moved, np.zeros((rows, 3)))


def test_the_policy_is_the_actor_and_values_are_those_of_the_critics():
    c = case()
    state = c.state(flat([1, 1], [1, 1]), targets=TARGETS, target_actor=actor_of(1.0, 1.0))
    acting = c.agent.policy(state).actor
    np.testing.assert_array_equal(ravel_pytree(acting)[0], ravel_pytree(state.actor)[0])
    assert c.agent.values.critics(state).critics is state.chains.critics


def test_values_are_mean_and_spread_over_chains_of_the_lower_q_and_the_mean_std():
    critics = chains_of([(0, 2, 1, 1.0), (0, 0, 9, 3.0)], [(0, 0, 4, 2.0), (1, 0, 5, 6.0)])
    said = ch.value(critics, f32(0.5), f32(-0.5))
    found = [said["q"], said["q_spread"], said["return_std"]]
    np.testing.assert_allclose(found, [2.0, 2.0, 3.0], rtol=1e-5)


# the refresh


def test_the_generator_is_fitted_to_the_transitions_as_they_were_collected(monkeypatch):
    """And not to normalised ones: it scales its data itself."""
    config = Config(synthetic_capacity=4)
    seen = dataclasses.replace(replay_with(REAL), moments=Moments(f32(9.0), f32(2.0), jnp.float32(5.0)))
    assert float(rb.sample(seen, KEY, 1).obs[0, 0]) != 1.0
    monkeypatch.setattr(synthesis, "begin", lambda config, spec, state, replay, key: replay.moments)
    monkeypatch.setattr(synthesis, "advance", lambda config, spec, work, replay, piece: (work, replay.moments))
    fit = refreshing.begin(config, SPEC, case().first._replace(generator="old"), seen, KEY)
    np.testing.assert_array_equal(LAYOUT.pack(fit.real), np.array([REAL] * 4_096))
    assert fit.generator is None
    assert refreshing.advance(config, SPEC, fit, seen, 0).generator == (None, None)


def test_a_fit_replaces_the_generator_and_discards_what_the_last_one_made(monkeypatch):
    monkeypatch.setattr(synthesis, "finish", lambda config, work: (work, {}))
    before = half_generated(case().first)._replace(share=jnp.zeros(()), generator="old")
    before = before._replace(moved=f32([0.1], [0.0], [-0.3], [0.4]))
    after, metrics, real = refreshing.finish(Config(), before, refreshing.Fit("new", "real"))
    assert (after.generator, after.generated, real) == ("new", None, "real")
    np.testing.assert_array_equal(after.moved, np.zeros((4, 1)))
    np.testing.assert_allclose([after.share, metrics["synthetic_share"], metrics["action_moved"]], [0.5, 0.5, 0.2])


def test_generated_transitions_fill_the_buffer_and_256_of_them_are_shown(monkeypatch):
    monkeypatch.setattr(synthesis, "generate", lambda config, spec, state, count, key: jnp.ones((count, LAYOUT.width)))
    state = case().first._replace(generated=None, generator="new")
    after, shown = refreshing.generate(Config(synthetic_capacity=300), SPEC, state, KEY)
    assert (after.generated.shape, shown.obs.shape) == ((300, 5), (256, 1))


def test_the_refresh_has_its_period_and_its_steps_from_the_options():
    refresh = lsac.make(
        Config(refresh_every=77, refresh_growth=0.5, generator=synthesis.Config(train_steps=30)), SPEC
    ).refresh
    assert (refresh.every, refresh.growth, refresh.steps, refresh.pieces) == (77, 0.5, 30, 16)
