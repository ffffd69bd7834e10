"""Environments that show images: what is drawn, in which thread, at which size, and what is refused."""

import dataclasses
import functools
import gc
import json
import os
import subprocess
import sys
import threading
import time
import weakref
from fractions import Fraction
from pathlib import Path

import gymnasium as gym
import numpy as np
import own_envs
import pytest
from commands import finish, lsac, start
from gymnasium import spaces
from gymnasium import wrappers as gw
from test_sources import created
from test_states import carried

from lsac import DRQV2
from lsac.agents import sac
from lsac.cli import training
from lsac.collect.pool import Pool, training_groups
from lsac.envs import drawable, drawing, rendering, states
from lsac.envs.gymnasium import Simulator, Spaces
from lsac.envs.pixels import Rendered, resized
from lsac.envs.probes import SeenColour
from lsac.envs.recipes import Recipe
from lsac.envs.repeat import repeated
from lsac.envs.sources import create, given
from lsac.envs.wrapping import stack_of
from lsac.errors import EnvironmentFault, InputError
from lsac.presets import preset
from lsac.replay.ring import FRAME
from lsac.runs.experiment import Experiment, from_json, to_json
from lsac.types import Pixels


class Drawn(gym.Env):
    """A number that grows by the action; its picture says how large it is, and how often it was drawn."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(self, render_mode=None, shape=(6, 6, 3)):
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.render_mode, self.shape = render_mode, tuple(shape)
        self.threads = []

    def obs(self):
        return np.array([self.x, self.t], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.x = 0, int(self.np_random.integers(50))
        return self.obs(), {"began": True}

    def step(self, action):
        self.t, self.x = self.t + 1, self.x + 1 + (float(action[0]) > 0)
        return self.obs(), float(self.x), False, self.t >= 8, {"t": self.t}

    def render(self):
        self.threads.append(threading.current_thread())
        picture = np.zeros(self.shape, np.uint8)
        picture[: self.t + 1] = self.x + 1
        return picture

    def get_state(self):
        return {"t": self.t, "x": self.x}

    def set_state(self, state):
        self.t, self.x = state["t"], state["x"]


class Undrawn(Drawn):
    metadata = {"render_modes": ["human", "ansi"]}  # noqa: RUF012


class Silent(Drawn):
    def render(self):
        return None


class Grey(Drawn):
    def render(self):
        return np.zeros((6, 6), np.uint8)


class Floats(Drawn):
    def render(self):
        return np.zeros((6, 6, 3), np.float32)


class Unable(Drawn):
    def render(self):
        raise LookupError("no brush\nat all")


def drawn(**kwargs):
    return Drawn("rgb_array", **kwargs)


def without_a_mode():
    return Drawn()


class Seen(gym.Env):
    """Its observations are images, and its class takes no arguments."""

    observation_space = spaces.Box(0, 255, (6, 6, 3), np.uint8)
    action_space = spaces.Box(-1, 1, (1,), np.float32)


ENVS = {kind.__name__: kind for kind in (Drawn, Undrawn, Silent, Grey, Floats, Unable)}
for name, kind in ENVS.items():
    gym.register(f"drawn/{name}-v0", entry_point=f"test_pixels:{kind.__name__}", max_episode_steps=100)
gym.register("drawn/Lambda-v0", entry_point=lambda **kwargs: Drawn(**kwargs))
gym.register("drawn/Seen-v0", entry_point="test_pixels:Seen")
gym.register("drawn/Function-v0", entry_point=without_a_mode)
DRAWN = "test_pixels:drawn/Drawn-v0"


@pytest.fixture
def no_backend(monkeypatch):
    """As on a machine where MuJoCo cannot render."""
    monkeypatch.setattr(rendering, "working_backend", lambda: None)
    monkeypatch.delenv("MUJOCO_GL", raising=False)


@pytest.fixture
def trusted_backend(monkeypatch):
    """A back end that is not tried: nothing is drawn."""
    monkeypatch.setenv("MUJOCO_GL", "egl")


# The size


def averaged(picture, side):
    """Means over equal areas, by the definition."""
    height, width, channels = picture.shape
    found = np.zeros((side, side, channels), np.uint8)
    for i, j, c in np.ndindex(*found.shape):
        total = Fraction(0)
        for y, x in np.ndindex(height, width):
            down = min(Fraction(y + 1), Fraction((i + 1) * height, side)) - max(Fraction(y), Fraction(i * height, side))
            across = min(Fraction(x + 1), Fraction((j + 1) * width, side)) - max(Fraction(x), Fraction(j * width, side))
            if down > 0 and across > 0:
                total += down * across * int(picture[y, x, c])
        found[i, j, c] = int(total / Fraction(height * width, side * side) + Fraction(1, 2))  # half is rounded up
    return found


@pytest.mark.parametrize(("shape", "side"), [((6, 9), 3), ((7, 5), 3), ((5, 8), 4), ((4, 4), 6), ((3, 10), 7)], ids=str)
def test_a_picture_is_resized_by_the_mean_over_equal_areas(shape, side):
    picture = np.random.default_rng(0).integers(0, 256, (*shape, 3)).astype(np.uint8)
    found = resized(picture, side)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, averaged(picture, side))


def test_means_are_exact_also_of_large_pictures():
    """Blocks of two values whose mean is a half; a picture of one colour stays so."""
    blocks = np.kron(np.arange(0, 250, 10, dtype=np.uint8).reshape(5, 5), np.array([[0, 1], [1, 0]], np.uint8) * 0 + 1)
    blocks = (blocks + np.indices((10, 10)).sum(0) % 2).astype(np.uint8)[..., None]
    np.testing.assert_array_equal(resized(blocks, 5)[..., 0], np.arange(0, 250, 10).reshape(5, 5) + 1)
    white = np.full((3_001, 2_999, 3), 255, np.uint8)
    assert (resized(white, 7) == 255).all()
    assert resized(white[:7, :7], 7).base is white, "nothing is done to a picture of the right size"


# The wrapper


def test_the_observation_is_the_picture_and_nothing_else_changes():
    plain, env = Drawn("rgb_array"), Rendered(Drawn("rgb_array"), 6)
    assert env.observation_space == spaces.Box(0, 255, (6, 6, 3), np.uint8)
    plain.reset(seed=3)
    obs, info = env.reset(seed=3)
    assert info == {"began": True}
    np.testing.assert_array_equal(obs, plain.render())
    for number in (1.0, -1.0):
        expected = plain.step([number])
        found = env.step([number])
        np.testing.assert_array_equal(found[0], plain.render())
        assert found[1:] == expected[1:]
    np.testing.assert_array_equal(Rendered(env.env, 3).step([1.0])[0], resized(env.render(), 3))


def test_it_is_made_again_from_its_spec():
    again = gym.make(Rendered(gym.make("drawn/Drawn-v0", render_mode="rgb_array"), 5).spec)
    assert isinstance(again, Rendered)
    assert again.reset(seed=0)[0].shape == (5, 5, 3)


@pytest.mark.parametrize("repeat", [1, 3])
def test_an_image_is_drawn_once_per_decision(repeat):
    """And shows what the last repetition left."""
    inner = Drawn("rgb_array")
    simulator = Simulator(Rendered(inner, 6), repeat)
    simulator.reset(0)
    start, inner.threads = inner.x, []
    obs, reward, *_, steps = simulator.step(np.array([-0.5]))
    assert (len(inner.threads), steps, inner.x) == (1, repeat, start + repeat)
    assert obs.image[0, 0, 0] == start + repeat + 1
    assert reward == sum(start + i + 1 for i in range(repeat))
    assert isinstance(repeated(simulator.env, repeat), Rendered)


@pytest.mark.parametrize("kind", ["Silent", "Grey", "Floats"])
def test_what_is_no_picture_is_a_fault(kind):
    env = Rendered(ENVS[kind]("rgb_array"), 6)
    found = {"Silent": "NoneType", "Grey": "uint8 (6, 6)", "Floats": "float32 (6, 6, 3)"}[kind]
    with pytest.raises(EnvironmentFault) as fault:
        env.reset()
    assert str(fault.value) == f"render returned {found}, not an RGB image"


# Threads


def test_an_environment_draws_in_one_thread_of_its_own():
    """Whichever thread it is stepped in, however often it is wrapped; another one draws elsewhere."""
    inner, other = Drawn("rgb_array"), Drawn("rgb_array")
    env = Rendered(inner, 6)
    env.reset()
    for _ in range(2):
        thread = threading.Thread(target=env.step, args=([0.0],))
        thread.start()
        thread.join()
    Rendered(gw.TimeLimit(inner, 9), 4).render()
    Rendered(other, 6).reset()
    assert len(inner.threads) == 4
    assert len({*inner.threads, *other.threads, threading.current_thread()}) == 3
    assert drawing.in_own_thread(inner, threading.current_thread) is inner.threads[0]
    assert drawing.in_own_thread(Drawn(), threading.current_thread) is threading.current_thread()


def test_an_environment_is_closed_where_it_was_drawn():
    closed = []

    class Closing(Drawn):
        def close(self):
            closed.append(threading.current_thread())

    inner = Closing("rgb_array")
    env = Rendered(inner, 6)
    env.reset()
    env.close()
    assert closed == inner.threads


def test_an_error_is_raised_where_the_picture_was_asked_for():
    env = Rendered(Unable("rgb_array"), 6)
    for _ in range(2):
        with pytest.raises(LookupError, match="no brush"):
            env.reset()


def test_a_thread_keeps_no_environment_and_ends_with_it():
    env = Rendered(Drawn("rgb_array"), 6)
    env.reset()
    inner, thread = weakref.ref(env.unwrapped), env.unwrapped.threads[0]
    assert thread.is_alive()
    del env
    gc.collect()
    assert inner() is None
    thread.join(10)
    assert not thread.is_alive()


# How it is asked for


def test_every_way_of_giving_an_environment_can_show_images():
    ways = {
        DRAWN: True,
        "drawn/Lambda-v0": False,
        drawn: True,
        functools.partial(drawn, shape=(6, 6, 3)): False,
        gym.make("drawn/Drawn-v0", render_mode="rgb_array"): False,
    }
    for env, in_processes in ways.items():
        found = given(env, pixels=6)
        assert (found.space.frame, found.space.obs_shape) == ((6, 6, 3), (0,))
        assert (found.training.recipe is not None) == in_processes
        for source in (found.training, found.evaluation):
            shown = created(source)
            assert isinstance(shown, Rendered)
            obs, _ = shown.reset(seed=0)
            assert (obs[0] == shown.unwrapped.x + 1).all()
            assert not obs[1:].any()


def test_workers_of_earlier_versions_made_shorter_recipes():
    recipe = given(DRAWN, pixels=6).training.recipe
    assert recipe.pixels == 6
    assert isinstance(create(Recipe(*json.loads(json.dumps(recipe)))), Rendered)
    assert not isinstance(create(Recipe(*json.loads(json.dumps(recipe))[:3])), Rendered)


def test_images_come_after_the_wrappers_and_true_rewards_below_them():
    wrappers = [own_envs.Doubling, "gymnasium.wrappers:NormalizeReward"]
    found = given(DRAWN, wrappers=wrappers, pixels=6)
    kinds = [type(layer) for layer in stack_of(created(found.training))]
    assert kinds[:3] == [Rendered, gw.NormalizeReward, own_envs.Doubling]
    env = created(found.evaluation)
    assert type(env) is Rendered
    env.reset(seed=0)
    start = env.unwrapped.x
    assert env.step(np.array([-1.0], np.float32))[1] == 2 * (start + 1)
    assert given(DRAWN, eval_env=DRAWN, pixels=6).evaluation.recipe.pixels == 6
    own = given(DRAWN, eval_env=lambda: gw.NormalizeReward(drawn()), pixels=6).evaluation.make()
    assert [type(layer) for layer in stack_of(own)] == [Rendered, Drawn]


def test_arguments_of_the_user_count():
    found = given(DRAWN, env_kwargs={"shape": [9, 12, 3], "render_mode": "rgb_array"}, pixels=6)
    assert created(found.training).unwrapped.shape == (9, 12, 3)
    assert found.args == ("shape=[9, 12, 3]", "render_mode=rgb_array")
    assert given(DRAWN, pixels=6).args == ()


def test_an_object_is_described_so_that_it_draws_the_same_again(trusted_backend):
    """By default Gymnasium draws 480 × 480 pixels from a place that does not move."""
    plain = given(gym.make("Hopper-v5", render_mode="rgb_array"), pixels=8)
    assert plain.args == ("width=480", "height=480", "camera_name=null")
    again = given("Hopper-v5", env_kwargs={"width": 480, "height": 480, "camera_name": None}, pixels=8)
    spec = json.loads(again.training.recipe.spec)
    assert spec["kwargs"] == {"render_mode": "rgb_array", "width": 480, "height": 480, "camera_name": None}
    assert plain.recreatable


@pytest.fixture
def undrawn(monkeypatch, trusted_backend):
    """Environments are created, but not drawn."""
    monkeypatch.setattr(drawable, "_try", lambda *args: None)


SIZES = {
    "Hopper-v5": {"width": 8, "height": 8, "camera_name": "track"},
    "HalfCheetah-v4": {"width": 8, "height": 8, "camera_name": "track"},
    "lsac/AntMaze-TwoGoals-v0": {"width": 8, "height": 8},
    "dm_control/cartpole-balance-v0": {"width": 8, "height": 8, "camera": 0},
    "dm_control/quadruped-run-v0": {"width": 8, "height": 8, "camera": 2},
    "lsac/SeenColour-v0": {},
}


@pytest.mark.parametrize("env_id", SIZES)
def test_mujoco_draws_the_size_that_is_needed_with_the_camera_that_follows(env_id, undrawn):
    env = created(given(env_id, pixels=8).training)
    kwargs = dict(env.spec.kwargs)
    for name in ("domain", "task"):
        kwargs.pop(name, None)
    assert kwargs == {"render_mode": "rgb_array"} | SIZES[env_id]


def test_a_camera_of_the_user_is_used(undrawn):
    kwargs = created(given("Hopper-v5", env_kwargs={"camera_id": 0}, pixels=8).training).spec.kwargs
    assert kwargs == {"render_mode": "rgb_array", "width": 8, "height": 8, "camera_id": 0}


# What is refused


def refused(env, **options):
    with pytest.raises(InputError) as found:
        given(env, pixels=6, **options)
    return str(found.value)


REFUSED = {
    "drawn/Undrawn-v0": "drawn/Undrawn-v0 cannot draw images, because it has no render mode 'rgb_array'",
    "drawn/Function-v0": "drawn/Function-v0 cannot draw images, because it has no render mode 'rgb_array'",
    "lsac/TimeLimited-v0": "lsac/TimeLimited-v0 cannot draw images, because it has no render mode 'rgb_array'",
    "drawn/Unable-v0": "drawn/Unable-v0 cannot draw images: no brush",
    "drawn/Silent-v0": "drawn/Silent-v0 cannot draw images: render returned NoneType, not an RGB image",
}


@pytest.mark.parametrize("env_id", REFUSED)
def test_an_environment_that_cannot_draw_is_refused(env_id, trusted_backend, monkeypatch):
    monkeypatch.setattr(rendering, "working_backend", lambda: "egl")
    assert refused(env_id) == f"--pixels 6: {REFUSED[env_id]}"


def test_an_object_must_have_been_created_to_draw():
    sentence = "--pixels 6: drawn/Drawn-v0 was created with render_mode=None, but needs 'rgb_array'"
    assert refused(gym.make("drawn/Drawn-v0")) == sentence
    assert refused(lambda: gym.make("drawn/Drawn-v0")) == sentence
    assert refused(drawn, eval_env=lambda: gym.make("drawn/Drawn-v0")) == sentence
    sentence = "--pixels 6: needs render_mode=rgb_array, not human"
    assert refused(DRAWN, env_kwargs={"render_mode": "human"}) == sentence


def test_images_are_not_drawn_in_place_of_images():
    sentence = "--pixels 6: the observations of Images contain an image already; set --pixels 0"
    assert refused(own_envs.Images) == sentence
    assert refused("drawn/Seen-v0") == sentence.replace("Images", "drawn/Seen-v0"), "it cannot be given a render mode"


def test_without_a_back_end_mujoco_cannot_draw(no_backend):
    sentence = f"--pixels 6: no back end of MuJoCo works here; {rendering.INSTALL}"
    for env in ("Hopper-v5", "dm_control/cartpole-balance-v0", "lsac/AntMaze-TwoGoals-v0"):
        assert refused(env) == sentence
    assert refused(gym.make("Hopper-v5", render_mode="rgb_array")) == sentence
    assert refused("drawn/Unable-v0").endswith(f"no brush; {rendering.INSTALL}")
    assert given(DRAWN, pixels=6).space.frame == (6, 6, 3), "others can"


def test_a_back_end_is_chosen_once_and_inherited(monkeypatch):
    tried = []
    monkeypatch.setenv("MUJOCO_GL", "")  # so that it is put back
    monkeypatch.delenv("MUJOCO_GL")
    monkeypatch.setattr(rendering, "working_backend", lambda: tried.append(1) or "egl")
    assert rendering.choose_backend()
    assert os.environ["MUJOCO_GL"] == "egl"
    assert rendering.choose_backend()
    assert len(tried) == 1
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    assert rendering.choose_backend()
    assert (os.environ["MUJOCO_GL"], len(tried)) == ("osmesa", 1), "the user's choice is not changed"
    monkeypatch.setenv("MUJOCO_GL", "")
    assert rendering.choose_backend()
    assert (os.environ["MUJOCO_GL"], len(tried)) == ("egl", 2), "an empty one is none, as for MuJoCo"


def test_a_back_end_is_chosen_before_a_task_of_any_package_is_created(monkeypatch):
    """Such as Shimmy's, which lsac does not know as tasks of MuJoCo; dm_control reads the choice at its import."""
    monkeypatch.setenv("MUJOCO_GL", "")
    monkeypatch.setattr(rendering, "working_backend", lambda: "egl")
    chosen = []

    def make():
        chosen.append(os.environ.get("MUJOCO_GL"))
        return drawn()

    given(make)
    given(make, pixels=6)
    assert chosen == ["", "egl"]


