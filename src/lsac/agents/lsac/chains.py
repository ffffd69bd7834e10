"""Chains of Langevin critics: C chains of K distributional critics, each chain trained on its own batch.

The Q of a chain is by default the minimum over its K critics: in the TD targets, for the actor and for the refinement
of actions (see `critics.Reading`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from lsac.agents.dsact import return_targets, returns
from lsac.agents.lsac.config import Config
from lsac.agents.lsac.critics import LOWEST, Critic, HistogramCritic, Reading, in_training, joined, make_critic
from lsac.nn import langevin
from lsac.nn.batch_norm import AXIS, trained, with_new_statistics, without_statistics
from lsac.nn.distributions import gaussian_return_loss, histogram
from lsac.nn.networks import GaussianActor, ensemble
from lsac.nn.spheres import on_spheres, unbounded
from lsac.types import Array, EnvSpec, Key, Metrics, Transition

FIRST_STD, FIRST_VARIANCE = 0.7, 0.5
"""Initial running means of σ and σ²: about those of an untrained network, whose σ is near softplus(0) = 0.69."""


class Chains(NamedTuple):
    """All fields are stacked [C, K]."""

    critics: Critic
    targets: Critic
    sampler: langevin.SamplerState
    std_mean: Array  # running mean of σ, which bounds y_Z
    var_mean: Array  # running mean of σ², which scales the loss


class Bootstrap(NamedTuple):
    """What TD targets are made of, beside the target critics."""

    actor: GaussianActor
    """the target actor, or one per chain [C]"""
    alpha: Array
    reading: Reading = LOWEST
    """of the target critics"""


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
    if config.network != "mlp":
        sampler = on_spheres(sampler)
    if config.exchange_every:
        return sampler, langevin.ladder(config.chains, config.inverse_temperature, config.ladder_ratio)
    return sampler, jnp.full((config.chains,), config.inverse_temperature)


def inverse_temperatures(config: Config, chains: Chains, transitions: Array) -> Array:
    """[C, K] β of every critic: constant, or the number of transitions / (ω T), with ω the scale of its loss."""
    shape = chains.var_mean.shape
    if not config.temperature:
        return jnp.broadcast_to(sampler_of(config)[1][:, None], shape)
    return transitions / (config.temperature * loss_scale(config, chains.var_mean))


def loss_scale(config: Config, var_mean: Array) -> Array:
    """ω of critics, by which their losses are a negative log likelihood per transition."""
    scaled = config.distributional and config.head == "gaussian"
    return var_mean + config.std_eps if scaled else jnp.ones_like(var_mean)


def init(config: Config, spec: EnvSpec, key: Key) -> Chains:
    def chain(key: Key) -> Critic:
        return ensemble(lambda k: make_critic(config, spec, k), config.critics_per_chain, key)

    critics = ensemble(chain, config.chains, key)
    shape = (config.chains, config.critics_per_chain)
    std, variance = (config.std_init, config.std_init**2) if config.std_init else (FIRST_STD, FIRST_VARIANCE)
    return Chains(
        critics=critics,
        targets=critics,
        sampler=jax.vmap(jax.vmap(sampler_of(config)[0].init))(critics),
        std_mean=jnp.full(shape, std, jnp.float32),
        var_mean=jnp.full(shape, variance, jnp.float32),
    )


def value(critics: Critic, obs: Array, action: Array) -> Metrics:
    """Mean and std over chains of their lowest Q, the mean predicted std of the return, and the mean difference between
    the largest and the smallest Q of a chain's critics, if there are several."""
    mean, std = jax.vmap(jax.vmap(lambda critic: critic(obs, action)))(critics)
    q = jnp.min(mean, axis=1)
    values = {"q": jnp.mean(q), "q_spread": jnp.std(q), "return_std": jnp.mean(std)}
    return values if mean.shape[1] == 1 else values | {"twin_gap": jnp.mean(jnp.max(mean, axis=1) - q)}


def q_of_chains(critics: Critic, obs: Array, action: Array) -> Array:
    """[C] the lowest Q of every chain for one pair, as the critics see it."""
    mean, _ = jax.vmap(jax.vmap(lambda critic: critic(obs, action)))(critics)
    return jnp.min(mean, axis=1)


