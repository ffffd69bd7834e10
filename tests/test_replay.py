"""The ring against a plain list, sampling against the χ² distribution, and a saved ring put back in place."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replays import replay_of, rows_in, spec_of, stored_of
from scipy import stats

from lsac.replay import ring as rb
from lsac.train.learner import Learner, Sizes
from lsac.types import Agent, EnvSpec, Transition, memoryless

SPEC = spec_of(2, 1)
LAYOUT = rb.layout_of(SPEC)

add = jax.jit(rb.add)


def numbered(first, count):
    """Rows that tell where they come from: every number of row i is i."""
    return np.repeat(np.arange(first, first + count, dtype=np.float32)[:, None], LAYOUT.width, axis=1)


def filled(capacity, size):
    """A ring whose first `size` rows are numbered from 0; the others hold −1."""
    rows = np.full((capacity, LAYOUT.width), -1.0, np.float32)
    rows[:size] = numbered(0, size)
    return replay_of(LAYOUT, rows, size)


# layout


def test_a_row_is_obs_action_reward_discount_next_obs():
    row = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], np.float32)
    t = LAYOUT.unpack(row)
    np.testing.assert_array_equal(t.obs, [1.0, 2.0])
    np.testing.assert_array_equal(t.action, [3.0])
    assert (t.reward, t.discount) == (4.0, 5.0)
    np.testing.assert_array_equal(t.next_obs, [6.0, 7.0])


@pytest.mark.parametrize("spec", [spec_of(1, 1), spec_of(3, 2), spec_of(17, 6)])
def test_pack_undoes_unpack_for_any_leading_axes(spec):
    layout = rb.layout_of(spec)
    rows = np.random.default_rng(0).normal(size=(4, 5, layout.width)).astype(np.float32)
    t = layout.unpack(rows)
    assert layout.width == 2 * spec.obs_dim + spec.action_dim + 2
    assert (t.obs.shape, t.action.shape) == ((4, 5, spec.obs_dim), (4, 5, spec.action_dim))
    assert t.reward.shape == t.discount.shape == (4, 5)
    np.testing.assert_array_equal(layout.pack(Transition(*map(jnp.asarray, t))), rows)


def nbytes_held(replay):
    return sum(array.nbytes for array in rb.stored_of_seeds(replay).values())


def test_nbytes_is_what_the_arrays_of_all_seeds_take():
    assert 3 * rb.nbytes(LAYOUT, 8) == nbytes_held(rb.make(LAYOUT, 8, seeds=3)) > 0


@pytest.mark.parametrize("spec", [spec_of(1, 1), spec_of(17, 6)])
def test_a_transition_of_vectors_takes_four_bytes_a_number_and_one_for_its_flag(spec):
    layout = rb.layout_of(spec)
    numbers = 2 * spec.obs_dim + spec.action_dim + 2
    assert layout.arrays() == {rb.PACKED: rb.Column((numbers,)), rb.FIRST: rb.Column((), "bool")}
    assert rb.nbytes(layout, 1_000) == 1_000 * (4 * numbers + 1)
    assert nbytes_held(rb.make(layout, 1_000)) == 1_000 * (4 * numbers + 1)


# the ring


@pytest.mark.parametrize(("capacity", "chunk"), [(12, 1), (12, 3), (12, 12)])
def test_the_ring_holds_what_a_list_of_the_newest_rows_holds(capacity, chunk):
    replay, history = rb.make(rb.layout_of(SPEC), capacity), []
    for i in range(3 * capacity // chunk + 1):
        rows = numbered(i * chunk, chunk)
        replay = add(replay, stored_of(rows))
        history += list(rows)
        newest = history[-capacity:]
        assert int(replay.size) == len(newest)
        assert int(replay.head) == len(history) % capacity
        expected = {len(history) - 1 - age: row for age, row in enumerate(reversed(newest))}
        for index, row in expected.items():
            np.testing.assert_array_equal(rows_in(replay)[index % capacity], row)


def test_a_chunk_that_does_not_divide_the_capacity_is_refused():
    with pytest.raises(ValueError, match="chunk of 5 transitions does not divide a capacity of 12"):
        rb.add(rb.make(rb.layout_of(SPEC), 12), stored_of(numbered(0, 5)))


# sampling

BATCH = 4_000


@jax.jit
def draw(replay, seeds):
    """[N, BATCH, width] rows of N batches, each with its own key."""
    return jax.vmap(lambda seed: LAYOUT.pack(rb.sample(replay, jax.random.key(seed), BATCH)))(seeds)


def drawn(capacity, size):
    """[10, BATCH] indices, drawn from a ring that is filled up to `size`."""
    return np.asarray(draw(filled(capacity, size), np.arange(10)))[..., 0].astype(int)


def uniformity(index, size):
    """p-value of the χ² test that every row is equally likely."""
    return stats.chisquare(np.bincount(index.ravel(), minlength=size)).pvalue


@pytest.mark.parametrize("size", [1, 48, 64])
def test_samples_are_whole_rows_of_the_filled_part(size):
    rows = np.asarray(draw(filled(64, size), np.arange(10)))
    assert set(rows[..., 0].ravel()) == set(range(size))
    np.testing.assert_array_equal(rows, np.repeat(rows[..., :1], LAYOUT.width, axis=-1))


@pytest.mark.parametrize("size", [48, 64])
def test_sampling_is_uniform(size):
    assert uniformity(drawn(64, size), size) > 1e-3


@pytest.mark.parametrize("biased", ["forgets the newest row", "draws the first row twice as often", "drifts"])
def test_the_uniformity_check_refuses_a_biased_sampler(biased):
    size, u = 64, np.random.default_rng(0).random(10 * BATCH)
    index = {
        "forgets the newest row": (u * (size - 1)).astype(int),
        "draws the first row twice as often": np.maximum((u * (size + 1)).astype(int) - 1, 0),
        "drifts": (u**1.1 * size).astype(int),
    }[biased]
    assert uniformity(index, size) < 1e-6


def test_sampling_is_with_replacement():
    # a row comes back within the first 64 draws unless those are a permutation
    assert all(len(set(batch[:64])) < 55 for batch in drawn(64, 64))


def test_every_key_draws_its_own_batch_and_the_same_key_the_same():
    index = drawn(1024, 1024)
    assert np.array_equal(index, drawn(1024, 1024))
    for i in range(10):
        for j in range(i):
            assert np.mean(index[i] == index[j]) < 0.01  # 1 in 1024 by chance


def test_every_seed_draws_its_own_indices_from_its_own_rows():
    rows = np.stack([numbered(0, 64), numbered(0, 64) + 100.0])
    replays, axes = replay_of(LAYOUT, rows), rb.seed_axes(LAYOUT, stride=1)
    batches = jax.jit(jax.vmap(lambda replay, key: rb.sample(replay, key, 200).reward, in_axes=(axes, 0)))
    first, second = np.asarray(batches(replays, jax.random.split(jax.random.key(0))))
    assert first.max() < 64
    assert second.min() >= 100
    assert np.mean(first == second - 100) < 0.1


# columns of their own

PICTURES = rb.layout_of(EnvSpec(obs_shape=(2,), frame=(4, 4, 3), action_dim=2, gamma=0.9))
"""A layout with small frames."""


def pictures(count, seed=0):
    """Stored transitions [count], random in every column; every fourth is the first of an episode."""
    rng, stored = np.random.default_rng(seed), PICTURES.empty(count)
    for column in PICTURES.views(stored).values():
        column[...] = rng.integers(0, 256, column.shape)
    stored[rb.FIRST][:] = np.arange(count) % 4 == 0
    return stored


def test_frames_are_stored_apart_and_once_and_small_columns_together():
    arrays = PICTURES.arrays()
    assert arrays == {
        rb.PACKED: rb.Column((2 + 2 + 1 + 1 + 2,)),
        rb.FIRST: rb.Column((), "bool"),
        rb.FRAME: rb.Column((4, 4, 3), "uint8"),
    }
    assert PICTURES.fields()["next_obs"] == slice(6, 8)
    assert rb.nbytes(PICTURES, 10) == 10 * (4 * 4 * 3 + 8 * 4 + 1) == nbytes_held(rb.make(PICTURES, 10))


def test_what_is_written_to_a_view_is_stored():
    stored = PICTURES.empty(2, 3)
    views = PICTURES.views(stored)
    views["reward"][1, 2], views[rb.FRAME][0, 1], views[rb.FIRST][0, 0] = 7.0, 200, True
    assert stored[rb.PACKED][1, 2, 4] == 7.0 == stored[rb.PACKED].sum()
    assert (stored[rb.FRAME][0, 1] == 200).all()
    assert stored[rb.FRAME].sum() == 200 * 48
    assert stored[rb.FIRST].sum() == 1


def test_frames_of_every_seed_are_put_back_where_they_were():
    newest = {name: np.stack([x[2:], x[2:]]) for name, x in pictures(9).items()}
    newest[rb.FRAME][1] = 255 - newest[rb.FRAME][1]
    ring = rb.placed(PICTURES, newest, total=9, capacity=6)
    for name, values in newest.items():
        assert ring[name].dtype == values.dtype, name
        for i in range(3, 9):
            np.testing.assert_array_equal(ring[name][:, i % 6], values[:, i - 2], err_msg=name)


# slots


@pytest.mark.parametrize(("capacity", "size"), [(64, 1), (64, 5), (64, 64)])
def test_drawn_slots_are_filled_ones_and_all_of_them(capacity, size):
    index = np.asarray(rb.indices(filled(capacity, size), jax.random.key(0), (3, 500)))
    assert index.shape == (3, 500)
    assert set(index.ravel()) == set(range(size))


def test_after_the_ring_has_wrapped_only_the_newest_transitions_are_reached():
    replay = rb.make(LAYOUT, 12)
    for total in range(4, 44, 4):
        replay = add(replay, stored_of(numbered(total - 4, 4)))
        index = rb.indices(replay, jax.random.key(total), (600,))
        assert set(np.asarray(rb.take(replay, index).reward)) == set(range(max(0, total - 12), total))


def test_flags_stay_with_their_transitions_when_the_ring_wraps():
    flags, replay = np.random.default_rng(0).random(60) < 0.3, rb.make(LAYOUT, 12)
    for total in range(4, 64, 4):
        replay = add(replay, stored_of(numbered(total - 4, 4), flags[total - 4 : total]))
        (every, first), held = rb.everything(replay), np.asarray(rb.filled(replay))
        assert held.sum() == min(total, 12)
        number = np.asarray(every.reward).astype(int)
        np.testing.assert_array_equal(np.asarray(first)[held], flags[number[held]])
        np.testing.assert_array_equal(held, np.arange(12) < total)


# sequences


def episodes(simulators, steps, seed):
    """Stored transitions of simulators in turn, [steps · E], and their flags [steps, E].

    The observation is (simulator, step), the reward the number of the transition. Episodes last one to six steps.
    """
    rng = np.random.default_rng(seed)
    flags = np.zeros((steps, simulators), bool)
    for e in range(simulators):
        t = 0
        while t < steps:
            flags[t, e] = True
            t += rng.integers(1, 7)
    step, simulator = np.divmod(np.arange(steps * simulators), simulators)
    stored = LAYOUT.empty(steps * simulators)
    views = LAYOUT.views(stored)
    views["obs"][:] = np.stack([simulator, step], axis=1)
    views["reward"][:] = np.arange(steps * simulators)
    stored[rb.FIRST][:] = flags.ravel()
    return stored, flags


WINDOWS = [
    *[(1, 24, 12, 1), (1, 24, 12, 5), (1, 8, 12, 5), (3, 8, 24, 4), (3, 19, 24, 4), (2, 25, 10, 5)],
    *[(4, 3, 12, 3), (2, 5, 10, 5), (3, 16, 24, 8)],
]
"""Simulators, steps of each, capacity and length of the windows: rings partly filled, just full and wrapped."""


@pytest.mark.parametrize(("simulators", "steps", "capacity", "length"), WINDOWS)
def test_windows_are_all_stretches_of_successive_steps_of_one_simulator(simulators, steps, capacity, length):
    """Against a list of every stretch of the newest transitions, read off in NumPy."""
    stored, flags = episodes(simulators, steps, seed=simulators + steps)
    replay = rb.make(LAYOUT, capacity, simulators)
    for t in range(steps):  # one step of every simulator at a time
        chunk = slice(t * simulators, (t + 1) * simulators)
        replay = add(replay, {name: x[chunk] for name, x in stored.items()})

    oldest = max(0, steps - capacity // simulators)
    valid = {(e, t) for e in range(simulators) for t in range(oldest, steps - length + 1)}
    found = jax.jit(rb.sequences, static_argnums=(2, 3))(replay, jax.random.key(1), 60 * len(valid), length)
    obs = np.asarray(found.steps.obs).astype(int)
    assert obs.shape == (60 * len(valid), length, 2)
    assert {tuple(start) for start in obs[:, 0]} == valid, "every stretch is drawn, and no other"
    np.testing.assert_array_equal(obs[..., 0], obs[:, :1, 0].repeat(length, axis=1))
    np.testing.assert_array_equal(obs[..., 1], obs[:, :1, 1] + np.arange(length))
    number = obs[..., 1] * simulators + obs[..., 0]
    np.testing.assert_array_equal(found.steps.reward, number)
    np.testing.assert_array_equal(found.first, flags[obs[..., 1], obs[..., 0]])
    over_an_end = np.asarray(found.first)[:, 1:].any()
    assert over_an_end == (length > 1 and flags[oldest + 1 :].any()), "windows go on over the end of an episode"


def test_windows_are_drawn_uniformly():
    stored, _ = episodes(3, 19, seed=0)
    ring = rb.placed(LAYOUT, {name: x[None] for name, x in stored.items()}, total=57, capacity=24)
    replay = rb.holding(LAYOUT, {name: x[0] for name, x in ring.items()}, total=57, stride=3)
    starts = np.asarray(rb.sequences(replay, jax.random.key(0), 20_000, 4).steps.reward)[:, 0].astype(int)
    assert set(starts) == set(range(57 - 24, 57 - 3 * 3))
    assert uniformity(starts - starts.min(), 15) > 1e-3


# the rings of a learner

STILL = Agent(
    init=lambda key: {"weight": jax.random.key_data(key).astype(jnp.float32)},
    policy=lambda state: state,
    act=memoryless(lambda policy, obs, key, explore: jnp.zeros(1)),
    update=lambda state, replay, key: (state, {}),
)
"""An agent that learns nothing: what is tested is the ring around it."""

CAPACITY, CHUNK, SEEDS = 12, 4, [5, 6]


@pytest.fixture(scope="module")
def learner():
    return Learner(STILL, SPEC, SEEDS, Sizes(CAPACITY, CHUNK, 1))


def rows_of_seeds(first, count):
    """[S, count, width]: rows numbered from 1, those of the second seed negative."""
    return np.stack([numbered(first + 1, count), -numbered(first + 1, count)])


def begins(first, count):
    """[S, count]: every fifth transition of the first seed and every third of the second begins an episode."""
    return np.arange(first, first + count)[None] % np.array([[5], [3]]) == 0


def stored_of_both(first, count):
    return stored_of(rows_of_seeds(first, count), begins(first, count))


def assert_ring(learner, total):
    """The learner's rings are those of a run that has stored `total` rows per seed."""
    expected = np.zeros((len(SEEDS), CAPACITY, LAYOUT.width), np.float32)
    flags = np.zeros((len(SEEDS), CAPACITY), bool)
    for i, row in enumerate(np.moveaxis(rows_of_seeds(0, total), 0, 1)):
        expected[:, i % CAPACITY] = row
        flags[:, i % CAPACITY] = begins(i, 1)[:, 0]
    np.testing.assert_array_equal(rows_in(learner.replay), expected)
    np.testing.assert_array_equal(rb.stored_of_seeds(learner.replay)[rb.FIRST], flags)
    assert int(learner.replay.size) == min(total, CAPACITY)
    assert int(learner.replay.head) == total % CAPACITY


