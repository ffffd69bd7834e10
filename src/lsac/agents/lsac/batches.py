"""The batches of LSAC: one per chain, of which a share is generated and has its actions moved along ∇Q."""

import jax
import jax.numpy as jnp

from lsac.agents.lsac.chains import refined
from lsac.agents.lsac.config import Config
from lsac.agents.lsac.state import State, actor_reading, embedded
from lsac.replay import ring as rb
from lsac.types import Array, Key, Transition


def real_rows(config: Config) -> int:
    """The number of transitions in a batch that are always real."""
    return config.batch_size - config.batch_size // 2 if config.synthetic else config.batch_size


def is_generated(config: Config, share: Array) -> Array:
    """[B] which transitions of a batch are generated: `share` of them, the first after those that are always real."""
    place = jnp.arange(config.batch_size) - real_rows(config)
    return (place >= 0) & (place < jnp.round(share * config.batch_size).astype(jnp.int32))


def synthetic_index(config: Config, count: int, key: Key) -> Array:
    """[C, B'] indices into D'. Each chain samples from its own part of D', which changes at every update.

    No two chains write to the same entry, and a chain that samples an entry twice refines it to the same action twice.
    The content of D' therefore does not depend on the order of the writes.
    """
    row_key, shift_key = jax.random.split(key)
    share = count // config.chains
    rows = jax.random.randint(row_key, (config.chains, config.batch_size - real_rows(config)), 0, share)
    shift = jax.random.randint(shift_key, (), 0, config.chains)
    return rows + share * ((jnp.arange(config.chains) + shift) % config.chains)[:, None]


def synthetic_rows(layout: rb.Layout, state: State, index: Array) -> Transition:
    """Transitions of D' with their refined actions."""
    assert state.generated is not None
    generated = layout.unpack(state.generated[index])
    return generated._replace(action=jnp.clip(generated.action + state.moved[index], -1.0, 1.0))


def batches(config: Config, state: State, replay: rb.Replay, key: Key) -> tuple[Transition, Array]:
    """One batch per chain, [C, B], a share of it generated and refined (see `is_generated`), and the new
    displacements of the actions of D'."""
    moved, split = state.moved, real_rows(config)
    real_key, synthetic_key = jax.random.split(key)
    real = rb.take(replay, rb.indices(replay, real_key, (config.chains, config.batch_size)))
    if not config.synthetic:
        return real, moved
    used = is_generated(config, state.share)[split:]
    index = synthetic_index(config, moved.shape[0], synthetic_key)
    synthetic = rb.seen(replay, synthetic_rows(replay.layout, state, index))
    if config.action_gradient:
        reading, seen = actor_reading(config, state), embedded(state, synthetic)
        action = jax.vmap(lambda c, b: refined(c, b, config.action_lr, reading))(state.chains.critics, seen)
        if not config.released.no_write_back:
            change = moved[index] + (action - synthetic.action)
            written = jnp.where(used[None], index, moved.shape[0])  # no such row: what is not used is not written
            moved = moved.at[written.reshape(-1)].set(change.reshape(-1, moved.shape[1]), mode="drop")
        synthetic = synthetic._replace(action=action)

    def joined(real: Array, synthetic: Array) -> Array:
        rows = used.reshape(1, -1, *[1] * (real.ndim - 2))
        return jnp.concatenate([real[:, :split], jnp.where(rows, synthetic, real[:, split:])], axis=1)

    return jax.tree.map(joined, real, synthetic), moved
