"""Trust Region Policy Optimization: Schulman et al., *Trust Region Policy Optimization*, ICML 2015 (arXiv 1502.05477).

Each chunk of steps gives the policy one step along the natural gradient of the expected advantage. A backtracking line
search chooses the largest step for which the mean KL divergence from the old policy stays within δ and the surrogate
objective improves by a sufficient share of its linear prediction. Policy, observations, advantages and value function
are those of PPO.

Deviations, with reasons: docs/agents/trpo.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from lsac.agents import on_policy
from lsac.agents.on_policy import Actor, ActorCritic, Batch
from lsac.nn.distributions import normal_kl
from lsac.nn.networks import Activation
from lsac.nn.optimisers import adam
from lsac.options import AtLeast, Count, Layers, NotNegative, Positive, PositiveShare, RunOptions, Share
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
    max_kl: Positive = 0.01
    """δ: largest mean KL divergence of the new policy from the old one"""
    damping: NotNegative = 0.1
    """constant added to the diagonal of the Fisher matrix"""
    cg_steps: Count = 10
    """conjugate-gradient iterations"""
    backtracks: Count = 10
    """number of step lengths that the line search tries"""
    backtrack: PositiveShare = 0.8
    """ratio of each step length to the previous one"""
    kl_check: bool = True
    """whether the line search also checks that the KL divergence of a step is at most δ"""
    accept_ratio: Share = 0.1
    """share of the gain predicted by the gradient that an accepted step must reach"""
    epochs: Count = 20
    """passes of the critic over each chunk"""
    minibatches: Count = 1
    """Adam steps per epoch, each on an equal part of the chunk"""
    critic_lr: Positive = 1e-3
    """Adam step size of the critic"""
    anneal_updates: Annotated[int | None, AtLeast(0)] = None
    """updates over which the critic's step size decays linearly to 0; None means the whole run, 0 no decay"""
    lam: Share = 0.95
    """λ of generalised advantage estimation: 0 relies on the critic, 1 on the returns"""
    obs_clip: NotNegative = 10.0
    """observations are normalised by their running moments and clipped to ± this; 0 turns normalisation off"""
    log_std_init: float = -0.5
    """initial log std of the actions"""
    mean_scale: NotNegative = 0.01
    """initial scale of the policy's last layer"""

    def check(self, experiment: RunOptions) -> None:
        on_policy.check_run(self.minibatches, experiment)


class State(NamedTuple):
    networks: ActorCritic
    critic_opt: optax.OptState
    updates: Array


class Step(NamedTuple):
    """The result of the line search; a length of 0 means no step."""

    length: Array
    gain: Array
    kl: Array


def surrogate(actor: Actor, batch: Batch) -> Array:
    """L(θ) = E [π_θ(a|s) / π_old(a|s) · A], A standardised over the batch: eq. (14)."""
    ratio = jnp.exp(on_policy.log_probs(actor, batch.obs, batch.action) - batch.log_prob)
    return jnp.mean(ratio * on_policy.standardised(batch.advantage))


def mean_kl(old: Actor, new: Actor, obs: Array) -> Array:
    """E KL(π_old(·|s) ‖ π_new(·|s))."""
    return jnp.mean(jax.vmap(lambda o: normal_kl(*old(o), *new(o)))(obs))


def fisher_product(kl: Callable[[Array], Array], theta: Array, v: Array, damping: float) -> Array:
    """(F + damping I) v, where F is the Hessian of the KL at θ, the Fisher matrix: appendix C.1."""
    return jax.jvp(jax.grad(kl), (theta,), (v,))[1] + damping * v


def conjugate_gradients(product: Callable[[Array], Array], b: Array, steps: int) -> Array:
    """x with M x ≈ b for a positive definite M, given by its products; stops changing once |M x − b|² < 1e-10."""

    def step(carry: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array], None]:
        x, residual, direction = carry
        size, curved = residual @ residual, product(direction)
        open_still = size > 1e-10
        length = jnp.where(open_still, size / (direction @ curved), 0.0)
        x, residual = x + length * direction, residual - length * curved
        turn = jnp.where(open_still, residual @ residual / size, 0.0)
        return (x, residual, residual + turn * direction), None

    return jax.lax.scan(step, (jnp.zeros_like(b), b, b), None, length=steps)[0][0]


