"""Lists the kernels of an update: how often each one runs and how long it takes.

    python benchmarks/trace.py lsac --seeds 10 --updates 32 --top 30

On a GPU every line is one kernel, as the profiler of JAX recorded it; on a CPU the trace has XLA's operations instead.
"""

import argparse
import collections
import gzip
import json
import pathlib
import tempfile
import time

import jax

from lsac.cli import bench
from lsac.presets import preset


def events(folder: pathlib.Path) -> list[dict]:
    """The kernels in the trace that the profiler wrote to `folder`."""
    (path,) = folder.rglob("*.trace.json.gz")
    trace = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in trace if e.get("name") == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace if e.get("name") == "thread_name"}
    on_gpu = any("GPU" in name for name in processes.values())

    def counts(event: dict) -> bool:
        if event.get("ph") != "X":
            return False
        if on_gpu:
            return "GPU" in processes[event["pid"]] and "Stream" in threads[event["pid"], event["tid"]]
        return "hlo_op" in event.get("args", {})

    return [e for e in trace if counts(e)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm")
    parser.add_argument("--env", default="HalfCheetah-v4")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--updates", type=int, default=32)
    parser.add_argument("--top", type=int, default=40)
    parser.add_argument("--hlo", type=pathlib.Path, help="where to write the compiled program")
    args = parser.parse_args()
    experiment = preset(args.algorithm, args.preset, args.env)
    spec = bench.spec_of(experiment)
    _, state, replay, _, update = bench.subject(experiment, spec, args.seeds, bench.rows_of(spec))
    updates = bench.repeated(update, args.seeds, args.updates)
    started = time.perf_counter()
    compiled = updates.lower(state, replay, jax.random.key(0)).compile()
    print(f"{args.algorithm}, {args.env}, {args.seeds} seeds, compiled in {time.perf_counter() - started:.1f} s")
    if args.hlo:
        args.hlo.write_text(compiled.as_text())
    times = []
    for number in range(6):
        started = time.perf_counter()
        state, _ = jax.block_until_ready(compiled(state, replay, jax.random.key(number)))
        times.append((time.perf_counter() - started) / args.updates)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(compiled(state, replay, jax.random.key(9)))
        found = events(pathlib.Path(folder))
    total, count = collections.Counter(), collections.Counter()
    for event in found:
        name = event.get("args", {}).get("hlo_op") or event["name"]
        name = f"{name} | {event['name'][:60]}" if name != event["name"] else name
        total[name] += event["dur"]
        count[name] += 1
    busy, kernels = sum(total.values()) / args.updates, sum(count.values()) / args.updates
    print(f"{1e3 * sorted(times)[2]:.3f} ms per update; {kernels:.1f} kernels, {busy / 1e3:.3f} ms in them")
    for name, spent in total.most_common(args.top):
        print(f"{spent / args.updates:9.2f} µs {count[name] / args.updates:7.2f} × {name}")


if __name__ == "__main__":
    main()
