"""Microseconds of the host alone, without learning: acting, simulating and sending, through the pool of a run.

    python benchmarks/host.py [--env HalfCheetah-v4] [--seeds 10] [--num-envs 20] [--rounds 20] [--workers N]
    PYTHONPATH=other/checkout/src python benchmarks/host.py   # another checkout, to compare

Times one seed, several seeds, and several simulators of one seed, each per vector step (a step of every simulator), and
one evaluation of one and of several seeds. The policies are new: training does not change the time of a step.
"""

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable
from contextlib import closing

import jax
import numpy as np

from lsac.collect import snapshot
from lsac.collect.pool import Pool, evaluation_groups, training_groups
from lsac.collect.wire import GroupPlan
from lsac.envs import rates
from lsac.envs.sources import given
from lsac.presets import preset
from lsac.runs.experiment import Experiment, make_agent

STEPS = 32
"""Vector steps per chunk."""


def policies_of(experiment: Experiment) -> np.ndarray:
    agent = make_agent(experiment, given(experiment.env).spec(experiment.gamma))
    keys = jax.random.split(jax.random.key(0), experiment.seeds)
    return np.asarray(jax.jit(jax.vmap(lambda key: snapshot.flatten(agent.policy(agent.init(key)))))(keys))


def timed(experiment: Experiment, plans: list[GroupPlan], workers: int, rounds: int, work: Callable) -> list[float]:
    """Seconds of each round of `work`, which takes a pool, its policies and the number of the round."""
    environments, policies, times = given(experiment.env), policies_of(experiment), []
    spec = environments.spec(experiment.gamma)
    with closing(Pool(experiment, spec, environments.training, plans, workers)) as pool:
        pool.reset(0)
        for number in range(rounds + 1):
            began = time.perf_counter()
            work(pool, policies, number)
            times.append(time.perf_counter() - began)
    return times[1:]  # the first one warms up


def collect(pool: Pool, policies: np.ndarray, number: int) -> None:
    stride = pool.plans[0].stride
    pool.collect(policies, number * STEPS * stride, STEPS, random=False)
    pool.collected()


def evaluate(pool: Pool, policies: np.ndarray, number: int) -> None:
    pool.evaluate(policies, number, deterministic=True)
    pool.evaluated()


def steps(name: str, experiment: Experiment, workers: int, rounds: int) -> None:
    e = dataclasses.replace(experiment, chunk=STEPS * experiment.num_envs)
    times = timed(e, training_groups(e.seed_list, e.num_envs), workers, rounds, collect)
    low, middle = (1e6 * x / STEPS for x in (min(times), statistics.median(times)))
    rate = 1e6 * e.seeds * e.num_envs / middle
    print(f"{name:32s} {middle:8.0f} µs per vector step (least {low:.0f}): {rate:8,.0f} steps/s", flush=True)


def evaluations(name: str, experiment: Experiment, workers: int) -> None:
    e = experiment
    times = timed(e, evaluation_groups(e.seed_list, e.eval_episodes, 1), workers, 2, evaluate)
    print(f"{name:32s} {statistics.median(times):8.2f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="HalfCheetah-v4")
    parser.add_argument("--algorithm", default="sac")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--num-envs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=rates.cores())
    args = parser.parse_args()
    one = preset(args.algorithm, "default", args.env)
    many = dataclasses.replace(one, seeds=args.seeds)
    print(f"{args.algorithm} on {args.env}, at most {args.workers} workers; medians of {args.rounds} chunks")
    steps("one seed", one, args.workers, args.rounds)
    steps(f"{args.seeds} seeds", many, args.workers, args.rounds)
    wide = dataclasses.replace(one, num_envs=args.num_envs)
    steps(f"{args.num_envs} simulators of one seed", wide, args.workers, args.rounds)
    evaluations("evaluation of one seed", one, args.workers)
    evaluations(f"evaluation of {args.seeds} seeds", many, args.workers)


if __name__ == "__main__":
    main()
