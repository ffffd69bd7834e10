"""Chains of Langevin critics: C chains of K critics of the return's distribution, each chain on its own batch.

A chain's Q is the minimum over its critics, in targets, for the actor and where generated actions are refined.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from lsac.nn import langevin
from lsac.nn.distributions import gaussian_return_loss
from lsac.nn.networks import GaussianActor, GaussianCritic, ensemble, sample_actions
from lsac.types import Array, EnvSpec, Key, Metrics, Transition

if TYPE_CHECKING:
    from lsac.agents.lsac.agent import Config


class Chains(NamedTuple):
    """All fields are stacked [C, K]."""

    critics: GaussianCritic
    targets: GaussianCritic
    sampler: langevin.SamplerState
    std_mean: Array  # running mean of σ, which bounds y_Z
    var_mean: Array  # running mean of σ², which scales the loss


def sampler_of(config: "Config") -> tuple[langevin.Sampler, Array]:
    """How critics move, and the inverse temperature [C] of every chain."""
    schedule = langevin.annealed(config.critic_lr, config.critic_lr_end, config.anneal_from, config.anneal_to)
    options = {"drift": config.bias_factor, "clip": config.clip, "clip_at": config.clip_at}
    sampler = langevin.SAMPLERS[config.sampler](
        schedule, config.inverse_temperature, **(options if config.sampler == "asgld" else {})
    )
    if config.exchange_every:
        return sampler, langevin.ladder(config.chains, config.inverse_temperature, config.ladder_ratio)
    return sampler, jnp.full((config.chains,), config.inverse_temperature)


def init(config: "Config", spec: EnvSpec, key: Key) -> Chains:
    def critic(key: Key) -> GaussianCritic:
        return GaussianCritic(*spec, config.hidden, config.activation, key)

    def chain(key: Key) -> GaussianCritic:
        return ensemble(critic, config.critics_per_chain, key)

    critics = ensemble(chain, config.chains, key)
    shape = (config.chains, config.critics_per_chain)
    return Chains(
        critics=critics,
        targets=critics,
        sampler=jax.vmap(jax.vmap(sampler_of(config)[0].init))(critics),
        std_mean=jnp.full(shape, 0.7, jnp.float32),
        var_mean=jnp.full(shape, 0.5, jnp.float32),
    )


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
    critic: GaussianCritic,
    batch: Transition,
    y_q: Array,
    y_z: Array,
    std_mean: Array,
    var_mean: Array,
    config: "Config",
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


def move(
    config: "Config", chains: Chains, actor: GaussianActor, batch: Transition, real: int, alpha: Array, key: Key
) -> tuple[Chains, Metrics]:
    """One Langevin step of every critic of every chain, on the chain's own batch [C, B], whose first `real` rows
    happened."""
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
        record = (mean, jnp.mean(std), optax.tree.norm(grads), jnp.mean(error[:real]), jnp.mean(error[real:]))
        return optax.apply_updates(critic, updates), opt, std_mean, var_mean, record

    target_key, noise_key = jax.random.split(key)
    keys = jax.random.split(target_key, config.chains)
    y_q, y_z = jax.vmap(targets_of, in_axes=(0, None, None, 0, 0))(chains.targets, actor, alpha, batch, keys)
    ascent = None
    if config.released.q_ascent:
        half = jax.tree.map(lambda x: x[:, real:] if config.synthetic else x, batch)
        total_q = jax.grad(lambda critics, b: jnp.sum(lower(critics, b.obs, b.action)))
        ascent = jax.vmap(total_q)(chains.critics, half)
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
    q, std, norm, real_error, synthetic_error = record
    metrics = {
        "critic_loss": jnp.mean(real_error),
        "q_mean": jnp.mean(q),
        "q_std": jnp.mean(std),
        "critic_grad_norm": jnp.mean(norm),
    }
    if config.synthetic:
        metrics["critic_loss_synthetic"] = jnp.mean(synthetic_error)
    return chains._replace(critics=critics, sampler=opt, std_mean=std_mean, var_mean=var_mean), metrics


def exchange(
    config: "Config", chains: Chains, actor: GaussianActor, batch: Transition, alpha: Array, update: Array, key: Key
) -> Chains:
    """Proposes to swap neighbours on the temperature ladder, by their losses on one common batch."""
    _, betas = sampler_of(config)
    target_key, swap_key = jax.random.split(key)
    common = jax.tree.map(lambda x: x[0], batch)

    def energy(critics: Any, targets: Any) -> Array:
        y_q, _ = targets_of(targets, actor, alpha, common, target_key)
        mean, _ = returns(critics, common.obs, common.action)
        return jnp.sum(0.5 * jnp.mean((mean - y_q[None]) ** 2, axis=1))

    energies = jax.vmap(energy)(chains.critics, chains.targets)
    index = langevin.swap(swap_key, energies, betas, update // config.exchange_every)
    index = jnp.where(update % config.exchange_every == 0, index, jnp.arange(config.chains))
    return langevin.permute(chains, index)
