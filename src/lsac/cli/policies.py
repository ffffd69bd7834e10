"""The commands `eval` and `export`: what is done with trained policies."""

import dataclasses
import sys
from pathlib import Path

import tyro

from lsac.cli.arguments import import_modules, parse
from lsac.errors import InputError

# eval


@dataclasses.dataclass(frozen=True)
class Evaluate:
    run: tyro.conf.Positional[Path]
    """folder of the run"""
    episodes: int = 10
    """episodes per seed"""
    policy: str = "last"
    """last (of the newest checkpoint) or best (in the evaluations during training)"""
    stochastic: tyro.conf.FlagCreatePairsOff[bool] = False
    """use exploratory actions instead of deterministic ones"""
    video: Path | None = None
    """file, .mp4 or .gif, for a video of the first episode of a seed"""
    video_episodes: int = 1
    """number of episodes in the video"""
    video_steps: int | None = None
    """film only so many steps of each episode; default: all"""
    render: tyro.conf.FlagCreatePairsOff[bool] = False
    """show the episodes of a seed in a window instead"""
    seed: int | None = None
    """the seed that is filmed or shown in a window; default: the first"""
    module: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """module to import first; needed if the run's environment is module:Env, and for its wrappers; can be repeated"""


EVAL_HELP = """Run the trained policies of every seed and print their returns; film or show one of them.

The video shows the first episodes that the evaluation counts.

Examples:
  lsac eval runs/cheetah
  lsac eval runs/cheetah --episodes 20 --policy best
  lsac eval runs/cheetah --video cheetah.mp4
"""


def evaluate(args: list[str]) -> int:
    given = parse(Evaluate, args, "lsac eval", EVAL_HELP)
    _check(given)
    if given.video is not None:
        from lsac.envs.rendering import choose_backend

        choose_backend()  # before MuJoCo is imported
    import_modules(given.module)
    from lsac.train.evaluate_run import evaluate_run
    from lsac.train.watching import Filmed, record, show

    if given.render:
        print(show(given.run, given.policy, given.seed, given.episodes, not given.stochastic))
        return 0
    lines = []
    if given.video is not None:
        filmed = Filmed(
            given.policy, given.seed, given.video_episodes, given.video_steps, not given.stochastic, given.episodes
        )
        lines.append(record(given.run, given.video, filmed, lambda text: print(text, file=sys.stderr)))
    print(evaluate_run(given.run, given.episodes, given.policy, not given.stochastic), *lines, sep="\n")
    return 0


def _check(given: Evaluate) -> None:
    counts = {"episodes": given.episodes, "video-episodes": given.video_episodes, "video-steps": given.video_steps}
    for name, count in counts.items():
        if count is not None and count < 1:
            raise InputError(f"--{name} {count}: must be at least 1")
    _require_policy(given.policy)
    if given.render and given.video is not None:
        raise InputError(f"--video {given.video}: a file and a window (--render) exclude each other")
    if given.seed is not None and given.video is None and not given.render:
        raise InputError(f"--seed {given.seed}: chooses the seed of --video or --render")


def _require_policy(policy: str) -> None:
    if policy not in ("last", "best"):
        raise InputError(f"--policy {policy}: must be last or best")


# export


@dataclasses.dataclass(frozen=True)
class Export:
    run: tyro.conf.Positional[Path]
    """folder of the run"""
    out: Path
    """ONNX file to write; its name ends in .onnx"""
    policy: str = "last"
    """last (of the newest checkpoint) or best (in the evaluations during training)"""
    seed: int | None = None
    """seed whose policy is exported; default: the one with the highest evaluated return"""
    module: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """module to import first; needed if the run's environment is module:Env, and for its wrappers; can be repeated"""


EXPORT_HELP = """Write the deterministic policy of a run as an ONNX file, which runs without lsac and JAX.

Normalisation of observations, squashing and the scaling of actions to the environment's range are inside. The file is
compared with the policy in onnxruntime before it gets its name.

Examples:
  lsac export runs/cheetah --out policy.onnx
  lsac export runs/cheetah --out policy.onnx --policy best --seed 0
"""


def export(args: list[str]) -> int:
    given = parse(Export, args, "lsac export", EXPORT_HELP)
    _require_policy(given.policy)
    if given.out.suffix.lower() != ".onnx" and not given.out.is_dir():
        example = given.out.with_suffix(".onnx") if given.out.name else "policy.onnx"
        raise InputError(f"--out {given.out}: must end in .onnx, for example {example}")
    import_modules(given.module)
    from lsac.model import CLASSES
    from lsac.runs.folder import RunFolder

    _, experiment = RunFolder.open(given.run)
    seeds = experiment.seed_list
    if given.seed is not None and given.seed not in seeds:
        raise InputError(f"--seed {given.seed}: must be one of {', '.join(map(str, seeds))}")
    model = CLASSES[experiment.algorithm.upper()].load(given.run, policy=given.policy)
    seed = model.best_seed if given.seed is None else given.seed
    exported = model.export(given.out, seed)
    print(f"{experiment.algorithm} on {experiment.env}, seed {seed}, {given.policy} policy\n{exported.sentence()}")
    return 0
