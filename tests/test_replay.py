"""The ring against a plain list, sampling against the χ² distribution, and a saved ring put back in place."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from lsac.replay import ring as rb
from lsac.train.learner import Learner
from lsac.types import Agent, EnvSpec, Transition

SPEC = EnvSpec(obs_dim=2, action_dim=1)
LAYOUT = rb.Layout(*SPEC)

add = jax.jit(rb.add)


def numbered(first, count):
    """Rows that tell where they come from: every number of row i is i."""
    return np.repeat(np.arange(first, first + count, dtype=np.float32)[:, None], LAYOUT.width, axis=1)


def filled(capacity, size):
    """A ring whose first `size` rows are numbered from 0; the others hold −1."""
    rows = np.full((capacity, LAYOUT.width), -1.0, np.float32)
    rows[:size] = numbered(0, size)
    return rb.Replay(jnp.asarray(rows), jnp.int32(size), jnp.int32(size % capacity), LAYOUT)


# layout


def test_a_row_is_obs_action_reward_discount_next_obs():
    row = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], np.float32)
    t = LAYOUT.unpack(row)
    np.testing.assert_array_equal(t.obs, [1.0, 2.0])
    np.testing.assert_array_equal(t.action, [3.0])
    assert (t.reward, t.discount) == (4.0, 5.0)
    np.testing.assert_array_equal(t.next_obs, [6.0, 7.0])


@pytest.mark.parametrize("spec", [EnvSpec(1, 1), EnvSpec(3, 2), EnvSpec(17, 6)])
def test_pack_undoes_unpack_for_any_leading_axes(spec):
    layout = rb.Layout(*spec)
    rows = np.random.default_rng(0).normal(size=(4, 5, layout.width)).astype(np.float32)
    t = layout.unpack(rows)
    assert layout.width == 2 * spec.obs_dim + spec.action_dim + 2
    assert (t.obs.shape, t.action.shape) == ((4, 5, spec.obs_dim), (4, 5, spec.action_dim))
    assert t.reward.shape == t.discount.shape == (4, 5)
    np.testing.assert_array_equal(layout.pack(Transition(*map(jnp.asarray, t))), rows)


def test_nbytes_is_what_the_rows_of_all_seeds_take():
    assert rb.nbytes(SPEC, 8, seeds=3) == 3 * rb.make(SPEC, 8).rows.nbytes


# the ring


@pytest.mark.parametrize(("capacity", "chunk"), [(12, 1), (12, 3), (12, 12)])
def test_the_ring_holds_what_a_list_of_the_newest_rows_holds(capacity, chunk):
    replay, history = rb.make(SPEC, capacity), []
    for i in range(3 * capacity // chunk + 1):
        rows = numbered(i * chunk, chunk)
        replay = add(replay, rows)
        history += list(rows)
        newest = history[-capacity:]
        assert int(replay.size) == len(newest)
        assert int(replay.head) == len(history) % capacity
        expected = {len(history) - 1 - age: row for age, row in enumerate(reversed(newest))}
        for index, row in expected.items():
            np.testing.assert_array_equal(replay.rows[index % capacity], row)


def test_a_chunk_that_does_not_divide_the_capacity_is_refused():
    with pytest.raises(ValueError, match="chunk of 5 rows does not divide a capacity of 12"):
        rb.add(rb.make(SPEC, 12), numbered(0, 5))


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
    rows = np.stack([filled(64, 64).rows, filled(64, 64).rows + 100.0])
    replays = rb.Replay(jnp.asarray(rows), jnp.int32(64), jnp.int32(0), LAYOUT)
    axes = rb.Replay(0, None, None, LAYOUT)
    batches = jax.jit(jax.vmap(lambda replay, key: rb.sample(replay, key, 200).reward, in_axes=(axes, 0)))
    first, second = np.asarray(batches(replays, jax.random.split(jax.random.key(0))))
    assert first.max() < 64
    assert second.min() >= 100
    assert np.mean(first == second - 100) < 0.1


# the rings of a learner

STILL = Agent(
    init=lambda key: {"weight": jax.random.key_data(key).astype(jnp.float32)},
    policy=lambda state: state,
    act=lambda policy, obs, key, explore: jnp.zeros(1),
    update=lambda state, replay, key: (state, {}),
)
"""An agent that learns nothing: what is tested is the ring around it."""

CAPACITY, CHUNK, SEEDS = 12, 4, [5, 6]


@pytest.fixture(scope="module")
def learner():
    return Learner(STILL, SPEC, SEEDS, CAPACITY, CHUNK, 1)


def rows_of_seeds(first, count):
    """[S, count, width]: rows numbered from 1, those of the second seed negative."""
    return np.stack([numbered(first + 1, count), -numbered(first + 1, count)])


def assert_ring(learner, total):
    """The learner's rings are those of a run that has stored `total` rows per seed."""
    expected = np.zeros((len(SEEDS), CAPACITY, LAYOUT.width), np.float32)
    for i, row in enumerate(np.moveaxis(rows_of_seeds(0, total), 0, 1)):
        expected[:, i % CAPACITY] = row
    np.testing.assert_array_equal(learner.replay.rows, expected)
    assert int(learner.replay.size) == min(total, CAPACITY)
    assert int(learner.replay.head) == total % CAPACITY


def test_every_seed_stores_its_own_rows():
    learner = Learner(STILL, SPEC, SEEDS, CAPACITY, CHUNK, 1)
    for total in range(0, 24, CHUNK):
        assert_ring(learner, total)
        learner.store(rows_of_seeds(total, CHUNK))


@pytest.mark.parametrize("spare", [0, CHUNK], ids=["exact", "with older rows"])
@pytest.mark.parametrize("total", [0, 4, 8, 12, 16, 32])
def test_restore_puts_rows_where_they_were_and_goes_on_from_there(learner, total, spare):
    saved = rows_of_seeds(0, total)[:, max(0, total - CAPACITY - spare) :]
    learner.restore(learner.state, saved, total, updates=total // 2)
    assert_ring(learner, total)
    assert learner.updates == total // 2
    learner.store(rows_of_seeds(total, CHUNK))
    assert_ring(learner, total + CHUNK)


def test_restore_brings_back_state_and_policies(learner):
    before = np.asarray(learner.policies)
    state = {"weight": np.arange(4.0, dtype=np.float32).reshape(2, 2)}
    learner.restore(state, rows_of_seeds(0, CHUNK), CHUNK, updates=0)
    np.testing.assert_array_equal(learner.state["weight"], state["weight"])
    np.testing.assert_array_equal(learner.policies, state["weight"])
    assert not np.array_equal(learner.policies, before)
