"""PPO against numbers worked out by hand, on linear networks of one observation and one action, and what it shares
with TRPO: how a chunk is prepared, what the critic fits, how step sizes fall."""

import dataclasses
import functools

import equinox as eqx
import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from linear import f32
from replays import replay_of, spec_of
from scipy import stats

from lsac import PPO
from lsac.agents import on_policy, ppo
from lsac.agents.on_policy import Actor, ActorCritic, Batch, Policy, Values
from lsac.nn import fused
from lsac.nn import normalisation as normalize
from lsac.nn.networks import MLP
from lsac.nn.normalisation import Moments
from lsac.replay import ring as rb
from lsac.replay import rollouts
from lsac.runs.experiment import Experiment, for_run

SPEC = spec_of(1, 1)
KEY = jax.random.key(0)
LN_SQRT_2PI_E = 0.5 * np.log(2 * np.pi * np.e)

estimates_of = jax.jit(on_policy.estimates, static_argnums=2)
prepared = jax.jit(on_policy.prepared, static_argnums=(2, 3))


def pair_of(actor, critic):
    return fused.pair(actor.mlp, critic, actor.log_std)


def loss_of(both, batch, config):
    return ppo.loss(pair_of(*both), batch, config)


def actor_loss_of(actor, batch, clip_ratio):
    return ppo.actor_loss(jax.vmap(actor.mlp)(batch.obs), actor.log_std, batch, clip_ratio)


loss_gradient = jax.jit(jax.grad(loss_of, has_aux=True), static_argnums=2)
actor_loss = jax.jit(jax.value_and_grad(actor_loss_of, has_aux=True), static_argnums=2)


def line(slope, offset):
    """The network slope · x + offset."""
    shape = jax.eval_shape(lambda key: MLP((1, 1), "tanh", key), KEY)
    return eqx.tree_at(lambda m: (m.layers[0].weight, m.layers[0].bias), shape, (f32(slope)[:, None], f32(offset)))


def actor_of(slope, offset, log_std):
    return Actor(line(slope, offset), f32(log_std))


def moments_of(mean, variance, samples=100.0, shape=(1,)):
    return Moments(jnp.full(shape, mean), jnp.full(shape, variance), f32(samples)[0])


def batch_of(**columns):
    """A batch of which only some columns matter."""
    size = len(next(iter(columns.values())))
    fields = {name: f32(*columns.get(name, [0.0] * size)) for name in Batch._fields}
    return Batch(**fields | {name: fields[name][:, None] for name in ("obs", "action")})


# the losses


def ratios(actor, obs, action, wanted):
    """Old log densities for which the actions have become so many times likelier."""
    density = stats.norm.logpdf(action, actor[0] * np.array(obs) + actor[1], np.exp(actor[2]))
    return density - np.log(wanted)


def test_actor_gains_by_the_ratio_until_it_is_clipped():
    # A = 1, −1, −1, 1: min(ρA, clip(ρ, 0.8, 1.2) A) = 1.2, −1.5, −0.8, 0.5: mean −0.15
    obs, action, wanted = [0.5, 1.0, -1.0, 2.0], [0.1, -0.4, 0.3, 1.7], [1.5, 1.5, 0.5, 0.5]
    log_prob = ratios((0.4, -0.2, -0.5), obs, action, wanted)
    batch = batch_of(obs=obs, action=action, log_prob=log_prob, advantage=[1, -1, -1, 1])
    (loss, metrics), grads = actor_loss(actor_of(0.4, -0.2, -0.5), batch, 0.2)
    np.testing.assert_allclose(loss, 0.15, rtol=1e-4)
    np.testing.assert_allclose(metrics["clip_fraction"], 1.0)
    np.testing.assert_allclose(metrics["approx_kl"], np.mean(np.array(wanted) - 1 - np.log(wanted)), rtol=1e-4)
    # what is clipped to the gain pulls no more: −¼ Σ A ρ (a − m)/σ² over the second and the fourth
    m = 0.4 * np.array(obs) - 0.2
    pull = np.array([0, -1.5, 0, 0.5]) * (np.array(action) - m) / np.exp(-1.0)
    np.testing.assert_allclose(grads.mlp.layers[0].bias[0], -np.mean(pull), rtol=1e-3)