# Observations


IMAGE = spaces.Box(0, 255, (5, 4, 3), np.uint8)
GREY = spaces.Box(0, 255, (5, 4), np.uint8)
TABLE = spaces.Dict(z=spaces.Box(-1, 1, (2, 2), np.float32), image=IMAGE, a=spaces.Box(-1, 1, (1,), np.float64))


def spaces_of(space):
    return Spaces(own_envs.Images(space))


@pytest.mark.parametrize(
    ("space", "frame", "size"), [(IMAGE, (5, 4, 3), 0), (GREY, (5, 4, 1), 0), (TABLE, (5, 4, 3), 5)], ids=str
)
def test_an_observation_has_an_image_and_the_rest(space, frame, size):
    found = spaces_of(space)
    assert (found.frame, found.obs_shape) == (frame, (size,))
    spec = found.spec(0.9, 3)
    assert (spec.frame, spec.frame_stack, spec.image_shape) == (frame, 3, (5, 4, 3 * frame[2]))
    assert (spec.obs_shape, spec.gamma, found.spec(0.9).frame_stack) == ((size,), 0.9, 1)
    obs = space.sample()
    image = obs["image"] if size else obs
    read = found.read(obs)
    assert type(read) is Pixels
    assert (read.image.dtype, read.vector.dtype) == (np.uint8, np.float32)
    np.testing.assert_array_equal(read.image, image.reshape(frame))
    vector = np.concatenate([obs["z"].ravel(), obs["a"]]) if size else []
    np.testing.assert_array_equal(read.vector, np.asarray(vector, np.float32))
    image[...] = 7
    assert not (read.image == 7).all(), "it is a copy"


