"""Langevin Soft Actor-Critic: Ishfaq, Wang, Islam, Precup, ICLR 2025.

Critics are not fitted but sampled. C parallel chains follow adaptive Langevin dynamics on the loss of a Gaussian
return distribution; the actor follows one chain, drawn anew for every update, so that it explores as Thompson sampling
does. Half of every chain's batch comes from a diffusion model of the replay, its actions first moved up ∇Q.

Deviations from the text, each with its reason, are listed in docs/agents/lsac.md; the presets `paper` and `released`
follow the text and the published code more closely than the defaults.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from lsac import langevin, synthesis
from lsac import replay as rb
from lsac.agents.sac import act, alpha_loss, sample_actions
from lsac.distributions import gaussian_return_loss
from lsac.networks import GaussianActor, GaussianCritic, ensemble, polyak
from lsac.optimisers import adam
from lsac.types import Agent, Array, EnvSpec, Key, Metrics, Transition


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
    """relu, gelu or tanh"""
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
    """Adam step size of log α"""
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
    critics: GaussianCritic  # stacked [C, K]
    targets: GaussianCritic  # stacked [C, K]
    sampler: langevin.SamplerState  # stacked [C, K]
    std_mean: Array  # [C, K] running mean of σ, which bounds y_Z
    var_mean: Array  # [C, K] running mean of σ², which scales the loss
    log_alpha: Array
    actor_opt: optax.OptState
    alpha_opt: optax.OptState
    updates: Array
    synthetic: Array  # [M, width], the buffer D'
    filled: Array  # whether D' holds data yet
    generator: synthesis.State | None


def returns(critics: GaussianCritic, obs: Array, action: Array) -> tuple[Array, Array]:
    """Means and stds [K, B] of the K critics of one chain on a batch."""
    return jax.vmap(lambda critic: jax.vmap(critic)(obs, action))(critics)


def lower(critics: GaussianCritic, obs: Array, action: Array) -> Array:
    """[B] minimum over a chain's critics of the mean return."""
    return jnp.min(returns(critics, obs, action)[0], axis=0)


def value(critics: GaussianCritic, obs: Array, action: Array) -> Metrics:
    """Mean over the chains of their lower Q, how far the chains are apart, and the mean std of the return."""
    mean, std = jax.vmap(jax.vmap(lambda critic: critic(obs, action)))(critics)
    q = jnp.min(mean, axis=1)
    return {"q": jnp.mean(q), "q_spread": jnp.std(q), "return_std": jnp.mean(std)}


def refined(critics: GaussianCritic, batch: Transition, lr: float) -> Array:
    """Actions after one step of a fresh Adam up min_k Q_k, kept in [−1, 1].

    The first step of Adam is lr · g/(|g| + ε): every coordinate moves by lr, whatever the size of its gradient.
    """
    g = jax.grad(lambda action: jnp.sum(lower(critics, batch.obs, action)))(batch.action)
    return jnp.clip(batch.action + lr * g / (jnp.abs(g) + 1e-8), -1.0, 1.0)


def targets_of(
    targets: GaussianCritic, actor: GaussianActor, alpha: Array, batch: Transition, key: Key
) -> tuple[Array, Array]:
    """y_Q and y_Z [B]: from the critic with the smaller mean, Q̄ and a draw of its return, both with entropy."""
    action_key, return_key = jax.random.split(key)
    action, log_prob = sample_actions(actor, batch.next_obs, action_key)
    mean, std = returns(targets, batch.next_obs, action)
    least = jnp.argmin(mean, axis=0)[None]
    mean, std = (jnp.take_along_axis(x, least, axis=0)[0] for x in (mean, std))
    z = jnp.clip(jax.random.normal(return_key, mean.shape), -3.0, 3.0)
    entropy = alpha * log_prob
    y_q = batch.reward + batch.discount * (mean - entropy)
    y_z = batch.reward + batch.discount * (mean + std * z - entropy)
    return y_q, y_z


def critic_loss(
    critic: GaussianCritic, batch: Transition, y_q: Array, y_z: Array, std_mean: Array, var_mean: Array, config: Config
) -> tuple[Array, tuple[Array, Array, Array, Array]]:
    """The loss of one critic; also its running averages and the mean and std it predicts."""
    mean, std = jax.vmap(critic)(batch.obs, batch.action)
    fixed = jax.lax.stop_gradient(std)
    std = fixed if config.released.std_without_gradient else std
    std_mean = std_mean + config.tau * (jnp.mean(fixed) - std_mean)
    var_mean = var_mean + config.tau * (jnp.mean(fixed**2) - var_mean)
    if config.distributional:
        spread = std_mean**2 if config.released.shared_averages else var_mean
        bound, scale = config.bound_factor * std_mean, spread + config.std_eps
        loss = gaussian_return_loss(mean, std, y_q, y_z, bound, scale, config.std_eps)
    else:
        loss = 0.5 * jnp.mean((mean - y_q) ** 2)
    if config.released.weight_norm:
        loss += config.released.weight_norm * sum(jnp.linalg.norm(x.reshape(-1)) for x in jax.tree.leaves(critic))
    return loss, (std_mean, var_mean, mean, std)


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


