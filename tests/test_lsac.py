"""What is special to LSAC: its loss, its chains, its refined and written-back actions, its generated half-batches."""

import dataclasses
import signal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small
import torture
from commands import lsac as command_line
from commands import metrics as lines_of
from interrupted import stopped_and_resumed
from replays import replay_of, rows_in, spec_of
from scipy import stats

from lsac.agents import dsact
from lsac.agents.lsac import agent as lsac
from lsac.agents.lsac import batches, chains, refreshing, synthesis
from lsac.agents.lsac.config import Released
from lsac.nn.distributions import gaussian_return_loss
from lsac.nn.networks import ensemble, gaussian_actor, gaussian_critic, sample_actions
from lsac.presets import lsac as presets
from lsac.replay import ring as rb
from lsac.runs.experiment import Experiment
from lsac.train.loop import Loop

SPEC = spec_of(3, 2, gamma=0.9)
LAYOUT = rb.layout_of(SPEC)
GENERATOR = synthesis.Config(width=16, dim_t=16, blocks=1, train_steps=20, batch_size=16, sampler_steps=3)


def config(**options):
    sizes = {"hidden": (8,), "batch_size": 8, "chains": 3, "synthetic_capacity": 64, "generator": GENERATOR}
    return lsac.Config(**sizes | options)


def replay(seed=0, count=32, discount=0.9):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, LAYOUT.width)).astype(np.float32)
    rows[:, LAYOUT.fields()["action"]] = rng.uniform(-1, 1, size=(count, SPEC.action_dim))
    rows[:, LAYOUT.fields()["discount"]] = discount
    return replay_of(LAYOUT, rows)


def transitions(count=None):
    """The first transitions of a replay."""
    return jax.tree.map(lambda x: x[:count], rb.everything(replay())[0])


def filled(state, seed=1):
    rows = rows_in(replay(seed, state.generated.shape[0]))
    return state._replace(generated=jnp.asarray(rows), share=jnp.float32(0.5))


# The distributional loss


def gradients(mean, std, y_q, y_z, bound=10.0, scale=1.0, eps=0.1):
    arrays = [jnp.asarray([x], jnp.float32) for x in (mean, std, y_q, y_z)]

    def loss(mean, std):
        return gaussian_return_loss(mean, std, *arrays[2:], jnp.float32(bound), jnp.float32(scale), eps)

    return [float(g[0]) for g in jax.grad(loss, argnums=(0, 1))(*arrays[:2])]


def test_return_loss_gradient_is_the_published_one():
    # mean: −ω (y_Q − Q)/(σ² + ε); std: −ω ((y_Z − Q)² − σ²)/(σ³ + ε)
    d_mean, d_std = gradients(mean=1.0, std=2.0, y_q=4.0, y_z=6.0, scale=0.5)
    assert d_mean == pytest.approx(-0.5 * 3.0 / 4.1, rel=1e-6)
    assert d_std == pytest.approx(-0.5 * (25.0 - 4.0) / 8.1, rel=1e-6)


def test_return_loss_bounds_the_sampled_target():
    _, d_std = gradients(mean=1.0, std=2.0, y_q=4.0, y_z=600.0, bound=3.0)
    assert d_std == pytest.approx(-(9.0 - 4.0) / 8.1, rel=1e-6)


def test_std_grows_when_the_target_lies_outside_and_shrinks_inside():
    assert gradients(mean=0.0, std=1.0, y_q=0.0, y_z=2.0)[1] < 0  # descending raises σ
    assert gradients(mean=0.0, std=1.0, y_q=0.0, y_z=0.5)[1] > 0
    assert gradients(mean=0.0, std=1.0, y_q=2.0, y_z=0.0)[0] < 0  # and Q follows y_Q


def test_with_constant_std_the_mean_moves_as_under_squared_error():
    ratios = [gradients(mean=0.3, std=1.5, y_q=y, y_z=0.0)[0] / (0.3 - y) for y in (-2.0, 0.5, 7.0)]
    assert ratios == pytest.approx([ratios[0]] * 3, rel=1e-5)


# Targets


