"""Langevin Soft Actor-Critic: Ishfaq, Wang, Islam, Precup, ICLR 2025 (arXiv 2501.17827).

A soft actor-critic that samples its critics instead of fitting one estimate. C parallel chains of distributional
critics are updated by adaptive Langevin dynamics, that is, gradient steps with injected noise. The actor maximises one
chain, chosen at random at every update, which approximates Thompson sampling. Half of every chain's batch is generated
by a diffusion model of the replay, with its actions moved along ∇Q. The options are in config.py, the update of the
critics in chains.py, the generator in synthesis.py.

Deviations from the paper, with reasons: docs/agents/lsac.md. The presets `paper` and `released` follow the paper and
the published code more closely than the defaults.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from lsac.agents.dsact import min_mean
from lsac.agents.lsac import chains as ch
from lsac.agents.lsac import synthesis
from lsac.agents.lsac.chains import Chains, refined
from lsac.agents.lsac.config import Config
from lsac.agents.sac import act, alpha_loss, entropy_target
from lsac.nn.networks import NARROW_LOG_STD, GaussianActor, GaussianCritic, polyak, sample_actions, select
from lsac.nn.optimisers import adam, descend
from lsac.replay import ring as rb
from lsac.types import Agent, Array, EnvSpec, Key, Metrics, Refresh, Transition, Values, memoryless

SHOWN = 256
"""Number of real and generated transitions that each refresh returns for inspection."""


class State(NamedTuple):
    actor: GaussianActor
    target_actor: GaussianActor
    chains: Chains
    log_alpha: Array
    actor_opt: optax.OptState
    alpha_opt: optax.OptState
    updates: Array
    generated: Array | None  # [M, width], the synthetic buffer D' as generated; not in checkpoints
    moved: Array  # [M, A], displacement of the actions of D' by refinement so far
    filled: Array  # whether D' holds data yet
    generator: synthesis.State | None


def actor_loss(
    actor: GaussianActor, critics: GaussianCritic, alpha: Array, obs: Array, key: Key
) -> tuple[Array, tuple[Array, Array]]:
    """α log π − Q, with Q the mean over chains [C, K]. Also returns the mean log density and the saturated share."""
    action, log_prob = sample_actions(actor, obs, key)
    q = jnp.mean(jax.vmap(lambda chain: min_mean(chain, obs, action))(critics), axis=0)
    saturated = jnp.mean((jnp.abs(action) > 0.99).astype(jnp.float32))
    return jnp.mean(alpha * log_prob - q), (jnp.mean(log_prob), saturated)


def real_rows(config: Config) -> int:
    """The number of real transitions in a batch once D' is filled."""
    return config.batch_size - config.batch_size // 2 if config.synthetic else config.batch_size


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
    """One batch per chain, [C, B], half of it generated and refined, and the new displacements of the actions of D'."""
    moved, split = state.moved, real_rows(config)
    real_key, synthetic_key = jax.random.split(key)
    real = rb.take(replay, rb.indices(replay, real_key, (config.chains, config.batch_size)))
    if not config.synthetic:
        return real, moved
    index = synthetic_index(config, moved.shape[0], synthetic_key)
    synthetic = rb.seen(replay, synthetic_rows(replay.layout, state, index))
    if config.action_gradient:
        action = jax.vmap(lambda c, b: refined(c, b, config.action_lr))(state.chains.critics, synthetic)
        if not config.released.no_write_back:
            change = moved[index] + (action - synthetic.action)
            moved = moved.at[index.reshape(-1)].set(change.reshape(-1, moved.shape[1]))
        synthetic = synthetic._replace(action=action)

    def joined(real: Array, synthetic: Array) -> Array:
        return jnp.concatenate([real[:, :split], jnp.where(state.filled, synthetic, real[:, split:])], axis=1)

    return jax.tree.map(joined, real, synthetic), moved


def followed(config: Config, critics: GaussianCritic, batch: Transition, key: Key) -> tuple[GaussianCritic, Array]:
    """The chains [C', K] whose mean Q the actor maximises, and the observations [B, O] it is trained on."""
    chain = jax.random.randint(key, (), 0, config.chains)
    obs = batch.obs[chain]
    if config.actor_chain == "mean":
        return critics, obs
    if config.actor_chain in ("argmax", "overflow"):
        own = jax.vmap(lambda c, b: jnp.mean(min_mean(c, b.obs, b.action)))(critics, batch)
        # above 88.7, exp(Q) in float32 is infinite, and the published argmax takes the first such chain
        over = own > 88.7 if config.actor_chain == "overflow" else jnp.zeros(own.shape, bool)
        chain = jnp.where(jnp.any(over), jnp.argmax(over), jnp.argmax(own))
        obs = batch.obs[chain]
    return jax.tree.map(lambda x: x[chain][None], critics), obs


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
    real = rb.sample(replay, sample_key, min(SHOWN, config.synthetic_capacity))
    return Fit(synthesis.begin(config.generator, spec, state.generator, replay, fit_key), real)