def test_advantages_are_standardised_over_the_batch():
    advantage = f32(1.0, 2.0, 6.0)
    np.testing.assert_allclose(
        on_policy.standardised(advantage),
        [-2 / 14**0.5 * 3**0.5, -1 / 14**0.5 * 3**0.5, 3 / 14**0.5 * 3**0.5],
        rtol=1e-5,
    )
    assert np.all(np.asarray(on_policy.standardised(f32(3.0, 3.0))) == 0.0)


def test_critic_loss_is_the_squared_error():
    # V = 1, 3, 5; R = 0, 3, 1: (1 + 0 + 16)/3
    batch = batch_of(obs=[0, 1, 2], returns=[0, 3, 1])
    np.testing.assert_allclose(on_policy.critic_loss(f32(1, 3, 5), batch), 17 / 3, rtol=1e-6)


def test_clipped_critic_loss_takes_the_larger_error():
    # V = 1, 3, 5; held within ±0.5 of 2, 3.2, 4 it is 1.5, 3, 4.5: errors 1 → 2.25, 0 → 0, 16 → 12.25
    batch = batch_of(obs=[0, 1, 2], returns=[0, 3, 1], value=[2, 3.2, 4])
    np.testing.assert_allclose(on_policy.critic_loss(f32(1, 3, 5), batch, 0.5), (2.25 + 0 + 16) / 3, rtol=1e-6)


def test_loss_weighs_critic_and_entropy():
    obs, action = [0.5, 1.0], [0.1, -0.4]
    log_prob = ratios((0.0, 0.0, 0.3), obs, action, [1.0, 1.0])
    batch = batch_of(obs=obs, action=action, log_prob=log_prob, advantage=[1, -1], returns=[3, 3], value=[1, 1])
    both = actor_of(0.0, 0.0, 0.3), line(0.0, 1.0)
    config = ppo.Config(value_weight=0.5, entropy_weight=0.1, value_clip=False)
    total, metrics = loss_of(both, batch, config)
    np.testing.assert_allclose(metrics["entropy"], 0.3 + LN_SQRT_2PI_E, rtol=1e-5)
    np.testing.assert_allclose(total, 0.0 + 0.5 * 4 - 0.1 * (0.3 + LN_SQRT_2PI_E), rtol=1e-4)
    # held within ±0.2 of 1, V cannot come nearer to 3 than 1.2
    clipped, _ = loss_of((both[0], line(0.0, 3.0)), batch, dataclasses.replace(config, value_clip=True))
    np.testing.assert_allclose(clipped - total, 0.5 * 1.8**2 - 0.5 * 4, rtol=1e-4)