def test_without_an_image_an_observation_is_a_vector():
    found = Spaces(Drawn())
    assert (found.frame, found.spec(0.9).frame) == (None, None)
    np.testing.assert_array_equal(found.read(np.array([1, 2])), np.array([1, 2], np.float32))


def test_an_image_may_be_a_view():
    """Gymnasium returns pictures upside down, as views."""
    picture = np.arange(60, dtype=np.uint8).reshape(5, 4, 3)
    read = spaces_of(IMAGE).read(picture[::-1])
    np.testing.assert_array_equal(read.image[0], picture[4])
    assert read.image.flags.c_contiguous


FAULTS = {
    "shape": (lambda: np.zeros((4, 5, 3), np.uint8), "is uint8 (4, 5, 3), the space promises uint8 (5, 4, 3)"),
    "dtype": (lambda: np.zeros((5, 4, 3), np.float32), "is float32 (5, 4, 3), the space promises uint8 (5, 4, 3)"),
    "nothing": (lambda: None, "is object (), the space promises uint8 (5, 4, 3)"),
    "ragged": (lambda: [[1], [2, 3]], "cannot be read (setting an array element with a sequence."),
}


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("space", [IMAGE, TABLE], ids=["alone", "in a table"])
def test_an_image_is_what_the_space_promises(kind, space):
    make, sentence = FAULTS[kind]
    obs = make() if space is IMAGE else TABLE.sample() | {"image": make()}
    with pytest.raises(EnvironmentFault) as fault:
        spaces_of(space).read(obs)
    assert str(fault.value).startswith(f"the image of the observation {sentence}")


