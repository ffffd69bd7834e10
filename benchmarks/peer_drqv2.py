"""Speed of DrQ-v2, side by side on one device: lsac, and a loop in PyTorch of the shape of the authors' code.

    python benchmarks/peer_drqv2.py [--env dm_control/cheetah-run-v0] [--steps 9000] [--rounds 3] [--num-envs 1 8]

Needs PyTorch beside lsac. The loop in PyTorch has what decides the speed of the authors' code: one simulator in the
process that learns, one decision at a time on the device, an update of 256 transitions every second decision, the same
networks and the same shifts, float32 with the tuned convolutions of cuDNN, and four processes that draw transitions and
put the frames of their stacks together. It keeps the replay in memory, where the authors' code reads files, so it is if
anything faster. It is there to be timed: nothing else of the algorithm was checked.

Both see 84 × 84 pixels, three frames, every action twice. What is timed goes from a third of the steps to the end.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import speed

PIXELS, STACK, REPEAT = 84, 3, 2
BATCH_SIZE, N_STEP, GAMMA = 256, 3, 0.99
FEATURE_DIM, HIDDEN, TAU, LR = 50, 1024, 0.01, 1e-4
SHIFT, NOISE, NOISE_CLIP = 4, 0.2, 0.3
LEARNING_STARTS = 2_000  # steps of the simulator
LOADERS = 4


class Speed(NamedTuple):
    steps_per_second: float
    """of the simulator, which the paper calls frames"""
    updates_per_second: float


# The loop in PyTorch. Only here is torch needed, and it is imported where it is used.


def networks(action_dim: int) -> Any:
    """Encoder, actor and critics of the paper."""
    from torch import nn

    def convolutions() -> list[Any]:
        layers: list[Any] = [nn.Conv2d(3 * STACK, 32, 3, stride=2), nn.ReLU()]
        for _ in range(3):
            layers += [nn.Conv2d(32, 32, 3), nn.ReLU()]
        return [*layers, nn.Flatten()]

    def trunk() -> Any:
        return nn.Sequential(nn.Linear(32 * 35 * 35, FEATURE_DIM), nn.LayerNorm(FEATURE_DIM), nn.Tanh())

    def head(inputs: int, outputs: int) -> Any:
        sizes = [nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()]
        return nn.Sequential(*sizes, nn.Linear(HIDDEN, outputs))

    class Actor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.head = trunk(), head(FEATURE_DIM, action_dim)

        def forward(self, features: Any) -> Any:
            return self.head(self.trunk(features)).tanh()

    class Critics(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = trunk()
            self.heads = nn.ModuleList(head(FEATURE_DIM + action_dim, 1) for _ in range(2))

        def forward(self, features: Any, action: Any) -> Any:
            import torch

            x = torch.cat([self.trunk(features), action], dim=1)
            return torch.cat([one(x) for one in self.heads], dim=1)

    return nn.Sequential(*convolutions()), Actor(), Critics(), Critics()


def shifted(images: Any) -> Any:
    """Images [B, C, H, W], each moved by up to four pixels, with its edges repeated; by interpolation, as the authors
    do it."""
    import torch
    from torch.nn import functional as nnf

    batch, _, _, side = images.shape
    padded = nnf.pad(images, (SHIFT,) * 4, mode="replicate")
    wide = side + 2 * SHIFT
    line = torch.arange(side, device=images.device, dtype=images.dtype)
    at = torch.randint(0, 2 * SHIFT + 1, (batch, 2, 1), device=images.device) + line  # [B, 2, side] pixels
    at = (2 * at + 1) / wide - 1  # the centre of a pixel, where the image is [−1, 1]
    shape = (batch, side, side)
    grid = torch.stack([at[:, 1, None, :].expand(shape), at[:, 0, :, None].expand(shape)], dim=3)
    return nnf.grid_sample(padded, grid, padding_mode="zeros", align_corners=False)


class Replay:
    """Each frame once, in memory that the loading processes share."""

    def __init__(self, rows: int, action_dim: int):
        import torch

        self.frames = torch.zeros((rows, 3, PIXELS, PIXELS), dtype=torch.uint8).share_memory_()
        self.actions = torch.zeros((rows, action_dim)).share_memory_()
        self.rewards = torch.zeros(rows).share_memory_()
        self.starts = torch.zeros(rows, dtype=torch.long).share_memory_()  # the row in which the episode began
        self.filled = torch.zeros(1, dtype=torch.long).share_memory_()  # of rows whose episode has ended

    def stack(self, row: int) -> Any:
        """The frame of a row and those before it [3 · STACK, H, W]; the first of an episode stands for older ones."""
        rows = np.maximum(np.arange(row - STACK + 1, row + 1), int(self.starts[row]))
        return self.frames[rows].flatten(0, 1)

    def draw(self, generator: np.random.Generator) -> tuple[Any, ...]:
        """A transition of N_STEP decisions within one episode."""
        while True:
            row = int(generator.integers(int(self.filled[0]) - N_STEP))
            if self.starts[row] == self.starts[row + N_STEP]:
                break
        reward = sum(GAMMA**i * self.rewards[row + i] for i in range(N_STEP))
        return self.stack(row), self.actions[row], reward, self.stack(row + N_STEP)


def batches(replay: Replay, pinned: bool) -> Iterator[list[Any]]:
    from torch.utils import data

    class Draws(data.IterableDataset):
        def __iter__(self) -> Iterator[tuple[Any, ...]]:
            found = data.get_worker_info()
            generator = np.random.default_rng(found.id if found else 0)
            while True:
                yield replay.draw(generator)

    return iter(data.DataLoader(Draws(), batch_size=BATCH_SIZE, num_workers=LOADERS, pin_memory=pinned))


def torch_loop(env_id: str, steps: int, seed: int) -> Speed:
    import torch
    from torch.nn import functional as nnf

    from lsac.envs.repeat import repeated
    from lsac.envs.sources import given

    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    env: Any = repeated(given(env_id, pixels=PIXELS).training.make(), REPEAT)
    action_dim = env.action_space.shape[0]
    encoder, actor, critics, targets = (network.to(device) for network in networks(action_dim))
    targets.load_state_dict(critics.state_dict())
    of_critics, of_actor, of_encoder = (torch.optim.Adam(x.parameters(), LR) for x in (critics, actor, encoder))
    decisions = steps // REPEAT
    replay = Replay(decisions + 2_000, action_dim)
    loaded: Iterator[list[Any]] | None = None

    def features(images: Any) -> Any:
        return encoder(images / 255.0 - 0.5)

    def noisy(mean: Any) -> Any:
        action = mean + (NOISE * torch.randn_like(mean)).clamp(-NOISE_CLIP, NOISE_CLIP)
        return action + (action.clamp(-1.0, 1.0) - action).detach()  # gradients pass the bounds

    def update(batch: list[Any]) -> None:
        images, action, reward, following = (x.to(device, non_blocking=True) for x in batch)
        found = features(shifted(images.float()))
        with torch.no_grad():
            later = features(shifted(following.float()))
            target = reward[:, None] + GAMMA**N_STEP * targets(later, noisy(actor(later))).amin(1, keepdim=True)
        loss = nnf.mse_loss(critics(found, action), target.expand(-1, 2))
        of_critics.zero_grad(set_to_none=True)
        of_encoder.zero_grad(set_to_none=True)
        loss.backward()
        of_critics.step()
        of_encoder.step()
        found = found.detach()
        actor_loss = -critics(found, noisy(actor(found))).amin(1).mean()
        of_actor.zero_grad(set_to_none=True)
        actor_loss.backward()
        of_actor.step()
        with torch.no_grad():
            for own, other in zip(targets.parameters(), critics.parameters(), strict=True):
                own.lerp_(other, TAU)

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    frame, start, updates = env.reset(seed=seed)[0], 0, 0
    clock, updates_before = 0.0, 0
    first = decisions // 3
    for row in range(decisions):
        if row == first:
            wait()
            clock, updates_before = time.perf_counter(), updates
        replay.frames[row] = torch.from_numpy(frame.copy()).permute(2, 0, 1)
        replay.starts[row] = start
        if row * REPEAT < LEARNING_STARTS:
            action = env.action_space.sample()
        else:
            with torch.no_grad():
                mean = actor(features(replay.stack(row)[None].to(device)))
                action = (mean + NOISE * torch.randn_like(mean)).clamp(-1.0, 1.0)[0].cpu().numpy()
        frame, reward, terminated, truncated, _ = env.step(action)
        replay.actions[row], replay.rewards[row] = torch.as_tensor(action), float(reward)
        if terminated or truncated:
            frame, start = env.reset()[0], row + 1
            replay.filled[0] = row + 1
        if row * REPEAT >= LEARNING_STARTS and row % 2 == 0 and replay.filled[0]:
            if loaded is None:
                loaded = batches(replay, pinned=device.type == "cuda")
            update(next(loaded))
            updates += 1
    wait()
    seconds = time.perf_counter() - clock
    env.close()
    return Speed((decisions - first) * REPEAT / seconds, (updates - updates_before) / seconds)


# The measurement


def measured_torch(options: argparse.Namespace, seed: int) -> Speed:
    command = [__file__, "--child", "--env", options.env, "--steps", options.steps, "--seed", seed]
    output = speed.call(command, speed.ROOT / "src").splitlines()
    return Speed(*json.loads(next(line for line in reversed(output) if line.startswith("["))))


def measured_lsac(options: argparse.Namespace, seed: int, num_envs: int) -> Speed:
    every = max(1, options.steps // 10)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = ["-m", "lsac", "train", "drqv2", "--env", options.env, "--seed", seed]
        command += ["--seeds", 1, "--steps", options.steps + every, "--log-every", every, "--num-envs", num_envs]
        command += ["--learning-starts", LEARNING_STARTS, "--n-step", N_STEP, "--batch-size", BATCH_SIZE]
        command += ["--pixels", PIXELS, "--frame-stack", STACK, "--action-repeat", REPEAT, "--utd", 0.5]
        speed.call([*command, "--eval-every", 0, "--checkpoint-every", 0, "--out", run], speed.ROOT / "src")
        found = speed.rate(run, options.steps).steps_per_second
    return Speed(found, found / REPEAT / 2)


def compare(options: argparse.Namespace) -> None:
    systems = {"PyTorch, 1 simulator": lambda seed: measured_torch(options, seed)}
    for n in options.num_envs:
        name = f"lsac, {n} simulator{'s' * (n > 1)}"
        systems[name] = lambda seed, n=n: measured_lsac(options, seed, n)
    found: dict[str, list[Speed]] = {name: [] for name in systems}
    for seed in range(options.rounds):  # in turn, so that slow spells of the machine fall on all
        for name, measure in systems.items():
            found[name].append(measure(seed))
            print(f"round {seed + 1}, {name}: {found[name][-1].steps_per_second:.1f} steps/s", file=sys.stderr)
    print("| | steps/s | updates/s | times PyTorch |\n|---|---|---|---|")
    base = next(iter(found.values()))
    for name, speeds in found.items():
        steps, updates = (statistics.median(column) for column in zip(*speeds, strict=True))
        ratio = statistics.median(a.steps_per_second / b.steps_per_second for a, b in zip(speeds, base, strict=True))
        print(f"| {name} | {steps:,.1f} | {updates:,.1f} | {ratio:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of DrQ-v2 beside a loop in PyTorch.")
    parser.add_argument("--env", default="dm_control/cheetah-run-v0", help="an id that renders")
    parser.add_argument("--steps", type=int, default=9_000, help="steps of the simulator in a run")
    parser.add_argument("--rounds", type=int, default=3, help="each measures every system once")
    parser.add_argument("--num-envs", nargs="+", type=int, default=[1, 8], help="simulators of lsac")
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        parser.error("PyTorch is missing beside lsac: pip install torch")
    if options.steps // 3 < LEARNING_STARTS + 1_000:
        parser.error(f"--steps {options.steps}: must be at least {3 * (LEARNING_STARTS + 1_000)}, to time updates only")
    if options.child:
        print(json.dumps(torch_loop(options.env, options.steps, options.seed)))
        return
    print(f"torch {torch.__version__}, {'CUDA' if torch.cuda.is_available() else 'CPU'}, {os.cpu_count()} cores")
    compare(options)


if __name__ == "__main__":
    main()
