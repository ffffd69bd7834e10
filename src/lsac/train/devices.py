"""The devices of a run: its seeds are spread over them, equally many on each, and no device waits for another."""

from collections.abc import Callable
from functools import cache, cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from lsac.runs.wording import counted

AXIS = "seeds"


class Devices:
    """Runs functions of one seed for all seeds, and places arrays whose axis 0 is that of the seeds.

    `axes` are those of `vmap`: 0 for arrays that have a seed axis, None for those that all seeds share, which every
    device then holds. On one device, all this is `jit(vmap(…))` and nothing is placed.
    """

    def __init__(self, seeds: int):
        self.seeds, self.visible = seeds, visible()
        count = max(n for n in range(1, len(self.visible) + 1) if seeds % n == 0)
        self.used = self.visible[:count]

    @cached_property
    def _mesh(self) -> Mesh | None:
        return Mesh(self.used, (AXIS,), axis_types=(AxisType.Auto,)) if len(self.used) > 1 else None

    @property
    def seeds_each(self) -> int:
        """The number of seeds on each used device."""
        return self.seeds // len(self.used)

    def over_seeds(self, function: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0, donate: Any = ()) -> Any:
        """The compiled function of all seeds."""
        mapped = jax.vmap(function, in_axes, out_axes)
        if self._mesh is None:
            return jax.jit(mapped, donate_argnums=donate, compiler_options=concurrent_kernels())
        # Every device runs the program of its own seeds. Left to partition the program of all seeds, the compiler
        # might exchange data between devices. Agents do not tell shared from own values, so this is not checked.
        specs = _specs(in_axes), _specs(out_axes)
        alone = jax.shard_map(mapped, mesh=self._mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False)
        options = {
            "in_shardings": self._shardings(in_axes),
            "out_shardings": self._shardings(out_axes),
            "compiler_options": concurrent_kernels(),
        }
        return jax.jit(alone, donate_argnums=donate, **options)

    def put(self, tree: Any, axes: Any = 0) -> Any:
        """Places arrays, each seed's on its device and never all of them on one."""
        if self._mesh is None:
            return jax.tree.map(jnp.asarray, tree)
        return jax.device_put(tree, self._shardings(axes))

    def made(self, make: Callable[[], Any], axes: Any = 0) -> Any:
        """The arrays that `make` returns, created where `put` would place them."""
        return make() if self._mesh is None else jax.jit(make, out_shardings=self._shardings(axes))()

    def _shardings(self, axes: Any) -> Any:
        assert self._mesh is not None
        mesh = self._mesh
        return jax.tree.map(lambda spec: NamedSharding(mesh, spec), _specs(axes))

    def unused(self) -> str | None:
        """A sentence on devices that stay unused; None if there are none."""
        used, count = len(self.used), len(self.visible)
        if used == count:
            return None
        use = "uses" if self.seeds == 1 else "use"
        return f"{counted(self.seeds, 'seed')} {use} {used} of {count} devices; a multiple of {count} would use all"

    def __str__(self) -> str:
        first, last = self.used[0], self.used[-1]
        return str(first) if first is last else f"{first} to {last}"


@cache
def concurrent_kernels() -> dict[str, str] | None:
    """Options with which a GPU runs kernels at the same time that do not depend on each other. An update has many small
    ones: LSAC's took 0.36 ms instead of 0.45 on an H200. None if the back end does not know the option."""
    if jax.default_backend() != "gpu":
        return None
    options = {"xla_gpu_command_buffer_scheduling_mode": "CONCURRENT"}
    try:
        jax.jit(jnp.negative, compiler_options=options).lower(0.0).compile()
    except jax.errors.JaxRuntimeError:
        return None
    return options


def unroll() -> int:
    """How many updates a program repeats as one. On a GPU, kernels at the start of an update then run beside those at
    the end of the update before it, where they do not depend on each other: an update of LSAC with ten seeds took
    1.41 ms instead of 1.49 on an H200. On a CPU, only the compiler would take longer."""
    return 2 if jax.default_backend() == "gpu" else 1


def visible() -> list[jax.Device]:
    """The devices of this process, or the one that JAX is told to use by default."""
    default = jax.config.values["jax_default_device"]
    return [default] if isinstance(default, jax.Device) else jax.local_devices(backend=default)


def _specs(axes: Any) -> Any:
    return jax.tree.map(lambda axis: P() if axis is None else P(AXIS), axes, is_leaf=lambda axis: axis is None)
