"""Strict arithmetic for every test: no silent broadcasting, no silent promotion, warnings are errors."""

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled programs are shared by the tests of one session and by nothing else."""
    monkeypatch.setenv("LSAC_CACHE", str(tmp_path_factory.getbasetemp().parent / "lsac-cache"))
