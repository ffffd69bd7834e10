"""Strict arithmetic for every test: no silent broadcasting, no silent promotion, warnings are errors."""

import gc
from collections.abc import Iterator

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # runs of tests have small programs, over and over
gc.set_threshold(200_000, 20, 100)  # or Python looks through all that JAX holds, over and over


LONGEST = (
    "test_survival.py",
    "test_docs.py",
    "test_learn.py",
    "test_run.py",
    "test_agents.py",
    "test_golden.py",
    "test_devices.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long go first, so that no worker is left alone with one at the end."""
    rank = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled programs are shared by the tests and by nothing else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LSAC_CACHE", str(tmp_path_factory.getbasetemp().parent / "lsac-cache"))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        yield