def test_an_image_that_is_missing_is_a_fault():
    obs = TABLE.sample()
    del obs["image"]
    with pytest.raises(EnvironmentFault, match=r"^the image of the observation cannot be read \('image'\)$"):
        spaces_of(TABLE).read(obs)


def test_more_than_one_image_is_refused():
    with pytest.raises(InputError) as found:
        spaces_of(spaces.Dict(left=IMAGE, right=GREY, x=spaces.Box(-1, 1, (2,), np.float32)))
    assert str(found.value) == (
        "environment Images: its observations contain 2 images (left, right), but only one works; join them, or leave "
        "out all but one, in a wrapper of your own"
    )


@pytest.mark.parametrize("shape", [(3, 64, 64), (1, 5, 9), (4, 84, 84)], ids=str)
def test_channels_come_last(shape):
    with pytest.raises(InputError) as found:
        spaces_of(spaces.Box(0, 255, shape, np.uint8))
    assert str(found.value) == (
        f"environment Images: its image has the shape {shape}, channels first, but (height, width, channels) is "
        "needed; transpose it, for example with TransformObservation(env, lambda x: x.transpose(1, 2, 0), space)"
    )
    assert spaces_of(spaces.Box(0, 255, (3, 4, 4), np.uint8)).frame == (3, 4, 4), "it may be a small one"


