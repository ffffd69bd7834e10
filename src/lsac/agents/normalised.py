"""Normalised observations and scaled rewards for any agent: `--normalise-observations` and `--scale-rewards`.

Their running statistics are part of the agent's state. Every collected transition is counted once; transitions are
normalised when they are read from the replay, with the statistics of that moment, and observations when the policy
acts. Values are returned in the units of the environment's own rewards.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from lsac.nn import normalisation
from lsac.nn.normalisation import Moments, ReturnStatistics
from lsac.replay import ring as rb
from lsac.types import Agent, Array, Entropy, EnvSpec, Key, Metrics, Refresh, Transition, Values

LARGEST_RETURN = 5.0
"""Rewards are scaled so that the std of the discounted return is at most 1 and its largest size at most this."""


class State(NamedTuple):
    agent: Any
    moments: Moments | None  # of observations, if they are normalised
    returns: ReturnStatistics | None  # if rewards are scaled


class Part(NamedTuple):
    """A part of the agent's state, with the moments that it needs."""

    inner: Any
    moments: Moments | None


class ValuePart(NamedTuple):
    """The part that values are computed from, with the scale that gives them the unit of the rewards, if they are
    scaled."""

    inner: Any
    moments: Moments | None
    scale: Array | None


def normalised(
    agent: Agent, spec: EnvSpec, *, observations: bool = False, rewards: bool = False, num_envs: int = 1
) -> Agent:
    """Wraps an agent so that it sees (obs − running mean) / running std, or rewards divided by a running scale."""
    if not observations and not rewards:
        return agent

    def init(key: Key) -> State:
        moments = normalisation.empty(spec.obs_shape) if observations else None
        return State(agent.init(key), moments, normalisation.no_returns(num_envs) if rewards else None)

    def act(policy: Part, memory: Any, obs: Array, key: Key, explore: bool) -> tuple[Array, Any]:
        return agent.act(policy.inner, memory, _seen(policy.moments, obs), key, explore)

    def update(state: State, replay: rb.Replay, key: Key) -> tuple[State, Metrics]:
        scale = _scale(state)
        replay = dataclasses.replace(replay, moments=state.moments, reward_scale=scale)
        inner, metrics = agent.update(state.agent, replay, key)
        return state._replace(agent=inner), metrics if scale is None else metrics | {"reward_scale": scale}

    def observe(state: State, transitions: Transition, first: Array) -> State:
        inner, moments, returns = agent.observe(state.agent, transitions, first), state.moments, state.returns
        if moments is not None:
            moments = normalisation.merged(moments, transitions.obs)
        if returns is not None:
            reward, starts = (x.reshape(-1, num_envs) for x in (transitions.reward, first))
            returns = normalisation.with_rewards(returns, reward, starts, spec.gamma)
        return State(inner, moments, returns)

    return agent._replace(
        init=init,
        policy=lambda state: Part(agent.policy(state.agent), state.moments),
        act=act,
        update=update,
        observe=observe,
        diagnostics=_diagnostics(agent.diagnostics) if agent.diagnostics else None,
        values=_values(agent.values) if agent.values else None,
        refresh=_refresh(agent.refresh) if agent.refresh else None,
    )


def _seen(moments: Moments | None, obs: Array) -> Array:
    return obs if moments is None else normalisation.normalised(moments, obs, rb.OBS_CLIP)


def _scale(state: State) -> Array | None:
    return None if state.returns is None else normalisation.reward_scale(state.returns, LARGEST_RETURN)


def _in_rewards(scale: Array | None, x: Array) -> Array:
    """A value in the unit of the environment's rewards."""
    return x if scale is None else scale * x


def _diagnostics(diagnostics: Callable[[Any], Metrics]) -> Callable[[State], Metrics]:
    return lambda state: diagnostics(state.agent)


def _values(values: Values) -> Values:
    def value(part: ValuePart, obs: Array, action: Array) -> Metrics:
        found = values.value(part.inner, _seen(part.moments, obs), action)
        return jax.tree.map(lambda x: _in_rewards(part.scale, x), found)

    return values._replace(
        critics=lambda state: ValuePart(values.critics(state.agent), state.moments, _scale(state)),
        value=value,
        entropy=_entropy(values.entropy) if values.entropy else None,
    )


def _entropy(entropy: Entropy) -> Entropy:
    def neg_log_prob(policy: Part, memory: Any, obs: Array, key: Key) -> Array:
        return entropy.neg_log_prob(policy.inner, memory, _seen(policy.moments, obs), key)

    return Entropy(lambda state: _in_rewards(_scale(state), entropy.alpha(state.agent)), neg_log_prob)


def _refresh(refresh: Refresh) -> Refresh:
    def finish(state: State, work: Any) -> tuple[State, Metrics, Transition]:
        inner, metrics, sample = refresh.finish(state.agent, work)
        return state._replace(agent=inner), metrics, sample

    def generate(state: State, key: Key) -> tuple[State, Transition]:
        inner, sample = refresh.generate(state.agent, key)
        return state._replace(agent=inner), sample

    def judge(state: State, error: Array) -> tuple[State, Metrics]:
        assert refresh.judge is not None
        inner, metrics = refresh.judge(state.agent, error)
        return state._replace(agent=inner), metrics

    return refresh._replace(
        begin=lambda state, replay, key: refresh.begin(state.agent, replay, key),
        finish=finish,
        generate=generate,
        compact=lambda state: state._replace(agent=refresh.compact(state.agent)),
        judge=judge if refresh.judge else None,
    )
