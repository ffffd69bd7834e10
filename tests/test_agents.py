"""What every algorithm must keep to. One that is listed in `AGENTS` gets all of these tests."""

import dataclasses
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small
from random_keys import uses_a_key_twice
from replays import rows_in, spec_of, stored_of, with_frames

from lsac import streams
from lsac.agents import AGENTS, IMAGES, VECTORS, learns_from
from lsac.collect import snapshot
from lsac.errors import CheckpointError
from lsac.presets import presets
from lsac.replay import ring as rb
from lsac.runs import datafile
from lsac.runs.experiment import check, from_json, to_json
from lsac.train.learner import Learner, Sizes
from lsac.types import Pixels

GAMMA = 0.9
SPEC = spec_of(3, 2, GAMMA)
LAYOUT = rb.layout_of(SPEC)
"""Of vectors, and of the vectors beside images."""
CAPACITY, CHUNK, UPDATES, SIMULATORS = 64, 16, 3, 4
SEEDS = [11, 12]


def transitions(seed, count=CHUNK, discount=GAMMA):
    """[count, width] random rows; one in four is terminal."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, LAYOUT.width)).astype(np.float32)
    where = LAYOUT.fields()
    rows[:, where["action"]] = rng.uniform(-1, 1, size=(count, SPEC.action_dim))
    rows[:, where["discount"]] = np.where(np.arange(count) % 4 == 3, 0.0, discount)[:, None]
    return rows


def begins(rows):
    """[..., N] whether these rows are the first of an episode: those that follow a terminal row of their simulator."""
    ended = np.asarray(LAYOUT.unpack(rows).discount) == 0.0
    return np.concatenate([np.ones_like(ended[..., :SIMULATORS]), ended[..., :-SIMULATORS]], axis=-1)


def ring(rows, on_policy=False, spec=SPEC):
    """A replay that holds these rows, and NaN where nothing has been written; on-policy agents see full ones only."""
    everything = np.full((len(rows) if on_policy else CAPACITY, LAYOUT.width), np.nan, np.float32)
    everything[: len(rows)] = rows
    stored = stored_of(everything, begins(everything))
    return rb.holding(rb.layout_of(spec), with_frames(stored, spec), len(rows), SIMULATORS)


def numpy_leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def same(one, other):
    """Whether two pytrees have the same structure and the same bits."""
    return jax.tree.structure(one) == jax.tree.structure(other) and all(
        a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        for a, b in zip(numpy_leaves(one), numpy_leaves(other), strict=True)
    )


KINDS = [*((name, False) for name in VECTORS), *((name, True) for name in IMAGES)]


@pytest.fixture(scope="module", params=KINDS, ids=[f"{name} from images" if seen else name for name, seen in KINDS])
def case(request):
    """One algorithm, compiled once, with a state that has already learned a little."""
    name, from_images = request.param
    on_policy, spec = small.on_policy(name), small.image_spec(name, SPEC) if from_images else SPEC
    agent = AGENTS[name].make(small.config(name), spec)
    update, init = jax.jit(agent.update), jax.jit(agent.init)
    replay = ring(transitions(0, 2 * CHUNK), on_policy, spec)
    state = init(jax.random.key(0))
    for i in range(UPDATES):
        state, _ = update(state, replay, jax.random.key(i))
    act = jax.jit(jax.vmap(agent.act, in_axes=(None, None, 0, 0, None)), static_argnums=4)
    return SimpleNamespace(
        **{"name": name, "on_policy": on_policy, "agent": agent, "init": init, "update": update, "act": act},
        **{"replay": replay, "state": state, "spec": spec},
        capacity=CHUNK if on_policy else CAPACITY,
        updates=1 if on_policy else UPDATES,  # of a chunk
    )


# the state


def test_state_is_made_of_arrays_only(case):
    leaves = []
    jax.eval_shape(lambda key: leaves.extend(jax.tree.leaves(case.agent.init(key))), jax.random.key(0))
    assert leaves
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)


def test_another_key_initialises_another_state_and_the_same_key_the_same(case):
    one, again, other = (case.init(jax.random.key(seed)) for seed in (1, 1, 2))
    assert same(one, again)
    assert not same(one, other)


def test_update_keeps_structure_shapes_and_types_of_the_state(case):
    after, _ = jax.eval_shape(case.agent.update, case.state, case.replay, jax.random.key(0))
    before = jax.eval_shape(case.agent.init, jax.random.key(0))
    assert jax.tree.structure(after) == jax.tree.structure(before)
    for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(before), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)


def test_observing_keeps_structure_shapes_and_types_of_the_state(case):
    rows = jnp.asarray(transitions(0))
    after = jax.eval_shape(case.agent.observe, case.state, LAYOUT.unpack(rows), jnp.zeros(len(rows), bool))
    assert jax.tree.structure(after) == jax.tree.structure(case.state)
    for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(case.state), strict=True):
        assert (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type)


# the policy

RECURRENT = {"dreamer"}


def test_policy_only_selects(case):
    """Of a state whose leaves are their own names, it consists of some of these names, each in its place."""
    paths, tree = jax.tree.flatten_with_path(case.state)
    arrays = {jax.tree_util.keystr(path): leaf for path, leaf in paths}
    assert len(arrays) == len(paths)
    names = case.agent.policy(jax.tree.unflatten(tree, list(arrays)))
    policy = case.agent.policy(case.state)
    assert 0 < len(jax.tree.leaves(names)) < len(arrays)
    assert set(jax.tree.leaves(names)) <= arrays.keys()
    assert same(jax.tree.map(arrays.get, names), policy)


def test_policy_is_float32_arrays_and_survives_the_way_to_the_simulators(case, tmp_path):
    policy = case.agent.policy(case.state)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(policy))
    length, restore = snapshot.unflatten(case.agent)
    flat = np.asarray(snapshot.flatten(policy))
    assert flat.shape == (length,)
    table = np.memmap(tmp_path / "table", np.float32, "w+", shape=(length,))
    table[:] = flat
    restored = restore(table)
    table[:] = np.nan  # the next snapshot must not reach a policy that is in use
    assert same(restored, policy)


def acted(case, explore, seed, scale=1.0):
    """Actions [64, A] of the policy on random observations, each with its own key."""
    obs = observations(case.spec, scale)
    keys = jax.random.split(jax.random.key(seed), 64)
    return np.asarray(case.act(case.agent.policy(case.state), case.agent.memory(), obs, keys, explore)[0])


def observations(spec, scale=1.0):
    """64 random ones."""
    rng = np.random.default_rng(0)
    vectors = scale * rng.normal(size=(64, spec.obs_dim)).astype(np.float32)
    return vectors if spec.frame is None else Pixels(rng.integers(0, 256, (64, *spec.image_shape), np.uint8), vectors)


@pytest.mark.parametrize("explore", [True, False])
def test_an_agent_without_memory_hands_on_what_it_is_given(case, explore):
    if case.name in RECURRENT:
        assert jax.tree.leaves(case.agent.memory())
        return
    assert jax.tree.leaves(case.agent.memory()) == []
    memory = {"anything": (jnp.arange(3.0), jnp.zeros((), jnp.int32))}
    obs = jax.tree.map(lambda x: jnp.asarray(x[0]), observations(case.spec))
    _, after = case.agent.act(case.agent.policy(case.state), memory, obs, jax.random.key(0), explore)
    assert after is memory


def test_deterministic_action_ignores_the_key_and_sees_the_observation(case):
    action = acted(case, explore=False, seed=0)
    np.testing.assert_array_equal(action, acted(case, explore=False, seed=1))
    assert action.shape == (64, SPEC.action_dim)
    assert np.unique(action, axis=0).shape[0] > 32


def test_exploring_action_uses_the_key(case):
    one, again, other = (acted(case, explore=True, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert np.mean(one != other) > 0.5


@pytest.mark.parametrize("explore", [True, False])
def test_actions_stay_within_plus_minus_one_however_large_the_observation(case, explore):
    """Where densities of stored actions are needed, exploring actions stay as they were drawn; simulators clip them."""
    action = acted(case, explore, seed=2, scale=1e4)
    assert action.dtype == np.float32
    if explore and case.on_policy:
        assert np.isfinite(action).all()
    else:
        assert np.abs(action).max() <= 1.0
    assert np.abs(action).max() > 0.1


# the update


def test_same_key_gives_the_same_bits_and_another_key_another_state(case):
    one, again, other = (case.update(case.state, case.replay, jax.random.key(seed)) for seed in (5, 5, 6))
    assert same(one, again)
    assert not same(one[0], other[0])


def test_metrics_are_finite_scalars(case):
    _, metrics = case.update(case.state, case.replay, jax.random.key(5))
    assert metrics
    for name, value in metrics.items():
        assert value.shape == (), name
        assert np.isfinite(value), name


def test_updates_change_the_policy(case):
    fresh = case.agent.policy(case.init(jax.random.key(0)))
    assert not same(case.agent.policy(case.state), fresh)


def test_update_reads_the_filled_part_of_the_replay_only(case):
    state, _ = case.update(case.state, case.replay, jax.random.key(5))
    assert all(np.isfinite(leaf).all() for leaf in numpy_leaves(state))


def test_nothing_beyond_a_termination_counts(case):
    """Where the discount is 0, the next observation may be anything; where it is not, it matters."""
    futures = {}
    for discount in (0.0, GAMMA):
        rows = transitions(3, 2 * CHUNK, discount)
        garbage = rows.copy()
        garbage[:, LAYOUT.fields()["next_obs"]] = 1e3 * np.random.default_rng(4).normal(size=(2 * CHUNK, SPEC.obs_dim))
        replays = [ring(r, case.on_policy, case.spec) for r in (rows, garbage)]
        futures[discount] = [case.update(case.state, replay, jax.random.key(7))[0] for replay in replays]
    assert same(*futures[0.0])
    assert same(*futures[GAMMA]) == (case.name in RECURRENT), "which take it from the next step"


def test_no_random_key_is_used_twice(case):
    def whole(key):
        init_key, update_key, act_key, refresh_key, generate_key = jax.random.split(key, 5)
        state, metrics = case.agent.update(case.agent.init(init_key), case.replay, update_key)
        policy, memory = case.agent.policy(state), case.agent.memory()
        obs = jax.tree.map(lambda x: jnp.asarray(x[0]), observations(case.spec))
        action, _ = case.agent.act(policy, memory, obs, act_key, True)
        if case.agent.refresh is None:
            return metrics, action
        state, *shown = case.agent.refresh.fit(state, case.replay, refresh_key)
        return metrics, action, shown, case.agent.refresh.generate(state, generate_key)

    def reusing(key):
        return jax.random.normal(key) + jax.random.uniform(key)

    assert uses_a_key_twice(reusing, jax.random.key(0)), "the checker must see what it is asked for"
    assert not uses_a_key_twice(whole, jax.random.key(0))


# all seeds in one program


@pytest.fixture(scope="module")
def trained(case):
    """A learner of two seeds after one chunk that was only stored and three that were learned from."""
    traced = []

    def update(*args):
        traced.append(args)
        return case.agent.update(*args)

    sizes = Sizes(case.capacity, CHUNK, case.updates, SIMULATORS)
    learner = Learner(case.agent._replace(update=update), case.spec, SEEDS, sizes)
    rows = [np.stack([transitions(100 * c + seed) for seed in SEEDS]) for c in range(4)]
    chunks = [with_frames(stored_of(mine, begins(mine)), case.spec) for mine in rows]
    learner.store(chunks[0])
    metrics = [jax.device_get(learner.learn(chunk)) for chunk in chunks[1:]]
    return SimpleNamespace(learner=learner, rows=rows, chunks=chunks, metrics=metrics, traces=len(traced))


def stored(case, state, replay, chunk):
    """State and replay after a chunk was collected."""
    return case.agent.observe(state, replay.layout.transitions(chunk), chunk[rb.FIRST]), rb.add(replay, chunk)


@pytest.fixture(scope="module")
def alone(case, trained):
    """The same training as a plain loop: one seed, one chunk, one update at a time."""
    states, metrics = [], []
    for row, seed in enumerate(SEEDS):
        state, means, count = case.init(streams.root(seed, streams.INIT)), [], 0
        chunks = [{name: x[row] for name, x in chunk.items()} for chunk in trained.chunks]
        replay = rb.make(rb.layout_of(case.spec), case.capacity, SIMULATORS)
        state, replay = stored(case, state, replay, chunks[0])
        for chunk in chunks[1:]:
            (state, replay), lines = stored(case, state, replay, chunk), []
            for _ in range(case.updates):
                key = jax.random.fold_in(streams.root(seed, streams.LEARN), count)
                state, line = case.update(state, replay, key)
                lines.append(jax.device_get(line))
                count += 1
            means.append({name: np.mean([line[name] for line in lines]) for name in lines[0]})
        states.append(jax.device_get(state))
        metrics.append(means)
    return SimpleNamespace(states=states, metrics=metrics)


def test_seeds_side_by_side_equal_seeds_one_by_one(case, trained, alone):
    rounding = 1e-6 if case.spec.frame is None else 1e-5  # sums over an image are long
    for row in range(len(SEEDS)):
        together = [leaf[row] for leaf in numpy_leaves(trained.learner.state)]
        for a, b in zip(together, numpy_leaves(alone.states[row]), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=rounding)
    assert not same(*alone.states)


def test_metrics_of_a_chunk_are_the_means_over_its_updates_for_every_seed(trained, alone):
    for c, metrics in enumerate(trained.metrics):
        for name, values in metrics.items():
            assert values.shape == (len(SEEDS),)
            expected = [alone.metrics[row][c][name] for row in range(len(SEEDS))]
            np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_learner_traces_once_and_counts_its_updates(case, trained):
    assert trained.traces == 1
    assert trained.learner.updates == 3 * case.updates


def test_learning_leaves_the_replay_as_it_was_given(case, trained):
    newest = np.concatenate(trained.rows, axis=1)[:, -case.capacity :]
    flags = np.concatenate([chunk[rb.FIRST] for chunk in trained.chunks], axis=1)[:, -case.capacity :]
    np.testing.assert_array_equal(rows_in(trained.learner.replay), newest)
    np.testing.assert_array_equal(rb.stored_of_seeds(trained.learner.replay)[rb.FIRST], flags)
    assert int(trained.learner.replay.size) == case.capacity


@pytest.mark.slow
def test_frames_in_the_main_memory_give_the_same_updates(case, trained):
    if case.spec.frame is None:
        pytest.skip("this agent sees no frames")
    agent = case.agent._replace(refresh=None)
    learner = Learner(agent, case.spec, SEEDS, Sizes(case.capacity, CHUNK, case.updates, SIMULATORS, True))
    learner.compile(refresh=False)
    learner.store(trained.chunks[0])
    metrics = [jax.device_get(learner.learn(chunk)) for chunk in trained.chunks[1:]]
    assert rb.FRAME not in rb.stored_of_seeds(learner.replay)
    assert same(learner.transitions(), trained.learner.transitions())
    for one, other in zip(*map(numpy_leaves, (metrics, trained.metrics)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)  # two programs may round differently


def test_learner_hands_out_the_policies_of_its_newest_state(case, trained):
    for row in range(len(SEEDS)):
        state = jax.tree.map(lambda leaf, row=row: leaf[row], trained.learner.state)
        np.testing.assert_array_equal(trained.learner.policies[row], snapshot.flatten(case.agent.policy(state)))


# the refresh


def test_refresh_comes_with_its_interval(case, trained):
    every = trained.learner.refresher.schedule.every
    assert (case.agent.refresh is None) == (every == 0)
    assert every == (case.agent.refresh.every if case.agent.refresh else 0)


def test_refresh_repeats_for_the_same_step_and_leaves_a_state_that_learns_on(case, trained):
    if case.agent.refresh is None:
        pytest.skip("this algorithm has none")
    learner = trained.learner
    before = jax.tree.map(np.array, learner.state)
    after = []
    for _ in range(2):
        learner.state = learner.kept()
        state, metrics, sample = learner.refresher.run(learner.state, learner.replay, CAPACITY)
        assert same(learner.kept(), case.agent.refresh.compact(before)), "what a stop in the middle would save"
        after.append(jax.tree.map(np.array, state))
        learner.set_state(before)
    for name, values in metrics.items():
        assert values.shape == (len(SEEDS),), name
        assert np.isfinite(values).all(), name
    assert sample.real.shape[2] == sample.generated.shape[2]
    if case.spec.frame is None:  # otherwise they are features of images
        kept = {row.tobytes() for row in rows_in(learner.replay)[0]}
        assert all(row.tobytes() in kept for row in sample.real[0])
    assert same(*after)
    assert not same(after[0], before)

    learner.set_state(after[0])
    kept = jax.tree.map(np.array, learner.kept())
    assert jax.tree.structure(kept) == jax.tree.structure(learner.like())
    resumed = Learner(case.agent, case.spec, SEEDS, Sizes(CAPACITY, CHUNK, UPDATES, SIMULATORS))
    newest = rb.stored_of_seeds(learner.replay)
    resumed.restore(kept, newest, CAPACITY, learner.updates, generated_at=CAPACITY)
    assert same(resumed.state, after[0]), "what a checkpoint leaves out is made again, to the bit"
    assert resumed.refresher.generated_at == CAPACITY
    seeds = [jax.tree.map(lambda leaf, row=row: jnp.asarray(leaf[row]), after[0]) for row in range(len(SEEDS))]
    assert not same(*seeds)
    state, line = case.update(seeds[0], case.replay, jax.random.key(0))
    assert all(np.isfinite(leaf).all() for leaf in [*numpy_leaves(state), *numpy_leaves(line)])


# checkpoints


def test_checkpoint_restores_every_bit_and_the_future(case, trained, tmp_path):
    state, path = trained.learner.state, tmp_path / "state.safetensors"
    datafile.write(path, datafile.named(state), {"note": 1})
    arrays, record = datafile.read(path)
    restored = datafile.unnamed(arrays, jax.eval_shape(lambda: state), path)
    assert record["note"] == 1
    assert same(restored, state)
    first = [jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), tree) for tree in (state, restored)]
    assert same(*(case.update(one, case.replay, jax.random.key(9)) for one in first))


def test_checkpoint_of_other_sizes_is_refused(case, tmp_path):
    spec = dataclasses.replace(case.spec, action_dim=SPEC.action_dim + 1)
    larger = AGENTS[case.name].make(small.config(case.name), spec)
    like = jax.eval_shape(larger.init, jax.random.key(0))
    with pytest.raises(CheckpointError, match="is expected"):
        datafile.unnamed(datafile.named(case.state), like, tmp_path)


# values

SOFT, DETERMINISTIC = {"lsac", "sac", "redq", "dsact"}, {"td3"}


def test_values_say_with_which_episodes_they_are_compared(case):
    """Soft ones with the entropy of the exploring policy, those of TD3 with deterministic episodes."""
    values = case.agent.values
    assert (values is None) == (case.spec.frame is not None), "diagnostics of values do not read images"
    if values is None:
        return
    assert (values.entropy is not None) == (case.name in SOFT)
    assert values.deterministic == (case.name in DETERMINISTIC)
    if values.entropy is not None:
        np.testing.assert_allclose(values.entropy.alpha(case.state), np.exp(case.state.log_alpha), rtol=1e-6)


@pytest.mark.parametrize("algorithm", sorted(SOFT))
def test_the_entropy_of_an_action_is_that_of_the_action_that_the_same_key_gives(algorithm):
    """By the density of tanh(u), u Gaussian, at the action itself, in float64."""
    agent = AGENTS[algorithm].make(small.config(algorithm), SPEC)
    policy, obs = agent.policy(agent.init(jax.random.key(0))), jnp.array([0.5, -1.0, 2.0])
    keys = jax.random.split(jax.random.key(1), 64)
    action = np.asarray(jax.vmap(lambda key: agent.act(policy, (), obs, key, True)[0])(keys), np.float64)
    found = jax.vmap(lambda key: agent.values.entropy.neg_log_prob(policy, (), obs, key))(keys)
    actor = getattr(policy, "actor", policy)  # of LSAC, whose policy may hold more
    mean, log_std = (np.asarray(x, np.float64) for x in actor(obs))
    z = (np.arctanh(action) - mean) / np.exp(log_std)
    log_prob = -0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi) - np.log(1 - action**2)
    near = np.abs(action).max(axis=1) < 0.999  # beyond, the rounding of the action shows
    assert near.sum() > 40
    np.testing.assert_allclose(found[near], -log_prob.sum(axis=1)[near], rtol=1e-3, atol=1e-3)


# Adam


def moments(algorithm, beta2):
    """Running means of squared gradients after the first update."""
    few = {"epochs": 1, "minibatches": 1, "delay": 1, "adam_beta2": beta2}
    agent = AGENTS[algorithm].make(small.config(algorithm, **few), SPEC)
    replay = ring(transitions(0, 2 * CHUNK), small.on_policy(algorithm))
    state, _ = jax.jit(agent.update)(agent.init(jax.random.key(0)), replay, jax.random.key(1))
    adams = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, optax.ScaleByAdamState))
    return [np.concatenate([x.ravel() for x in numpy_leaves(a.nu)]) for a in adams if hasattr(a, "nu")]


@pytest.mark.parametrize("algorithm", [name for name in VECTORS if hasattr(AGENTS[name].Config(), "adam_beta2")])
def test_every_adam_of_the_networks_takes_its_beta2(algorithm):
    slow, fast = moments(algorithm, 0.99), moments(algorithm, 0.9)
    assert len(slow) == {"sac": 3, "ppo": 1}.get(algorithm, 2)
    assert all(np.any(x > 0) for x in slow)
    for one, ten in zip(slow, fast, strict=True):  # (1 − β₂) g²
        np.testing.assert_allclose(ten, 10 * one, rtol=1e-3)


@pytest.mark.parametrize("algorithm", [name for name in VECTORS if hasattr(AGENTS[name].Config(), "alpha_lr")])
@pytest.mark.parametrize("step", [0.0, 1e-3])
def test_alpha_moves_unless_its_step_size_is_0(algorithm, step):
    agent = AGENTS[algorithm].make(small.config(algorithm, alpha_lr=step, delay=1), SPEC)
    before = agent.init(jax.random.key(0))
    after, _ = jax.jit(agent.update)(before, ring(transitions(0, 2 * CHUNK)), jax.random.key(1))
    assert (after.log_alpha == before.log_alpha) == (step == 0.0)


def program(function, *args):
    return jax.jit(jax.vmap(function)).lower(*(jnp.stack([x, x]) for x in args)).as_text()


def test_no_program_of_an_agent_calls_lapack(case):
    """Several such calls in one program may wait for one another for ever on a CPU with few cores."""
    require_without_lapack(case.agent, case.replay)


def test_no_program_of_lsac_on_spheres_calls_lapack():
    config = small.config("lsac", network="sphere", width=8)
    require_without_lapack(AGENTS["lsac"].make(config, SPEC), ring(transitions(0, 2 * CHUNK)))


def require_without_lapack(agent, replay):
    key = jax.random.key(0)
    assert "lapack" in program(lambda key: jax.nn.initializers.orthogonal()(key, (3, 3)), key), "the word is right"
    assert "lapack" not in program(agent.init, key)
    update = jax.jit(agent.update).lower(jax.eval_shape(agent.init, key), replay, key)
    assert "lapack" not in update.as_text()


# presets


@pytest.mark.parametrize("algorithm", AGENTS)
def test_algorithm_has_a_default_preset(algorithm):
    assert next(iter(presets(algorithm))) == "default"


@pytest.mark.parametrize("algorithm", ["lsac", "sac", "redq", "qsm", "td3", "dsact", "ppo", "trpo", "dipo"])
def test_algorithms_of_the_paper_have_its_settings_and_their_authors(algorithm):
    assert {"paper", "quickstart"} <= set(presets(algorithm))
    assert ("official" in presets(algorithm)) != ("released" in presets(algorithm)), "the authors' own settings"


@pytest.mark.parametrize(("algorithm", "name"), [(a, name) for a in AGENTS for name in presets(a)])
def test_preset_is_valid_survives_its_file_and_makes_a_working_agent(algorithm, name):
    experiment = presets(algorithm)[name]("Pendulum-v1")
    check(experiment)
    spec = SPEC
    if experiment.pixels:
        frame = (experiment.pixels, experiment.pixels, 3)
        spec = dataclasses.replace(SPEC, obs_shape=(0,), frame=frame, frame_stack=experiment.frame_stack)
    assert learns_from(algorithm, "images" if experiment.pixels else "vectors")
    assert isinstance(experiment.agent, AGENTS[algorithm].Config)
    read = from_json(json.loads(json.dumps(to_json(experiment))), "config.json")
    assert (read, read.algorithm) == (experiment, algorithm)
    agent = AGENTS[algorithm].make(experiment.agent, spec)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    capacity = experiment.chunk if experiment.on_policy else CAPACITY
    replay = jax.eval_shape(lambda: rb.make(rb.layout_of(spec), capacity, experiment.num_envs))
    after, metrics = jax.eval_shape(agent.update, state, replay, jax.random.key(0))
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert all(value.shape == () for value in metrics.values())
