"""Where an agent has been in a two-goal maze: coverage, densities of visits, success by goal and by route."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lsac import streams
from lsac.analyses import Say
from lsac.analyses.of_run import Analysed, chosen_seed, load
from lsac.analyses.rollouts import Stage
from lsac.analysis.figures import finish_axes
from lsac.analysis.outcome import Outcome, colour
from lsac.collect.groups import Trace
from lsac.envs.mazes import ANT_ID, POINT_ID, Maze, maze_of
from lsac.envs.recipes import read_arguments
from lsac.envs.two_goals import RADIUS
from lsac.errors import InputError
from lsac.replay import ring as rb
from lsac.runs.wording import counted

FINE, COARSE = 51, 4
"""Bins per cell and direction: those of Li et al. 2024, with whose 51 most bins stay empty, and few large ones."""
EPISODES = 200
CAP = 100
"""Visits of a bin from which on its colour no longer changes."""
POINTS = 200
"""Points of the curve of coverage."""
REPORTED = 20
"""Episodes between two messages on the progress."""
COLUMNS = ("seed", "quantity", "value")

HELP = """Show where an agent has been in a two-goal maze, in training and in evaluation episodes.

Coverage is the share of free bins that were visited. It is given for 51 bins per cell and direction, and for 4. Visits
of the training are those in the replay, which holds all of a run unless --replay-capacity was less than its steps; an
on-policy agent keeps only its last chunk. Success is reaching a goal, by goal and by route: which of the shortest ways
through the cells of the maze an episode took, or another one, and which obstacles it passed above.

Examples:
  lsac analyse coverage runs/maze --episodes 20