def test_a_pair_is_both_networks_and_what_widens_the_critic_is_never_read():
    networks = on_policy.init(spec_of(5, 3), (8, 8), "tanh", 1.0, -0.5, KEY)
    pair = ppo.paired(networks)
    other = jax.tree.map(jnp.zeros_like, networks)._replace(obs_moments=moments_of(1.0, 2.0, shape=(5,)))
    again = ppo.unpaired(other, pair)
    for old, new in zip(jax.tree.leaves(networks[:2]), jax.tree.leaves(again[:2]), strict=True):
        np.testing.assert_array_equal(new, old)
    assert again.obs_moments is other.obs_moments, "moments are no part of a pair"
    assert again.return_moments is other.return_moments
    keys = jax.random.split(KEY, 6)
    obs, action = jax.random.normal(keys[0], (16, 5)), jax.random.normal(keys[1], (16, 3))
    rest = [jax.random.normal(key, (16,)) for key in keys[2:]]
    batch = Batch(obs, action, on_policy.log_probs(networks.actor, obs, action) + 0.1 * rest[0], *rest[1:])
    config = ppo.Config(hidden=(8, 8), value_weight=0.5)
    (total, metrics), grads = jax.value_and_grad(ppo.loss, has_aux=True)(pair, batch, config)
    # one after the other
    critic_loss = on_policy.critic_loss(jax.vmap(networks.critic)(obs)[:, 0], batch, 0.2)
    (gain, _), actor_grads = actor_loss(networks.actor, batch, 0.2)
    np.testing.assert_allclose(total, gain + 0.5 * critic_loss, rtol=1e-5)
    np.testing.assert_allclose(metrics["critic_loss"], critic_loss, rtol=1e-5)
    critic_grads = jax.grad(lambda critic: 0.5 * on_policy.critic_loss(jax.vmap(critic)(obs)[:, 0], batch, 0.2))
    wanted = (actor_grads, critic_grads(networks.critic))
    for a, b in zip(jax.tree.leaves(ppo.unpaired(networks, grads)[:2]), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    last = grads.mlps.layers[-1]
    assert not np.any(last.weight[1, 1:])
    assert not np.any(last.bias[1, 1:])
    assert np.all(last.weight[1, 0] != 0)


# policy and values


def test_deterministic_action_is_the_clipped_mean_of_the_normalised_observation():
    # (6 − 2)/√4 = 2: the mean is 0.3 · 2 + 0.1 = 0.7; for 60 the normalised 29 is clipped to 10, the mean 3.1 to 1
    policy = Policy(actor_of(0.3, 0.1, 0.0), moments_of(2.0, 4.0))
    np.testing.assert_allclose(on_policy.act(10.0, policy, f32(6.0), KEY, False), [0.7], rtol=1e-5)
    np.testing.assert_array_equal(on_policy.act(10.0, policy, f32(60.0), KEY, False), [1.0])


def test_exploring_action_is_drawn_around_the_mean_and_stays_whole():
    policy = Policy(actor_of(0.3, 0.1, np.log(2.0)), moments_of(2.0, 4.0))
    keys = jax.random.split(KEY, 4_000)
    action = jax.vmap(lambda key: on_policy.act(10.0, policy, f32(6.0), key, True))(keys)[:, 0]
    assert abs(jnp.mean(action) - 0.7) < 0.13  # four standard errors
    assert abs(jnp.std(action) - 2.0) < 0.1
    assert jnp.max(jnp.abs(action)) > 5.0


def test_observations_can_be_taken_as_they_are():
    policy = Policy(actor_of(0.01, 0.1, 0.0), moments_of(2.0, 4.0))
    np.testing.assert_allclose(on_policy.act(0.0, policy, f32(60.0), KEY, False), [0.7], rtol=1e-5)


def test_value_is_told_in_units_of_the_reward():
    # normalised observation 2, critic 3 · 2 + 1 = 7, √(3² + 4²) = 5
    values = Values(line(3.0, 1.0), moments_of(2.0, 4.0), moments_of(-3.0, 16.0, shape=()))
    np.testing.assert_allclose(on_policy.value(10.0, values, f32(6.0), f32(0.0))["q"], 35.0, rtol=1e-5)


# the chunk


def chunk_of(obs, action, reward, discount, next_obs, first=None):
    """A replay that holds one chunk, from columns [time, simulators]; no step begins an episode unless told so."""
    rows = np.stack([np.ravel(x) for x in (obs, action, reward, discount, next_obs)], axis=1)
    flags = None if first is None else np.ravel(first)
    return replay_of(rb.layout_of(SPEC), rows, stride=np.shape(obs)[1], first=flags)


def random_replay(seed, time=8, simulators=2, gamma=0.9):
    """Trajectories of [time, simulators] in which some steps terminate, and the next one begins an episode."""
    rng = np.random.default_rng(seed)
    obs = np.cumsum(rng.normal(3.0, 1.0, size=(time + 1, simulators)), axis=0)
    discount = np.where(rng.random((time, simulators)) < 0.2, 0.0, gamma)
    first = np.concatenate([np.ones((1, simulators), bool), discount[:-1] == 0])
    return chunk_of(obs[:-1], *rng.normal(size=(2, time, simulators)), discount, obs[1:], first)


def networks_of(actor, critic, samples=0.0):
    """Moments have seen nothing, or that many observations of mean 1 and variance 9, and returns of size 2."""
    if not samples:
        return ActorCritic(actor, critic, normalize.empty((1,)), normalize.empty(()))
    return ActorCritic(actor, critic, moments_of(1.0, 9.0, samples), moments_of(0.0, 4.0, samples, ()))


@pytest.mark.parametrize("samples", [0.0, 16.0], ids=["first", "later"])
def test_densities_are_of_the_moments_then_and_the_rest_of_the_moments_now(samples):
    before, replay = networks_of(actor_of(0.4, -0.2, -0.5), line(1.0, 0.5), samples), random_replay(0)
    networks, rollout, log_prob = prepared(before, replay, 10.0, 0.95)
    raw = rollouts.read(replay).steps
    obs, action = np.asarray(raw.obs)[..., 0], np.asarray(raw.action)[..., 0]
    then = (obs - 1.0) / 3.0 if samples else obs
    expected = stats.norm.logpdf(action, 0.4 * np.clip(then, -10, 10) - 0.2, np.exp(-0.5))
    np.testing.assert_allclose(log_prob, expected, rtol=1e-4)
    if samples:  # half of what is known now is old
        mean, variance = 0.5 * (1 + obs.mean()), 0.5 * (9 + obs.var()) + 0.25 * (obs.mean() - 1) ** 2
    else:
        mean, variance = obs.mean(), obs.var()
    np.testing.assert_allclose(networks.obs_moments.mean, [mean], rtol=1e-5)
    np.testing.assert_allclose(networks.obs_moments.variance, [variance], rtol=1e-5)
    np.testing.assert_allclose(rollout.steps.obs[..., 0], (obs - mean) / variance**0.5, rtol=1e-4, atol=1e-5)
    after = np.asarray(raw.next_obs)[..., 0]
    np.testing.assert_allclose(rollout.steps.next_obs[..., 0], (after - mean) / variance**0.5, rtol=1e-4, atol=1e-5)
    for new, old in zip(jax.tree.leaves(networks[:2]), jax.tree.leaves(before[:2]), strict=True):
        np.testing.assert_array_equal(new, old)


def test_returns_enter_their_moments_in_units_of_the_reward():
    # one step each, V = 0.5 everywhere in units of size 2, so V = 1: δ = r + 0.9 · 1 − 1, return = r + 0.9
    replay = chunk_of([[0.0, 1.0]], [[0, 0]], [[3.0, 5.0]], [[0.9, 0.9]], [[7.0, 8.0]])
    networks, _, _ = prepared(networks_of(actor_of(0, 0, 0), line(0.0, 0.5), 2.0), replay, 10.0, 0.95)
    # old: mean 0, variance 4, two samples; new: 3.9 and 5.9
    np.testing.assert_allclose(networks.return_moments.mean, 2.45, rtol=1e-5)
    np.testing.assert_allclose(networks.return_moments.variance, 0.5 * (4 + 1) + 0.25 * 4.9**2, rtol=1e-5)


@pytest.mark.parametrize(("first", "advantages"), [([0, 0, 0], [1.75, 1.5, 1]), ([1, 0, 1], [1.5, 1, 1])])
def test_nothing_flows_over_the_beginning_of_an_episode(first, advantages):
    # V = 0, λ = 1, rewards of 1 and a discount of ½, whatever the observations are: a time limit before the third step
    column = [[0.0], [1.0], [2.0]]
    replay = chunk_of(column, column, [[1.0]] * 3, [[0.5]] * 3, [[1.0], [2.0], [3.0]], first)
    values = Values(line(0.0, 0.0), moments_of(0.0, 1.0), moments_of(0.0, 1.0, shape=()))
    advantage, _, _ = on_policy.estimates(values, rollouts.read(replay), 1.0)
    np.testing.assert_allclose(advantage[:, 0], advantages, rtol=1e-6)


def test_advantages_are_in_units_of_the_reward_and_returns_in_units_of_their_size():
    # size 5, critic 0.5 s + 0.1: V = 5 · (0.6, −0.4) = 3, −2; V' = 5 · (1.1, 0.1) = 5.5, 0.5
    steps = rollouts.read(chunk_of([[1.0, -1.0]], [[0, 0]], [[2.0, 4.0]], [[0.5, 0.0]], [[2.0, 0.0]]))
    values = Values(line(0.5, 0.1), moments_of(0.0, 1.0), moments_of(3.0, 16.0, shape=()))
    advantage, returns, value = on_policy.estimates(values, steps, 0.95)
    np.testing.assert_allclose(advantage, [[2 + 2.75 - 3, 4 + 2]], rtol=1e-5)
    np.testing.assert_allclose(returns, [[4.75 / 5, 4 / 5]], rtol=1e-5)
    np.testing.assert_allclose(value, [[0.6, -0.4]], rtol=1e-5)
    told = on_policy.value_metrics(values, returns, value)
    np.testing.assert_allclose(told["q_mean"], 0.5, rtol=1e-5)
    np.testing.assert_allclose(told["explained_variance"], 1 - np.var([0.35, 1.2]) / np.var([0.95, 0.8]), rtol=1e-4)
    assert on_policy.value_metrics(values, f32(2.0, 2.0), f32(1.0, 3.0))["explained_variance"] == 0.0


# the update


CONFIG = ppo.Config(hidden=(4,), epochs=1, minibatches=1, actor_lr=1e-3, critic_lr=1e-2, mean_scale=1.0)


@functools.cache
def compiled(config):
    return jax.jit(ppo.make(config, SPEC).update)


def moved(config, state, replay, key=KEY):
    """The state after an update, and the largest change of any number of actor and critic."""
    after, metrics = compiled(config)(state, replay, key)
    change = [
        max(float(jnp.max(jnp.abs(a - b))) for a, b in zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True))
        for new, old in zip(after.networks[:2], state.networks[:2], strict=True)
    ]
    return after, metrics, change


