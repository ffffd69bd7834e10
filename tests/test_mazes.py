"""The two-goal mazes: their maps, what they pay and when they end, and that a run of them is resumed exactly."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import TINY, lsac
from interrupted import captured_and_continued, ending, stopped_and_resumed
from test_dm_control import PAPER, id_of

from lsac.agents import sac
from lsac.envs.mazes import ANT_ID, ANT_MAZE, POINT_ID, POINT_MAZES, Maze, maze_of
from lsac.envs.sources import create, given
from lsac.errors import InputError
from lsac.replay.ring import layout_of
from lsac.runs.experiment import Experiment
from lsac.runs.folder import RunFolder

SMALL = Maze(("#####", "#G.S#", "#.#.#", "#..G#", "#####"), cell=2.0)
"""The upper goal is two moves away, the lower one two moves or, around the wall in the middle, six."""
VARIANTS = {"medium": (POINT_ID, {}), "open": (POINT_ID, {"layout": "open"}), "ant": (ANT_ID, {})}


def make(variant, **more):
    name, kwargs = VARIANTS[variant]
    return given(name, env_kwargs=kwargs | more).training.make()


# Maps


def test_the_medium_map_is_that_of_gymnasium_robotics():
    from gymnasium_robotics.envs.maze.maps import MEDIUM_MAZE

    np.testing.assert_array_equal(POINT_MAZES["medium"].walls, np.array(MEDIUM_MAZE) == 1)


def test_free_cells_and_shortest_routes():
    medium, wide = POINT_MAZES["medium"], POINT_MAZES["open"]
    assert (medium.start, medium.goal_cells) == ((3, 4), [(1, 6), (6, 1)])
    assert [int(maze.free_bins(1).sum()) for maze in (medium, wide, ANT_MAZE)] == [26, 40, 20]
    assert [[len(route) - 1 for route in medium.shortest_routes(goal)] for goal in (0, 1)] == [[4, 4], [6, 6]]
    assert (wide.start, wide.goal_cells) == ((4, 4), [(1, 7), (7, 1)])
    assert {len(route) - 1 for goal in (0, 1) for route in wide.shortest_routes(goal)} == {6}
    assert (ANT_MAZE.start, ANT_MAZE.goal_cells) == ((3, 5), [(2, 1), (4, 1)])
    np.testing.assert_array_equal(ANT_MAZE.goals, [[-16, 4], [-16, -4]])
    for route in ANT_MAZE.shortest_routes(0):
        assert (route[0], route[-1]) == ((3, 5), (2, 1))
        assert not any(ANT_MAZE.walls[cell] for cell in route)
        assert {abs(a[0] - b[0]) + abs(a[1] - b[1]) for a, b in itertools.pairwise(route)} == {1}


def test_positions_have_cells_bins_and_goals():
    np.testing.assert_array_equal(SMALL.goals, [[-4, 0], [0, -4]])
    positions = np.array([[0.0, 0.0], [0.9, 0.9], [-0.9, -0.9], [-4.2, 0.3], [0.0, -3.2], [99.0, 99.0], [-9.0, -9.0]])
    cells = [[1, 3], [1, 3], [1, 3], [1, 1], [3, 3], [0, 4], [4, 0]]
    np.testing.assert_array_equal(SMALL.cell_of(positions), cells)
    np.testing.assert_array_equal(SMALL.bin_of(positions[:3], 2), [[3, 7], [2, 7], [3, 6]])
    np.testing.assert_array_equal(SMALL.bin_of(positions[:6].reshape(2, 3, 2), 1), np.reshape(cells[:6], (2, 3, 2)))
    np.testing.assert_array_equal(SMALL.goal_of(positions, 0.5), [-1, -1, -1, 0, -1, -1, -1])
    np.testing.assert_array_equal(SMALL.goal_of(positions, 0.8), [-1, -1, -1, 0, 1, -1, -1])


@pytest.mark.parametrize("bins", [1, 4, 51])
def test_bins_cover_the_map(bins):
    """The middle of every bin is in that bin, and is free if its cell is."""
    free = SMALL.free_bins(bins)
    assert free.shape == (5 * bins, 5 * bins)
    assert free.sum() == 8 * bins**2
    rows, columns = np.indices(free.shape)
    x = ((columns + 0.5) / bins - 3.5) * SMALL.cell
    y = (1.5 - (rows + 0.5) / bins) * SMALL.cell
    middles = np.stack([x, y], axis=-1)
    np.testing.assert_array_equal(SMALL.bin_of(middles, bins), np.stack([rows, columns], axis=-1))
    cells = SMALL.cell_of(middles)
    np.testing.assert_array_equal(free, ~SMALL.walls[cells[..., 0], cells[..., 1]])


def test_visits_are_counted():
    visits = SMALL.visits(np.array([[0.0, 0.1], [0.1, 0.1], [-4.0, -0.1]]), 2)
    assert visits.sum() == 3
    assert (visits[2, 7], visits[3, 3]) == (2, 1)
    assert SMALL.visits(np.zeros((0, 2)), 2).sum() == 0


def test_a_route_leaves_out_detours_and_walls():
    def through(*cells):
        return SMALL.route_of(np.array([SMALL.centre(cell) for cell in cells]))

    assert through((1, 3), (1, 3), (1, 2), (1, 3), (2, 3), (3, 3)) == [(1, 3), (2, 3), (3, 3)]
    assert through((1, 3), (1, 2), (2, 2), (1, 1)) == [(1, 3), (1, 2), (1, 1)]
    assert through((1, 3), (1, 2), (1, 1)) in SMALL.shortest_routes(0)
    assert SMALL.shortest_routes(1) == [[(1, 3), (2, 3), (3, 3)]]


def test_routes_differ_in_the_sides_on_which_they_pass_obstacles():
    medium, wide = POINT_MAZES["medium"], POINT_MAZES["open"]
    assert SMALL.obstacles == [(2, 2)]
    assert SMALL.sides_of([(1, 3), (1, 2), (1, 1)]) == (-1,)
    assert SMALL.sides_of([(1, 1), (1, 2), (1, 3)]) == (1,)
    assert SMALL.sides_of([(1, 3), (2, 3), (3, 3), (3, 2), (3, 1), (2, 1), (1, 1)]) == (0,)
    assert medium.obstacles == [(4, 3)], "with the wall below its corner; the others are part of the border"
    sides = [[medium.sides_of(route) for route in medium.shortest_routes(goal)] for goal in (0, 1)]
    assert sides == [[(0,), (0,)], [(-1,), (0,)]], "one way to the upper goal, two to the lower"
    assert wide.obstacles == [(2, 2), (3, 6), (4, 2), (5, 6), (6, 2)]
    assert ANT_MAZE.obstacles == [(2, 2), (3, 4), (4, 2)]
    for goal in (0, 1):
        assert len({ANT_MAZE.sides_of(route) for route in ANT_MAZE.shortest_routes(goal)}) == 3


def test_the_maze_of_an_environment():
    assert maze_of(POINT_ID) is POINT_MAZES["medium"]
    assert maze_of(POINT_ID, "open") is POINT_MAZES["open"]
    assert maze_of(ANT_ID) is ANT_MAZE
    assert maze_of("Ant-v5") is None
    with pytest.raises(InputError, match="layout: 'round' must be one of medium, open"):
        maze_of(POINT_ID, "round")


# Environments


@pytest.mark.parametrize("variant", VARIANTS)
def test_observations_begin_with_the_position(variant):
    env = make(variant)
    obs, info = env.reset(seed=5)
    assert env.observation_space.shape == ((29,) if variant == "ant" else (4,))
    rng = np.random.default_rng(0)
    for _ in range(20):
        np.testing.assert_allclose(obs[:2], info["position"], rtol=1e-6)
        assert obs in env.observation_space
        assert (info["success"], info["goal"]) == (False, -1)
        obs, *_, info = env.step(rng.uniform(-1, 1, env.action_space.shape).astype(np.float32))
    starts = np.array([env.reset()[0][:2] for _ in range(50)])
    assert np.abs(starts).max() <= 0.1 < 10 * starts.std(), "noise of a tenth of a metre"
    still = make(variant, start_noise=0.0)
    np.testing.assert_array_equal(still.reset(seed=0)[0][:2], [0, 0])
    np.testing.assert_array_equal(still.reset(seed=0)[0], still.reset(seed=1)[0])


@pytest.mark.parametrize("layout", POINT_MAZES)
def test_walls_are_where_gymnasium_robotics_puts_them(layout):
    from gymnasium_robotics.envs.maze.point_maze import PointMazeEnv

    maze = POINT_MAZES[layout]
    theirs = PointMazeEnv(maze_map=maze.walls.astype(int).tolist())
    os.unlink(theirs.tmp_xml_file_path)
    ours = make(layout).unwrapped._body
    middle = (maze.centre((0, 0)) + maze.centre(tuple(np.array(maze.walls.shape) - 1))) / 2
    for row, column in np.argwhere(maze.walls).tolist():
        geom, other = ours.model.geom(f"wall_{row}_{column}"), theirs.point_env.model.geom(f"block_{row}_{column}")
        np.testing.assert_allclose(geom.pos - np.append(middle, 0), other.pos)
        for name in ("size", "contype", "conaffinity", "type", "friction"):
            np.testing.assert_array_equal(getattr(geom, name), getattr(other, name))


def steered(env, route):
    """Pushes the ball from cell to cell; returns the steps it took, the last reward and the last info."""
    obs, info = env.reset(seed=0)
    for cell in route:
        target, steps = env.unwrapped.maze.centre(cell), 0
        while np.linalg.norm(obs[:2] - target) > 0.15 and steps < 200:
            action = np.clip(4.0 * (target - obs[:2]) - 0.8 * obs[2:], -1, 1).astype(np.float32)
            obs, reward, terminated, truncated, info = env.step(action)
            assert (terminated, truncated) == (False, False)
            assert reward == pytest.approx(-np.linalg.norm(env.unwrapped.maze.goals - obs[:2], axis=-1).min(), abs=1e-5)
            steps += 1
    return reward, info


@pytest.mark.parametrize("layout", POINT_MAZES)
def test_every_goal_of_the_point_is_reached_by_every_shortest_route(layout):
    maze = POINT_MAZES[layout]
    for goal in (0, 1):
        for route in maze.shortest_routes(goal)[:2]:
            reward, info = steered(make(layout), route)
            assert (info["success"], info["goal"]) == (True, goal)
            assert -0.2 < reward <= 0


def test_a_ball_does_not_go_through_walls():
    env, maze = make("medium"), POINT_MAZES["medium"]
    visited = []
    for i, angle in enumerate(np.linspace(0, 2 * np.pi, 12, endpoint=False)):
        env.reset(seed=i)
        push = np.array([np.cos(angle), np.sin(angle)], np.float32)
        visited += [env.step(push)[4]["position"] for _ in range(150)]
    cells = maze.cell_of(np.array(visited))
    assert not maze.walls[cells[:, 0], cells[:, 1]].any()
    assert len(np.unique(cells, axis=0)) > 5


def test_the_ant_is_paid_once_at_either_goal_and_its_episode_ends_there():
    env = make("ant", start_noise=0.0)
    for goal, position in enumerate(ANT_MAZE.goals):
        env.reset(seed=0)
        body = env.unwrapped._body
        for away, expected in {0.6: (0.0, False, False), 0.4: (1.0, True, False)}.items():
            place = body.init_qpos.copy()
            place[:2] = position + np.array([away, 0.0])
            body.set_state(place, body.init_qvel)
            *_, info = result = env.step(np.zeros(8, np.float32))
            assert result[1:4] == expected
            assert (info["success"], info["goal"]) == ((True, goal) if expected[1] else (False, -1))


def test_a_fallen_ant_goes_on():
    env = make("ant")
    env.reset(seed=0)
    body = env.unwrapped._body
    on_its_back = body.init_qpos.copy()
    on_its_back[2:7] = [0.3, 0.0, 1.0, 0.0, 0.0]
    body.set_state(on_its_back, body.init_qvel)
    assert [env.step(np.zeros(8, np.float32))[2] for _ in range(10)] == [False] * 10


def test_the_gear_of_the_ant():
    assert set(make("ant").unwrapped._body.model.actuator_gear[:, 0]) == {30.0}
    assert set(make("ant", gear=150).unwrapped._body.model.actuator_gear[:, 0]) == {150.0}


@pytest.mark.parametrize(("variant", "limit"), [("medium", 600), ("ant", 700)])
def test_episodes_are_truncated(variant, limit):
    env = ending(make(variant), 3)
    assert env._max_episode_steps == limit
    env.reset(seed=0)
    ending(env, 3)
    ends = [env.step(np.zeros(env.action_space.shape, np.float32))[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]


def test_arguments_are_refused_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bad = {
        (POINT_ID, "layout=round"): "--env-args layout: 'round' must be one of medium, open",
        (POINT_ID, "start_noise=-1"): "--env-args start_noise: -1 must be a number that is not negative",
        (POINT_ID, "layout=[1]"): "--env-args layout: a list must be one of medium, open",
        (ANT_ID, "gear=0"): "--env-args gear: 0 must be a number larger than 0",
        (ANT_ID, "gear=abc"): "--env-args gear: 'abc' must be a number larger than 0",
        (ANT_ID, "layout=open"): f"--env-args layout: {ANT_ID} has no argument of this name",
    }
    for (env_id, argument), sentence in bad.items():
        result = lsac("train", "sac", "--env", env_id, "--env-args", argument, *TINY)
        assert (result.code, result.sentence) == (2, f"lsac: {sentence}")
    found = given(POINT_ID, env_kwargs={"layout": "open"}, wrappers=["gymnasium.wrappers:TimeAwareObservation"])
    assert (found.args, found.recreatable) == (("layout=open",), True)
    assert create(found.training.recipe).unwrapped.maze is POINT_MAZES["open"]


def test_without_the_extra_a_sentence_names_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "gymnasium_robotics", None)
    monkeypatch.setitem(sys.modules, "gymnasium_robotics.envs.maze", None)
    monkeypatch.chdir(tmp_path)
    result = lsac("train", "sac", "--env", POINT_ID, *TINY)
    assert (result.code, list(tmp_path.iterdir())) == (2, [])
    assert result.sentence == (
        f"lsac: --env {POINT_ID}: could not be created: gymnasium-robotics is not installed: pip install 'lsac[maze]'"
    )


ORDINARY = """
import gymnasium
import lsac.envs.mazes
for name in ("lsac/PointMaze-TwoGoals-v0", "lsac/AntMaze-TwoGoals-v0"):
    env = gymnasium.make(name, render_mode="rgb_array", width=64, height=48)
    env.reset(seed=0)
    before = env.render().astype(int)
    assert before.shape == (48, 64, 3) and before.std() > 5
    reds = (before[..., 0] > 100) & (before[..., 1:].max(axis=-1) < 110)
    assert reds[:, :].sum() > 4, "the goals are seen"
    for _ in range(30):
        env.step(env.action_space.high)
    assert abs(env.render().astype(int) - before).max() > 30, "the body moves"
    env.close()