def test_targets_use_the_critic_with_the_smaller_mean_and_their_own_entropy():
    keys = jax.random.split(jax.random.key(0), 3)
    chain = ensemble(lambda k: gaussian_critic(3, 2, (8,), "gelu", k), 2, keys[0])
    actor = gaussian_actor(3, 2, (8,), "gelu", keys[1], (-20.0, 0.5))
    batch = transitions(6)
    y_q, y_z = dsact.return_targets(chain, actor, jnp.float32(0.2), batch, keys[2])
    action_key, return_key = jax.random.split(keys[2])
    action, log_prob = sample_actions(actor, batch.next_obs, action_key)
    mean, std = (np.asarray(x) for x in dsact.returns(chain, batch.next_obs, action))
    z = np.clip(np.asarray(jax.random.normal(return_key, (6,))), -3, 3)
    for b in range(6):
        k = int(np.argmin(mean[:, b]))
        soft = -0.2 * float(log_prob[b])
        r, d = float(batch.reward[b]), float(batch.discount[b])
        assert float(y_q[b]) == pytest.approx(r + d * (mean[k, b] + soft), rel=1e-4, abs=1e-5)
        assert float(y_z[b]) == pytest.approx(r + d * (mean[k, b] + std[k, b] * z[b] + soft), rel=1e-4, abs=1e-5)
    assert len({int(k) for k in np.argmin(mean, axis=0)}) == 2, "the sample must exercise both critics"


# Refinement and write-back


def test_refined_action_is_one_fresh_adam_step_up_the_lower_q():
    chain = ensemble(lambda k: gaussian_critic(3, 2, (8,), "gelu", k), 2, jax.random.key(0))
    batch = transitions(6)._replace(action=jnp.full((6, 2), 0.2))
    moved = chains.refined(chain, batch, 3e-4)
    grads = jax.grad(lambda a: -jnp.sum(dsact.min_mean(chain, batch.obs, a)))(batch.action)
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = optax.adam(3e-4, b1=0.9, b2=0.99).update(grads, optax.adam(3e-4).init(batch.action))
    np.testing.assert_allclose(moved, batch.action + updates, atol=1e-6)
    assert jnp.all(dsact.min_mean(chain, batch.obs, moved) > dsact.min_mean(chain, batch.obs, batch.action))


def test_refined_actions_stay_in_the_box():
    chain = ensemble(lambda k: gaussian_critic(3, 2, (8,), "gelu", k), 2, jax.random.key(0))
    batch = transitions(6)._replace(action=jnp.ones((6, 2)))
    moved = chains.refined(chain, batch, 0.5)
    assert float(jnp.max(jnp.abs(moved))) <= 1.0


