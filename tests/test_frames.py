"""Images and n-step returns from a ring that stores every frame once, against lists of whole episodes."""

import itertools
from typing import NamedTuple

import jax
import numpy as np
import pytest

from lsac.replay import ring as rb
from lsac.types import EnvSpec

GAMMA = 0.5


class Move(NamedTuple):
    """One step as the simulator saw it: numbers of the frames before and after it, all different."""

    episode: list[int]
    """the frames of the episode up to the one before the step"""
    after: int
    reward: float
    discount: float
    last: bool


def played(steps, simulators, seed, truncates):
    """[steps][simulators] moves of random episodes of one to five steps, whose frames are numbered."""
    rng, frame = np.random.default_rng(seed), iter(range(1, 10**6))
    running = [[next(frame)] for _ in range(simulators)]
    lengths = rng.integers(1, 6, simulators)
    table = []
    for _ in range(steps):
        row = []
        for i in range(simulators):
            last = len(running[i]) == lengths[i]
            ended = last and not (truncates and rng.random() < 0.5)
            after = next(frame)
            row.append(Move(list(running[i]), after, float(rng.normal()), 0.0 if ended else GAMMA, last))
            running[i].append(after)
            if last:
                running[i], lengths[i] = [next(frame)], rng.integers(1, 6)
        table.append(row)
    return table


