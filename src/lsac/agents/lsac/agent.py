"""Langevin Soft Actor-Critic: Ishfaq, Wang, Islam, Precup, ICLR 2025.

Critics are not fitted but sampled. C parallel chains follow adaptive Langevin dynamics on the loss of a Gaussian
return distribution; the actor follows one chain, drawn anew for every update, so that it explores as Thompson sampling
does. Half of every chain's batch comes from a diffusion model of the replay, its actions first moved up ∇Q.
The critics' side of an update is in chains.py, the generator in synthesis.py.

Deviations from the text, each with its reason, are listed in docs/agents/lsac.md; the presets `paper` and `released`
follow the text and the published code more closely than the defaults.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from lsac.agents.lsac import chains as ch
from lsac.agents.lsac import synthesis
from lsac.agents.lsac.chains import Chains, lower, refined
from lsac.agents.sac import act, alpha_loss
from lsac.nn.networks import GaussianActor, GaussianCritic, polyak, sample_actions, select
from lsac.nn.optimisers import adam
from lsac.replay import ring as rb
from lsac.types import Agent, Array, EnvSpec, Key, Metrics, Transition

SHOWN = 256
"""Generated transitions of each refresh that are shown for inspection."""


@dataclass(frozen=True)
class Released:
    """What the published code does and its paper does not say. All off by default."""

    std_without_gradient: bool = False
    """the std head is trained by nothing but the weight norm"""
    q_ascent: bool = False
    """every critic step also ascends the summed Q of the refined batch"""
    weight_norm: float = 0.0
    """weight of the sum over arrays of the norm of a critic's parameters, in its loss"""
    shared_averages: bool = False
    """one running mean of σ for all chains, and its square as the loss's scale"""
    delay: int = 1
    """actor, α and all slow copies move at every so many updates"""
    no_write_back: bool = False
    """refined actions are used once and forgotten"""


@dataclass(frozen=True)
class Config:
    hidden: tuple[int, ...] = (256, 256, 256)
    """width of each hidden layer, for actor and critics"""
    activation: str = "gelu"
    """relu, gelu, tanh or mish"""
    chains: int = 10
    """parallel Langevin chains"""
    critics_per_chain: int = 2
    """critics of a chain; targets, actor and refinement use their minimum"""
    distributional: bool = True
    """whether critics model the return's distribution; if not, its mean by squared error"""
    sampler: Literal["asgld", "sgld", "underdamped", "adam"] = "asgld"
    """how critics move: adaptive, plain or underdamped Langevin dynamics, or Adam without noise"""
    critic_lr: float = 1e-3
    """step size η_Q of the sampler"""
    critic_lr_end: float = 1e-4
    """step size at the end of its annealing"""
    anneal_from: int = 100_000
    """update at which the annealing starts"""
    anneal_to: int = 1_000_000
    """update at which it ends"""
    inverse_temperature: float = 1e8
    """β_Q: the noise of a step is √(2 η_Q / β_Q)"""
    bias_factor: float = 1.0
    """weight a of the adaptive drift"""
    clip: Literal["grad_norm", "sum_elementwise", "sum_norm", "none"] = "grad_norm"
    """what is clipped at clip_at: the gradient before the moments, or the whole drift"""
    clip_at: float = 0.7
    """largest norm (or entry) of what is clipped"""
    exchange_every: int = 0
    """updates between proposals to swap neighbouring chains of a temperature ladder; 0 is one temperature, no swaps"""
    ladder_ratio: float = 3.0
    """ratio of neighbouring temperatures of the ladder"""
    batch_size: int = 256
    """transitions per chain and update"""
    synthetic: bool = True
    """whether half of every batch is generated"""
    synthetic_capacity: int = 1_000_000
    """generated transitions kept"""
    refresh_every: int = 10_000
    """environment steps between fits of the generator"""
    action_gradient: bool = True
    """whether generated actions are moved up ∇Q, and written back"""
    action_lr: float = 3e-4
    """how far a generated action moves per visit, in every coordinate"""
    actor_chain: Literal["uniform", "argmax", "mean", "overflow"] = "uniform"
    """chain that the actor follows: drawn, the most optimistic, the mean of all, or the first with Q over 88.7"""
    actor_lr: float = 3e-4
    """Adam step size of the actor"""
    alpha_lr: float = 3e-4
    """Adam step size of log α; 0 keeps α as it starts"""
    alpha_init: float = 0.2
    """entropy weight at the start"""
    target_entropy: float | None = None
    """entropy that α is tuned for; None is −dim(A)"""
    tau: float = 0.005
    """share of the new parameters in targets and running averages"""
    bound_factor: float = 3.0
    """the std's target stays within this many mean stds of Q"""
    std_eps: float = 0.1
    """ε in the denominators and in the scale of the distributional loss"""
    generator: synthesis.Config = field(default_factory=synthesis.Config)
    released: Released = field(default_factory=Released)