"""


@pytest.mark.slow
def test_they_are_ordinary_gymnasium_ids_and_are_drawn_without_a_display():
    command = [sys.executable, "-W", "error", "-c", ORDINARY]
    child = subprocess.run(command, env=os.environ | {"MUJOCO_GL": "egl"}, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr


# Captured states


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_captured_maze_goes_on_bit_for_bit(variant):
    captured_and_continued(lambda: make(variant))


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["open", "ant"])
def test_a_stopped_run_becomes_the_run_that_was_left_alone_and_keeps_all_positions(variant, tmp_path):
    name, kwargs = VARIANTS[variant]
    args = tuple(f"{key}={value}" for key, value in kwargs.items())
    experiment = Experiment(
        sac.Config(hidden=(8,), batch_size=16),
        name,
        **{"steps": 1600, "seeds": 2, "chunk": 200, "utd": 0.02, "learning_starts": 400, "env_args": args},
        **{"eval_every": 800, "eval_episodes": 1, "log_every": 400, "checkpoint_every": 800, "workers": 1},
    )
    stopped_and_resumed(experiment, 1_200, tmp_path / "alone", tmp_path / "stopped")
    stored = RunFolder(tmp_path / "stopped").checkpoints.load().stored
    obs = layout_of(given(name, env_kwargs=kwargs).spec(0.99)).transitions(stored).obs
    assert obs.shape[:2] == (2, 1600), "every step of the training, of every seed"
    maze = make(variant).unwrapped.maze
    visits = maze.visits(np.asarray(obs)[..., :2], 4)
    assert (visits.sum(), visits[~maze.free_bins(4)].sum()) == (3_200, 0)
    assert visits[maze.start[0] * 4 : maze.start[0] * 4 + 4, maze.start[1] * 4 : maze.start[1] * 4 + 4].sum() > 0


# The page on tasks


def test_the_page_shows_these_maps_and_sizes():
    page = (Path(__file__).parent.parent / "docs" / "tasks.md").read_text()
    (shown,) = re.findall(r"```text\nmedium +open +ant\n\n(.*?)```", page, re.DOTALL)
    columns = zip(*[[line[:8], line[12:21], line[25:32]] for line in shown.splitlines()], strict=True)
    drawn = [tuple(row.strip() for row in column if row.strip()) for column in columns]
    assert drawn == [POINT_MAZES["medium"].rows, POINT_MAZES["open"].rows, ANT_MAZE.rows]
    listed = re.findall(r"^\| `([\w/-]+)` \| (\d+) \| (\d+) \|", page, re.MULTILINE)
    assert len(listed) == 6 + len(PAPER)
    for name, observation, action in listed:
        space = given(name).space
        assert (name, space.obs_shape[0], space.action_dim) == (name, int(observation), int(action))
    assert {name for name, *_ in listed} >= {id_of(task) for task in PAPER}
