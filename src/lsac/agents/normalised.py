"""Normalised observations for any agent: `--normalise-observations`.

The running moments of the observations are part of the agent's state. Every collected observation is counted once;
transitions are normalised when they are read from the replay, and observations when the policy acts.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from lsac.nn import normalisation
from lsac.nn.normalisation import Moments
from lsac.replay import ring as rb
from lsac.types import Agent, Array, Entropy, EnvSpec, Key, Metrics, Refresh, Transition, Values


class State(NamedTuple):
    agent: Any
    moments: Moments


class Part(NamedTuple):
    """A part of the agent's state, with the moments that it needs."""

    inner: Any
    moments: Moments


def normalise_observations(agent: Agent, spec: EnvSpec) -> Agent:
    """Wraps an agent so that it sees (obs − running mean) / running std."""

    def scaled(moments: Moments, obs: Array) -> Array:
        return normalisation.normalised(moments, obs, rb.OBS_CLIP)

    def init(key: Key) -> State:
        return State(agent.init(key), normalisation.empty(spec.obs_shape))

    def act(policy: Part, memory: Any, obs: Array, key: Key, explore: bool) -> tuple[Array, Any]:
        return agent.act(policy.inner, memory, scaled(policy.moments, obs), key, explore)

    def update(state: State, replay: rb.Replay, key: Key) -> tuple[State, Metrics]:
        inner, metrics = agent.update(state.agent, dataclasses.replace(replay, moments=state.moments), key)
        return state._replace(agent=inner), metrics

    def observe(state: State, transitions: Transition) -> State:
        moments = normalisation.merged(state.moments, transitions.obs)
        return State(agent.observe(state.agent, transitions), moments)

    return agent._replace(
        init=init,
        policy=lambda state: Part(agent.policy(state.agent), state.moments),
        act=act,
        update=update,
        observe=observe,
        diagnostics=_diagnostics(agent.diagnostics) if agent.diagnostics else None,
        values=_values(agent.values, scaled) if agent.values else None,
        refresh=_refresh(agent.refresh) if agent.refresh else None,
    )


def _diagnostics(diagnostics: Callable[[Any], Metrics]) -> Callable[[State], Metrics]:
    return lambda state: diagnostics(state.agent)


def _values(values: Values, scaled: Any) -> Values:
    def value(part: Part, obs: Array, action: Array) -> Metrics:
        return values.value(part.inner, scaled(part.moments, obs), action)

    return values._replace(
        critics=lambda state: Part(values.critics(state.agent), state.moments),
        value=value,
        entropy=_entropy(values.entropy, scaled) if values.entropy else None,
    )


def _entropy(entropy: Entropy, scaled: Any) -> Entropy:
    def neg_log_prob(policy: Part, obs: Array, key: Key) -> Array:
        return entropy.neg_log_prob(policy.inner, scaled(policy.moments, obs), key)

    return Entropy(lambda state: entropy.alpha(state.agent), neg_log_prob)


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