def refined(critics: Critic, batch: Transition, lr: float, reading: Reading = LOWEST) -> Array:
    """Actions after the first step of Adam that maximises a chain's Q, clipped to [−1, 1].

    The first step of Adam is lr · g/(|g| + ε): every coordinate moves by lr, independent of the size of its gradient.
    """
    g = jax.grad(lambda action: jnp.sum(reading.q(critics, batch.obs, action)))(batch.action)
    return jnp.clip(batch.action + lr * g / (jnp.abs(g) + 1e-8), -1.0, 1.0)


def critic_loss(
    critic: Critic,
    batch: Transition,
    y_q: Array,
    y_z: Array,
    std_mean: Array,
    var_mean: Array,
    config: Config,
) -> tuple[Array, tuple[Array, Array, Array, Array]]:
    """The loss of one critic. Also returns its running averages and the predicted mean and std. The batch may have more
    pairs of observation and action than targets: they only share their statistics, in batch normalisation."""
    rows, learner = y_q.shape[0], in_training(critic)
    mean, std = (x[:rows] for x in jax.vmap(learner, axis_name=AXIS)(batch.obs, batch.action))
    fixed = jax.lax.stop_gradient(std)
    std = fixed if config.released.std_without_gradient else std
    std_mean = std_mean + config.tau * (jnp.mean(fixed) - std_mean)
    var_mean = var_mean + config.tau * (jnp.mean(fixed**2) - var_mean)
    if isinstance(critic, HistogramCritic):
        target = histogram(y_q, critic.bound, config.bins)
        logits = jax.vmap(learner.logits, axis_name=AXIS)(batch.obs, batch.action)[:rows]
        loss = -jnp.mean(jnp.sum(target * jax.nn.log_softmax(logits), axis=-1))
    elif config.distributional:
        spread = std_mean**2 if config.released.shared_averages else var_mean
        bound, scale = config.bound_factor * std_mean, spread + config.std_eps
        loss = gaussian_return_loss(mean, std, y_q, y_z, bound, scale, config.std_eps)
    else:
        loss = 0.5 * jnp.mean((mean - y_q) ** 2)
    if config.released.weight_norm:
        loss += config.released.weight_norm * sum(jnp.linalg.norm(x.reshape(-1)) for x in jax.tree.leaves(critic))
    return loss, (std_mean, var_mean, mean, std)


def prior_gradient(config: Config, critic: Critic, var_mean: Array, transitions: Array) -> Critic:
    """ω / |D| times the gradient of a Gaussian prior's negative log density, for parameters that are not on spheres.

    The loss is ω times the negative log likelihood of one transition; the prior counts once for all |D| of them.
    """
    precision = config.weight_prior * loss_scale(config, var_mean) / jnp.maximum(transitions, 1.0)
    return jax.grad(lambda c: 0.5 * precision * sum(jnp.sum(x**2) for x in unbounded(without_statistics(c))))(critic)


