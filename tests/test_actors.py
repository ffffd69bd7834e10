"""Choosing actions on the host: in NumPy where an agent's `act` allows it, and the same as `act` everywhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small

from lsac.agents import AGENTS, IMAGES, VECTORS
from lsac.agents.stacked import stacked
from lsac.collect.actors import BLOCK, make_actors
from lsac.collect.in_numpy import InNumpy, Unsupported
from lsac.nn.networks import ACTIVATIONS
from lsac.runs.experiment import Experiment, make_agent
from lsac.types import EnvSpec, Pixels

SPEC = EnvSpec(obs_shape=(3,), action_dim=2, gamma=0.99)
DIFFUSION = {"qsm", "dipo"}
"""Their `act` is a loop, which stays compiled."""
ENVS, MOMENTS = np.array([4, 7], np.int32), [10, BLOCK - 1, BLOCK, 11]


def made(algorithm, normalise=False, **options):
    """An agent, and a policy of it whose arrays all differ from their first values."""
    config = small.config(algorithm, **options)
    agent = make_agent(Experiment(config, "Pendulum-v1", normalise_observations=normalise), SPEC)
    policy = agent.policy(jax.jit(agent.init)(jax.random.key(0)))
    rng = np.random.default_rng(0)
    return agent, jax.tree.map(lambda x: np.asarray(x) + rng.uniform(0.1, 0.3, x.shape).astype(np.float32), policy)


def expected(function, obs, key, moment):
    """A function of one observation and its key, of all environments at a moment."""
    keys = [jax.random.fold_in(jax.random.fold_in(key, moment), env) for env in ENVS]
    return np.stack([function(o, k) for o, k in zip(obs, keys, strict=True)])


def chosen(rule, policy):
    """For all moments, the observations and what is chosen there."""
    obs = np.random.default_rng(1).normal(size=(len(MOMENTS), len(ENVS), 3)).astype(np.float32)
    choose = rule.actor(jax.random.key(5), ENVS).follow(policy, (), obs[0])
    return [(x, choose(moment, (), x)) for moment, x in zip(MOMENTS, obs, strict=True)]


@pytest.mark.parametrize(("algorithm", "normalise"), [*((name, False) for name in VECTORS), ("sac", True)])
def test_actions_are_those_of_the_agent(algorithm, normalise):
    agent, policy = made(algorithm, normalise)
    actors, key = make_actors(agent, 2), jax.random.key(5)
    for rule, explore in ((actors.explore, True), (actors.exploit, False)):
        act = jax.jit(lambda o, k, explore=explore: agent.act(policy, (), o, k, explore)[0])
        for moment, (obs, (action, memory)) in zip(MOMENTS, chosen(rule, policy), strict=True):
            assert isinstance(action, np.ndarray)
            assert (action.dtype, memory) == (np.float32, ())
            np.testing.assert_allclose(action, expected(act, obs, key, moment), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_is_that_of_the_agent(activation):
    agent, policy = made("sac", activation=activation)
    act = jax.jit(lambda o, k: agent.act(policy, (), o, k, False)[0])
    for obs, (action, _) in chosen(make_actors(agent, 2).exploit, policy):
        np.testing.assert_allclose(action, expected(act, obs, jax.random.key(0), 0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("algorithm", ["sac", "lsac", "dipo"])
def test_samples_for_values_have_the_density_of_the_agent(algorithm):
    agent, policy = made(algorithm)
    actors, key, entropy = make_actors(agent, 2), jax.random.key(5), agent.values.entropy
    neg_log_prob = jax.jit(lambda o, k: entropy.neg_log_prob(policy, (), o, k) if entropy else jnp.zeros(()))
    act = jax.jit(lambda o, k: agent.act(policy, (), o, k, True)[0])
    for moment, (obs, (action, _, density)) in zip(MOMENTS, chosen(actors.sample, policy), strict=True):
        np.testing.assert_allclose(action, expected(act, obs, key, moment), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(density, expected(neg_log_prob, obs, key, moment), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("algorithm", VECTORS)
def test_all_but_diffusion_policies_act_in_numpy(algorithm):
    agent, policy = made(algorithm)
    found = make_actors(agent, 2).explore.in_numpy(policy, ENVS, ((), np.zeros((2, 3), np.float32)))
    assert (found is None) == (algorithm in DIFFUSION)


@pytest.mark.parametrize("algorithm", IMAGES)
def test_policies_of_images_act_on_the_frames_of_their_own_episode(algorithm):
    """The program of two simulators, of which the second starts a new episode, against one agent per episode."""
    spec = small.image_spec(algorithm, EnvSpec(obs_shape=(3,), action_dim=2, gamma=0.9))
    inner = AGENTS[algorithm].make(small.config(algorithm), spec)
    policy = jax.tree.map(np.asarray, inner.policy(jax.jit(inner.init)(jax.random.key(0))))
    rng, count = np.random.default_rng(0), 4
    frames = rng.integers(0, 256, (count, 2, *spec.frame), np.uint8)
    vectors = rng.normal(size=(count, 2, 3)).astype(np.float32)
    actors, key = make_actors(stacked(inner, spec), 2), jax.random.key(5)
    memory, act = actors.memory(2), jax.jit(inner.act, static_argnums=4)
    choose = actors.explore.actor(key, ENVS).follow(policy, memory, Pixels(frames[0], vectors[0]))
    starts, own = [0, 0], [inner.memory(), inner.memory()]
    for t in range(count):
        if t == 2:
            starts[1], own[1] = t, inner.memory()
            memory = jax.tree.map(np.array, memory)
            jax.tree.map(lambda x, new: x.__setitem__(1, new[0]), memory, actors.memory(1))
        action, memory = choose(t, memory, Pixels(frames[t], vectors[t]))
        for i, env in enumerate(ENVS):
            shown = [frames[max(starts[i], t - k), i] for k in reversed(range(spec.frame_stack))]
            obs = Pixels(jnp.asarray(np.concatenate(shown, axis=-1)), jnp.asarray(vectors[t, i]))
            one_key = jax.random.fold_in(jax.random.fold_in(key, t), env)
            wanted, own[i] = act(policy, own[i], obs, one_key, True)
            np.testing.assert_allclose(action[i], wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [{"embedding": True}, {"actor_network": "sphere", "slow_evaluation": True}],
    ids=["embedding", "sphere, slow"],
)
def test_lsac_acts_in_numpy_with_other_networks_too(options):
    agent, policy = made("lsac", synthetic=False, hidden=(8, 8), **options)
    actors = make_actors(agent, 2)
    for rule, explore in ((actors.explore, True), (actors.exploit, False)):
        assert rule.in_numpy(policy, ENVS, ((), np.zeros((2, 3), np.float32))) is not None
        act = jax.jit(lambda o, k, explore=explore: agent.act(policy, (), o, k, explore)[0])
        for moment, (obs, (action, _)) in zip(MOMENTS, chosen(rule, policy), strict=True):
            wanted = expected(act, obs, jax.random.key(5), moment)
            np.testing.assert_allclose(action, wanted, rtol=1e-4, atol=1e-5)


def test_uniform_actions_are_those_of_their_keys():
    agent, _ = made("sac")
    draw = jax.jit(lambda o, k: jax.random.uniform(k, (2,), minval=-1.0, maxval=1.0))
    actions = []
    for moment, (obs, (action, _)) in zip(MOMENTS, chosen(make_actors(agent, 2).uniform, ()), strict=True):
        np.testing.assert_array_equal(action, expected(draw, obs, jax.random.key(5), moment))
        actions.append(action)
    assert np.unique(actions).size == 16


def test_a_result_is_no_view_of_an_argument():
    x = np.arange(4, dtype=np.float32)
    program = InNumpy(lambda policy, source, x: (x, jnp.split(x, 2)[0]), (), (), x)
    same, half = program.step(())([], x)
    x[:] = -1
    np.testing.assert_array_equal(same, [0, 1, 2, 3])
    np.testing.assert_array_equal(half, [0, 1])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.sin(x),
        lambda x: x**5,
        lambda x: jnp.einsum("bi,bi->b", x, x),
        lambda x: x.astype(jnp.int32) * 2,
        lambda x: jax.lax.fori_loop(0, 2, lambda _, y: y + 1.0, x),
    ],
    ids=["sine", "power", "batched product", "integers", "loop"],
)
def test_an_operation_that_is_not_listed_is_refused(function):
    with pytest.raises(Unsupported):
        InNumpy(lambda policy, source, x: function(x), (), (), np.zeros((2, 2), np.float32))


def test_what_is_drawn_may_be_any_operation():
    def function(policy, source, x):
        return jnp.exp(policy) * jnp.cos(source) * x + jnp.arange(2.0)

    policy, x = np.float32(0.7), np.array([0.5, -2.0], np.float32)
    program = InNumpy(function, policy, policy, x)
    sources, step = np.array([1.0, 2.0, 3.0], np.float32), program.step(policy)
    drawn = program.draw(sources)
    for t, source in enumerate(sources):
        np.testing.assert_allclose(step([numbers[t] for numbers in drawn], x), function(policy, source, x), rtol=1e-6)


def test_an_actor_follows_the_policy_that_it_was_given_last():
    agent, policy = made("td3")
    actor, obs = make_actors(agent, 2).explore.actor(jax.random.key(5), ENVS), np.ones((2, 3), np.float32)
    policies = (policy, jax.tree.map(lambda x: 2 * x, policy), policy)
    first, other, again = (actor.follow(p, (), obs)(0, (), obs)[0] for p in policies)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