"""


@dataclasses.dataclass(frozen=True)
class Options:
    run: tyro.conf.Positional[Path]
    """folder of the run"""
    episodes: int = EPISODES
    """evaluation episodes per seed"""
    bins: int = FINE
    """bins per cell and direction of the maps and of the finer coverage"""
    stochastic: tyro.conf.FlagCreatePairsOff[bool] = False
    """use exploratory actions in the episodes instead of deterministic ones"""
    seed: int | None = None
    """the seed whose maps are drawn; default: the first"""


class Visited(NamedTuple):
    """What one seed did in the maze."""

    seed: int
    training: np.ndarray
    """[N, 2] positions, oldest first"""
    evaluated: np.ndarray
    """[M, 2] positions"""
    outcomes: list["Way"]
    """of every episode"""


class Way(NamedTuple):
    """How an episode ended."""

    goal: int = -1
    """the index of the goal it reached first, or −1"""
    route: str = ""
    """its way there: `shortest_1`, …, or `other`"""
    above: tuple[bool, ...] = ()
    """which obstacles it passed above"""


def analyse(options: Options, say: Say) -> Outcome:
    for name in ("episodes", "bins"):
        if getattr(options, name) < 1:
            raise InputError(f"--{name} {getattr(options, name)}: must be at least 1")
    run = load(options.run, transitions=True)
    maze, shown = require_maze(run), chosen_seed(run, options.seed)
    found = []
    for i, seed in enumerate(run.experiment.seed_list):
        traces = evaluated(
            run, i, options, lambda done, seed=seed: say(f"seed {seed}: {done} of {options.episodes} episodes")
        )
        paths = [positions_of(trace) for trace in traces]
        outcomes = [outcome(maze, path) for path in paths]
        found.append(Visited(seed, trained(run, i), np.concatenate(paths), outcomes))
    rows: list[Any] = [[x.seed, name, value] for x in found for name, value in numbers(maze, x, options.bins).items()]
    caption = (
        f"{run.name}, step {run.step:,}. Visits per bin of seed {found[shown].seed}, colours from 0 to {CAP}, in "
        f"training (left) and in {counted(options.episodes, 'evaluation episode')} (middle), {options.bins} bins per "
        f"cell; coverage in training of every seed with {COARSE} bins per cell (right). Circle: start; stars: goals."
    )
    return Outcome(
        "Coverage of the maze",
        caption,
        _sentences(run, maze, found, options),
        COLUMNS,
        rows,
        (7.0, 2.6),
        lambda figure: _draw(figure, run, maze, found, shown, options.bins),
    )


def require_maze(run: Analysed) -> Maze:
    e = run.experiment
    maze = maze_of(e.env, read_arguments(e.env_args).get("layout", "medium"))
    if maze is None or e.wrappers:
        what = "a wrapper may change the positions in its observations" if maze else f"{e.env} is no maze"
        raise InputError(f"analyse coverage: {what}; needs {POINT_ID} or {ANT_ID} without wrappers")
    return maze


def trained(run: Analysed, index: int) -> np.ndarray:
    """[N, 2] the positions after every step in the replay of a seed, oldest first."""
    first = rb.layout_of(run.spec).fields()["next_obs"].start
    return run.rows(index)[:, first : first + 2].astype(np.float64)


def evaluated(run: Analysed, index: int, options: Options, report: Any) -> list[Trace]:
    traces: list[Trace] = []
    with Stage(run, index) as stage:
        rule = stage.actors.explore if options.stochastic else stage.actors.exploit
        while len(traces) < options.episodes:
            traces += stage.episodes(rule, streams.EVALUATE)
            if len(traces) % REPORTED == 0:
                report(min(len(traces), options.episodes))
    return traces[: options.episodes]


def positions_of(trace: Trace) -> np.ndarray:
    """[T + 1, 2] the positions of an episode, with the last."""
    assert trace.last_obs is not None
    return np.stack([*(step.obs[:2] for step in trace.steps), trace.last_obs[:2]]).astype(np.float64)


def outcome(maze: Maze, path: np.ndarray) -> Way:
    """The goal that an episode reaches first, and its way there."""
    reached = maze.goal_of(path, RADIUS)
    if not (reached >= 0).any():
        return Way()
    first = int(np.argmax(reached >= 0))
    goal = int(reached[first])
    routes = maze.shortest_routes(goal)
    route = maze.route_of(path[: first + 1])
    if route[-1] != maze.goal_cells[goal]:
        route.append(maze.goal_cells[goal])  # a goal is reached from beside its cell
    name = f"shortest_{routes.index(route) + 1}" if route in routes else "other"
    return Way(goal, name, tuple(side != 0 for side in maze.sides_of(route)))


def coverage(maze: Maze, positions: np.ndarray, bins: int) -> float:
    """The share of free bins that the positions are in."""
    free = maze.free_bins(bins)
    return float(np.mean(maze.visits(positions, bins)[free] > 0))


def growth(maze: Maze, positions: np.ndarray, bins: int) -> np.ndarray:
    """[N] the coverage by the first 1, 2, …, N positions."""
    free = maze.free_bins(bins)
    places = maze.bin_of(positions, bins)
    index = places[:, 0] * free.shape[1] + places[:, 1]
    new = np.zeros(len(index))
    new[np.unique(index, return_index=True)[1]] = 1.0
    new *= free.reshape(-1)[index]  # a position in a wall covers nothing
    return np.cumsum(new) / free.sum()


def numbers(maze: Maze, visited: Visited, bins: int) -> dict[str, float]:
    found = {
        f"coverage_{kind}_{count}_bins": coverage(maze, positions, count)
        for kind, positions in (("training", visited.training), ("evaluation", visited.evaluated))
        for count in dict.fromkeys((bins, COARSE))
    }
    episodes = len(visited.outcomes)
    goals = Counter(way.goal for way in visited.outcomes)
    found["success"] = 1.0 - goals[-1] / episodes
    for goal in range(len(maze.goals)):
        found[f"success_goal_{goal}"] = goals[goal] / episodes
        names = [f"shortest_{i + 1}" for i in range(len(maze.shortest_routes(goal)))]
        ways = [way for way in visited.outcomes if way.goal == goal]
        for name in (*names, "other"):
            found[f"goal_{goal}_{name}"] = sum(way.route == name for way in ways) / episodes
        for i in range(len(maze.obstacles)):
            found[f"goal_{goal}_above_obstacle_{i + 1}"] = sum(way.above[i] for way in ways) / episodes
    return found


def _sentences(run: Analysed, maze: Maze, found: list[Visited], options: Options) -> list[str]:
    each = [numbers(maze, x, options.bins) for x in found]
    mean = {name: 100 * float(np.mean([x[name] for x in each])) for name in each[0]}
    goals = ", ".join(f"goal {i} {mean[f'success_goal_{i}']:.0f} %" for i in range(len(maze.goals)))
    bins = f"{options.bins}_bins"
    sentences = [
        f"{run.name}, step {run.step:,}, {counted(len(found), 'seed')}: coverage in training "
        f"{mean[f'coverage_training_{bins}']:.1f} % of bins ({options.bins} per cell), "
        f"{mean[f'coverage_training_{COARSE}_bins']:.1f} % with {COARSE} per cell; in "
        f"{counted(options.episodes, 'episode')} {mean[f'coverage_evaluation_{bins}']:.1f} % and "
        f"{mean[f'coverage_evaluation_{COARSE}_bins']:.1f} %",
        f"success {mean['success']:.0f} % of episodes: {goals}",
    ]
    steps = run.step // run.experiment.action_repeat
    if len(found[0].training) < steps:
        sentences.append(
            f"warning: the replay holds the newest {len(found[0].training):,} of {steps:,} transitions; coverage in "
            "training counts only these"
        )
    return sentences


def _draw(figure: Figure, run: Analysed, maze: Maze, found: list[Visited], shown: int, bins: int) -> None:
    left, middle, right = figure.subplots(1, 3)
    for axes, title, positions in (
        (left, "training", found[shown].training),
        (middle, "evaluation", found[shown].evaluated),
    ):
        picture = _map(axes, maze, maze.visits(positions, bins), bins)
        axes.set_title(title)
    figure.colorbar(picture, ax=[left, middle], shrink=0.7, label=f"visits, up to {CAP}")
    for i, x in enumerate(found):
        values, count, repeat = growth(maze, x.training, COARSE), len(x.training), run.experiment.action_repeat
        places = np.unique(np.linspace(0, count - 1, POINTS).astype(int))
        steps = run.step - (count - 1 - places) * repeat
        right.plot(steps, values[places], color=colour(i), label=f"seed {x.seed}")
    finish_axes(right, f"coverage, {COARSE} bins per cell", run.step)
    right.set_ylim(0, 1)
    right.legend(frameon=False)


def _map(axes: Axes, maze: Maze, visits: np.ndarray, bins: int) -> Any:
    """Visits per bin, walls in grey; a few of the finest bins would not be seen, so empty ones are white."""
    shown = np.ma.masked_where(visits == 0, visits)
    axes.imshow(maze.walls, cmap="Greys", vmin=0, vmax=2, extent=(0, maze.walls.shape[1], maze.walls.shape[0], 0))
    extent = (0, maze.walls.shape[1], maze.walls.shape[0], 0)
    picture = axes.imshow(shown, cmap="viridis", vmin=0, vmax=CAP, extent=extent, interpolation="nearest")
    row, column = maze.start
    axes.plot(column + 0.5, row + 0.5, "o", mfc="none", mec="#c8501e")
    for row, column in maze.goal_cells:
        axes.plot(column + 0.5, row + 0.5, "*", color="#c8501e")
    axes.set(xticks=[], yticks=[])
    return picture