def move(
    config: Config,
    chains: Chains,
    bootstrap: Bootstrap,
    batch: Transition,
    generated: Array,
    transitions: Array,
    key: Key,
    reading: Reading = LOWEST,
) -> tuple[Chains, Metrics]:
    """One Langevin step of every critic, on its chain's own batch [C, B]; `generated` [B] marks the transitions that do
    not come from the replay, `transitions` is how many it holds, and `reading` is that of the critics themselves."""
    sampler, _ = sampler_of(config)

    def member(
        critic: Any, opt: Any, std_mean: Array, var_mean: Array, ascent: Any, beta: Array, chain: Any, key: Key
    ) -> tuple[Any, ...]:
        batch, y_q, y_z = chain
        loss_of = jax.value_and_grad(critic_loss, has_aux=True)
        (_, aux), grads = loss_of(critic, batch, y_q, y_z, std_mean, var_mean, config)
        if config.released.q_ascent:
            grads = jax.tree.map(jnp.subtract, grads, ascent)
        if config.weight_prior:
            grads = jax.tree.map(jnp.add, grads, prior_gradient(config, critic, var_mean, transitions))
        cleaned = without_statistics(grads)
        updates, opt = sampler.update(cleaned, opt, critic, key=key, inverse_temperature=beta)
        updates = with_new_statistics(updates, grads)
        std_mean, var_mean, mean, std = aux
        error = (mean - y_q) ** 2
        clipped = jnp.mean((jnp.abs(y_z - mean) > config.bound_factor * std_mean).astype(jnp.float32))
        errors = _mean(error, ~generated), _mean(error, generated)
        record = (mean, jnp.mean(std), clipped, optax.tree.norm(cleaned), *errors)
        return optax.apply_updates(critic, updates), opt, std_mean, var_mean, record

    target_key, noise_key = jax.random.split(key)
    targets = targets_of(config, chains.targets, bootstrap, batch, target_key)
    ascent = _ascent(config, chains.critics, batch, generated) if config.released.q_ascent else None
    betas = inverse_temperatures(config, chains, transitions)
    over_critics = jax.vmap(member, in_axes=(0, 0, 0, 0, 0, 0, None, 0))
    critics, opt, std_mean, var_mean, record = jax.vmap(over_critics)(
        chains.critics,
        chains.sampler,
        chains.std_mean,
        chains.var_mean,
        ascent,
        betas,
        (_shown(config, batch, targets, reading), targets.y_q, targets.y_z),
        jax.random.split(noise_key, chains.std_mean.shape),
    )
    if config.released.shared_averages:
        std_mean = jnp.full_like(std_mean, jnp.mean(std_mean))
    metrics = _metrics(config, record)
    if config.value_bound:
        metrics["bounded_targets"] = targets.bounded
    if config.temperature:
        metrics["inverse_temperature"] = jnp.mean(betas)
    return chains._replace(critics=critics, sampler=opt, std_mean=std_mean, var_mean=var_mean), metrics


def mean_loss(
    config: Config, chains: Chains, bootstrap: Bootstrap, batch: Transition, key: Key, reading: Reading = LOWEST
) -> Array:
    """The mean over chains and critics of their losses on one batch [B] for all, each with the targets of its chain,
    which are constant."""
    shared = jax.tree.map(lambda x: jnp.broadcast_to(x[None], (config.chains, *x.shape)), batch)
    targets = targets_of(config, chains.targets, bootstrap, shared, key)
    targets = jax.lax.stop_gradient(targets)

    def one(critic: Any, std_mean: Array, var_mean: Array, chain: tuple[Transition, Array, Array]) -> Array:
        batch, y_q, y_z = chain
        return critic_loss(critic, batch, y_q, y_z, std_mean, var_mean, config)[0]

    shown = _shown(config, shared, targets, reading), targets.y_q, targets.y_z
    over_critics = jax.vmap(one, in_axes=(0, 0, 0, None))
    return jnp.mean(jax.vmap(over_critics)(chains.critics, chains.std_mean, chains.var_mean, shown))


def _shown(config: Config, batch: Transition, targets: "Targets", reading: Reading) -> Transition:
    """A batch [C, B] whose observations and actions are as critics in training see them."""
    pairs = jax.vmap(reading.see)(batch.obs, batch.action)
    if config.network == "batch_norm":
        pairs = jax.vmap(joined)(pairs, targets.next_pairs)  # (s, a) and (s', a') share their statistics
    return batch._replace(obs=pairs[0], action=pairs[1])


def _ascent(config: Config, critics: Critic, batch: Transition, generated: Array) -> Any:
    """The gradient of the summed Q of every chain's refined batch, as in the published code."""
    rows = generated if config.synthetic else jnp.ones_like(generated)
    total_q = jax.grad(lambda critics, b: jnp.sum(LOWEST.q(critics, b.obs, b.action), where=rows))
    return jax.vmap(total_q)(critics, batch)


class Targets(NamedTuple):
    """TD targets [C, B] of every chain."""

    y_q: Array
    y_z: Array
    next_pairs: tuple[Array, Array]
    """next observations and the actions sampled there, as critics see them"""
    bounded: Array
    """share of y_Q that the bound on values clips"""