def test_every_seed_stores_its_own_rows():
    learner = Learner(STILL, SPEC, SEEDS, Sizes(CAPACITY, CHUNK, 1))
    for total in range(0, 24, CHUNK):
        assert_ring(learner, total)
        learner.store(stored_of_both(total, CHUNK))


@pytest.mark.parametrize("spare", [0, CHUNK], ids=["exact", "with older rows"])
@pytest.mark.parametrize("total", [0, 4, 8, 12, 16, 32])
def test_restore_puts_rows_where_they_were_and_goes_on_from_there(learner, total, spare):
    saved = {name: x[:, max(0, total - CAPACITY - spare) :] for name, x in stored_of_both(0, total).items()}
    learner.restore(learner.state, jax.tree.map(np.asarray, saved), total, updates=total // 2, generated_at=0)
    assert_ring(learner, total)
    assert learner.updates == total // 2
    learner.store(stored_of_both(total, CHUNK))
    assert_ring(learner, total + CHUNK)


def test_restore_brings_back_state_and_policies(learner):
    before = np.asarray(learner.policies)
    state = {"weight": np.arange(4.0, dtype=np.float32).reshape(2, 2)}
    learner.restore(state, stored_of_both(0, CHUNK), CHUNK, updates=0, generated_at=0)
    np.testing.assert_array_equal(learner.state["weight"], state["weight"])
    np.testing.assert_array_equal(learner.policies, state["weight"])
    assert not np.array_equal(learner.policies, before)


@pytest.mark.parametrize("total", [0, 3, 8, 9, 23, 24])
def test_transitions_in_order_are_the_inverse_of_placed(total):
    layout, capacity = rb.layout_of(EnvSpec(obs_shape=(2,), action_dim=1, gamma=0.9)), 8
    newest = layout.empty(2, min(total, capacity))
    newest[rb.PACKED][:] = np.arange(newest[rb.PACKED].size).reshape(newest[rb.PACKED].shape)
    found = rb.in_order(rb.placed(layout, newest, total, capacity), total)
    for name, values in newest.items():
        np.testing.assert_array_equal(found[name], values)