@pytest.fixture(scope="module")
def start():
    return ppo.make(CONFIG, SPEC).init(KEY)


def test_weights_start_orthogonal_and_the_policy_near_zero():
    config = ppo.Config(hidden=(8, 8), log_std_init=-0.7)
    networks = ppo.make(config, spec_of(8, 3)).init(KEY).networks
    for mlp, last in ((networks.actor.mlp, 0.01), (networks.critic, 1.0)):
        for layer, scale in zip(mlp.layers, (1.0, 1.0, last), strict=True):
            w = np.asarray(layer.weight)
            gram = w @ w.T  # rows are orthogonal, and √2 long
            np.testing.assert_allclose(gram, 2.0 * scale**2 * np.eye(len(gram)), atol=1e-5 * scale**2)
            assert not np.any(layer.bias)
    np.testing.assert_allclose(networks.actor.log_std, [-0.7] * 3, rtol=1e-6)


def test_actor_and_critic_have_their_own_step_sizes(start):
    # the first step of Adam moves whatever has a gradient by its step size
    _, _, change = moved(CONFIG, start, random_replay(1))
    np.testing.assert_allclose(change, [1e-3, 1e-2], rtol=1e-3)


def test_step_sizes_fall_linearly_to_zero(start):
    config = dataclasses.replace(CONFIG, anneal_updates=4)
    for updates, left in ((0, 1.0), (1, 0.75), (3, 0.25), (4, 0.0), (9, 0.0)):
        state = start._replace(updates=jnp.int32(updates))
        after, _, change = moved(config, state, random_replay(1))
        np.testing.assert_allclose(change, [left * 1e-3, left * 1e-2], rtol=2e-3, atol=1e-9)
        assert after.updates == updates + 1
    for never in (0, None):
        assert on_policy.remaining(jnp.int32(7), never) == 1.0


