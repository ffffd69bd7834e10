"""The refreshes of LSAC: fits of the generator to the replay, and the synthetic buffer D' that it fills."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lsac.agents.lsac import synthesis
from lsac.agents.lsac.config import Config
from lsac.agents.lsac.state import State
from lsac.replay import ring as rb
from lsac.types import Array, EnvSpec, Key, Metrics, Refresh, Transition

SHOWN = 256
"""Number of generated transitions that each refresh returns for inspection."""
COMPARED = 4_096
"""Number of real transitions that it returns beside them. Errors are in units of their spread, which needs many where
a number rarely changes, such as a contact force."""
FULL_SHARE = 0.5
"""The share of a batch that is generated, unless the generated transitions are known to be wrong."""


def compact(state: State) -> State:
    """The state without D', which takes most of the memory and can be generated again."""
    return state._replace(generated=None)


class Fit(NamedTuple):
    """A fit of the generator that is under way, and real transitions to compare its result with."""

    generator: synthesis.Fit
    real: Transition


def begin(config: Config, spec: EnvSpec, state: State, replay: rb.Replay, key: Key) -> Fit:
    """Begins a fit of the generator to the replay."""
    fit_key, sample_key = jax.random.split(key)
    assert state.generator is not None
    replay = rb.raw(replay)  # the generator scales its data itself
    real = rb.sample(replay, sample_key, COMPARED)
    return Fit(synthesis.begin(config.generator, spec, state.generator, replay, fit_key), real)


def advance(config: Config, spec: EnvSpec, fit: Fit, replay: rb.Replay, piece: Array) -> Fit:
    return fit._replace(generator=synthesis.advance(config.generator, spec, fit.generator, rb.raw(replay), piece))


def finish(config: Config, state: State, fit: Fit) -> tuple[State, Metrics, Transition]:
    """Replaces the generator; discards D' and its refined actions."""
    generator, metrics = synthesis.finish(config.generator, fit.generator)
    share, moved = jnp.asarray(FULL_SHARE, jnp.float32), jnp.zeros_like(state.moved)
    metrics |= {"synthetic_share": share, "action_moved": jnp.mean(jnp.abs(state.moved))}
    return compact(state)._replace(generator=generator, moved=moved, share=share), metrics, fit.real


def generate(config: Config, spec: EnvSpec, state: State, key: Key) -> tuple[State, Transition]:
    """Fills D' with transitions sampled from the generator."""
    assert state.generator is not None
    rows = synthesis.generate(config.generator, spec, state.generator, config.synthetic_capacity, key)
    return state._replace(generated=rows), rb.layout_of(spec).unpack(rows[:SHOWN])


def judge(state: State, error: Array) -> tuple[State, Metrics]:
    """Chooses the share of generated transitions from their dynamics error: ½ up to an error of ½, then less, and none
    from 1 on, where "nothing changes" would be as good. It stays ½ if the error is not known (NaN)."""
    share = jnp.where(jnp.isnan(error), FULL_SHARE, FULL_SHARE * jnp.clip(2.0 * (1.0 - error), 0.0, 1.0))
    return state._replace(share=share), {"synthetic_share": share}


def refresh_of(config: Config, spec: EnvSpec) -> Refresh:
    return Refresh(
        every=config.refresh_every,
        growth=config.refresh_growth,
        title="fitting the generator",
        steps=config.generator.train_steps,
        pieces=synthesis.PIECES,
        begin=partial(begin, config, spec),
        advance=partial(advance, config, spec),
        finish=partial(finish, config),
        generate=partial(generate, config, spec),
        compact=compact,
        judge=judge if config.adaptive_share else None,
    )
