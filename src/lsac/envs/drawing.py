"""Threads in which environments draw.

MuJoCo draws with OpenGL, whose contexts belong to the thread that created them. In another thread Gymnasium's tasks
draw black pictures, without an error, and in one thread the contexts of two tasks draw into each other. So every
environment that shows images has a thread of its own for whatever uses OpenGL.
"""

import functools
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

import gymnasium as gym

T = TypeVar("T")


class Thread:
    """A thread that calls functions for others. It ends when nothing refers to this object any more."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=_serve, args=(self._calls,), name="drawing", daemon=True).start()
        weakref.finalize(self, self._calls.put, None)

    def call(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        answer: SimpleQueue[Any] = SimpleQueue()
        self._calls.put((functools.partial(function, *args, **options), answer))
        value, error = answer.get()
        if error is not None:
            raise error
        return value


def _serve(calls: "SimpleQueue[Any]") -> None:
    while (call := calls.get()) is not None:
        function, answer = call
        found: tuple[Any, BaseException | None]
        try:
            found = function(), None
        except BaseException as error:  # it is raised again where the function was asked for
            found = None, error
        answer.put(found)
        del call, function, answer, found  # or a thread that waits would keep its environment


_threads: "weakref.WeakKeyDictionary[gym.Env, Thread]" = weakref.WeakKeyDictionary()


def give_thread(env: gym.Env) -> None:
    """Lets an environment draw in a thread of its own from now on."""
    if env.unwrapped not in _threads:
        _free_pictures(env)  # the user may have drawn it in this thread
        _threads[env.unwrapped] = Thread()


def in_own_thread(env: gym.Env, function: Callable[..., T], *args: Any, **options: Any) -> T:
    """Calls a function in the environment's own thread; if it has none, in this one."""
    thread = _threads.get(env.unwrapped)
    return function(*args, **options) if thread is None else thread.call(function, *args, **options)


def close(env: gym.Env) -> None:
    """Closes an environment in its own thread."""
    in_own_thread(env, _close, env)


def _close(env: gym.Env) -> None:
    _free_pictures(env)
    env.close()


def renderers(env: gym.Env) -> list[Any]:
    """What draws a MuJoCo task of Gymnasium, or one that is a part of this environment."""
    inner = env.unwrapped
    parts = [inner, *(part for part in getattr(inner, "__dict__", {}).values() if isinstance(part, gym.Env))]
    found = [getattr(part, "mujoco_renderer", None) for part in parts]
    return [renderer for renderer in found if hasattr(renderer, "_viewers")]


def _free_pictures(env: gym.Env) -> None:
    """Frees what an environment draws with while its own context is current. Gymnasium leaves this to Python, which may
    do it later, and then frees that of another environment."""
    if hasattr(env.unwrapped, "free_pictures"):
        env.unwrapped.free_pictures()
    for renderer in renderers(env):
        for viewer in renderer._viewers.values():
            viewer.make_context_current()
            viewer.con.free()
            viewer.free()
        renderer._viewers.clear()
        renderer.viewer = None