def test_epochs_recompute_the_advantages_with_the_newest_critic(start):
    """Two epochs of two minibatches, against a plain loop; each minibatch standardises its advantages."""
    config = dataclasses.replace(CONFIG, epochs=2, minibatches=2, critic_lr=0.3)
    replay = random_replay(2)
    after, metrics, _ = moved(config, start, replay)
    networks, rollout, log_prob = prepared(start.networks, replay, config.obs_clip, config.lam)
    fixed = estimates_of(networks.values, rollout, config.lam)
    told = []
    for recomputed in (True, False):
        actor, critic = networks.actor, networks.critic
        opts = optax.chain(optax.clip_by_global_norm(0.5), optax.scale_by_adam())
        opt = opts.init((actor, critic))
        for key in jax.random.split(KEY, 2):
            values = networks._replace(critic=critic).values
            estimates = estimates_of(values, rollout, config.lam) if recomputed else fixed
            batch = Batch(rollout.steps.obs, rollout.steps.action, log_prob, *estimates)
            told.append(on_policy.value_metrics(values, *estimates[1:]))
            parts = rollouts.minibatches(batch, 2, key)
            for number in range(2):
                part = jax.tree.map(lambda x, number=number: x[number], parts)
                part = part._replace(advantage=on_policy.standardised(part.advantage))
                grads, _ = loss_gradient((actor, critic), part, config)
                with jax.numpy_dtype_promotion("standard"):
                    steps, opt = opts.update(grads, opt)
                actor = jax.tree.map(lambda x, d: x - 1e-3 * d, actor, steps[0])
                critic = jax.tree.map(lambda x, d: x - 0.3 * d, critic, steps[1])
        found = [np.asarray(x) for x in jax.tree.leaves(after.networks[:2])]
        agree = all(
            np.allclose(a, b, rtol=1e-3, atol=1e-5)
            for a, b in zip(found, jax.tree.leaves((actor, critic)), strict=True)
        )
        assert agree == recomputed
    # metrics: of the chunk after the last epoch, but for what is told of the critic before every epoch
    estimates = estimates_of(after.networks.values, rollout, config.lam)
    batch = Batch(rollout.steps.obs, rollout.steps.action, log_prob, *estimates)
    batch = rollouts.flattened(batch._replace(advantage=on_policy.standardised(batch.advantage)))
    _, wanted = loss_of(after.networks[:2], batch, config)
    wanted |= {name: (told[0][name] + told[1][name]) / 2 for name in told[0]}
    wanted["std"] = np.mean(np.exp(after.networks.actor.log_std))
    assert metrics.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_policy_and_values_carry_the_newest_moments(start):
    agent, replay = ppo.make(CONFIG, SPEC), random_replay(3)
    after, _, _ = moved(CONFIG, start, replay)
    obs = np.asarray(rollouts.read(replay).steps.obs)
    for moments in (agent.policy(after).obs_moments, agent.values.critics(after).obs_moments):
        np.testing.assert_allclose(moments.mean, [obs.mean()], rtol=1e-5)
    assert agent.values.critics(after).return_moments.samples == obs.size


