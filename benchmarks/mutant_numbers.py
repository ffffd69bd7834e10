"""Numbers of LSAC and of its parts, to tell whether a mutant that no test notices computes anything else at all.

`programs` gives functions of no argument whose results are compared bit by bit. They are small, and between them they
take every branch of the mutated modules. Those called `golden …` are the numbers that tests/golden.json pins.
"""

import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import golden
import jax
import jax.numpy as jnp
import numpy as np

from lsac.agents import AGENTS
from lsac.agents.lsac import agent as lsac
from lsac.agents.lsac import chains, refreshing, synthesis
from lsac.nn import diffusion, langevin
from lsac.nn.normalisation import Moments
from lsac.presets import lsac as presets
from lsac.replay import ring as rb
from lsac.types import EnvSpec

Program = Callable[[], Any]

SPEC = EnvSpec(obs_shape=(3,), action_dim=2, gamma=0.9, log_action_scale=-0.7)
SIZES = {"hidden": (8,), "batch_size": 8, "chains": 3, "synthetic_capacity": 16}
GENERATOR = synthesis.Config(
    width=8, dim_t=8, blocks=1, train_steps=20, batch_size=8, sampler_steps=4, compute_dtype="float32"
)
NO_GENERATOR = {"synthetic": False}
WARM = {"critic_lr": 1e-2, "inverse_temperature": 10.0}
UPDATES: dict[str, dict[str, Any]] = {
    "default": {"action_lr": 0.1, "anneal_from": 1, "anneal_to": 3, "tau": 0.1},
    "other clip, drift, bound": {
        **{"clip": "sum_norm", "clip_at": 0.3, "bias_factor": 0.5, "bound_factor": 0.2, "std_eps": 0.3},
        **{"actor_lr": 1e-2, "alpha_lr": 3e-2, "action_gradient": False, "target_entropy": -5.0},
    },
    "exchange": {"exchange_every": 2, "ladder_ratio": 3.0, "actor_chain": "mean", **WARM, **NO_GENERATOR},
    "sgld, squared error": {
        "sampler": "sgld",
        "distributional": False,
        "actor_chain": "argmax",
        **WARM,
        **NO_GENERATOR,
    },
    "underdamped, one critic": {"sampler": "underdamped", "critics_per_chain": 1, **WARM, **NO_GENERATOR},
    "adam, overflow": {"sampler": "adam", "actor_chain": "overflow", **NO_GENERATOR},
    "adam, clipped actor": {
        **{"sampler": "adam", "clip": "none", "actor_clip": 0.05, "entropy_range": "env", "target_entropy": -1.0},
        **NO_GENERATOR,
    },
    "histogram on spheres": {
        **{"network": "sphere", "actor_network": "sphere", "width": 8, "blocks": 1, "head": "histogram", "bins": 7},
        **{"value_bound": 2.0, "weight_prior": 3.0, "endless_pessimism": 0.25, "actor_pessimism": 0.0},
        **{"actor_batches": 2, "slow_evaluation": True, **WARM, **NO_GENERATOR},
    },
    "batch normalisation": {
        **{"network": "batch_norm", "width": 8, "blocks": 1, "std_init": 0.1, "pessimism": 0.5, "temperature": 1.0},
        **WARM,
        **NO_GENERATOR,
    },
    "embedding, an actor per chain": {
        **{"embedding": True, "embedding_period": 2, "hidden": (8, 8), "actors": "per_chain", "slow_evaluation": True},
        **WARM,
    },
}
SYNTHESIS: dict[str, dict[str, Any]] = {
    "default": {},
    "tails and terminations": {"squash_beyond": 3.0, "match_terminals": True},
    "cold, no terminals": {"model_terminals": False, "normalize_reward": False, "warm_start": False, "ema_every": 5},
    "change, heun": {"model_change": True, "sampler": "heun", "sample_batch": 5, "compute_dtype": "bfloat16"},
}


def replay(moments: bool = False) -> rb.Replay:
    """24 transitions in a ring of 32, every sixth of them terminal."""
    rng, layout = np.random.default_rng(0), rb.layout_of(SPEC)
    rows = rng.normal(1.0, 2.0, size=(32, layout.width)).astype(np.float32)
    where = layout.fields()
    rows[3, where["obs"]] = 60.0  # far outside the usual range
    rows[:, where["action"]] = rng.uniform(-1, 1, size=(32, SPEC.action_dim))
    rows[:, where["discount"]] = np.where(np.arange(32) % 6 == 5, 0.0, SPEC.gamma)[:, None]
    ring = layout.empty(32) | {rb.PACKED: rows}
    made = rb.holding(layout, ring, 24)
    seen = Moments(jnp.full(3, 0.5), jnp.full(3, 9.0), jnp.float32(24.0))
    return dataclasses.replace(made, moments=seen) if moments else made


# LSAC


