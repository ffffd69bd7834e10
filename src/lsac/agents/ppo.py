"""Proximal Policy Optimization: Schulman et al., *Proximal Policy Optimization Algorithms*, 2017 (arXiv 1707.06347).

Each chunk of steps is used for a few epochs of minibatches and then discarded. A Gaussian policy maximises the
advantage of its actions, weighted by the probability ratio between the new and the old policy; the gradient vanishes
once that ratio leaves [1 − ε, 1 + ε] in the improving direction. Advantages are estimated by GAE with a learned value
function, in units of the return scale. Actor and critic are trained as one fused network, see nn/fused.py.

Deviations, with reasons: docs/agents/ppo.md.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from lsac.agents import on_policy
from lsac.agents.on_policy import Actor, ActorCritic, Batch
from lsac.nn import fused
from lsac.nn.distributions import normal_log_prob
from lsac.nn.networks import Activation
from lsac.nn.optimisers import adam
from lsac.options import AddedLater, AtLeast, Count, Decay, Layers, NotNegative, Positive, RunOptions, Share
from lsac.replay import ring as rb
from lsac.replay import rollouts
from lsac.types import Agent, Array, EnvSpec, Key, Metrics, Values, memoryless


@dataclass(frozen=True)
class Config(on_policy.Annealed):
    on_policy: ClassVar[bool] = True
    hidden: Layers = (64, 64)
    """width of each hidden layer, for actor and critic"""
    activation: Activation = "tanh"
    """relu, gelu, elu, tanh or mish"""
    epochs: Count = 5
    """passes over each chunk"""
    minibatches: Count = 16
    """Adam steps per epoch, each on an equal part of the chunk"""
    actor_lr: Positive = 1e-3
    """Adam step size of the actor"""
    critic_lr: Positive = 1e-3
    """Adam step size of the critic"""
    adam_beta2: Annotated[Decay, AddedLater(before=0.999)] = 0.999
    """β₂ of Adam: decay rate of the running mean of squared gradients"""
    anneal_updates: Annotated[int | None, AtLeast(0)] = None
    """updates over which the step sizes decay linearly to 0; None means the whole run, 0 no decay"""
    lam: Share = 0.95
    """λ of generalised advantage estimation: 0 relies on the critic, 1 on the returns"""
    clip_ratio: Positive = 0.2
    """ε: the gradient vanishes once the probability ratio leaves [1 − ε, 1 + ε] in the improving direction"""
    value_clip: bool = True
    """whether values are clipped to ± ε around those at the start of the epoch, in units of the return scale"""
    value_weight: NotNegative = 0.25
    """weight of the critic's loss"""
    entropy_weight: NotNegative = 0.0
    """weight of the policy's entropy"""
    grad_norm: NotNegative = 0.5
    """norm to which the gradient of actor and critic together is clipped; 0 means no clipping"""
    obs_clip: NotNegative = 10.0
    """observations are normalised by their running moments and clipped to ± this; 0 turns normalisation off"""
    mean_scale: NotNegative = 0.01
    """initial scale of the policy's last layer"""
    log_std_init: float = -0.5
    """initial log std of the actions"""

    def check(self, experiment: RunOptions) -> None:
        on_policy.check_run(self.minibatches, experiment)


class State(NamedTuple):
    networks: ActorCritic
    opt: optax.OptState  # of the vector of all parameters
    updates: Array


def actor_loss(mean: Array, log_std: Array, batch: Batch, clip_ratio: float) -> tuple[Array, Metrics]:
    """−E min(ρ A, clip(ρ, 1 ± ε) A), ρ = π(a|s) / π_old(a|s): eq. (7). A is already standardised."""
    log_ratio = jax.vmap(normal_log_prob, (0, 0, None))(batch.action, mean, log_std) - batch.log_prob
    ratio, advantage = jnp.exp(log_ratio), batch.advantage
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip_ratio, 1.0 + clip_ratio) * advantage)
    metrics = {
        "approx_kl": jnp.mean(ratio - 1.0 - log_ratio),
        "clip_fraction": jnp.mean(jnp.abs(ratio - 1.0) > clip_ratio, dtype=jnp.float32),
    }
    return -jnp.mean(gain), metrics