def image_of(number):
    """A frame [1, 2, 1] that tells its number."""
    return np.array([[[number // 256], [number % 256]]], np.uint8)


def numbers_in(images):
    """[..., k] the numbers of the frames of images [..., 1, 2, k]."""
    images = np.asarray(images).astype(int)
    return images[..., 0, 0, :] * 256 + images[..., 0, 1, :]


def ring_of(table, capacity, stack, chunk):
    """The replay after all moves were added in chunks, as training adds them."""
    simulators = len(table[0])
    layout = rb.layout_of(EnvSpec(obs_shape=(1,), frame=(1, 2, 1), frame_stack=stack, action_dim=1, gamma=GAMMA))
    replay, add = rb.make(layout, capacity, simulators), jax.jit(rb.add)
    for start in range(0, len(table), chunk // simulators):
        stored = layout.empty(chunk)
        views = layout.views(stored)
        moves = [move for row in table[start : start + chunk // simulators] for move in row]
        for i, move in enumerate(moves):
            views["obs"][i], views["next_obs"][i] = move.episode[-1], move.after
            views["reward"][i], views["discount"][i] = move.reward, move.discount
            views[rb.FIRST][i], views[rb.FRAME][i] = len(move.episode) == 1, image_of(move.episode[-1])
        replay = add(replay, stored)
    return replay


def stack_of(frames, count):
    """The last frames of an episode, the first one repeated in place of what is missing."""
    return ([frames[0]] * count + frames)[-count:]


CASES = [(24, 1, 1, 64), (24, 3, 1, 24), (48, 3, 2, 400), (36, 4, 3, 96), (48, 1, 4, 192), (40, 3, 1, 8)]
"""capacity, frames per image, simulators, steps in total: rings that are partly filled, just full, and overwritten."""


@pytest.mark.parametrize(("capacity", "stack", "simulators", "steps"), CASES)
def test_images_are_those_of_the_episodes(capacity, stack, simulators, steps):
    table = played(steps // simulators, simulators, seed=capacity + stack, truncates=True)
    replay = ring_of(table, capacity, stack, chunk=simulators * 4)
    moves = {move.episode[-1]: move for row in table for move in row}
    index = rb.indices(replay, jax.random.key(0), (400,))
    batch = jax.jit(rb.take)(replay, index)
    seen, following = numbers_in(batch.obs.image), numbers_in(batch.next_obs.image)
    assert seen.shape == (400, stack)
    for i in range(400):
        move = moves[seen[i, -1]]
        assert seen[i].tolist() == stack_of(move.episode, stack)
        assert float(batch.obs.vector[i, 0]) == move.episode[-1]
        assert float(batch.next_obs.vector[i, 0]) == move.after
        np.testing.assert_allclose(float(batch.reward[i]), move.reward)
        if move.last and len(move.episode) > 1:
            assert move.discount == 0.0, "a truncated step must not be drawn"
        if not move.last:
            assert following[i].tolist() == stack_of([*move.episode, move.after], stack)


@pytest.mark.parametrize(("capacity", "stack", "simulators", "steps"), CASES)
def test_all_complete_steps_are_drawn_and_no_others(capacity, stack, simulators, steps):
    table = played(steps // simulators, simulators, seed=1, truncates=True)
    replay = ring_of(table, capacity, stack, chunk=simulators * 4)
    held = [move for row in table[-(capacity // simulators) :] for move in row]
    overwritten = stack * simulators if steps > capacity else 0
    complete = held[overwritten : len(held) - simulators]
    expected = {m.episode[-1] for m in complete if not (m.last and m.discount) or len(m.episode) == 1}
    before_these = {m.episode[-2] for m in complete if m.last and m.discount and len(m.episode) > 1}
    drawn = rb.take(replay, rb.indices(replay, jax.random.key(1), (20 * capacity,)))
    assert set(numbers_in(drawn.obs.image)[:, -1].tolist()) == expected | before_these


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("with_frames", [True, False])
def test_n_step_returns_stop_where_they_must(count, with_frames):
    table = played(100, 2, seed=count, truncates=True)
    replay = ring_of(table, capacity=64, stack=2, chunk=8)
    if not with_frames:
        layout = rb.layout_of(EnvSpec(obs_shape=(1,), action_dim=1, gamma=GAMMA))
        stored = {name: x for name, x in replay._stored.items() if name != rb.FRAME}
        replay = rb.holding(layout, stored, total=200, stride=2)
    held = table[-32:]
    found = {}
    for i in range(2):
        for t in range(31 if with_frames else 32):
            start, reward, discount, last = held[t][i], 0.0, 1.0, None
            for move in (row[i] for row in held[t : t + count]):
                continues = last is None or (last.discount > 0 and not last.last)
                kept = move.discount == 0 or (not move.last and move is not held[-1][i])
                if not continues or (with_frames and last is not None and not kept):
                    break
                reward, discount, last = reward + discount * move.reward, discount * move.discount, move
            found[start.episode[-1]] = reward, discount, last
    index = rb.indices(replay, jax.random.key(2), (300,))
    batch = jax.jit(rb.n_step, static_argnums=2)(replay, index, count)
    obs, next_obs = (x.vector if with_frames else x for x in (batch.obs, batch.next_obs))
    for i in range(300):
        reward, discount, last = found[int(obs[i, 0])]
        np.testing.assert_allclose(float(batch.reward[i]), reward, rtol=1e-5, atol=1e-6)
        assert float(batch.discount[i]) == discount
        assert float(next_obs[i, 0]) == last.after
        if with_frames and discount and not last.last:
            assert numbers_in(batch.next_obs.image)[i].tolist() == stack_of([*last.episode, last.after], 2)


def test_a_one_step_transition_is_that_of_take():
    replay = ring_of(played(40, 2, seed=3, truncates=True), capacity=64, stack=3, chunk=8)
    index = rb.indices(replay, jax.random.key(0), (50,))
    same = jax.tree.map(np.array_equal, rb.take(replay, index), rb.n_step(replay, index, 1))
    assert all(jax.tree.leaves(same))


def test_windows_show_the_frames_of_one_simulator_in_order():
    table = played(60, 2, seed=5, truncates=False)
    replay = ring_of(table, capacity=64, stack=1, chunk=8)
    windows = rb.sequences(replay, jax.random.key(0), 50, 6)
    numbers, episodes = numbers_in(windows.steps.obs.image)[..., 0], {m.episode[-1]: m for row in table for m in row}
    following = {}
    for i in range(2):
        column = [row[i].episode[-1] for row in table]
        following |= dict(itertools.pairwise(column))
    assert windows.steps.obs.image.shape == (50, 6, 1, 2, 1)
    for window, first in zip(numbers, np.asarray(windows.first), strict=True):
        assert all(following[a] == b for a, b in itertools.pairwise(window))
        assert [len(episodes[number].episode) == 1 for number in window] == first.tolist()


def test_windows_of_a_full_ring_never_join_its_newest_frames_to_its_oldest():
    table = played(60, 2, seed=7, truncates=False)
    replay = ring_of(table, capacity=64, stack=3, chunk=8)
    windows = rb.sequences(replay, jax.random.key(0), 500, 6)
    episodes = {m.episode[-1]: m.episode for row in table for m in row}
    numbers = numbers_in(windows.steps.obs.image).reshape(-1, 3)
    assert all(shown.tolist() == stack_of(episodes[int(shown[-1])], 3) for shown in numbers)
