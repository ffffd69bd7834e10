"""Specs and replays for tests, from packed rows [N, width]: obs | action | reward | discount | next_obs."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from lsac.replay import ring as rb
from lsac.types import EnvSpec


def spec_of(obs_dim: int, action_dim: int, gamma: float = 0.99) -> EnvSpec:
    return EnvSpec(obs_shape=(obs_dim,), action_dim=action_dim, gamma=gamma)


def stored_of(rows: Any, first: Any = None) -> rb.Stored:
    """Packed rows as stored transitions; no step begins an episode unless `first` says so."""
    flags = jnp.zeros(rows.shape[:-1], bool) if first is None else jnp.asarray(first, bool)
    return {rb.PACKED: jnp.asarray(rows, jnp.float32), rb.FIRST: flags}


def replay_of(layout: rb.Layout, rows: Any, size: int | None = None, stride: int = 1, first: Any = None) -> rb.Replay:
    """A replay whose slots are these rows, the first `size` of them filled."""
    return rb.holding(layout, stored_of(rows, first), rows.shape[-2] if size is None else size, stride)


def rows_in(replay: rb.Replay) -> np.ndarray:
    """The packed rows of a replay, or [S, N, width] of several."""
    return np.asarray(rb.stored_of_seeds(replay)[rb.PACKED])


def with_rows(replay: rb.Replay, rows: Any) -> rb.Replay:
    """The same replay with other packed rows."""
    laps = replay.capacity * (1 + bool(replay.overwritten))
    total = int(replay.size) if int(replay.size) < replay.capacity else laps + int(replay.head)
    return rb.holding(replay.layout, rb.stored_of_seeds(replay) | {rb.PACKED: rows}, total, replay.stride)


def random_replay(reward: float, discount: float) -> rb.Replay:
    """16 random states and actions of one number each, all with this reward and discount."""
    rng = np.random.default_rng(0)
    obs, action = rng.normal(size=(16, 1)), rng.uniform(-1, 1, size=(16, 1))
    rows = np.concatenate([obs, action, np.full((16, 1), reward), np.full((16, 1), discount), obs], axis=1)
    return replay_of(rb.layout_of(spec_of(1, 1)), rows)


def repeated(reward: float, discount: float) -> rb.Replay:
    """Four times the same transition, from state 1 to state 1 by the action 0.5."""
    rows = np.tile([1.0, 0.5, reward, discount, 1.0], (4, 1))
    return replay_of(rb.layout_of(spec_of(1, 1)), rows)


def with_frames(stored: rb.Stored, spec: EnvSpec) -> rb.Stored:
    """Stored transitions with random frames, if the spec has any; equal rows get equal frames."""
    if spec.frame is None:
        return stored
    rows = np.nan_to_num(np.asarray(stored[rb.PACKED]))
    action = rows[..., rb.layout_of(spec).fields()["action"]].reshape(*rows.shape[:-1], -1)
    noise = np.random.default_rng(0).integers(0, 256, spec.frame)
    shift = (1e3 * np.abs(action[..., 0])).astype(int)
    return stored | {rb.FRAME: ((noise + shift[..., None, None, None]) % 256).astype(np.uint8)}