def loss(pair: fused.Pair, batch: Batch, config: Config) -> tuple[Array, Metrics]:
    """The actor's loss, c₁ times the critic's and −c₂ times the entropy: eq. (9)."""
    mean, value, log_std = fused.outputs(pair, batch.obs)
    pi_loss, metrics = actor_loss(mean, log_std, batch, config.clip_ratio)
    v_loss = on_policy.critic_loss(value, batch, config.clip_ratio if config.value_clip else None)
    entropy = on_policy.entropy(log_std)
    total = pi_loss + config.value_weight * v_loss - config.entropy_weight * entropy
    return total, metrics | {"actor_loss": pi_loss, "critic_loss": v_loss, "entropy": entropy}


def paired(networks: ActorCritic) -> fused.Pair:
    return fused.pair(networks.actor.mlp, networks.critic, networks.actor.log_std)


def unpaired(networks: ActorCritic, pair: fused.Pair) -> ActorCritic:
    """The networks, with their parameters replaced by those of a pair."""
    mean, critic, log_std = fused.unpair(pair)
    return networks._replace(actor=Actor(mean, log_std), critic=critic)


def make(config: Config, spec: EnvSpec) -> Agent:
    optimiser = adam(1.0, max_norm=config.grad_norm, b2=config.adam_beta2)  # the step sizes are applied afterwards

    def init(key: Key) -> State:
        networks = on_policy.init(spec, config.hidden, config.activation, config.mean_scale, config.log_std_init, key)
        return State(networks, optimiser.init(fused.flat(paired(networks))[0]), jnp.zeros((), jnp.int32))

    def update(state: State, replay: rb.Replay, key: Key) -> tuple[State, Metrics]:
        networks, rollout, log_prob = on_policy.prepared(state.networks, replay, config.obs_clip, config.lam)
        vector, restore = fused.flat(paired(networks))
        remaining = on_policy.remaining(state.updates, config.anneal_updates)
        rates = fused.flat_rates(restore(vector), config.actor_lr * remaining, config.critic_lr * remaining)

        def step(carry: tuple[Array, optax.OptState], batch: Batch) -> tuple[tuple[Array, optax.OptState], None]:
            vector, opt = carry
            grads = jax.grad(lambda vector: loss(restore(vector), batch, config)[0])(vector)
            direction, opt = optimiser.update(grads, opt)
            return (vector + rates * direction, opt), None

        def estimated(vector: Array) -> tuple[ActorCritic, Batch]:
            """The networks of a parameter vector, and the chunk with advantages estimated by their critic."""
            new = unpaired(networks, restore(vector))
            estimates = on_policy.estimates(new.values, rollout, config.lam)
            return new, Batch(rollout.steps.obs, rollout.steps.action, log_prob, *estimates)

        def epoch(carry: tuple[Array, optax.OptState], key: Key) -> tuple[tuple[Array, optax.OptState], Metrics]:
            before, chunk = estimated(carry[0])
            batches = rollouts.minibatches(chunk, config.minibatches, key)
            batches = batches._replace(advantage=jax.vmap(on_policy.standardised)(batches.advantage))
            carry, _ = jax.lax.scan(step, carry, batches)
            return carry, on_policy.value_metrics(before.values, chunk.returns, chunk.value)

        (vector, opt), values = jax.lax.scan(epoch, (vector, state.opt), jax.random.split(key, config.epochs))
        after, chunk = estimated(vector)
        whole = rollouts.flattened(chunk._replace(advantage=on_policy.standardised(chunk.advantage)))
        _, metrics = loss(restore(vector), whole, config)
        metrics |= jax.tree.map(jnp.mean, values) | {"std": jnp.mean(jnp.exp(after.actor.log_std))}
        return State(after, opt, state.updates + 1), metrics

    return Agent(
        init=init,
        policy=lambda state: state.networks.policy,
        act=memoryless(partial(on_policy.act, config.obs_clip)),
        update=update,
        values=Values(lambda state: state.networks.values, partial(on_policy.value, config.obs_clip)),
        gradient_steps=config.epochs * config.minibatches,
    )
