"""Time of one call of `predict`, side by side: lsac, SBX and Stable-Baselines3.

    python benchmarks/predict.py [--repeats 5] [--env HalfCheetah-v5]

Every round asks each system in a process of its own, one after the other. The policies are new: training does not
change the time of a call.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
from peers import HIDDEN, SYSTEMS, call, peer_python, say

CALLS = 2000


def model(system: str, env: str):
    """SAC with three layers of 256, untrained."""
    if system == "ours":
        from lsac import SAC

        return SAC(env, hidden=HIDDEN)
    if system == "sb3":
        import torch
        from stable_baselines3 import SAC

        torch.set_num_threads(1)  # with more, a network of this size is slower
    else:
        from sbx import SAC
    return SAC("MlpPolicy", env, device="cpu", policy_kwargs={"net_arch": list(HIDDEN)})


def inner(system: str, env: str) -> None:
    """Prints the milliseconds per call for one observation and for a batch of 100."""
    policy, made = model(system, env), gymnasium.make(env)
    obs = made.reset(seed=0)[0]
    found = {}
    for name, batch in (("one", obs), ("hundred", np.repeat(obs[None], 100, axis=0))):
        for _ in range(50):
            policy.predict(batch, deterministic=True)
        began = time.perf_counter()
        for _ in range(CALLS):
            policy.predict(batch, deterministic=True)
        found[name] = (time.perf_counter() - began) / CALLS * 1e3
    print(json.dumps(found))


def compare(env: str, repeats: int, folder: Path) -> None:
    pythons = {"ours": sys.executable, "sbx": str(peer_python(folder)), "sb3": str(peer_python(folder))}
    times: dict[str, list[dict[str, float]]] = {system: [] for system in SYSTEMS}
    for repeat in range(repeats):
        for system, python in pythons.items():
            output = call([python, __file__, "--inner", system, "--env", env], SYSTEMS[system])
            times[system].append(json.loads(output.splitlines()[-1]))
            say(f"  round {repeat + 1} of {repeats}, {SYSTEMS[system]:18s} {times[system][-1]['one']:.3f} ms")
    print(f"{'system':18s}  one observation  100 observations   (ms per call, median of {repeats}; all rounds of one)")
    for system, mine in times.items():
        one, hundred = (statistics.median(x[name] for x in mine) for name in ("one", "hundred"))
        print(f"{SYSTEMS[system]:18s}  {one:15.3f}  {hundred:16.3f}   " + " ".join(f"{x['one']:.3f}" for x in mine))


def main() -> None:
    parser = argparse.ArgumentParser(description="Time of one predict, side by side: lsac, SBX, Stable-Baselines3.")
    parser.add_argument("--repeats", type=int, default=5, help="rounds; each asks every system once")
    parser.add_argument("--env", default="HalfCheetah-v5", help="a Gymnasium id with a Box action space")
    parser.add_argument("--venv", type=Path, default=Path("~/.cache/lsac/peers"), help="the peers' folder")
    parser.add_argument("--inner", choices=SYSTEMS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inner:
        inner(args.inner, args.env)
    else:
        compare(args.env, args.repeats, args.venv.expanduser().absolute())


if __name__ == "__main__":
    main()