# The probe


def test_the_colour_is_seen_and_nowhere_else_to_be_had():
    env = gym.make("lsac/SeenColour-v0", render_mode="rgb_array")
    places, colours = set(), []
    for seed in range(200):
        obs, info = env.reset(seed=seed)
        assert (obs.tolist(), info) == ([0.0], {})
        picture = env.render()
        assert (picture.shape, picture.dtype) == ((48, 48, 3), np.uint8)
        rows, columns = np.nonzero(picture[..., 1])
        assert (len(rows), set(picture[rows, columns, 1])) == (256, {255})
        (red,) = {int(x) for x in picture[rows, columns, 0]}
        assert picture[..., 0].sum() == 256 * red
        places.add((int(rows.min()), int(columns.min())))
        colours.append(red / 127.5 - 1)
        obs, reward, terminated, truncated, _ = env.step(np.array([0.25], np.float32))
        assert (obs.tolist(), terminated, truncated) == ([0.0], True, False)
        assert reward == pytest.approx(1 - (0.25 - colours[-1]) ** 2)
    assert len(places) > 150, "the square is found elsewhere in every episode"
    assert (min(colours) < -0.9, max(colours) > 0.9, abs(np.mean(colours)) < 0.15) == (True, True, True)
    assert SeenColour().render() is None


