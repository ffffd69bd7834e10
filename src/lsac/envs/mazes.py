"""Maps of the two-goal mazes: walls, start and goals, cells and bins of positions, and routes.

Importing this module registers lsac/PointMaze-TwoGoals-v0 and lsac/AntMaze-TwoGoals-v0 with Gymnasium; the environments
themselves are in `two_goals`, which is imported when one is created.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import gymnasium as gym
import numpy as np

from lsac.errors import InputError
from lsac.options import shown

Cell = tuple[int, int]
"""Row and column, from the upper left corner."""


@dataclass(frozen=True)
class Maze:
    """A maze on a grid of square cells. Positions (x, y) are in metres from the centre of the start cell, x to the
    right and y upwards. Functions take positions [..., 2], for example the first two numbers of observations."""

    rows: tuple[str, ...]
    """the map, its upper row first: # is a wall, . free, S the start, G a goal"""
    cell: float
    """edge of a cell in metres"""

    @cached_property
    def walls(self) -> np.ndarray:
        """[rows, columns]: which cells are walls."""
        return self._grid == "#"

    @cached_property
    def start(self) -> Cell:
        ((row, column),) = np.argwhere(self._grid == "S").tolist()
        return row, column

    @cached_property
    def goal_cells(self) -> list[Cell]:
        """The cells of the goals, the upper one first."""
        return [(row, column) for row, column in np.argwhere(self._grid == "G").tolist()]

    @cached_property
    def goals(self) -> np.ndarray:
        """[goals, 2]: positions of the goals, the upper one first."""
        return np.array([self.centre(cell) for cell in self.goal_cells])

    @property
    def _grid(self) -> np.ndarray:
        return np.array([list(row) for row in self.rows])

    def centre(self, cell: Cell) -> np.ndarray:
        """[2]: the position of the middle of a cell."""
        (row, column), (first_row, first_column) = cell, self.start
        return np.array([(column - first_column) * self.cell, (first_row - row) * self.cell])

    def goal_of(self, positions: np.ndarray, radius: float) -> np.ndarray:
        """[...]: the index of the goal that is at most `radius` away from each position, or −1."""
        distances = np.linalg.norm(np.asarray(positions)[..., None, :] - self.goals, axis=-1)
        return np.where(distances.min(axis=-1) <= radius, distances.argmin(axis=-1), -1)

    # Bins: every cell is divided into bins_per_cell × bins_per_cell squares

    def bin_of(self, positions: np.ndarray, bins_per_cell: int) -> np.ndarray:
        """[..., 2]: row and column of the bin that each position is in, on a grid whose first bin is in the upper left
        corner of the map. Positions outside of the map count to its outermost bins, which are walls."""
        x, y = np.moveaxis(np.asarray(positions, np.float64), -1, 0)
        row, column = self.start
        places = np.stack([row + 0.5 - y / self.cell, column + 0.5 + x / self.cell], axis=-1)
        highest = np.array(self.walls.shape) * bins_per_cell - 1
        return np.clip(np.floor(places * bins_per_cell).astype(int), 0, highest)

    def free_bins(self, bins_per_cell: int) -> np.ndarray:
        """[rows · bins_per_cell, columns · bins_per_cell]: which bins are not in a wall."""
        return ~self.walls.repeat(bins_per_cell, axis=0).repeat(bins_per_cell, axis=1)

    def visits(self, positions: np.ndarray, bins_per_cell: int) -> np.ndarray:
        """The number of positions in each bin, on the grid of `free_bins`."""
        counts = np.zeros(np.array(self.walls.shape) * bins_per_cell, int)
        bins = self.bin_of(positions, bins_per_cell).reshape(-1, 2)
        np.add.at(counts, (bins[:, 0], bins[:, 1]), 1)
        return counts

    # Routes

    def cell_of(self, positions: np.ndarray) -> np.ndarray:
        """[..., 2]: row and column of the cell that each position is in."""
        return self.bin_of(positions, 1)

    def route_of(self, positions: np.ndarray) -> list[Cell]:
        """The free cells through which the positions [T, 2] of an episode lead, in order and without detours: where
        the episode comes back to a cell, what lies between is left out."""
        route: list[Cell] = []
        for row, column in self.cell_of(positions).tolist():
            if self.walls[row, column]:
                continue  # a body may touch a wall a little from within
            if (row, column) in route:
                del route[route.index((row, column)) :]
            route.append((row, column))
        return route

    @cached_property
    def obstacles(self) -> list[Cell]:
        """The highest cell of every group of walls that has free cells all around it; walls that touch at a corner
        belong together."""
        grouped: set[Cell] = set()
        found = []
        walls = [(row, column) for row, column in np.argwhere(self.walls).tolist()]  # the border first
        for corner in walls:
            if corner in grouped:
                continue
            reached = [corner]
            grouped.add(corner)
            for row, column in reached:
                for there in itertools.product(range(row - 1, row + 2), range(column - 1, column + 2)):
                    inside = 0 <= there[0] < self.walls.shape[0] and 0 <= there[1] < self.walls.shape[1]
                    if inside and self.walls[there] and there not in grouped:
                        grouped.add(there)
                        reached.append(there)
            if corner != (0, 0):
                found.append(corner)
        return found

    def sides_of(self, route: list[Cell]) -> tuple[int, ...]:
        """On which side a route passes each of the obstacles: how often it goes to the right above it, minus how often
        it comes back to the left there. Routes with the same ends and sides can be moved into each other without
        crossing a wall, unless they wind around several obstacles."""
        moves = [(here, there) for here, there in itertools.pairwise(route) if here[0] == there[0]]
        return tuple(
            sum(
                there[1] - here[1]
                for here, there in moves
                if here[0] < row and {here[1], there[1]} == {column, column + 1}
            )
            for row, column in self.obstacles
        )

    def shortest_routes(self, goal: int) -> list[list[Cell]]:
        """All routes from the start to a goal with the smallest number of moves between neighbouring cells."""
        return sorted(self._routes([self.start], self._moves_to(self.goal_cells[goal])))

    def _routes(self, begun: list[Cell], moves: dict[Cell, int]) -> Iterator[list[Cell]]:
        left = moves[begun[-1]]
        if left == 0:
            yield begun
        for following in self._neighbours(begun[-1]):
            if moves[following] == left - 1:
                yield from self._routes([*begun, following], moves)

    def _moves_to(self, cell: Cell) -> dict[Cell, int]:
        """The number of moves from every free cell to this one."""
        moves, reached = {cell: 0}, [cell]
        for here in reached:
            for there in self._neighbours(here):
                if there not in moves:
                    moves[there] = moves[here] + 1
                    reached.append(there)
        return moves

    def _neighbours(self, cell: Cell) -> Iterator[Cell]:
        for down, right in ((-1, 0), (0, -1), (0, 1), (1, 0)):
            there = cell[0] + down, cell[1] + right
            if not self.walls[there]:
                yield there


