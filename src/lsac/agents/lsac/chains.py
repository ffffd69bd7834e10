"""Chains of Langevin critics: C chains of K distributional critics, each chain trained on its own batch.

The Q of a chain is the minimum over its K critics: in the TD targets, for the actor and for the refinement of actions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from lsac.agents.dsact import min_mean, return_targets, returns
from lsac.agents.lsac.config import Config
from lsac.nn import langevin
from lsac.nn.distributions import gaussian_return_loss
from lsac.nn.networks import GaussianActor, GaussianCritic, ensemble
from lsac.types import Array, EnvSpec, Key, Metrics, Transition

FIRST_STD, FIRST_VARIANCE = 0.7, 0.5
"""Initial running means of σ and σ²: about those of an untrained network, whose σ is near softplus(0) = 0.69."""


class Chains(NamedTuple):
    """All fields are stacked [C, K]."""

    critics: GaussianCritic
    targets: GaussianCritic
    sampler: langevin.SamplerState
    std_mean: Array  # running mean of σ, which bounds y_Z
    var_mean: Array  # running mean of σ², which scales the loss


def step_size(config: Config) -> Callable[[Array], Array]:
    """The schedule of η_Q."""
    return langevin.annealed(config.critic_lr, config.critic_lr_end, config.anneal_from, config.anneal_to)


def sampler_of(config: Config) -> tuple[langevin.Sampler, Array]:
    """The sampler that updates the critics, and the inverse temperature [C] of every chain."""
    options: dict[str, Any] = {}
    if config.sampler == "asgld":
        options = {
            "drift": config.bias_factor,
            "eps": config.moment_eps,
            "clip": config.clip,
            "clip_at": config.clip_at,
        }
    elif config.sampler == "adam" and config.clip == "grad_norm":
        options = {"max_norm": config.clip_at}  # as for asgld, so that the two differ by their update rules
    sampler = langevin.SAMPLERS[config.sampler](step_size(config), config.inverse_temperature, **options)
    if config.exchange_every:
        return sampler, langevin.ladder(config.chains, config.inverse_temperature, config.ladder_ratio)
    return sampler, jnp.full((config.chains,), config.inverse_temperature)


def init(config: Config, spec: EnvSpec, key: Key) -> Chains:
    def critic(key: Key) -> GaussianCritic:
        return GaussianCritic(spec.obs_dim, spec.action_dim, config.hidden, config.activation, key)

    def chain(key: Key) -> GaussianCritic:
        return ensemble(critic, config.critics_per_chain, key)

    critics = ensemble(chain, config.chains, key)
    shape = (config.chains, config.critics_per_chain)
    return Chains(
        critics=critics,
        targets=critics,
        sampler=jax.vmap(jax.vmap(sampler_of(config)[0].init))(critics),
        std_mean=jnp.full(shape, FIRST_STD, jnp.float32),
        var_mean=jnp.full(shape, FIRST_VARIANCE, jnp.float32),
    )


def value(critics: GaussianCritic, obs: Array, action: Array) -> Metrics:
    """Mean and std over chains of their Q, the mean predicted std of the return, and the mean difference between the
    largest and the smallest Q of a chain's critics, if there are several."""
    mean, std = jax.vmap(jax.vmap(lambda critic: critic(obs, action)))(critics)
    q = jnp.min(mean, axis=1)
    values = {"q": jnp.mean(q), "q_spread": jnp.std(q), "return_std": jnp.mean(std)}
    return values if mean.shape[1] == 1 else values | {"twin_gap": jnp.mean(jnp.max(mean, axis=1) - q)}


def refined(critics: GaussianCritic, batch: Transition, lr: float) -> Array:
    """Actions after the first step of Adam that maximises min_k Q_k, clipped to [−1, 1].

    The first step of Adam is lr · g/(|g| + ε): every coordinate moves by lr, independent of the size of its gradient.
    """
    g = jax.grad(lambda action: jnp.sum(min_mean(critics, batch.obs, action)))(batch.action)
    return jnp.clip(batch.action + lr * g / (jnp.abs(g) + 1e-8), -1.0, 1.0)


def critic_loss(
    critic: GaussianCritic,
    batch: Transition,
    y_q: Array,
    y_z: Array,
    std_mean: Array,
    var_mean: Array,
    config: Config,
) -> tuple[Array, tuple[Array, Array, Array, Array]]:
    """The loss of one critic. Also returns its running averages and the predicted mean and std."""
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