def updated(config: Any, moments: bool = False) -> Any:
    """A refresh, if there is a generator, and four updates.

    The values of the chains are far apart where the actor does not follow any of them, and near 88.7.
    """
    agent, data = lsac.make(config, SPEC), replay(moments)
    state, shown = agent.init(jax.random.key(0)), ()
    if config.actor_chain != "uniform":
        by = 100.0 * jnp.arange(config.chains, dtype=jnp.float32)
        bias = lambda s: s.chains.critics.mlp.layers[-1].bias  # noqa: E731
        state = eqx.tree_at(bias, state, bias(state).at[:, :, 0].add(by[:, None]))
    if agent.refresh:
        state, *shown = jax.jit(agent.refresh.fit)(state, data, jax.random.key(1))
        state, generated = jax.jit(agent.refresh.generate)(state, jax.random.key(2))
        shown.append(generated)
        if agent.refresh.judge:
            told = [jax.jit(agent.refresh.judge)(state, jnp.float32(e)) for e in (0.2, 0.6, 1.2, np.nan, 0.75)]
            state = told[-1][0]
            shown.append([(judged.share, found) for judged, found in told])
    update, metrics = jax.jit(agent.update), []
    for i in range(4):
        state, found = update(state, data, jax.random.key(i))
        metrics.append(found)
    obs, action = jnp.ones(3), jnp.zeros(2)
    values = agent.values.value(agent.values.critics(state), obs, action)
    acted = agent.act(agent.policy(state), (), obs, jax.random.key(7), True)
    found = agent.diagnostics(state) if agent.diagnostics else {}
    return state, shown, metrics, values, acted, found


def small_lsac(config: Any, **options: Any) -> Any:
    return dataclasses.replace(config, **SIZES | {"generator": GENERATOR} | options)


def constants() -> list[str]:
    """Of the modules, and the defaults of their options."""
    facts = (
        refreshing.SHOWN,
        refreshing.COMPARED,
        synthesis.ROUNDED_TO,
        chains.FIRST_STD,
        chains.FIRST_VARIANCE,
        synthesis.PIECES,
        synthesis.BLOCK,
        langevin.CLIPS,
    )
    agent = lsac.make(small_lsac(lsac.Config()), SPEC)
    assert agent.refresh is not None
    facts += agent.refresh.every, agent.refresh.steps, agent.refresh.pieces, agent.gradient_steps
    return [repr(x) for x in (*facts, lsac.Config(), synthesis.Config(), synthesis.PAPER, diffusion.NO_CHURN)]


def lsac_programs() -> Iterator[tuple[str, Program]]:
    yield "constants", constants
    for name, options in UPDATES.items():
        yield f"update, {name}", partial(updated, small_lsac(lsac.Config(), **options))
    released = presets.released("Hopper-v4").agent
    yield "update, released", partial(updated, small_lsac(released))
    with_generator = small_lsac(released, synthetic=True, actor_chain="uniform")
    yield "update, released with a generator, normalised", partial(updated, with_generator, moments=True)


# Its parts


def generated(config: synthesis.Config) -> Any:
    state = synthesis.init(config, SPEC, jax.random.key(0))
    state, metrics = jax.jit(partial(synthesis.fit, config, SPEC))(state, replay(), jax.random.key(1))
    rows = jax.jit(lambda state, key: synthesis.generate(config, SPEC, state, 12, key))(state, jax.random.key(2))
    transitions = rb.everything(replay())[0]
    vectors = synthesis.encode(config, transitions)
    counts = jnp.arange(0, config.train_steps, 3)
    schedules = jax.vmap(partial(synthesis.learning_rate, config))(counts), synthesis.ema_decay(config, counts)
    return state, metrics, rows, vectors, synthesis.decode(config, SPEC, vectors), schedules


def dtypes() -> list[str]:
    return [synthesis.compute_dtype(synthesis.Config(compute_dtype=x)) for x in ("auto", "float32", "bfloat16")]


def long_fit() -> Any:
    """The ramp of the average reaches its end only after many updates."""
    return synthesis.ema_decay(synthesis.Config(), jnp.array([0, 100, 1_000, 10_000]))


def sampled(name: str, rate: Any, beta: float | None = None, size: float = 1.0, **options: Any) -> Any:
    """Three steps of a sampler on a small tree."""
    sampler = langevin.SAMPLERS[name](rate, 5.0, **options)
    params = {"a": jnp.arange(4.0).reshape(2, 2) - 1.5, "b": jnp.array([0.3, 0.0, -2.0])}
    state, found = sampler.init(params), []
    for i in range(3):
        grads = jax.tree.map(lambda x, i=i: size * (x + i), params)
        chosen = {} if beta is None else {"inverse_temperature": beta}
        updates, state = sampler.update(grads, state, params, key=jax.random.key(i), **chosen)
        params = jax.tree.map(jnp.add, params, updates)
        found.append((updates, state))
    return found