POINT_MAZES = {
    "medium": Maze(
        (
            *("########", "#..##.G#", "#..#...#", "##..S###"),
            *("#..#...#", "#.#..#.#", "#G..#..#", "########"),
        ),
        cell=1.0,
    ),
    "open": Maze(
        (
            *("#########", "#.....#G#", "#.##....#", "#.....#.#"),
            *("#.#.S...#", "#.....#.#", "#.##..#.#", "#G......#"),
            "#########",
        ),
        cell=1.0,
    ),
}
"""The layouts of PointMaze-TwoGoals: that of Gymnasium-Robotics' medium maze, and one with wider rooms."""
ANT_MAZE = Maze(("#######", "#...#.#", "#G#...#", "#...#S#", "#G#...#", "#...#.#", "#######"), cell=4.0)
"""The layout of AntMaze-TwoGoals."""
POINT_ID, ANT_ID = "lsac/PointMaze-TwoGoals-v0", "lsac/AntMaze-TwoGoals-v0"


def maze_of(env_id: str, layout: str = "medium") -> Maze | None:
    """The maze of an environment; None if it has none. `layout` is the argument of PointMaze-TwoGoals."""
    if env_id == ANT_ID:
        return ANT_MAZE
    if env_id != POINT_ID:
        return None
    if not isinstance(layout, str) or layout not in POINT_MAZES:
        raise InputError(f"layout: {shown(layout)} must be one of {', '.join(POINT_MAZES)}")
    return POINT_MAZES[layout]


gym.register(POINT_ID, entry_point="lsac.envs.two_goals:PointMaze", max_episode_steps=600)
gym.register(ANT_ID, entry_point="lsac.envs.two_goals:AntMaze", max_episode_steps=700)
