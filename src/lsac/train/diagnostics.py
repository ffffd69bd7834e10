"""Diagnostics of the critics: their values against the returns of evaluation episodes."""

import jax
import numpy as np

from lsac.train.devices import Devices
from lsac.train.learner import Critics
from lsac.train.logger import Say
from lsac.types import EnvSpec, Values

DIAGNOSED = 256
"""Evaluation states per seed at which predicted values are compared with returns, at most."""


class Diagnostics:
    """Compares the values that critics predict with the returns that followed, and warns of critics that run apart."""

    def __init__(self, values: Values, spec: EnvSpec, seeds: list[int], say: Say):
        self._value = Devices(len(seeds)).over_seeds(jax.vmap(values.value, in_axes=(None, 0, 0)))
        self._spec, self._seeds, self._say = spec, seeds, say
        self._warned: set[int] = set()

    def of(self, step: int, critics: Critics, states: list[np.ndarray]) -> list[dict[str, float]]:
        """The metrics of every seed for an evaluation at `step`; none for a seed without evaluation states."""
        spec, width = self._spec, self._spec.obs_dim + self._spec.action_dim + 2
        kept = [x[np.linspace(0, len(x) - 1, min(len(x), DIAGNOSED)).astype(int)] for x in states]
        table = np.stack([np.concatenate([x, np.zeros((DIAGNOSED - len(x), width), np.float32)]) for x in kept])
        obs = table[..., : spec.obs_dim].reshape(*table.shape[:2], *spec.obs_shape)
        values = jax.device_get(self._value(critics.critics, obs, table[..., spec.obs_dim : -2]))
        alpha = np.zeros(len(kept)) if critics.alpha is None else np.asarray(critics.alpha)
        results: list[dict[str, float]] = []
        for i, (seed, x) in enumerate(zip(self._seeds, kept, strict=True)):
            predicted = {name: value[i, : len(x)] for name, value in values.items()}
            found = compared(predicted, x[:, -2] + alpha[i] * x[:, -1]) if len(x) else {}
            if ran_apart(found) and seed not in self._warned:
                self._warned.add(seed)
                self._say(
                    f"warning: seed {seed}: its critics disagree by {found['q_spread']:,.0f} about a value of "
                    f"{found['q']:,.0f} (step {step:,}): they have run apart; smaller steps of the critics may help"
                )
            results.append(found)
        return results


def compared(values: dict[str, np.ndarray], returns: np.ndarray) -> dict[str, float]:
    """Metrics of predicted values [n] and the returns [n] that followed the same states."""
    found = {name: float(np.mean(value, dtype=float)) for name, value in values.items()}
    error, mean = values["q"].astype(float) - returns, float(np.mean(returns, dtype=float))
    found |= {"mc_return": mean, "q_bias": float(error.mean()), "q_bias_std": float(error.std())}
    found["q_error"] = float(np.abs(error).mean())
    if mean:
        found["q_bias_normalised"] = found["q_bias"] / abs(mean)
    if "q_spread" in found and found["q_error"]:
        found["calibration"] = found["q_spread"] / found["q_error"]
    return found


def ran_apart(found: dict[str, float]) -> bool:
    """Whether several critics of one value disagree by more than the value itself.

    Untrained critics and values near 0 do not count: the return and its predicted std have to be smaller as well.
    """
    if "q_spread" not in found:
        return False
    return found["q_spread"] > max(abs(found["q"]), abs(found["mc_return"]), found.get("return_std", 0.0))