def langevin_programs() -> Iterator[tuple[str, Program]]:
    schedule = langevin.annealed(0.1, 0.02, 1, 3)
    for name in langevin.SAMPLERS:
        yield f"sampler, {name}", partial(sampled, name, 0.1)
        yield f"sampler, {name}, annealed", partial(sampled, name, schedule, 2.0)
    for clip in langevin.CLIPS:
        for size in (0.01, 10.0):
            yield f"sampler, {clip}, {size}", partial(sampled, "asgld", 0.1, size=size, clip=clip)
    yield "sampler, options", lambda: sampled("asgld", 0.1, drift=0.5, b1=0.5, b2=0.6, eps=0.1, clip_at=0.2)
    yield "sampler, momentum", lambda: sampled("underdamped", 0.1, momentum=0.5)
    yield "noise", lambda: langevin.gaussian_noise(jax.random.key(0), [jnp.zeros((3, 500)), jnp.zeros(1_000)])
    yield "annealed", lambda: [langevin.annealed(1.0, 0.1, *x)(jnp.arange(9)) for x in ((2, 6), (3, 3), (0, 8))]
    yield "exchange of chains", exchanged


def exchanged() -> Any:
    betas = langevin.ladder(5, 8.0, 2.0)
    energies = jax.random.normal(jax.random.key(0), (40, 5))
    steps = jnp.arange(40)
    keys = jax.random.split(jax.random.key(1), 40)
    index = jax.vmap(langevin.swap, in_axes=(0, 0, None, 0))(keys, energies, betas, steps)
    odds = jax.vmap(langevin.swap_probability, in_axes=(0, None))(energies, betas)
    return betas, index, odds, langevin.permute({"a": energies[0]}, index[0])


def network(x: Any, c: Any) -> Any:
    return jnp.tanh(x) * c + 0.1 * x


def diffused() -> Any:
    batch = jax.random.normal(jax.random.key(0), (6, 3))
    sigma = jnp.array([0.01, 0.5, 1.0, 7.0])
    models = [
        diffusion.Denoiser(3, 8, jax.random.key(1), dim_t=6, blocks=2, compute_dtype=dtype)
        for dtype in ("float32", "bfloat16")
    ]
    outputs = [(model, jax.vmap(model)(batch, batch[:, 0])) for model in models]
    loss = lambda m: diffusion.edm_loss(diffusion.preconditioned(m), batch, jax.random.key(2))  # noqa: E731
    scaled = [diffusion.preconditioning(sigma), diffusion.preconditioning(sigma, 0.5)]
    error = diffusion.edm_loss(diffusion.preconditioned(network, 0.5), batch, jax.random.key(3), sigma_data=0.5)
    return outputs, jax.value_and_grad(loss)(models[0]), scaled, error


def integrated() -> Any:
    denoise = diffusion.preconditioned(network)
    found: list[Any] = [diffusion.karras_schedule(3), diffusion.karras_schedule(5, 0.1, 4.0, 3.0), diffusion.Churn()]
    for schedule in found[:2]:
        for churn in (diffusion.NO_CHURN, diffusion.Churn(), diffusion.Churn(1.0, 0.5, 2.0, 1.1)):
            found.append(diffusion.sample_heun(denoise, jax.random.key(0), (4, 2), schedule, churn))
        found.append(diffusion.sample_dpm2m(denoise, jax.random.key(1), (4, 2), schedule))
    return found


def discrete() -> Any:
    start = jax.random.normal(jax.random.key(0), (4, 2))
    found: list[Any] = [diffusion.vp_betas(4), diffusion.vp_betas(3, 0.2, 5.0), diffusion.cosine_betas(6)]
    for betas in found[:3]:
        schedule = diffusion.ddpm(betas)
        found += [schedule, diffusion.noised(schedule, start, jnp.array(1), -start)]
        for clip_clean in (True, False):
            for temperature in (0.0, 0.7):
                denoise = lambda x, t: 0.3 * jnp.tanh(x) * (t + 1).astype(jnp.float32)  # noqa: E731
                options = {"temperature": temperature, "clip_clean": clip_clean}
                found.append(diffusion.sample_ddpm(denoise, schedule, start, jax.random.key(1), **options))
    return found


def golden_run(algorithm: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return golden.after_a_run(algorithm, Path(folder) / "run")


def programs(algorithms: list[str]) -> Iterator[tuple[str, Program]]:
    """By name; the golden numbers are those of the given algorithms."""
    yield from langevin_programs()
    yield "diffusion, losses", diffused
    yield "diffusion, samplers", integrated
    yield "diffusion, discrete", discrete
    yield "synthesis, dtypes", dtypes
    yield "synthesis, ramp", long_fit
    for name, options in SYNTHESIS.items():
        yield f"synthesis, {name}", partial(generated, dataclasses.replace(GENERATOR, **options))
    yield from lsac_programs()
    for algorithm in algorithms or AGENTS:
        yield f"golden updates, {algorithm}", partial(golden.after_three_updates, algorithm)
        yield f"golden run, {algorithm}", partial(golden_run, algorithm)