# States


@pytest.mark.parametrize("make", [drawn, lambda: SeenColour("rgb_array")], ids=["an own state", "a probe"])
def test_a_captured_environment_goes_on_with_the_same_images(make):
    env, other = (Rendered(gw.TimeLimit(make(), 6), 20) for _ in "ab")
    env.reset(seed=3)
    if make is drawn:
        env.step(np.ones(1, np.float32))
    state = carried(states.take(env))
    other.reset(seed=99)
    assert not np.array_equal(other.render(), env.render())
    states.put(other, state)
    np.testing.assert_array_equal(other.render(), env.render())
    for _ in range(3):
        found, expected = (one.step(np.array([0.5], np.float32)) for one in (other, env))
        np.testing.assert_array_equal(found[0], expected[0])
        assert found[1:] == expected[1:]
        if expected[2]:
            np.testing.assert_array_equal(other.reset()[0], env.reset()[0])


# Runs


@pytest.mark.parametrize("env", [DRAWN, "drawn/Lambda-v0"], ids=["process", "thread"])
def test_the_frames_of_simulators_are_collected(env):
    """The frame of a step shows the state in which its action was chosen: x grows by 1 or 2 from one to the next."""
    experiment, found = preset("drqv2", "quickstart", env), given(env, env_kwargs={"shape": [20, 20, 3]}, pixels=20)
    pool = Pool(experiment, found.spec(0.9), found.training, training_groups([0], 2), workers=1)
    pool.reset(0)
    pool.collect(np.zeros(pool.policy_shape), 0, 12, True)
    frames = pool.collected()[0][FRAME]
    pool.close()
    assert (frames.shape, frames.dtype) == ((1, 24, 20, 20, 3), np.uint8)
    shown = frames[0, ::2, 0, 0, 0].astype(int)  # of the first of two simulators
    lit = (frames[0, ::2, :, 0, 0] == shown[:, None]).sum(1)
    assert lit.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4], "an episode has eight steps"
    assert set(np.delete(np.diff(shown), 7)) <= {1, 2}


def test_the_options_of_a_run_reach_its_experiment(tmp_path, monkeypatch):
    reached = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        training, "_run", lambda experiment, found, *_, resume: reached.append((experiment, found)) or 0
    )
    options = ("--preset", "quickstart", "--pixels", "16", "--frame-stack", "3")
    assert lsac("train", "drqv2", "--env", "lsac/SeenColour-v0", *options).code == 0
    ((experiment, found),) = reached
    assert (experiment.pixels, experiment.frame_stack) == (16, 3)
    assert found.training.recipe.pixels == 16
    assert found.spec(0.9, experiment.frame_stack).image_shape == (16, 16, 9)
    assert from_json(json.loads(json.dumps(to_json(experiment))), "here") == experiment


SENTENCES = {
    ("sac", "--pixels", "-1"): "--pixels -1: must lie between 0 and 1024",
    ("sac", "--frame-stack", "0"): "--frame-stack 0: must be at least 1",
    ("sac", "--pixels", "8", "--env-args", "render_mode=human"): "--pixels 8: needs render_mode=rgb_array, not human",
    ("drqv2", "--pixels", "7"): "--pixels 7: images of 7 × 7 pixels are too small: the encoder needs at least 15 × 15",
    ("drqv2", "--preset", "quickstart", "--learning-starts", "0", "--chunk", "1"): (
        "--learning-starts 0: must be at least 2, so that every simulator has shown two successive images"
    ),
}