def test_gradient_steps_are_counted():
    config = ppo.Config(hidden=(4,), epochs=3, minibatches=4)
    assert ppo.make(config, SPEC).gradient_steps == 12
    state = jax.eval_shape(ppo.make(config, SPEC).init, KEY)
    state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), state)
    after, _ = compiled(config)(state, random_replay(4), KEY)
    assert optax.tree.get(after.opt, "count") == 12


def test_the_gradient_of_both_is_limited_together(start):
    """Adam hides the length of a first gradient, but its memory shows it."""
    replay = random_replay(1)
    for limit in (0.01, 0.0):
        config = dataclasses.replace(CONFIG, grad_norm=limit)
        after, _, _ = moved(config, start._replace(opt=ppo.make(config, SPEC).init(KEY).opt), replay)
        norm = float(optax.tree.norm(optax.tree.get(after.opt, "mu"))) / 0.1
        assert norm == pytest.approx(0.01, rel=1e-3) if limit else norm > 0.1


# the length of a run


def test_a_run_tells_over_how_many_updates_step_sizes_fall():
    run = Experiment(ppo.Config(), "X", steps=10_000, chunk=4096, learning_starts=0)
    assert for_run(run).agent.anneal_updates == 3
    assert for_run(dataclasses.replace(run, steps_before=8192)).agent.anneal_updates == 5
    never = dataclasses.replace(run, agent=ppo.Config(anneal_updates=0))
    assert for_run(never) is never


def test_learning_twice_goes_on_along_a_flatter_line(tmp_path):
    """Over 2 + 2 updates the third has half of the step size left, although the first call ended at none."""
    env = gym.make("lsac/TimeLimited-v0")
    options = {"hidden": (4,), "epochs": 1, "minibatches": 1, "num_envs": 1, "chunk": 16, "actor_lr": 1e-3}
    model = PPO(env, **options)
    networks = [model._now().state.networks]
    for _ in range(2):
        model.learn(32)
        networks.append(model._now().state.networks)
    log_stds = [np.asarray(n.actor.log_std)[0, 0] for n in networks]
    moves = np.abs(np.diff(log_stds))
    assert 0 < moves[0] <= 1.5e-3 * (1 + 1e-3)  # 1 + ½
    assert 0 < moves[1] <= 0.75e-3 * 1.5  # ½ + ¼, and what Adam remembers
    assert model.num_timesteps == 64
    loaded = PPO.load(model.save(tmp_path / "model"), env)
    obs = np.array([0.3], np.float32)
    np.testing.assert_array_equal(loaded.predict(obs, deterministic=True)[0], model.predict(obs, deterministic=True)[0])
    env.close()