def batches(config: Config, state: State, replay: rb.Replay, key: Key) -> tuple[Transition, Array]:
    """One batch per chain, [C, B], half of it generated and refined; and D' with the refined actions in it."""
    layout, real = replay.layout, real_rows(config)
    real_key, synthetic_key = jax.random.split(key)
    index = jax.random.randint(real_key, (config.chains, config.batch_size), 0, replay.size)
    rows = replay.rows[index]
    if not config.synthetic:
        return layout.unpack(rows), state.synthetic
    count = state.synthetic.shape[0]
    index = jax.random.randint(synthetic_key, (config.chains, config.batch_size - real), 0, count)
    drawn = state.synthetic[index]
    synthetic = state.synthetic
    if config.action_gradient:
        batch = layout.unpack(drawn)
        action = jax.vmap(lambda c, b: refined(c, b, config.action_lr))(state.critics, batch)
        drawn = layout.pack(batch._replace(action=action))
    if config.action_gradient and not config.released.no_write_back:
        synthetic = synthetic.at[index.reshape(-1)].set(drawn.reshape(-1, layout.width))
    mixed = jnp.concatenate([rows[:, :real], jnp.where(state.filled, drawn, rows[:, real:])], axis=1)
    return layout.unpack(mixed), synthetic


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


def make(config: Config, spec: EnvSpec) -> Agent:
    schedule = langevin.annealed(config.critic_lr, config.critic_lr_end, config.anneal_from, config.anneal_to)
    options = {"drift": config.bias_factor, "clip": config.clip, "clip_at": config.clip_at}
    sampler = langevin.SAMPLERS[config.sampler](
        schedule, config.inverse_temperature, **(options if config.sampler == "asgld" else {})
    )
    betas = jnp.full((config.chains,), config.inverse_temperature)
    if config.exchange_every:
        betas = langevin.ladder(config.chains, config.inverse_temperature, config.ladder_ratio)
    actor_adam, alpha_adam = adam(config.actor_lr), adam(config.alpha_lr)
    target_entropy = -float(spec.action_dim) if config.target_entropy is None else config.target_entropy
    layout = rb.Layout(*spec)
    shape = (config.chains, config.critics_per_chain)
    real = real_rows(config)

    def init(key: Key) -> State:
        actor_key, critic_key, generator_key = jax.random.split(key, 3)
        actor = GaussianActor(*spec, config.hidden, config.activation, actor_key, (-20.0, 0.5))

        def chain(key: Key) -> GaussianCritic:
            make_one = lambda k: GaussianCritic(*spec, config.hidden, config.activation, k)  # noqa: E731
            return ensemble(make_one, config.critics_per_chain, key)

        critics = ensemble(chain, config.chains, critic_key)
        log_alpha = jnp.log(jnp.asarray(config.alpha_init, jnp.float32))
        rows = config.synthetic_capacity if config.synthetic else 0
        return State(
            actor=actor,
            target_actor=actor,
            critics=critics,
            targets=critics,
            sampler=jax.vmap(jax.vmap(sampler.init))(critics),
            std_mean=jnp.full(shape, 0.7, jnp.float32),
            var_mean=jnp.full(shape, 0.5, jnp.float32),
            log_alpha=log_alpha,
            actor_opt=actor_adam.init(actor),
            alpha_opt=alpha_adam.init(log_alpha),
            updates=jnp.zeros((), jnp.int32),
            synthetic=jnp.zeros((rows, layout.width)),
            filled=jnp.zeros((), bool),
            generator=synthesis.init(config.generator, layout, generator_key) if config.synthetic else None,
        )

    def move_critics(state: State, batch: Transition, alpha: Array, key: Key) -> tuple[State, Metrics]:
        """One Langevin step of every critic of every chain, on the chain's own batch."""

        def member(
            critic: Any, opt: Any, std_mean: Array, var_mean: Array, ascent: Any, beta: Array, chain: Any, key: Key
        ) -> tuple[Any, ...]:
            batch, y_q, y_z = chain
            loss_of = jax.value_and_grad(critic_loss, has_aux=True)
            (_, aux), grads = loss_of(critic, batch, y_q, y_z, std_mean, var_mean, config)
            if config.released.q_ascent:
                grads = jax.tree.map(jnp.subtract, grads, ascent)
            updates, opt = sampler.update(grads, opt, critic, key=key, inverse_temperature=beta)
            std_mean, var_mean, mean, std = aux
            error = (mean - y_q) ** 2
            record = (mean, jnp.mean(std), optax.tree.norm(grads), jnp.mean(error[:real]), jnp.mean(error[real:]))
            return optax.apply_updates(critic, updates), opt, std_mean, var_mean, record

        target_key, noise_key = jax.random.split(key)
        keys = jax.random.split(target_key, config.chains)
        y_q, y_z = jax.vmap(targets_of, in_axes=(0, None, None, 0, 0))(
            state.targets, state.target_actor, alpha, batch, keys
        )
        ascent = None
        if config.released.q_ascent:
            half = jax.tree.map(lambda x: x[:, real:] if config.synthetic else x, batch)
            total_q = jax.grad(lambda critics, b: jnp.sum(lower(critics, b.obs, b.action)))
            ascent = jax.vmap(total_q)(state.critics, half)
        over_critics = jax.vmap(member, in_axes=(0, 0, 0, 0, 0, None, None, 0))
        critics, opt, std_mean, var_mean, record = jax.vmap(over_critics)(
            state.critics,
            state.sampler,
            state.std_mean,
            state.var_mean,
            ascent,
            betas,
            (batch, y_q, y_z),
            jax.random.split(noise_key, shape),
        )
        if config.released.shared_averages:
            std_mean = jnp.full(shape, jnp.mean(std_mean))
        q, std, norm, real_error, synthetic_error = record
        metrics = {
            "critic_loss": jnp.mean(real_error),
            "q_mean": jnp.mean(q),
            "q_std": jnp.mean(std),
            "critic_grad_norm": jnp.mean(norm),
        }
        if config.synthetic:
            metrics["critic_loss_synthetic"] = jnp.mean(synthetic_error)
        return state._replace(critics=critics, sampler=opt, std_mean=std_mean, var_mean=var_mean), metrics

    def exchange(state: State, batch: Transition, alpha: Array, key: Key) -> State:
        """Proposes to swap neighbours on the temperature ladder, by their losses on one common batch."""
        common = jax.tree.map(lambda x: x[0], batch)

        def energy(critics: Any, targets: Any) -> Array:
            y_q, _ = targets_of(targets, state.target_actor, alpha, common, key)
            mean, _ = returns(critics, common.obs, common.action)
            return jnp.sum(0.5 * jnp.mean((mean - y_q[None]) ** 2, axis=1))

        energies = jax.vmap(energy)(state.critics, state.targets)
        round_number = state.updates // config.exchange_every
        index = langevin.swap(key, energies, betas, round_number)
        index = jnp.where(state.updates % config.exchange_every == 0, index, jnp.arange(config.chains))
        moved = ("critics", "targets", "sampler", "std_mean", "var_mean")
        return state._replace(**{name: langevin.permute(getattr(state, name), index) for name in moved})

    def update(state: State, replay: rb.Replay, key: Key) -> tuple[State, Metrics]:
        batch_key, critic_key, chain_key, action_key, swap_key = jax.random.split(key, 5)
        alpha = jnp.exp(state.log_alpha)
        batch, synthetic = batches(config, state, replay, batch_key)
        state, metrics = move_critics(state._replace(synthetic=synthetic), batch, alpha, critic_key)
        if config.exchange_every:
            state = exchange(state, batch, alpha, swap_key)

        critics, obs = followed(config, state.critics, batch, chain_key)
        (pi_loss, (log_prob, saturated)), grads = jax.value_and_grad(actor_loss, has_aux=True)(
            state.actor, critics, alpha, obs, action_key
        )
        updates, actor_opt = actor_adam.update(grads, state.actor_opt)
        actor = optax.apply_updates(state.actor, updates)

        a_grad = jax.grad(alpha_loss)(state.log_alpha, log_prob, target_entropy)
        updates, alpha_opt = alpha_adam.update(a_grad, state.alpha_opt)
        metrics |= {
            "actor_loss": pi_loss,
            "actor_grad_norm": optax.tree.norm(grads),
            "ent_coef": alpha,
            "entropy": -log_prob,
            "saturation": saturated,
        }
        moved = state._replace(
            actor=actor,
            target_actor=polyak(state.target_actor, actor, config.tau),
            targets=polyak(state.targets, state.critics, config.tau),
            log_alpha=optax.apply_updates(state.log_alpha, updates),
            actor_opt=actor_opt,
            alpha_opt=alpha_opt,
        )
        if config.released.delay > 1:
            now = state.updates % config.released.delay == 0
            delayed = ("actor", "target_actor", "targets", "log_alpha", "actor_opt", "alpha_opt")
            chosen = {name: (getattr(moved, name), getattr(state, name)) for name in delayed}
            pick = lambda pair: jax.tree.map(lambda new, old: jnp.where(now, new, old), *pair)  # noqa: E731
            moved = moved._replace(**{name: pick(pair) for name, pair in chosen.items()})
        return moved._replace(updates=state.updates + 1), metrics

    def refresh(state: State, replay: rb.Replay, key: Key) -> tuple[State, Metrics]:
        """Fits the generator to the replay and refills D'."""
        fit_key, draw_key = jax.random.split(key)
        assert state.generator is not None
        generator, metrics = synthesis.fit(config.generator, state.generator, replay, fit_key)
        gamma = jnp.max(layout.unpack(replay.rows).discount)
        rows = synthesis.generate(config.generator, layout, generator, config.synthetic_capacity, draw_key, gamma)
        return state._replace(generator=generator, synthetic=rows, filled=jnp.ones((), bool)), metrics

    return Agent(
        init=init,
        policy=lambda state: state.actor,
        act=act,
        update=update,
        critics=lambda state: state.critics,
        value=value,
        refresh=refresh if config.synthetic else None,
        refresh_every=config.refresh_every if config.synthetic else 0,
    )
