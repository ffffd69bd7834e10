"""DIPO against numbers worked out by hand, mostly on linear critics Q(s, a) = w_s s + w_a · a + b.

An actor whose ε is the same everywhere ends at −1 if that is large, and at 1 if −ε is.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from linear import coefficients, critics_of, f32
from replays import replay_of, rows_in, spec_of, with_rows

from lsac.agents import dipo
from lsac.nn.diffusion import cosine_betas, ddpm
from lsac.nn.optimisers import adam
from lsac.replay import ring as rb

SPEC = spec_of(1, 1)
KEY = jax.random.key(0)
ROWS, PAIRS, BATCH, STEPS, LR, TAU = 16, 12, 8, 4, 0.01, 0.25
VISITED = np.linspace(-0.5, 0.5, ROWS, dtype=np.float32)[:, None]


def actor_of(constant=0.0, slope=0.0):
    """ε = constant + slope · a_t, whatever state and time; one unit of a ReLU whose other end is out of reach."""
    shape = jax.eval_shape(lambda: dipo.DiffusionActor(1, 1, (1,), "relu", KEY))
    actor = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shape)
    first, last = actor.mlp.layers
    weight = first.weight.at[:, 0].set(1.0)
    layers = (
        eqx.tree_at(lambda x: (x.weight, x.bias), first, (weight, f32(100.0))),
        eqx.tree_at(lambda x: (x.weight, x.bias), last, (f32([slope]), f32(constant - 100.0 * slope))),
    )
    return eqx.tree_at(lambda a: a.mlp.layers, actor, layers)


def config_of(**options):
    sizes = {"hidden": (1,), "batch_size": BATCH, "denoising_steps": STEPS, "action_steps": 3, "pair_capacity": PAIRS}
    return dipo.Config(**{**sizes, "actor_lr": LR, "critic_lr": LR, "tau": TAU, **options})


AGENT = dipo.make(config_of(), SPEC)
FORGETFUL = dipo.make(config_of(no_write_back=True, target_every=2), SPEC)
update, update_forgetful = jax.jit(AGENT.update), jax.jit(FORGETFUL.update)


def state_of(critics, actor=None, target_actor=None, targets=None, pairs=None):
    actor = actor_of() if actor is None else actor
    optimiser = adam(LR, max_norm=1.0)
    return dipo.State(
        actor=actor,
        target_actor=actor if target_actor is None else target_actor,
        critics=critics,
        targets=critics if targets is None else targets,
        actor_opt=optimiser.init(actor),
        critic_opt=optimiser.init(critics),
        updates=jnp.zeros((), jnp.int32),
        pairs=jnp.zeros((PAIRS, 2)) if pairs is None else pairs,
    )


def visits(reward=0.0, discount=0.0):
    """A full replay in which every transition has this reward and discount, and every action is another."""
    obs, action = np.ones(ROWS), VISITED[:, 0]
    rows = np.stack([obs, action, np.full(ROWS, reward), np.full(ROWS, discount), obs], axis=1)
    return replay_of(rb.layout_of(SPEC), rows)


def rows_of(key):
    """The rows of the replay whose actions an update with this key improves."""
    return np.unique(jax.random.randint(jax.random.split(key, 4)[2], (BATCH,), 0, ROWS))


# the policy


def test_waves_by_hand():
    np.testing.assert_allclose(dipo.waves(jnp.int32(0)), [0] * 16 + [1] * 16, atol=1e-7)
    at = np.asarray(dipo.waves(jnp.int32(50)))
    np.testing.assert_allclose(at[[0, 15, 16, 31]], [np.sin(50), np.sin(0.005), np.cos(50), np.cos(0.005)], atol=1e-5)


def test_noise_for_a_given_state_is_that_of_the_whole_network():
    obs, action, times = f32(0.3, -1.0, 2.0), f32(0.5, -0.7), jnp.arange(6)

    @jax.jit
    def both(key):
        actor = dipo.DiffusionActor(3, 2, (8, 8), "mish", key)
        predict = actor.given(obs, 6)
        return jax.vmap(lambda t: (predict(action, t), actor(obs, action, t)))(times)

    given, whole = both(KEY)
    np.testing.assert_allclose(given, whole, rtol=1e-5)
    assert np.unique(whole, axis=0).shape == (6, 2)


def test_weights_start_normal_with_half_the_root_of_their_inputs_and_without_bias():
    state = jax.jit(dipo.make(config_of(hidden=(64,)), SPEC).init)(KEY)
    for layer in (*state.actor.time.layers, *state.actor.mlp.layers, *state.critics.mlp.layers):
        assert not np.any(layer.bias)
        spread = np.std(layer.weight) * np.sqrt(layer.weight.shape[-1])
        assert spread == pytest.approx(0.5, rel=0.2)


def test_exploring_action_follows_the_posterior_of_every_step():
    # ε = 0: x̂ = clip(x/√ᾱ), and x moves to the mean of q(x_{t−1} | x, x̂) plus its std times the noise
    actor, schedule = actor_of(), ddpm(cosine_betas(STEPS))
    start_key, key = jax.random.split(KEY)
    x = np.asarray(jax.random.normal(start_key, (1,)), np.float64)
    z = np.asarray(jax.random.normal(key, (STEPS, 1)), np.float64)
    beta, alpha, bar = (np.asarray(field, np.float64) for field in schedule)
    for t in reversed(range(STEPS)):
        earlier = bar[t - 1] if t else 1.0
        clean = np.clip(x / np.sqrt(bar[t]), -1, 1)
        mean = (np.sqrt(earlier) * beta[t] * clean + np.sqrt(alpha[t]) * (1 - earlier) * x) / (1 - bar[t])
        x = mean + np.sqrt(beta[t] * (1 - earlier) / (1 - bar[t])) * z[t]
    action = AGENT.act(actor, (), f32(0.0), KEY, True)[0]
    np.testing.assert_allclose(action, np.clip(x, -1, 1), atol=1e-5)
    assert abs(action[0]) < 0.999, "an action that was clipped would show little"


def test_deterministic_path_starts_at_zero():
    np.testing.assert_array_equal(AGENT.act(actor_of(), (), f32(0.7), KEY, False)[0], [0.0])


@pytest.mark.parametrize("explore", [True, False])
def test_actions_lie_in_the_box_whatever_the_network_says(explore):
    np.testing.assert_allclose(AGENT.act(actor_of(1e6), (), f32(1.0), KEY, explore)[0], [-1.0], atol=1e-5)
    assert AGENT.act(actor_of(-1e6), (), f32(1.0), KEY, explore)[0] <= 1.0


def test_actor_loss_is_the_error_in_the_noise():
    # ε = 0.3 + 2 a_t
    schedule, action = ddpm(cosine_betas(STEPS)), f32([0.5], [-1.0], [0.1])
    loss = dipo.actor_loss(actor_of(0.3, 2.0), schedule, jnp.zeros((3, 1)), action, KEY)
    time_key, noise_key = jax.random.split(KEY)
    t = np.asarray(jax.random.randint(time_key, (3,), 0, STEPS))
    noise, bar = np.asarray(jax.random.normal(noise_key, (3, 1))), np.asarray(schedule.alpha_bars)[t][:, None]
    noisy = np.sqrt(bar) * action + np.sqrt(1 - bar) * noise
    np.testing.assert_allclose(loss, np.mean((0.3 + 2 * noisy - noise) ** 2), rtol=1e-4)


# the improvement


def improved(critics, action, steps=1, **options):
    config = dipo.Config(action_steps=steps, **options)
    return np.asarray(dipo.improved(config, critics, jnp.zeros((len(action), 1)), f32(*action)))


def test_actions_climb_the_smaller_critic_by_a_step_of_adam_each_time_and_stop_at_the_edge():
    # Q_1 = a and Q_2 = −a: their minimum rises towards 0, from either side; Adam's first step is lr
    tent = critics_of((0, 1, 0), (0, -1, 0))
    np.testing.assert_allclose(improved(tent, [[0.5], [-0.5]]), [[0.47], [-0.47]], rtol=1e-4)
    ramp = critics_of((0, 1, 0), (0, 1, 5))
    np.testing.assert_allclose(improved(ramp, [[0.0], [0.5], [0.95]], steps=5), [[0.15], [0.65], [1.0]], rtol=1e-3)


def test_gradient_of_the_whole_batch_is_clipped_as_one():
    # slopes (3, 4) in 4 rows have the norm 10; at a limit of 5e-5 · 2 a row has (3, 4) · 1e-5, comparable with Adam's ε
    moved = improved(critics_of((0, 3, 4, 0)), [[0.0, 0.0]] * 4, action_clip=5e-5)
    np.testing.assert_allclose(moved, [[0.03 * 3 / 4, 0.03 * 4 / 5]] * 4, rtol=1e-4)


def test_gradient_is_of_the_sum_over_the_batch_and_left_alone_below_the_limit():
    small = critics_of((0, 3e-5, 4e-5, 0))
    for limit in (0.1, 0.0):
        moved = improved(small, [[0.0, 0.0]] * 4, action_clip=limit)
        np.testing.assert_allclose(moved, [[0.03 * 3 / 4, 0.03 * 4 / 5]] * 4, rtol=1e-4)


def test_limit_of_a_gradient_by_hand():
    for norm, expected in ((5e-5, [3 / 4, 4 / 5]), (0.0, [1.0, 1.0])):
        optimiser = adam(0.1, max_norm=norm, eps=1e-5)
        step, _ = optimiser.update(f32(3, 4), optimiser.init(f32(0, 0)))
        np.testing.assert_allclose(step, -0.1 * np.array(expected), rtol=1e-4)


def test_networks_learn_with_an_epsilon_of_adam_that_small_gradients_feel():
    # an error of 5e-6 is a gradient of 1e-5, as large as ε: half a step
    before = state_of(critics_of((0, 0, 5e-6), (0, 0, 5e-6)))
    after, _ = update(before, visits(), KEY)
    moved = coefficients(after.critics)[:, 2] - coefficients(before.critics)[:, 2]
    np.testing.assert_allclose(moved, [-LR / 2] * 2, rtol=1e-3)


# pairs of visited and improved actions


def test_newest_action_is_the_improved_one_where_its_origin_still_stands():
    pairs = f32([0.1, 0.9], [0.0, 0.0], [0.5, 0.8])
    action = dipo.newest(pairs, jnp.array([0, 1, 2, 3, 2]), f32([0.1], [0.4], [0.3], [0.5], [0.5]))
    # improved; never improved; overwritten; beyond the last pair, whatever that holds; improved
    np.testing.assert_allclose(action[:, 0], [0.9, 0.4, 0.3, 0.5, 0.8])


def test_a_pair_belongs_to_a_row_only_if_all_of_its_action_does():
    pairs = f32([0.1, 0.2, 0.8, 0.9])
    action = dipo.newest(pairs, jnp.array([0, 0]), f32([0.1, 0.2], [0.1, 0.3]))
    np.testing.assert_allclose(action, [[0.8, 0.9], [0.1, 0.3]])


RAMP = ((0, 1, 0), (0, 1, 0))


def test_update_keeps_improved_actions_at_the_sampled_rows_and_nowhere_else():
    after, metrics = update(state_of(critics_of(*RAMP)), visits(), KEY)
    sampled = rows_of(KEY)
    where = sampled[sampled < PAIRS]
    assert 0 < where.size < sampled.size, "rows beyond the last pair, which are not kept, must be among them"
    np.testing.assert_array_equal(np.flatnonzero(np.any(after.pairs != 0.0, axis=1)), where)
    np.testing.assert_array_equal(after.pairs[where, 0], VISITED[where, 0])
    np.testing.assert_allclose(after.pairs[where, 1], VISITED[where, 0] + 0.09, atol=1e-4)  # three steps of 0.03
    np.testing.assert_allclose(metrics["improvement"], 0.09 * coefficients(after.critics)[0, 1], rtol=1e-3)


def test_improvement_goes_on_from_where_it_stopped_but_anew_where_the_row_was_overwritten():
    where = rows_of(KEY)
    where, overwritten = where[where < PAIRS], where[0]
    pairs = jnp.concatenate([VISITED, VISITED + 0.2], axis=1)[:PAIRS]
    after, _ = update(state_of(critics_of(*RAMP), pairs=pairs.at[overwritten, 0].add(0.5)), visits(), KEY)
    expected = VISITED[:, 0] + 0.29
    expected[overwritten] -= 0.2
    np.testing.assert_allclose(after.pairs[where, 1], expected[where], atol=1e-4)
    np.testing.assert_array_equal(after.pairs[where, 0], VISITED[where, 0])


def test_without_write_back_every_improvement_is_forgotten_but_learned_from():
    before = state_of(critics_of(*RAMP))
    after, metrics = update_forgetful(before, visits(), KEY)
    same, _ = update(before, visits(), KEY)
    np.testing.assert_array_equal(after.pairs, 0.0)
    assert metrics["improvement"] > 0.05
    np.testing.assert_allclose(after.actor.mlp.layers[-1].bias, same.actor.mlp.layers[-1].bias, rtol=1e-6)


# the rest of an update


def test_actor_learns_the_improved_actions_and_not_the_visited_ones():
    # flat critics move nothing: what has been improved to 0.8 before is learned like a visit of 0.8
    flat, replay = critics_of((0, 0, 0), (0, 0, 0)), visits()
    rows = rows_in(replay).copy()
    rows[:PAIRS, 1] = 0.8
    elsewhere = with_rows(replay, rows)
    pairs = jnp.concatenate([VISITED, jnp.full_like(VISITED, 0.8)], axis=1)[:PAIRS]
    cases = ((pairs, replay), (None, elsewhere), (None, replay))
    kept, visited, never = (update(state_of(flat, actor_of(0.0, 0.5), pairs=p), r, KEY)[1] for p, r in cases)
    np.testing.assert_allclose(kept["actor_loss"], visited["actor_loss"], rtol=1e-6)
    assert abs(kept["actor_loss"] - never["actor_loss"]) > 1e-3


def test_critics_without_error_stay_although_actions_climb_them_and_the_actor_learns():
    before = state_of(critics_of(*RAMP))
    after, metrics = update(before, visits(reward=VISITED[:, 0]), KEY)
    np.testing.assert_array_equal(coefficients(after.critics), coefficients(before.critics))
    assert metrics["critic_loss"] == 0.0
    assert metrics["improvement"] > 0.05
    assert np.any(after.actor.mlp.layers[-1].bias != before.actor.mlp.layers[-1].bias)


def test_target_is_the_target_critics_smaller_value_of_the_target_actors_action():
    # the target actor says 1 and the other −1; the target critics say 6 a and 3 a: y = 1 + 0.5 · 3 = 2.5 = Q
    slow = critics_of((0, 6, 0), (0, 3, 0))
    before = state_of(critics_of((0, 0, 2.5), (0, 0, 2.5)), actor_of(1e6), actor_of(-1e6), slow)
    _, metrics = update(before, visits(reward=1.0, discount=0.5), KEY)
    np.testing.assert_allclose(metrics["critic_loss"], 0.0, atol=1e-8)
    np.testing.assert_allclose(metrics["q_mean"], 2.5)


def test_target_networks_take_the_share_tau():
    before = state_of(critics_of((0, 0, 1), (0, 0, 5)), targets=critics_of((0, 0, -3), (0, 0, 9)))
    after, _ = update(before, visits(reward=3.0), KEY)
    expected = 0.75 * coefficients(before.targets) + 0.25 * coefficients(after.critics)
    np.testing.assert_allclose(coefficients(after.targets), expected, rtol=1e-5)
    new, slow = (a.mlp.layers[-1].bias for a in (after.actor, after.target_actor))
    np.testing.assert_allclose(slow, 0.25 * new, rtol=1e-5)  # from 0
    assert np.all(new != 0.0)


def test_target_actor_can_wait_while_the_target_critics_do_not():
    state = state_of(critics_of((0, 0, 1), (0, 0, 5)))
    moves = []
    for i in range(4):
        after, _ = update_forgetful(state, visits(reward=3.0), jax.random.key(i))
        pairs = [(state.target_actor, after.target_actor), (state.targets, after.targets)]
        moves.append([not eqx.tree_equal(old, new) for old, new in pairs])
        state = after
    assert moves == [[True, True], [False, True], [True, True], [False, True]]
