"""Strict arithmetic for every test: no silent broadcasting, no silent promotion, warnings are errors."""

from collections.abc import Iterator

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled programs are shared by the tests and by nothing else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LSAC_CACHE", str(tmp_path_factory.getbasetemp().parent / "lsac-cache"))
        yield
