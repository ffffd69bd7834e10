"""Colours and markers of curves: an algorithm has its own colour in every figure, its variants have own markers."""

from typing import NamedTuple

ALGORITHMS: dict[str, str] = {
    "lsac": "#0072b2",
    "sac": "#d55e00",
    "td3": "#009e73",
    "redq": "#cc79a7",
    "dsact": "#e69f00",
    "dipo": "#56b4e9",
    "qsm": "#92b161",
    "ppo": "#934226",
    "trpo": "#a901f4",
    "drqv2": "#b076ff",
    "sac_ae": "#644b4f",
    "dreamer": "#4c5075",
}
"""Told apart by people who lack one kind of cone, and visible on white and on a dark page; a test measures both. Six of
them are of the palette of Okabe and Ito."""
OTHER = "#777777"
"""Algorithms that are not ours, told apart by markers."""
MARKERS: tuple[tuple[str, str], ...] = (
    ("", ""),
    ("o", "circle"),
    ("s", "square"),
    ("^", "triangle-up"),
    ("D", "diamond"),
    ("v", "triangle-down"),
    ("P", "cross"),
    ("X", "x"),
)
"""Markers of the variants of an algorithm, as Matplotlib and Plotly call them; the first has none."""
SHADES = (0.0, -0.3, 0.35)
"""Variants become darker (mixed with black) or lighter (with white)."""


class Style(NamedTuple):
    colour: str
    marker: str = ""
    symbol: str = ""
    """the same marker, in Plotly"""


def styles(curves: list[tuple[str, str, str]]) -> dict[str, Style]:
    """A style for each label, of (label, algorithm, environment): the colour of its algorithm, and a marker if another
    label has that colour on one of its environments."""
    colours = {label: ALGORITHMS.get(algorithm, OTHER) for label, algorithm, _ in curves}
    envs: dict[str, set[str]] = {}
    for label, _, env in curves:
        envs.setdefault(label, set()).add(env)
    variants: dict[str, int] = {}
    for label, colour in colours.items():
        rivals = [x for x in variants if colours[x] == colour and envs[x] & envs[label]]
        taken = {variants[x] for x in rivals}
        variants[label] = next(i for i in range(len(taken) + 1) if i not in taken)
    return {label: _style(colours[label], variant) for label, variant in variants.items()}


def _style(colour: str, variant: int) -> Style:
    return Style(_shaded(colour, SHADES[variant % len(SHADES)]), *MARKERS[variant % len(MARKERS)])


def _shaded(colour: str, shade: float) -> str:
    mixed = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    end = 255 if shade > 0 else 0
    return "#" + "".join(f"{round(x + (end - x) * abs(shade)):02x}" for x in mixed)


def transparent(colour: str, alpha: float) -> str:
    """The colour as CSS writes one that lets others through."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"