@pytest.mark.parametrize("words", SENTENCES, ids=" ".join)
def test_bad_options_are_refused_in_one_sentence(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = lsac("train", *words, "--env", "lsac/SeenColour-v0")
    assert (result.code, result.sentence, list(tmp_path.iterdir())) == (2, f"lsac: {SENTENCES[words]}", [])


def test_images_that_cannot_be_predicted_from_are_refused_in_one_sentence():
    model = DRQV2("lsac/SeenColour-v0", preset="quickstart", pixels=16, frame_stack=2, seeds=1)
    images = np.zeros((3, 16, 16, 3), np.uint8)
    action, state = model.predict(images)
    assert (action.shape, model.predict(images[:0])[0].shape) == ((3, 1), (0, 1))
    for obs, more, sentence in (
        (images / 255, {}, "obs: is an image of float64, but must be one of uint8, from 0 to 255"),
        (images[:2], {"state": state}, "state: must be what predict returned for as many observations, or None"),
        (images, {"state": 3.0}, "state: must be what predict returned for as many observations, or None"),
        (images, {"state": state, "episode_start": [True, False]}, "episode_start: must be one flag per observation"),
    ):
        with pytest.raises(InputError, match=f"^{sentence}"):
            model.predict(obs, **more)


def test_pixels_and_frame_stack_are_keywords_of_a_model():
    model = DRQV2("lsac/SeenColour-v0", preset="quickstart", pixels=16, frame_stack=2)
    assert (model.observation_space.shape, model._spec().image_shape) == ((16, 16, 3), (16, 16, 6))
    env = gym.make("drawn/Drawn-v0", render_mode="rgb_array")
    of_object = DRQV2(env, preset="quickstart", pixels=18, seeds=1)
    assert of_object.get_env().unwrapped is env.unwrapped
    assert of_object.observation_space.shape == (18, 18, 3)
    of_object.set_env(drawn)
    assert isinstance(of_object.get_env(), Rendered)
    with pytest.raises(InputError, match=r"^pixels 18: drawn/Drawn-v0 was created with render_mode=None"):
        DRQV2(gym.make("drawn/Drawn-v0"), preset="quickstart", pixels=18)


def test_without_pixels_everything_is_as_before():
    experiment = Experiment(sac.Config(), "Pendulum-v1")
    assert (experiment.pixels, experiment.frame_stack) == (0, 1)
    data = json.loads(json.dumps(to_json(dataclasses.replace(experiment, pixels=3, frame_stack=2))))
    for name in ("pixels", "frame_stack"):
        del data["experiment"][name]
    assert from_json(data, "here") == experiment


# OpenGL

DRAWING = """
import gc, sys, threading
import gymnasium as gym
import numpy as np
from lsac.envs import drawing, ids, rendering
assert rendering.choose_backend()
from lsac.envs.pixels import Rendered
from lsac.envs.sources import given

def dmc(task, camera=0):
    return gym.make(ids.find(f"dm_control/{task}-v0"), render_mode="rgb_array", width=20, height=20, camera=camera)

def pendulum():
    return gym.make("InvertedPendulum-v5", render_mode="rgb_array", width=20, height=20)

# MuJoCo's own renderer works too, though MuJoCo was imported before
import mujoco
model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><light pos='0 0 3'/><geom size='1'/></worldbody></mujoco>")
renderer = mujoco.Renderer(model, 8, 8)
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer.update_scene(data)
assert renderer.render().std() > 5
renderer.close()

# of DeepMind Control, the picture is that of the suite
env = given("dm_control/cartpole-swingup-v0", pixels=20).training.make()
plain = dmc("cartpole-swingup")
for one in (env, plain):
    one.reset(seed=7)
    found = one.step(np.array([0.5], np.float32))[0]
    image = found if one is env else image
np.testing.assert_array_equal(image, plain.unwrapped._env.physics.render(20, 20, camera_id=0))
assert image.std() > 5
plain.close()
env.close()

# several simulators in one process, of different kinds, do not draw into each other
ids_ = ["InvertedPendulum-v5", "InvertedPendulum-v5", "Reacher-v5", "dm_control/cartpole-swingup-v0"]
envs = [given(name, pixels=20).training.make() for name in ids_]
first = [env.reset(seed=i)[0] for i, env in enumerate(envs)]
assert min(image.std() for image in first) > 5
assert not np.array_equal(first[0], first[1])
closed = [envs.pop(0)]
closed[0].close()
drawing.in_own_thread(envs[0], lambda: (closed.clear(), gc.collect()))  # where Python frees it matters
for i in (2, 0, 1):
    np.testing.assert_array_equal(envs[i].reset(seed=i + 1)[0], first[i + 1])

# an object that was drawn by its user shows the same in every thread
for make in (pendulum, lambda: dmc("cartpole-swingup")):
    env = make()
    env.reset(seed=1)
    picture = env.render().copy()
    shown = Rendered(env, 20)
    found = [shown.reset(seed=1)[0]]
    thread = threading.Thread(target=lambda: found.append(shown.reset(seed=1)[0]))
    thread.start()
    thread.join()
    for image in found:
        np.testing.assert_array_equal(image, picture)
    envs.append(shown)

# the negative control: in another thread, Gymnasium alone draws black, and dm_control nothing
env, found = pendulum(), []
env.reset(seed=1)
assert env.render().std() > 5
thread = threading.Thread(target=lambda: found.append(env.render()))
thread.start()
thread.join()
assert found[0].std() == 0
env.close()
for env in envs:
    env.close()
"""


def test_mujoco_draws_in_every_thread():
    environment = {name: value for name, value in os.environ.items() if name != "MUJOCO_GL"}
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", DRAWING], env=environment, capture_output=True, text=True
    )
    assert child.returncode == 0, child.stderr
    assert "Exception ignored" not in child.stderr, "everything is freed"