@pytest.mark.parametrize("write_back", [True, False])
def test_refined_actions_are_written_back_at_the_sampled_rows_and_only_there(write_back):
    options = config(synthetic_capacity=4_000, action_lr=1e-2, released=Released(no_write_back=not write_back))
    state = filled(lsac.make(options, SPEC).init(jax.random.key(0)))
    batch, moved = batches.batches(options, state, replay(), jax.random.key(1))
    everything = jnp.arange(options.synthetic_capacity)
    before = batches.synthetic_rows(LAYOUT, state, everything).action
    after = batches.synthetic_rows(LAYOUT, state._replace(moved=moved), everything).action
    changed = np.asarray(after)[np.asarray(after != before).any(axis=1)]
    drawn = np.asarray(batch.action[:, options.batch_size // 2 :]).reshape(-1, 2)
    assert len(np.unique(drawn, axis=0)) == 12  # of 4 000 rows: all different
    if write_back:
        np.testing.assert_allclose(np.unique(changed, axis=0), np.unique(drawn, axis=0), atol=1e-6)
    else:
        assert not len(changed)


def test_without_the_action_gradient_generated_actions_stay_as_they_were_made():
    options = config(synthetic_capacity=4_000, action_gradient=False, action_lr=0.3)
    state = filled(lsac.make(options, SPEC).init(jax.random.key(0)))
    batch, moved = batches.batches(options, state, replay(), jax.random.key(1))
    assert not np.asarray(moved).any()
    made = {row.tobytes() for row in np.asarray(batches.synthetic_rows(LAYOUT, state, jnp.arange(4_000)).action)}
    used = np.asarray(batch.action[:, options.batch_size // 2 :]).reshape(-1, 2)
    assert all(row.tobytes() in made for row in used)


def test_refinements_of_an_action_add_up():
    options = config(synthetic_capacity=3, batch_size=2, action_lr=1e-2)
    state = filled(lsac.make(options, SPEC).init(jax.random.key(0)))
    before = batches.synthetic_rows(LAYOUT, state, jnp.arange(3)).action
    for i in range(5):
        _, moved = batches.batches(options, state, replay(), jax.random.key(i))
        state = state._replace(moved=moved)
    after = batches.synthetic_rows(LAYOUT, state, jnp.arange(3)).action
    assert float(jnp.max(jnp.abs(after))) <= 1.0
    steps = np.abs(np.asarray(after - before)) / options.action_lr
    free = (np.abs(np.asarray(before)) < 0.9) & (np.asarray(jnp.abs(after)) < 1.0)
    assert free.sum() >= 3
    np.testing.assert_allclose(steps[free] % 2, 1, atol=0.02)  # five steps up or down, each of one length


def test_refinement_does_not_reach_the_critics():
    """Critics after an update are the same whether or not the generated half was refined by a vanishing step."""
    states = []
    for refine in (True, False):
        agent = lsac.make(config(action_gradient=refine, action_lr=0.0), SPEC)
        state = filled(agent.init(jax.random.key(0)))
        states.append(jax.jit(agent.update)(state, replay(), jax.random.key(1))[0])
    for one, other in zip(*(jax.tree.leaves(s.chains.critics) for s in states), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_published_q_ascent_raises_q():
    values = []
    for ascent in (True, False):
        released = Released(q_ascent=ascent)
        agent = lsac.make(config(released=released, synthetic=False, inverse_temperature=1e16), SPEC)
        update, state = jax.jit(agent.update), agent.init(jax.random.key(0))
        for i in range(20):
            state, metrics = update(state, replay(), jax.random.key(i))
        values.append(float(metrics["q_mean"]))
    assert values[0] > values[1] + 0.05


# Batches and chains


def test_batches_are_all_real_until_the_generator_has_run():
    options = config()
    state = lsac.make(options, SPEC).init(jax.random.key(0))
    marked = state._replace(generated=jnp.full_like(state.generated, 7.0))
    batch, _ = batches.batches(options, marked, replay(), jax.random.key(1))
    assert not jnp.any(batch.reward == 7.0)
    batch, _ = batches.batches(options, marked._replace(share=jnp.float32(0.5)), replay(), jax.random.key(1))
    assert jnp.all(batch.reward[:, 4:] == 7.0)
    assert not jnp.any(batch.reward[:, :4] == 7.0)


@pytest.mark.parametrize(
    ("size", "share", "count"),
    [(8, 0.0, 0), (8, 0.1, 1), (8, 0.25, 2), (8, 0.4, 3), (8, 0.5, 4), (7, 0.5, 3), (2, 0.5, 1), (256, 0.123, 31)],
)
def test_a_share_of_a_batch_is_generated(size, share, count):
    rows = np.asarray(batches.is_generated(config(batch_size=size), jnp.float32(share)))
    np.testing.assert_array_equal(
        rows, (np.arange(size) >= size - size // 2) & (np.arange(size) < size - size // 2 + count)
    )
    assert not np.asarray(batches.is_generated(config(synthetic=False, batch_size=size), jnp.float32(share))).any()


def test_the_rest_of_a_batch_is_real_and_its_refined_actions_are_not_written_back():
    options = config(synthetic_capacity=4_000, action_lr=1e-2)
    state = filled(lsac.make(options, SPEC).init(jax.random.key(0)))
    whole, moved = batches.batches(options, state, replay(), jax.random.key(1))
    part, moved_less = batches.batches(options, state._replace(share=jnp.float32(0.25)), replay(), jax.random.key(1))
    none, unmoved = batches.batches(options, state._replace(share=jnp.float32(0.0)), replay(), jax.random.key(1))
    for all_of_it, some, nothing in zip(whole, part, none, strict=True):
        np.testing.assert_array_equal(some[:, :6], all_of_it[:, :6])
        np.testing.assert_array_equal(some[:, 6:], nothing[:, 6:])
        np.testing.assert_array_equal(some[:, :4], nothing[:, :4])
    held = {row.tobytes() for row in np.asarray(transitions().obs)}
    assert {row.tobytes() for row in np.asarray(none.obs).reshape(-1, 3)} <= held
    moves = [{row.tobytes() for row in np.asarray(x) if row.any()} for x in (moved, moved_less, unmoved)]
    assert [int(np.count_nonzero(np.asarray(x).any(axis=1))) for x in (moved, moved_less, unmoved)] == [12, 6, 0]
    assert moves[2] <= moves[1] <= moves[0]


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5])
def test_errors_of_real_and_generated_transitions_are_told_apart(share):
    """Generated transitions pay 1 000 and end there; the errors of real ones are near 1."""
    agent, state = lsac.make(config(), SPEC), filled(lsac.make(config(), SPEC).init(jax.random.key(0)))
    where, rows = LAYOUT.fields(), np.array(state.generated)
    rows[:, where["reward"]], rows[:, where["discount"]] = 1_000.0, 0.0
    state = state._replace(generated=jnp.asarray(rows), share=jnp.float32(share))
    _, metrics = jax.jit(agent.update)(state, replay(), jax.random.key(1))
    assert 0.0 < float(metrics["critic_loss"]) < 10.0
    assert float(metrics["critic_loss_synthetic"]) == pytest.approx(1e6 if share else 0.0, rel=0.01)


def all_alike(state):
    """Every critic and target the same as the first."""
    same = lambda tree: jax.tree.map(lambda x: jnp.broadcast_to(x[:1, :1], x.shape), tree)  # noqa: E731
    critics, targets = same((state.chains.critics, state.chains.targets))
    return state._replace(chains=state.chains._replace(critics=critics, targets=targets))


def test_no_two_chains_touch_the_same_generated_row_and_all_rows_are_reached():
    """Of 66 rows three chains get 22 each; which 22 changes from update to update."""
    options = config(synthetic_capacity=66)
    index = np.stack([batches.synthetic_index(options, 66, jax.random.key(i)) for i in range(300)])
    shares = index // 22
    assert (shares == shares[:, :, :1]).all(), "a chain stays within one share"
    assert (np.sort(shares[:, :, 0], axis=1) == [0, 1, 2]).all(), "and no other chain is there"
    for chain in range(3):
        counts = np.bincount(index[:, chain].reshape(-1), minlength=66)
        assert counts.min() > 0
        assert stats.chisquare(counts).pvalue > 1e-4


def test_every_chain_has_its_own_start_and_its_own_batch():
    agent = lsac.make(config(synthetic=False, inverse_temperature=1e30), SPEC)
    state = agent.init(jax.random.key(0))
    weights = np.asarray(state.chains.critics.mlp.layers[0].weight)
    assert len(np.unique(weights.reshape(6, -1)[:, 0])) == 6
    after, _ = jax.jit(agent.update)(all_alike(state), replay(), jax.random.key(1))
    moved = np.asarray(after.chains.critics.mlp.layers[0].weight)
    assert not np.allclose(moved[0, 0], moved[1, 0], atol=1e-7), "chains saw the same batch"
    np.testing.assert_allclose(moved[0, 0], moved[0, 1], atol=1e-6)  # critics of one chain share theirs


def test_chains_at_high_temperature_spread_more():
    """Their batches spread them too, about as far as the noise does at β = 10, so it has to be hotter than that."""
    spread = []
    for beta in (1e12, 1e-1):
        agent = lsac.make(config(synthetic=False, inverse_temperature=beta), SPEC)
        state = agent.init(jax.random.key(0))
        state, update = all_alike(state), jax.jit(agent.update)
        for i in range(10):
            state, _ = update(state, replay(), jax.random.key(i))
        batch = transitions()
        q = jax.vmap(lambda chain, b=batch: dsact.min_mean(chain, b.obs, b.action))(state.chains.critics)
        spread.append(float(jnp.mean(jnp.std(q, axis=0))))
    assert spread[1] > 3 * spread[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_noise_of_a_step_is_not_rounded_away(dtype):
    """Two updates that differ in temperature alone differ by the noise: bfloat16 weights would swallow it."""

    def critics(beta):
        options = config(synthetic=False, hidden=(64, 64), inverse_temperature=beta, compute_dtype=dtype)
        agent = lsac.make(options, SPEC)
        return agent.update(agent.init(jax.random.key(0)), replay(), jax.random.key(1))[0].chains.critics

    with_noise, without = jax.jit(lambda: (critics(1e8), critics(1e30)))()
    noise = np.concatenate([np.ravel(x) for x in jax.tree.leaves(jax.tree.map(jnp.subtract, with_noise, without))])
    assert np.std(noise) == pytest.approx(np.sqrt(2 * 1e-3 / 1e8), rel=0.02)
    assert np.mean(noise != 0) > 0.99


@pytest.mark.parametrize("slow", [False, True])
def test_updates_of_the_actor_may_be_rounded_but_not_its_acting(slow):
    options = config(synthetic=False, hidden=(16, 16), compute_dtype="bfloat16", slow_evaluation=slow)
    agent = lsac.make(options, SPEC)
    state = agent.init(jax.random.key(0))
    policy = agent.policy(state)
    assert state.actor.mlp.compute_dtype == state.target_actor.mlp.compute_dtype == "bfloat16"
    assert policy.actor.mlp.compute_dtype == "float32"
    assert policy.slow is None or policy.slow.mlp.compute_dtype == "float32"


@pytest.mark.parametrize(
    ("which", "expected"), [("uniform", {0, 1, 5}), ("argmax", {5}), ("mean", {2}), ("overflow", {1})]
)
def test_the_actor_follows_the_chain_it_was_told_to(which, expected):
    options = config(actor_chain=which, synthetic=False)
    state = lsac.make(options, SPEC).init(jax.random.key(0))
    by = jnp.asarray([0.0, 100.0, 500.0])[:, None, None] * jnp.asarray([1.0, 0.0])[None, None]
    bias = lambda s: s.chains.critics.mlp.layers[-1].bias  # noqa: E731
    state = eqx.tree_at(bias, state, bias(state) + by)
    batch, _ = batches.batches(options, state, replay(), jax.random.key(1))
    seen = set()
    for seed in range(12):
        critics, obs = lsac.followed(options, state.chains.critics, batch, jax.random.key(seed))
        q = jax.vmap(lambda chain, obs=obs: dsact.min_mean(chain, obs, jnp.zeros((8, 2))))(critics)
        seen.add(round(float(jnp.mean(q)) / 100))
    assert seen == expected


# The generator


def test_refresh_fits_the_generator_and_refills_the_buffer():
    agent = lsac.make(config(), SPEC)
    state = agent.init(jax.random.key(0))
    used = state._replace(moved=jnp.ones_like(state.moved).at[:, 0].set(-0.5))
    fitted, metrics, _ = jax.jit(agent.refresh.fit)(used, replay(), jax.random.key(1))
    assert fitted.generated is None
    after, shown = jax.jit(agent.refresh.generate)(fitted, jax.random.key(2))
    assert float(after.share) == 0.5
    assert not np.asarray(after.moved).any()
    np.testing.assert_array_equal(LAYOUT.pack(shown), after.generated[: refreshing.SHOWN])
    assert float(metrics["diffusion_loss"]) > 0
    assert float(metrics["action_moved"]) == 0.75
    assert float(metrics["synthetic_share"]) == 0.5
    rows = LAYOUT.unpack(after.generated)
    assert len(np.unique(np.asarray(rows.obs)[:, 0])) == 64
    assert float(jnp.max(jnp.abs(rows.action))) <= 1.0
    assert set(np.unique(np.asarray(rows.discount)).round(6)) <= {0.0, np.float32(0.9).round(6)}
    np.testing.assert_array_equal(after.chains.critics.mlp.layers[0].weight, state.chains.critics.mlp.layers[0].weight)


@pytest.mark.parametrize(
    ("error", "share"),
    [(0.0, 0.5), (0.5, 0.5), (0.6, 0.4), (0.75, 0.25), (1.0, 0.0), (17.6, 0.0), (np.inf, 0.0), (np.nan, 0.5)],
)
def test_the_generated_share_falls_with_the_dynamics_error(error, share):
    agent = lsac.make(config(), SPEC)
    state = agent.init(jax.random.key(0))
    after, metrics = agent.refresh.judge(state, jnp.float32(error))
    assert float(after.share) == float(metrics["synthetic_share"]) == pytest.approx(share)
    np.testing.assert_array_equal(after.generated, state.generated)
    assert lsac.make(config(adaptive_share=False), SPEC).refresh.judge is None


def test_the_presets_of_the_paper_and_its_code_do_not_judge_the_generator():
    assert presets.default("Hopper-v5").agent.adaptive_share
    assert not presets.paper("Hopper-v5").agent.adaptive_share
    assert not presets.released("Hopper-v5").agent.adaptive_share


@pytest.mark.slow
def test_a_run_is_resumed_with_the_share_that_the_simulator_has_shown(tmp_path, monkeypatch):
    """A generator after 20 steps makes nonsense, so that no transition is generated after the refresh at step 48."""
    options = small.flags("lsac", seeds=1, steps=96, log_every=16, checkpoint_every=32, eval_every=0, refresh_every=48)
    command, alone, folder = ("train", "lsac", "--env", "Hopper-v5", *options, "--out"), tmp_path / "a", tmp_path / "b"
    assert command_line(*command, alone).code == 0
    lines = {line["step"]: line for line in lines_of(alone)}
    assert lines[48]["train/dynamics_error"] > 1.0
    assert lines[48]["train/synthetic_share"] == lines[96]["train/critic_loss_synthetic"] == 0.0

    receive, chunks = Loop._receive, []

    def interrupt(self):
        receive(self)
        chunks.append(self.step)
        if self.step == 64 and chunks.count(64) == 1:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Loop, "_receive", interrupt)
    assert command_line(*command, folder).code == 75
    assert command_line("resume", folder).code == 0
    assert torture.fingerprint(folder) == torture.fingerprint(alone)


def test_without_synthetic_data_there_is_no_generator():
    agent = lsac.make(config(synthetic=False), SPEC)
    state = agent.init(jax.random.key(0))
    assert agent.refresh is None
    assert state.generator is None
    assert state.generated.shape[0] == 0


# Ablations and accidents


@pytest.mark.parametrize(
    "options",
    [
        {"distributional": False, "sampler": "adam"},
        {"sampler": "underdamped", "critics_per_chain": 1},
        {"exchange_every": 2, "ladder_ratio": 10.0},
    ],
    ids=str,
)
def test_variants_learn_a_fixed_batch(options):
    """Updates towards rewards alone (discount 0) bring the error down."""
    agent = lsac.make(config(synthetic=False, critic_lr=3e-2, **options), SPEC)
    update, state = jax.jit(agent.update), agent.init(jax.random.key(0))
    data, errors = replay(discount=0.0), []
    for i in range(300):
        state, metrics = update(state, data, jax.random.key(i))
        errors.append(float(metrics["critic_loss"]))
    assert np.isfinite(errors).all()
    assert np.mean(errors[-20:]) < 0.8 * np.mean(errors[:20])


def test_published_std_head_is_not_trained():
    agent = lsac.make(config(released=Released(std_without_gradient=True), inverse_temperature=1e30), SPEC)
    state = agent.init(jax.random.key(0))
    after, _ = jax.jit(agent.update)(state, replay(), jax.random.key(1))
    weight = lambda s: np.asarray(s.chains.critics.mlp.layers[-1].weight)[..., 1, :]  # noqa: E731
    np.testing.assert_array_equal(weight(after), weight(state))
    trained = lsac.make(config(inverse_temperature=1e30), SPEC)
    after, _ = jax.jit(trained.update)(state, replay(), jax.random.key(1))
    assert not np.allclose(weight(after), weight(state))


def test_published_delay_moves_the_actor_at_every_second_update():
    agent = lsac.make(config(synthetic=False, released=Released(delay=2)), SPEC)
    update, states = jax.jit(agent.update), [agent.init(jax.random.key(0))]
    for i in range(2):
        states.append(update(states[-1], replay(), jax.random.key(i))[0])
    weights = [np.asarray(s.actor.mlp.layers[0].weight) for s in states]
    assert not np.array_equal(weights[0], weights[1])
    np.testing.assert_array_equal(weights[1], weights[2])
    weights = [state.chains.critics.mlp.layers[0].weight for state in states]
    assert not np.array_equal(weights[1], weights[2])


def test_values_are_the_mean_over_chains_of_the_lower_critic():
    agent = lsac.make(config(synthetic=False), SPEC)
    state = agent.init(jax.random.key(0))
    obs, action = jnp.ones(3), jnp.zeros(2)
    values = agent.values.value(agent.values.critics(state), obs, action)
    by_hand = [
        min(float(jax.tree.map(lambda x, c=c, k=k: x[c, k], state.chains.critics)(obs, action)[0]) for k in range(2))
        for c in range(3)
    ]
    assert float(values["q"]) == pytest.approx(np.mean(by_hand), rel=1e-5)
    assert float(values["q_spread"]) == pytest.approx(np.std(by_hand), rel=1e-4)


def test_diagnostics_of_the_sampler_by_hand():
    """At update 8 of 10 the annealed η is 0.4; half of the weights have v = 3e-4 < λ = 1e-3, the others 4e-3."""
    options = config(
        synthetic=False,
        **{"critic_lr": 1.0, "critic_lr_end": 0.0, "anneal_from": 5, "anneal_to": 10, "bias_factor": 0.5},
        **{"moment_eps": 1e-3, "inverse_temperature": 20.0},
    )
    agent = lsac.make(options, SPEC)
    state = agent.init(jax.random.key(0))

    def halves(low, high):
        """The value `low` in the first half of each critic's weights, `high` in the others."""
        critics = state.chains.critics
        flat = jax.vmap(jax.vmap(lambda tree: jax.flatten_util.ravel_pytree(tree)[0]))(critics)
        _, restore = jax.flatten_util.ravel_pytree(jax.tree.map(lambda x: x[0, 0], critics))
        first = np.arange(flat.shape[2]) < flat.shape[2] / 2
        return jax.vmap(jax.vmap(restore))(jnp.broadcast_to(jnp.where(first, low, high), flat.shape))

    memory = (halves(0.1, -0.2), halves(3e-4, 4e-3))
    sampler = state.chains.sampler._replace(step=jnp.full((3, 2), 8), memory=memory)
    state = state._replace(chains=state.chains._replace(sampler=sampler))
    numbers = jax.jit(agent.diagnostics)(state)
    size = 5 * 8 + 8 + 8 * 2 + 2
    low = -(-size // 2) / size  # the share of the first half
    drift = (0.4 * 0.5) ** 2 * (low * 0.1**2 / 1.3e-3 + (1 - low) * 0.2**2 / 5e-3)
    assert float(numbers["below_floor"]) == pytest.approx(low)
    assert float(numbers["noise_share"]) == pytest.approx(2 * 0.4 / 20 / (2 * 0.4 / 20 + drift), rel=1e-4)
    assert lsac.make(config(sampler="sgld"), SPEC).diagnostics(state) == {}
    changing = lsac.make(dataclasses.replace(options, temperature=2.0), SPEC).diagnostics(state)
    assert changing == {"below_floor": pytest.approx(low)}, "β depends on the replay, which is not known here"


def test_the_twin_gap_is_the_mean_over_chains_of_the_difference_between_their_two_critics():
    agent = lsac.make(config(synthetic=False), SPEC)
    state = agent.init(jax.random.key(0))
    obs, action = jnp.ones(3), jnp.zeros(2)
    found = agent.values.value(agent.values.critics(state), obs, action)
    q = [
        [jax.tree.map(lambda x, c=c, k=k: x[c, k], state.chains.critics)(obs, action)[0] for k in (0, 1)]
        for c in range(3)
    ]
    assert float(found["twin_gap"]) == pytest.approx(np.mean([abs(one - other) for one, other in q]), rel=1e-5)
    alone = lsac.make(config(synthetic=False, critics_per_chain=1), SPEC)
    critics = alone.values.critics(alone.init(jax.random.key(0)))
    assert "twin_gap" not in alone.values.value(critics, obs, action)


@pytest.mark.slow
def test_a_run_whose_refreshes_become_rarer_is_stopped_and_resumed(tmp_path):
    """Half of 64 steps are 32, so the refresh after the fourth is at 96; the run is stopped between the two."""
    config = small.config("lsac", refresh_every=16, refresh_growth=0.5)
    sizes = small.OFF_POLICY | {"seeds": 2, "steps": 112, "log_every": 8, "eval_every": 0, "workers": 1}
    experiment = Experiment(config, "Pendulum-v1", **sizes, checkpoint_every=32)
    stopped_and_resumed(experiment, 80, tmp_path / "alone", tmp_path / "stopped")
    for name in ("alone", "stopped"):
        refreshed = {line["step"] for line in lines_of(tmp_path / name) if "time/refresh_seconds" in line}
        assert refreshed == {16, 32, 48, 64, 96}