def targets_of(config: Config, targets: Critic, bootstrap: Bootstrap, batch: Transition, key: Key) -> Targets:
    """y_Q and y_Z, clipped to the bound on values."""
    per_chain = 0 if config.actors == "per_chain" else None

    def one(targets: Critic, actor: GaussianActor, batch: Transition, key: Key) -> tuple[Any, ...]:
        reading, pairs = bootstrap.reading, []
        if config.network == "batch_norm":
            reading = reading._replace(beside=reading.see(batch.obs, batch.action))

        def predicted(critics: Critic, obs: Array, action: Array) -> tuple[Array, Array]:
            pairs.append(reading.see(obs, action))
            return reading.predicted(critics, obs, action)

        made = return_targets(targets, actor, bootstrap.alpha, batch, key, predicted)
        return *made, pairs[0]

    keys = jax.random.split(key, config.chains)
    y_q, y_z, pairs = jax.vmap(one, in_axes=(0, per_chain, 0, 0))(targets, bootstrap.actor, batch, keys)
    if not config.value_bound:
        return Targets(y_q, y_z, pairs, jnp.zeros(()))
    bounded = jnp.mean((jnp.abs(y_q) > config.value_bound).astype(jnp.float32))
    y_q, y_z = (jnp.clip(y, -config.value_bound, config.value_bound) for y in (y_q, y_z))
    return Targets(y_q, y_z, pairs, bounded)


def _metrics(config: Config, record: tuple[Array, ...]) -> Metrics:
    q, std, clipped, norm, real_error, synthetic_error = record
    metrics = {
        "critic_loss": jnp.mean(real_error),
        "q_mean": jnp.mean(q),
        "q_std": jnp.mean(std),
        "critic_grad_norm": jnp.mean(norm),
    }
    if config.distributional and config.head == "gaussian":
        metrics["clipped_targets"] = jnp.mean(clipped)
    if config.synthetic:
        metrics["critic_loss_synthetic"] = jnp.mean(synthetic_error)
    return metrics


def diagnostics(config: Config, chains: Chains) -> Metrics:
    """How the adaptive sampler moves the weights.

    `noise_share` is the noise's share of the mean square of a weight's step by noise and drift a ζ; the plain gradient
    is left out, which is small where its norm is clipped. `below_floor` is the share of weights with v < λ, which move
    more slowly than their gradients ask for. There is no `noise_share` if β depends on the replay, which is not known
    here.
    """
    if config.sampler != "asgld" or config.clip not in ("grad_norm", "plain_norm"):
        return {}
    m, v = map(trained, chains.sampler.memory)
    eta, (_, beta) = step_size(config)(chains.sampler.step), sampler_of(config)
    zeta = jax.tree.map(lambda m, v: m / jnp.sqrt(v + config.moment_eps), m, v)
    size = sum(x[0, 0].size for x in jax.tree.leaves(v))

    def mean(values: Any) -> Array:
        """Over the weights of each critic: [C, K]."""
        return sum(jnp.sum(x, axis=tuple(range(2, x.ndim))) for x in jax.tree.leaves(values)) / size

    below = mean(jax.tree.map(lambda v: (v < config.moment_eps).astype(jnp.float32), v))
    if config.temperature:
        return {"below_floor": jnp.mean(below)}
    drift = (eta * config.bias_factor) ** 2 * mean(jax.tree.map(jnp.square, zeta))
    noise = 2 * eta / beta[:, None]
    return {"noise_share": jnp.mean(noise / (noise + drift)), "below_floor": jnp.mean(below)}


def _mean(values: Array, where: Array) -> Array:
    """The mean of some of the values; 0 of none."""
    return jnp.sum(values, where=where) / jnp.maximum(jnp.sum(where), 1).astype(values.dtype)


def exchange(
    config: Config, chains: Chains, bootstrap: Bootstrap, batch: Transition, update: Array, key: Key
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
    made = of_each(chains.targets, bootstrap.actor, bootstrap.alpha, common, target_key)
    y_q, y_z = (jnp.mean(y, axis=0) for y in made)
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