def test_the_speed_of_drawing_is_reported(monkeypatch):
    """Of every back end, or what to install for it."""
    from lsac.cli import doctor

    monkeypatch.setattr(doctor, "speeds", lambda: {"glfw": None, "egl": 1234.4, "osmesa": None})
    assert doctor.rendering() == (
        "MUJOCO_GL=glfw does not work, MUJOCO_GL=egl draws 1,234 images of 84 × 84 per second, "
        "MUJOCO_GL=osmesa does not work (on Debian and Ubuntu, install libosmesa6)"
    )
    monkeypatch.setattr(doctor, "speeds", lambda: {"egl": None, "osmesa": None})
    assert doctor.rendering() == f"no back end works ({rendering.INSTALL})"
    monkeypatch.setattr(rendering, "SPEED", "import os; print(2.5 if os.environ['MUJOCO_GL'] == 'osmesa' else nothing)")
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setenv("PYOPENGL_PLATFORM", "egl")  # as MuJoCo sets it, with which OSMesa does not work
    assert rendering.speeds() == {"egl": None, "osmesa": 2.5}
    monkeypatch.setattr(rendering, "SPEED", rendering.SPEED + "; assert 'PYOPENGL_PLATFORM' not in os.environ")
    monkeypatch.setattr(rendering, "SPEED", rendering.SPEED + "; open('MUJOCO_LOG.TXT', 'w')")
    assert rendering.speeds() == {"egl": None, "osmesa": 2.5}
    assert not Path("MUJOCO_LOG.TXT").exists()
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    assert list(rendering.speeds().items()) == [("osmesa", 2.5), ("egl", None)], "that of the user comes first"


def test_a_back_end_without_an_answer_does_not_work(monkeypatch):
    monkeypatch.setattr(rendering, "PATIENCE", 0.5)
    monkeypatch.setattr(rendering, "SPEED", "import time; time.sleep(60)")
    monkeypatch.setattr(rendering, "PROBE", "import time; time.sleep(60)")
    monkeypatch.setenv("MUJOCO_GL", "egl")
    assert rendering.speeds() == {"egl": None, "osmesa": None}
    assert rendering.working_backend() is None


def test_a_back_end_that_is_none_is_refused_in_one_sentence():
    result = finish(start("doctor", env=os.environ | {"MUJOCO_GL": "fast"}))
    sentence = "lsac: MUJOCO_GL=fast: MuJoCo cannot be imported with it; unset it, so that one that works is chosen"
    assert (result.code, result.err.strip(), result.out) == (2, sentence, "")


@pytest.mark.parametrize(("backend", "hint"), [("osmesa", ", or install libosmesa6 on Debian and Ubuntu"), ("x", "")])
def test_a_package_is_named_for_a_back_end_that_is_missing(backend, hint, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", backend)
    monkeypatch.setitem(sys.modules, "mujoco", None)  # as if its import failed
    with pytest.raises(InputError) as found:
        rendering.require_importable()
    assert str(found.value).endswith(f"one that works is chosen{hint}")
    monkeypatch.delenv("MUJOCO_GL")
    rendering.require_importable()


def test_resizing_costs_milliseconds():
    picture = np.zeros((480, 480, 3), np.uint8)
    resized(picture, 84)
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        resized(picture, 84)
        times.append(time.perf_counter() - begun)
    assert min(times) < 0.02