class State(NamedTuple):
    actor: GaussianActor
    target_actor: GaussianActor
    chains: Chains
    log_alpha: Array
    actor_opt: optax.OptState
    alpha_opt: optax.OptState
    updates: Array
    generated: Array | None  # [M, width], the buffer D' as it was drawn; not in checkpoints
    moved: Array  # [M, A], how far refinements have moved the actions of D'
    filled: Array  # whether D' holds data yet
    gamma: Array  # the discount of generated transitions that do not end
    generator: synthesis.State | None


def actor_loss(
    actor: GaussianActor, critics: GaussianCritic, alpha: Array, obs: Array, key: Key
) -> tuple[Array, tuple[Array, Array]]:
    """α log π − Q over chains [C, K] (their mean); also the mean log density and the share of saturated actions."""
    action, log_prob = sample_actions(actor, obs, key)
    q = jnp.mean(jax.vmap(lambda chain: lower(chain, obs, action))(critics), axis=0)
    saturated = jnp.mean((jnp.abs(action) > 0.99).astype(jnp.float32))
    return jnp.mean(alpha * log_prob - q), (jnp.mean(log_prob), saturated)


def real_rows(config: Config) -> int:
    """How many of a batch's rows are real once D' is filled."""
    return config.batch_size - config.batch_size // 2 if config.synthetic else config.batch_size


def synthetic_index(config: Config, count: int, key: Key) -> Array:
    """[C, B'] rows of D', each chain's from a share of its own, and from another share at every update.

    No two chains then write to the same row, and a chain that draws a row twice refines it to the same action twice:
    what D' holds after the write-back does not depend on the order of the writes.
    """
    row_key, shift_key = jax.random.split(key)
    share = count // config.chains
    rows = jax.random.randint(row_key, (config.chains, config.batch_size - real_rows(config)), 0, share)
    shift = jax.random.randint(shift_key, (), 0, config.chains)
    return rows + share * ((jnp.arange(config.chains) + shift) % config.chains)[:, None]


def synthetic_rows(layout: rb.Layout, state: State, index: Array) -> Transition:
    """Transitions of D', their actions where refinements have moved them."""
    assert state.generated is not None
    drawn = layout.unpack(state.generated[index])
    return drawn._replace(action=jnp.clip(drawn.action + state.moved[index], -1.0, 1.0))


def batches(config: Config, state: State, replay: rb.Replay, key: Key) -> tuple[Transition, Array]:
    """One batch per chain, [C, B], half of it generated and refined; and how far the actions of D' are moved then."""
    layout, real, moved = replay.layout, real_rows(config), state.moved
    real_key, synthetic_key = jax.random.split(key)
    rows = replay.rows[jax.random.randint(real_key, (config.chains, config.batch_size), 0, replay.size)]
    if not config.synthetic:
        return layout.unpack(rows), moved
    index = synthetic_index(config, moved.shape[0], synthetic_key)
    batch = synthetic_rows(layout, state, index)
    if config.action_gradient:
        action = jax.vmap(lambda c, b: refined(c, b, config.action_lr))(state.chains.critics, batch)
        if not config.released.no_write_back:
            change = moved[index] + (action - batch.action)
            moved = moved.at[index.reshape(-1)].set(change.reshape(-1, layout.action_dim))
        batch = batch._replace(action=action)
    drawn = jnp.where(state.filled, layout.pack(batch), rows[:, real:])
    return layout.unpack(jnp.concatenate([rows[:, :real], drawn], axis=1)), moved


def followed(config: Config, critics: GaussianCritic, batch: Transition, key: Key) -> tuple[GaussianCritic, Array]:
    """The chains [C', K] that the actor follows, and the states [B, O] it is trained on."""
    chain = jax.random.randint(key, (), 0, config.chains)
    obs = batch.obs[chain]
    if config.actor_chain == "mean":
        return critics, obs
    if config.actor_chain in ("argmax", "overflow"):
        own = jax.vmap(lambda c, b: jnp.mean(lower(c, b.obs, b.action)))(critics, batch)
        # exp(Q) in float32 is infinite from here on, and the published argmax then takes the first such chain
        over = own > 88.7 if config.actor_chain == "overflow" else jnp.zeros(own.shape, bool)
        chain = jnp.where(jnp.any(over), jnp.argmax(over), jnp.argmax(own))
        obs = batch.obs[chain]
    return jax.tree.map(lambda x: x[chain][None], critics), obs


def compact(state: State) -> State:
    """Without D', which takes most of the memory and follows from the generator."""
    return state._replace(generated=None)