def full_step(product: Callable[[Array], Array], gradient: Array, max_kl: float, steps: int) -> Array:
    """x = (F + damping I)⁻¹ g, scaled so that ½ xᵀ (F + damping I) x = δ."""
    x = conjugate_gradients(product, gradient, steps)
    return jnp.sqrt(2.0 * max_kl / jnp.maximum(x @ product(x), 1e-12)) * x


def line_search(
    outcome: Callable[[Array], tuple[Array, Array]], lengths: Array, promised: Array, accept_ratio: float, max_kl: float
) -> Step:
    """The first length whose gain is a sufficient share of the predicted one, within the trust region; 0 if none is.

    `outcome` returns gain and KL divergence of a length. All lengths are evaluated, so that seeds share one program.
    """
    gains, kls = jax.lax.map(outcome, lengths)
    good = (gains > jnp.maximum(accept_ratio * promised * lengths, 0.0)) & (kls <= max_kl)
    first = jnp.argmax(good)
    return Step(*(jnp.where(good[first], x[first], 0.0) for x in (lengths, gains, kls)))


def improved(actor: Actor, batch: Batch, config: Config) -> tuple[Actor, Step]:
    """The actor after one trust-region step, and that step."""
    theta, restore = ravel_pytree(actor)
    gradient = jax.grad(lambda x: surrogate(restore(x), batch))(theta)
    product = partial(fisher_product, lambda x: mean_kl(actor, restore(x), batch.obs), theta, damping=config.damping)
    move = full_step(product, gradient, config.max_kl, config.cg_steps)
    start = surrogate(actor, batch)

    def outcome(length: Array) -> tuple[Array, Array]:
        new = restore(theta + length * move)
        return surrogate(new, batch) - start, mean_kl(actor, new, batch.obs)

    lengths = config.backtrack ** jnp.arange(config.backtracks, dtype=jnp.float32)
    limit = config.max_kl if config.kl_check else math.inf
    step = line_search(outcome, lengths, gradient @ move, config.accept_ratio, limit)
    return restore(theta + jnp.where(step.length > 0, step.length * move, 0.0)), step


def make(config: Config, spec: EnvSpec) -> Agent:
    optimiser = adam(1.0)  # the step size is applied afterwards

    def init(key: Key) -> State:
        networks = on_policy.init(spec, config.hidden, config.activation, config.mean_scale, config.log_std_init, key)
        return State(networks, optimiser.init(networks.critic), jnp.zeros((), jnp.int32))

    def update(state: State, replay: rb.Replay, key: Key) -> tuple[State, Metrics]:
        networks, rollout, log_prob = on_policy.prepared(state.networks, replay, config.obs_clip, config.lam)
        advantage, returns, value = on_policy.estimates(networks.values, rollout, config.lam)
        data = Batch(rollout.steps.obs, rollout.steps.action, log_prob, advantage, returns, value)
        whole = rollouts.flattened(data)
        actor, taken = improved(networks.actor, whole, config)
        rate = config.critic_lr * on_policy.remaining(state.updates, config.anneal_updates)

        def step(carry: tuple, batch: Batch) -> tuple[tuple, Array]:
            critic, opt = carry
            loss = lambda critic: on_policy.critic_loss(jax.vmap(critic)(batch.obs)[:, 0], batch)  # noqa: E731
            error, grads = jax.value_and_grad(loss)(critic)
            direction, opt = optimiser.update(grads, opt)
            return (optax.apply_updates(critic, jax.tree.map(lambda x: rate * x, direction)), opt), error

        def epoch(carry: tuple, key: Key) -> tuple[tuple, Array]:
            return jax.lax.scan(step, carry, rollouts.minibatches(data, config.minibatches, key))

        start = networks.critic, state.critic_opt
        (critic, opt), errors = jax.lax.scan(epoch, start, jax.random.split(key, config.epochs))
        metrics = on_policy.value_metrics(networks.values, returns, value) | {
            "critic_loss": jnp.mean(errors),
            "actor_loss": -taken.gain,
            "kl": taken.kl,
            "step_length": taken.length,
            "entropy": on_policy.entropy(actor.log_std),
            "std": jnp.mean(jnp.exp(actor.log_std)),
        }
        return State(networks._replace(actor=actor, critic=critic), opt, state.updates + 1), metrics

    return Agent(
        init=init,
        policy=lambda state: state.networks.policy,
        act=memoryless(partial(on_policy.act, config.obs_clip)),
        update=update,
        values=Values(lambda state: state.networks.values, partial(on_policy.value, config.obs_clip)),
        gradient_steps=config.epochs * config.minibatches,
    )