def advance(config: Config, spec: EnvSpec, fit: Fit, replay: rb.Replay, piece: Array) -> Fit:
    return fit._replace(generator=synthesis.advance(config.generator, spec, fit.generator, rb.raw(replay), piece))


def finish(config: Config, state: State, fit: Fit) -> tuple[State, Metrics, Transition]:
    """Replaces the generator; discards D' and its refined actions."""
    generator, metrics = synthesis.finish(config.generator, fit.generator)
    after = compact(state)._replace(generator=generator, moved=jnp.zeros_like(state.moved), filled=jnp.ones((), bool))
    return after, metrics, fit.real


def generate(config: Config, spec: EnvSpec, state: State, key: Key) -> tuple[State, Transition]:
    """Fills D' with transitions sampled from the generator."""
    assert state.generator is not None
    rows = synthesis.generate(config.generator, spec, state.generator, config.synthetic_capacity, key)
    return state._replace(generated=rows), rb.layout_of(spec).unpack(rows[:SHOWN])


class Optimisers(NamedTuple):
    actor: optax.GradientTransformation
    alpha: optax.GradientTransformation


def first_state(config: Config, spec: EnvSpec, optimisers: Optimisers, key: Key) -> State:
    sizes = (spec.obs_dim, spec.action_dim, config.hidden, config.activation)
    actor_key, critic_key, generator_key = jax.random.split(key, 3)
    actor = GaussianActor(*sizes, actor_key, NARROW_LOG_STD)
    log_alpha = jnp.log(jnp.asarray(config.alpha_init, jnp.float32))
    rows = config.synthetic_capacity if config.synthetic else 0
    return State(
        actor=actor,
        target_actor=actor,
        chains=ch.init(config, spec, critic_key),
        log_alpha=log_alpha,
        actor_opt=optimisers.actor.init(actor),
        alpha_opt=optimisers.alpha.init(log_alpha),
        updates=jnp.zeros((), jnp.int32),
        generated=jnp.zeros((rows, rb.layout_of(spec).width)),
        moved=jnp.zeros((rows, spec.action_dim)),
        filled=jnp.zeros((), bool),
        generator=synthesis.init(config.generator, spec, generator_key) if config.synthetic else None,
    )


def make(config: Config, spec: EnvSpec) -> Agent:
    optimisers = Optimisers(adam(config.actor_lr, config.actor_clip), adam(config.alpha_lr))
    target_entropy = entropy_target(config.target_entropy, spec, config.entropy_range)

    def update(state: State, replay: rb.Replay, key: Key) -> tuple[State, Metrics]:
        batch_key, critic_key, chain_key, action_key, swap_key = jax.random.split(key, 5)
        alpha, target_actor = jnp.exp(state.log_alpha), state.target_actor
        batch, moved = batches(config, state, replay, batch_key)
        chains, metrics = ch.move(config, state.chains, target_actor, batch, real_rows(config), alpha, critic_key)
        if config.exchange_every:
            chains = ch.exchange(config, chains, target_actor, batch, alpha, state.updates, swap_key)

        critics, obs = followed(config, chains.critics, batch, chain_key)
        actor = descend(optimisers.actor, actor_loss, state.actor, state.actor_opt, critics, alpha, obs, action_key)
        log_prob, saturated = actor.aux
        tuned = descend(
            optimisers.alpha, alpha_loss, state.log_alpha, state.alpha_opt, log_prob, target_entropy, has_aux=False
        )

        before = state._replace(chains=chains, moved=moved, updates=state.updates + 1)
        after = before._replace(
            actor=actor.params,
            target_actor=polyak(target_actor, actor.params, config.tau),
            chains=chains._replace(targets=polyak(chains.targets, chains.critics, config.tau)),
            log_alpha=tuned.params,
            actor_opt=actor.opt,
            alpha_opt=tuned.opt,
        )
        if config.released.delay > 1:
            after = select(state.updates % config.released.delay == 0, after, before)
        metrics |= {
            "actor_loss": actor.loss,
            "actor_grad_norm": optax.tree.norm(actor.grads),
            "ent_coef": alpha,
            "entropy": -log_prob,
            "saturation": saturated,
        }
        return after, metrics

    refresh = Refresh(
        every=config.refresh_every,
        title="fitting the generator",
        steps=config.generator.train_steps,
        pieces=synthesis.PIECES,
        begin=partial(begin, config, spec),
        advance=partial(advance, config, spec),
        finish=partial(finish, config),
        generate=partial(generate, config, spec),
        compact=compact,
    )
    return Agent(
        init=partial(first_state, config, spec, optimisers),
        policy=lambda state: state.actor,
        act=memoryless(act),
        update=update,
        diagnostics=lambda state: ch.diagnostics(config, state.chains),
        values=Values(lambda state: state.chains.critics, ch.value),
        refresh=refresh if config.synthetic else None,
    )