def fit(config: Config, state: State, replay: rb.Replay, key: Key) -> tuple[State, Metrics, Array]:
    """Fits the generator to the replay; D' and all that was done to it is gone."""
    fit_key, sample_key = jax.random.split(key)
    assert state.generator is not None
    generator, metrics = synthesis.fit(config.generator, state.generator, replay, fit_key)
    gamma = jnp.max(replay.layout.unpack(replay.rows).discount)
    shown = jax.random.randint(sample_key, (min(SHOWN, config.synthetic_capacity),), 0, replay.size)
    moved = jnp.zeros_like(state.moved)
    after = compact(state)._replace(generator=generator, moved=moved, gamma=gamma, filled=jnp.ones((), bool))
    return after, metrics, replay.rows[shown]


def generate(config: Config, layout: rb.Layout, state: State, key: Key) -> tuple[State, Array]:
    """Fills D'."""
    assert state.generator is not None
    rows = synthesis.generate(config.generator, layout, state.generator, config.synthetic_capacity, key, state.gamma)
    return state._replace(generated=rows), rows[:SHOWN]


def make(config: Config, spec: EnvSpec) -> Agent:
    actor_adam, alpha_adam = adam(config.actor_lr), adam(config.alpha_lr)
    target_entropy = -float(spec.action_dim) if config.target_entropy is None else config.target_entropy

    def init(key: Key) -> State:
        actor_key, critic_key, generator_key = jax.random.split(key, 3)
        actor = GaussianActor(*spec, config.hidden, config.activation, actor_key, (-20.0, 0.5))
        log_alpha = jnp.log(jnp.asarray(config.alpha_init, jnp.float32))
        layout, rows = rb.Layout(*spec), config.synthetic_capacity if config.synthetic else 0
        return State(
            actor=actor,
            target_actor=actor,
            chains=ch.init(config, spec, critic_key),
            log_alpha=log_alpha,
            actor_opt=actor_adam.init(actor),
            alpha_opt=alpha_adam.init(log_alpha),
            updates=jnp.zeros((), jnp.int32),
            generated=jnp.zeros((rows, layout.width)),
            moved=jnp.zeros((rows, spec.action_dim)),
            filled=jnp.zeros((), bool),
            gamma=jnp.zeros(()),
            generator=synthesis.init(config.generator, layout, generator_key) if config.synthetic else None,
        )

    def update(state: State, replay: rb.Replay, key: Key) -> tuple[State, Metrics]:
        batch_key, critic_key, chain_key, action_key, swap_key = jax.random.split(key, 5)
        alpha, slow_actor = jnp.exp(state.log_alpha), state.target_actor
        batch, moved = batches(config, state, replay, batch_key)
        chains, metrics = ch.move(config, state.chains, slow_actor, batch, real_rows(config), alpha, critic_key)
        if config.exchange_every:
            chains = ch.exchange(config, chains, slow_actor, batch, alpha, state.updates, swap_key)

        critics, obs = followed(config, chains.critics, batch, chain_key)
        (pi_loss, (log_prob, saturated)), grads = jax.value_and_grad(actor_loss, has_aux=True)(
            state.actor, critics, alpha, obs, action_key
        )
        updates, actor_opt = actor_adam.update(grads, state.actor_opt)
        actor = optax.apply_updates(state.actor, updates)
        a_grad = jax.grad(alpha_loss)(state.log_alpha, log_prob, target_entropy)
        updates, alpha_opt = alpha_adam.update(a_grad, state.alpha_opt)

        before = state._replace(chains=chains, moved=moved, updates=state.updates + 1)
        after = before._replace(
            actor=actor,
            target_actor=polyak(slow_actor, actor, config.tau),
            chains=chains._replace(targets=polyak(chains.targets, chains.critics, config.tau)),
            log_alpha=optax.apply_updates(state.log_alpha, updates),
            actor_opt=actor_opt,
            alpha_opt=alpha_opt,
        )
        if config.released.delay > 1:
            after = select(state.updates % config.released.delay == 0, after, before)
        metrics |= {
            "actor_loss": pi_loss,
            "actor_grad_norm": optax.tree.norm(grads),
            "ent_coef": alpha,
            "entropy": -log_prob,
            "saturation": saturated,
        }
        return after, metrics

    agent = Agent(
        init=init,
        policy=lambda state: state.actor,
        act=act,
        update=update,
        critics=lambda state: state.chains.critics,
        value=ch.value,
    )
    if not config.synthetic:
        return agent
    return agent._replace(
        refresh=partial(fit, config),
        generate=partial(generate, config, rb.Layout(*spec)),
        compact=compact,
        refresh_every=config.refresh_every,
    )
