"""The comparison of old and new code reads the speed of a run from its metrics."""

import json

import pytest
import speed


def lines(seed):
    """A line per 1,000 steps and ten seconds of learning; a refresh of four seconds at 20,000 and at 30,000 steps."""
    for step in range(1_000, 32_000, 1_000):
        line = {"step": step, "seed": seed, "seconds": 500 + step / 100, "time/fps": 1.0}
        if step > 5_000:
            line["train/n_updates"] = step - 5_000
        if step % 10_000 == 0:
            line["time/refresh_seconds"] = 4.0
        yield line
        if step % 10_000 == 0:  # of an evaluation, which ended later than it began
            yield {"step": step, "seed": seed, "seconds": 900 + step, "eval/mean_reward": 0.0}


def written(path, found):
    path.mkdir()
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in found))
    return path


def test_the_speed_is_that_of_all_seeds_in_the_last_two_thirds(tmp_path):
    found = speed.rate(written(tmp_path / "run", [*lines(3), *lines(4)]), 30_000)
    assert found.steps_per_second == pytest.approx(2 * 100)
    assert found.refreshes == pytest.approx(8 / 200), "the one at 10,000 steps came before"


def test_steps_before_the_first_update_do_not_count(tmp_path):
    slow = [{**line, "seconds": 99.0 * line["step"]} if line["step"] <= 5_000 else line for line in lines(0)]
    assert speed.rate(written(tmp_path / "run", slow), 9_000).steps_per_second == pytest.approx(100)
    with pytest.raises(SystemExit, match="--steps 3000: too few to learn from"):
        speed.rate(written(tmp_path / "short", slow[:3]), 3_000)
