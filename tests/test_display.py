"""What a person sees while a run proceeds."""

import io
import re

import pytest

from lsac.train.display import Display, duration
from lsac.train.logger import Progress
from lsac.train.refresh import Fitting


def test_progress_is_one_line_of_plain_text():
    """A return of exactly 0 is a return."""
    stream = io.StringIO()
    with Display(stream, every=0) as display:
        for step, value in ((100, -5.0), (200, 0.0)):
            lines = [{"step": step, "seed": seed, "rollout/ep_rew_mean": value} for seed in (0, 1)]
            display.watch(Progress(step, 200, 1234.5, lines, seconds_left=61.0))
    first, second = stream.getvalue().splitlines()
    both = "1,234 steps/s over 2 seeds · training return (100 episodes)"
    assert first == f"step 100/200 per seed (50%) · {both} -5.0 · 1 min 01 s left"
    assert second == f"step 200/200 per seed (100%) · {both} 0.0"


def test_the_last_line_waits_for_the_evaluations(monkeypatch):
    """Two evaluations end after the last step: the last line has the last of them. What waits long is shown."""
    clock, lines = [100.0], []
    monkeypatch.setattr("lsac.train.display.time.monotonic", lambda: clock[0])
    for wait in (0.1, 20.0):
        stream = io.StringIO()
        with Display(stream, every=10) as display:
            display.watch(Progress(100, 200, 0.0, [{"step": 100, "seed": 0, "rollout/ep_rew_mean": 1.0}]))
            for number, (seconds, metric) in enumerate([(0.1, "rollout/ep_rew_mean"), (0.1, "eval/mean_reward")]):
                clock[0] += seconds
                display.watch(Progress(200, 200, 0.0, [{"step": 100 + number, "seed": 0, metric: 2.0 + number}]))
            clock[0] += wait
            display.watch(Progress(200, 200, 0.0, [{"step": 200, "seed": 0, "eval/mean_reward": 4.0}]))
        lines.append(stream.getvalue().splitlines())
    returned = "step 200/200 (100%) · training return (100 episodes) 2.0 · evaluation 4.0 (step 200)"
    assert lines == [["step 100/200 (50%) · training return (100 episodes) 1.0", returned]] * 2


def test_lines_in_a_file_are_never_wrapped(tmp_path):
    with (tmp_path / "log").open("w") as file, Display(file, every=0) as display:
        display.say("word " * 60)
        display.fitting(Fitting("fitting the generator", 1_250, 4_000))
        lines = [{"step": 1_000, "seed": 0, "rollout/ep_rew_mean": -1e6, "eval/mean_reward": -1e6}]
        display.watch(Progress(1_200, 10_000, 1234.5, lines, seconds_left=1e5))
    said, fit, line = (tmp_path / "log").read_text().splitlines()
    assert len(said) >= 299
    assert fit == "fitting the generator: 1,250/4,000 steps"
    assert line == (
        "step 1,200/10,000 (12%) · 1,234 steps/s · training return (100 episodes) -1,000,000.0 · "
        "evaluation -1,000,000.0 (step 1,000) · 27 h 46 min left"
    )


def test_lines_of_a_fit_are_few():
    stream = io.StringIO()
    with Display(stream, every=1e9) as display:
        for done in (0, 10, 20, 30):
            display.fitting(Fitting("fitting", done, 30))
    assert stream.getvalue() == "fitting: 0/30 steps\n"


def test_a_fit_that_begins_does_not_delay_the_line_of_the_next_steps(monkeypatch):
    clock, stream = [100.0], io.StringIO()
    monkeypatch.setattr("lsac.train.display.time.monotonic", lambda: clock[0])
    with Display(stream, every=10) as display:
        for seconds, step in ((0, 100), (8, None), (3, 200), (5, 300)):
            clock[0] += seconds
            if step is None:
                display.fitting(Fitting("fitting", 0, 30))
            else:
                display.watch(Progress(step, 1_000, 0.0, [{"step": step, "seed": 0, "rollout/ep_rew_mean": 1.0}]))
    returned = "training return (100 episodes) 1.0"
    assert stream.getvalue().splitlines() == [
        f"step 100/1,000 (10%) · {returned}",
        "fitting: 0/30 steps",
        f"step 200/1,000 (20%) · {returned}",
    ]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_shows_bars(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    with Display(stream) as display:
        display.watch(Progress(100, 200, 1234.5, [{"step": 100, "seed": 0, "rollout/ep_rew_mean": -5.0}]))
        display.fitting(Fitting("fitting the generator", 10, 40))
        display._live.refresh()
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", stream.getvalue())
    assert re.search(r"step 100/200 [━╸╺ ]+50%", text)
    assert re.search(r"fitting the generator: 10/40 steps [━╸╺ ]+25%", text)
    assert "1,234 steps/s · training return (100 episodes) -5.0" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.6, "1 min 00 s"), (61, "1 min 01 s"), (3599, "59 min 59 s"), (7260, "2 h 01 min")],
)
def test_durations_are_read_by_people(seconds, text):
    assert duration(seconds) == text