def move(
    config: Config, chains: Chains, actor: GaussianActor, batch: Transition, generated: Array, alpha: Array, key: Key
) -> tuple[Chains, Metrics]:
    """One Langevin step of every critic, on its chain's own batch [C, B]; `generated` [B] marks the transitions that do
    not come from the replay."""
    sampler, betas = sampler_of(config)

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
        clipped = jnp.mean((jnp.abs(y_z - mean) > config.bound_factor * std_mean).astype(jnp.float32))
        errors = _mean(error, ~generated), _mean(error, generated)
        record = (mean, jnp.mean(std), clipped, optax.tree.norm(grads), *errors)
        return optax.apply_updates(critic, updates), opt, std_mean, var_mean, record

    target_key, noise_key = jax.random.split(key)
    keys = jax.random.split(target_key, config.chains)
    y_q, y_z = jax.vmap(return_targets, in_axes=(0, None, None, 0, 0))(chains.targets, actor, alpha, batch, keys)
    ascent = None
    if config.released.q_ascent:
        rows = generated if config.synthetic else jnp.ones_like(generated)
        total_q = jax.grad(lambda critics, b: jnp.sum(min_mean(critics, b.obs, b.action), where=rows))
        ascent = jax.vmap(total_q)(chains.critics, batch)
    over_critics = jax.vmap(member, in_axes=(0, 0, 0, 0, 0, None, None, 0))
    critics, opt, std_mean, var_mean, record = jax.vmap(over_critics)(
        chains.critics,
        chains.sampler,
        chains.std_mean,
        chains.var_mean,
        ascent,
        betas,
        (batch, y_q, y_z),
        jax.random.split(noise_key, chains.std_mean.shape),
    )
    if config.released.shared_averages:
        std_mean = jnp.full_like(std_mean, jnp.mean(std_mean))
    q, std, clipped, norm, real_error, synthetic_error = record
    metrics = {
        "critic_loss": jnp.mean(real_error),
        "q_mean": jnp.mean(q),
        "q_std": jnp.mean(std),
        "critic_grad_norm": jnp.mean(norm),
    }
    if config.distributional:
        metrics["clipped_targets"] = jnp.mean(clipped)
    if config.synthetic:
        metrics["critic_loss_synthetic"] = jnp.mean(synthetic_error)
    return chains._replace(critics=critics, sampler=opt, std_mean=std_mean, var_mean=var_mean), metrics


def diagnostics(config: Config, chains: Chains) -> Metrics:
    """How the adaptive sampler moves the weights.

    `noise_share` is the noise's share of the mean square of a weight's step by noise and drift a ζ; the plain gradient
    is left out, which is small where its norm is clipped. `below_floor` is the share of weights with v < λ, which move
    more slowly than their gradients ask for.
    """
    if config.sampler != "asgld" or config.clip not in ("grad_norm", "plain_norm"):
        return {}
    m, v = chains.sampler.memory
    eta, (_, beta) = step_size(config)(chains.sampler.step), sampler_of(config)
    zeta = jax.tree.map(lambda m, v: m / jnp.sqrt(v + config.moment_eps), m, v)
    size = sum(x[0, 0].size for x in jax.tree.leaves(v))

    def mean(values: Any) -> Array:
        """Over the weights of each critic: [C, K]."""
        return sum(jnp.sum(x, axis=tuple(range(2, x.ndim))) for x in jax.tree.leaves(values)) / size

    drift = (eta * config.bias_factor) ** 2 * mean(jax.tree.map(jnp.square, zeta))
    noise = 2 * eta / beta[:, None]
    below = mean(jax.tree.map(lambda v: (v < config.moment_eps).astype(jnp.float32), v))
    return {"noise_share": jnp.mean(noise / (noise + drift)), "below_floor": jnp.mean(below)}


def _mean(values: Array, where: Array) -> Array:
    """The mean of some of the values; 0 of none."""
    return jnp.sum(values, where=where) / jnp.maximum(jnp.sum(where), 1).astype(values.dtype)


def exchange(
    config: Config, chains: Chains, actor: GaussianActor, batch: Transition, alpha: Array, update: Array, key: Key
) -> Chains:
    """Replica exchange: proposes to swap neighbouring chains of the temperature ladder.

    All chains are judged by one loss on one batch, whose targets are the means over chains: by its own targets, a chain
    whose values are wrong throughout could have the lowest loss. With differences of the loss that are large compared
    with 1/β, as at the default β, the colder chain always gets the lower loss, so exchanges sort the chains.
    """
    _, betas = sampler_of(config)
    target_key, swap_key = jax.random.split(key)
    common = jax.tree.map(lambda x: x[0], batch)
    of_each = jax.vmap(return_targets, in_axes=(0, None, None, None, None))
    y_q, y_z = (jnp.mean(y, axis=0) for y in of_each(chains.targets, actor, alpha, common, target_key))
    scale = jnp.mean(chains.var_mean) + config.std_eps

    def energy(critics: Any) -> Array:
        """ω times the negative log likelihood of y_Z, whose gradient is that of `critic_loss` with ε = 0, without the
        bound, and with y_Z for y_Q."""
        mean, std = returns(critics, common.obs, common.action)
        if config.distributional:
            return scale * jnp.sum(jnp.mean(0.5 * ((y_z[None] - mean) / std) ** 2 + jnp.log(std), axis=1))
        return jnp.sum(0.5 * jnp.mean((mean - y_q[None]) ** 2, axis=1))

    energies = jax.vmap(energy)(chains.critics)
    index = langevin.swap(swap_key, energies, betas, update // config.exchange_every)
    index = jnp.where(update % config.exchange_every == 0, index, jnp.arange(config.chains))
    return langevin.permute(chains, index)
