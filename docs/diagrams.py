"""Draws the diagrams of the chapters: `python docs/diagrams.py` writes docs/diagrams/<name>.svg.

A function is a diagram: its name is the file's, its docstring is what a screen reader says. Curves, bars and intervals
are computed. A test compares the files with what is drawn here, and the notebooks with the files.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import permutations
from math import atan2, cos, exp, log, log2, sin, sqrt
from pathlib import Path
from statistics import fmean, stdev

FOLDER = Path(__file__).with_name("diagrams")
WIDE = 700  # pixels of every diagram
COLOURS = {  # on a light and on a dark page: Okabe and Ito's
    "blue": ("#0072b2", "#56b4e9"),
    "orange": ("#d55e00", "#e69f00"),
    "green": ("#009e73", "#009e73"),
    "purple": ("#cc79a7", "#cc79a7"),
    "grey": ("#8c959f", "#6e7681"),
}
PAGES = (("#1a1a1a", "#57606a", "#fff"), ("#eee", "#9da7b1", "#0d1117"))  # ink, pale ink, paper

Point = tuple[float, float]
Parts = list[str]


def _colours(dark: bool) -> str:
    ink, pale, paper = PAGES[dark]
    plain = f"text{{fill:{ink};stroke:{paper}}}.s{{fill:{pale}}}path,rect{{stroke:{COLOURS['blue'][dark]}}}"
    named = (
        f"path.{name},rect.{name}{{stroke:{both[dark]}}}text.{name},.bar.{name},.area.{name}{{fill:{both[dark]}}}"
        for name, both in COLOURS.items()
    )
    return f"{plain}rect{{fill:{paper}}}{''.join(named)}"


# Text has a rim in the colour of the page, so that no line strikes it out, nor a page in the other colour.
STYLE = (
    "text{font:13px sans-serif;text-anchor:middle;paint-order:stroke;stroke-width:4px;stroke-linejoin:round}"
    ".b{font-weight:bold;font-size:14px}.s{font-size:12px}.m{font:12px monospace}.l{text-anchor:start}"
    f".r{{text-anchor:end}}path,rect{{fill:none;stroke-width:1.5}}.thick{{stroke-width:2.5}}{_colours(False)}"
    f"@media(prefers-color-scheme:dark){{{_colours(True)}}}"
    ".bar,.area{stroke:none!important}.flat{stroke:none}.area{opacity:.14}.thin{stroke-width:1;opacity:.6}"
    ".dash{stroke-dasharray:5 4}"
)


def svg(width: float, height: float, style: str, parts: Iterable[str]) -> str:
    """Returns a file: what is drawn first lies below."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}">'
    return "\n".join([head, f"<style>{style}</style>", *parts, "</svg>\n"])


def _kind(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Returns words around a point of their base line; the kinds l and r begin or end there."""
    return f'<text{_kind(kind)} x="{_number(x)}" y="{_number(y)}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str = "", corner: int = 6) -> str:
    """Returns a rectangle; one of the kind "bar" is filled, an "area" faintly so."""
    sides = {"x": x, "y": y, "width": width, "height": height, "rx": corner}
    return f"<rect{_kind(kind)} " + " ".join(f'{name}="{_number(value)}"' for name, value in sides.items()) + "/>"


def route(points: Sequence[Point], kind: str = "", is_bent: bool = False) -> str:
    """Returns a line through points; a bent one is drawn to the two in the middle and does not reach them."""
    first, *rest = (f"{_number(x)} {_number(y)}" for x, y in points)
    return f'<path{_kind(kind)} d="M{first}{"C" if is_bent else "L"}{" ".join(rest)}"/>'


def _number(value: float) -> str:
    return f"{round(value, 1) + 0:g}"


def arrow(*points: Point, kind: str = "", is_bent: bool = False) -> str:
    """Returns a path with a point at its end."""
    (x, y), (to_x, to_y) = points[-2:]
    turn = atan2(to_y - y, to_x - x)
    wings = [(to_x - 8 * cos(turn + side), to_y - 8 * sin(turn + side)) for side in (0.5, -0.5)]
    return route(points, kind, is_bent) + route([wings[0], points[-1], wings[1]], kind)


def stack(x: float, y: float, kind: str, name: str, *says: str) -> Parts:
    """Returns a name with small lines below it."""
    lines = enumerate((name, *says))
    return [text(x, y + 17 * row, line, f"{'s' if row else 'b'} {kind}".strip()) for row, line in lines if line]


def node(x: float, y: float, width: float, height: float, name: str, *says: str, kind: str = "") -> Parts:
    """Returns a box with a name in it, and lines below that."""
    return [box(x, y, width, height, kind), *stack(x + width / 2, y + height / 2 + 5 - 8 * len(says), "", name, *says)]


def bars(x: float, zero: float, values: Sequence[float], scale: float, digits: str) -> Parts:
    """Returns upright bars with their values: blue above zero, orange below."""
    found = [route([(x, zero), (x + 38 * len(values), zero)], "grey thin")]
    for place, value in enumerate(values):
        left, high = x + 38 * place + 7, abs(value) * scale
        found.append(box(left, zero - max(value, 0) * scale, 24, high, f"bar {'blue' if value > 0 else 'orange'}", 2))
        found.append(text(left + 12, zero + (high + 14 if value < 0 else -high - 6), format(value, digits), "s"))
    return found


@dataclass(frozen=True)
class Plot:
    """Axes: the pixels of their box, and the values at its edges."""

    x: float
    y: float
    width: float
    height: float
    xs: Point = (0, 1)
    ys: Point = (0, 1)

    def at(self, x: float, y: float) -> Point:
        """Returns the pixels of a value."""
        across, up = (x - self.xs[0]) / (self.xs[1] - self.xs[0]), (y - self.ys[0]) / (self.ys[1] - self.ys[0])
        return self.x + across * self.width, self.y + (1 - up) * self.height

    def axes(self, below: Mapping[float, str], beside: Mapping[float, str], title: str = "") -> Parts:
        """Returns the labels along both axes with faint lines, and what the lower one shows."""
        bottom, right = self.y + self.height, self.x + self.width
        lines = [route([(self.x, self.at(0, y)[1]), (right, self.at(0, y)[1])], "grey thin") for y in beside]
        left = [text(self.x - 8, self.at(0, y)[1] + 4, words, "s r") for y, words in beside.items()]
        ticks = [text(self.at(x, 0)[0], bottom + 18, words, "s") for x, words in below.items()]
        return [*lines, *left, *ticks, *([text(self.x + self.width / 2, bottom + 40, title)] if title else [])]

    def curve(self, height: Callable[[float], float], kind: str, to: float | None = None, points: int = 120) -> str:
        """Returns the graph of a function, up to a value of x."""
        first, last = self.xs[0], self.xs[1] if to is None else to
        places = [first + (last - first) * step / points for step in range(points + 1)]
        return route([self.at(x, height(x)) for x in places], f"thick {kind}")


CHAPTERS = {  # title -> colour, the chapters that it reads, what it leaves behind
    "Exploring the tasks": ("grey", [], "clusters of the tasks"),
    "The policy before training": ("orange", [1], "records of the base"),
    "Designing rewards": ("green", [2], "a warm start, pass rates of tasks"),
    "Training with GRPO": ("blue", [3], "checkpoints, every completion"),
    "What did training change?": ("purple", [2, 4], "the choice of a checkpoint, results"),
    "GRPO from scratch": ("", [], "the algorithm, tested against TRL"),
    "Reward hacking": ("", [], "a hacked policy beside an honest one"),
    "DPO after GRPO": ("", [3, 4, 5], "pairs, and three ways to go on"),
    "A teacher's reward": ("", [3, 4], "a second training and its grades"),
}


def chain() -> Parts:
    """The nine chapters: which of the earlier ones each reads, and what it leaves behind."""
    colours = [colour for colour, *_ in CHAPTERS.values()]
    found = [text(120, 22, "reads", "s"), text(298, 22, "chapter", "s"), text(446, 22, "leaves behind", "s l")]
    for number, (name, (colour, sources, left)) in enumerate(CHAPTERS.items(), 1):
        y = 44 * number - 10
        for place, source in enumerate(sources):
            start, end, far = 44 * source + 16, y + 17 + 7 * (place - len(sources) / 2), 160 - 33 * (number - source)
            bend = [(180, start), (far, start), (far, end), (178, end)]
            found.append(arrow(*bend, kind=colours[source - 1], is_bent=True))
        found += [box(180, y, 236, 34, colour or "grey"), text(194, y + 22, f"{number}", "b l")]
        found += [text(218, y + 22, name, "l"), text(446, y + 22, left, "l")]
        found += [box(430, y + 12, 8, 8, f"bar {colour}", 2)] if colour else []
        found += [] if sources or number == 1 else [text(168, y + 22, "alone", "s r")]
    return [*found, text(WIDE / 2, 450, "All read the recipe; all but 6 read its data set too.", "s")]


def grades() -> Parts:
    """What is right by the strict rule is right by the lenient one, and what is right by that one by the oracle."""
    rings = [
        ("all completions", "here the right answer is 42", "It must be 41.", "grey"),
        ("oracle", "some part of it is right", "It is 42. Or is it 41?", "orange"),
        ("lenient", "right in its tag or, without one, by a fixed rule", "So it is 42.", "green"),
        ("strict", "right in its tag", "<answer>42</answer>", "blue"),
    ]
    found: Parts = []
    for depth, (name, says, example, colour) in enumerate(rings):
        x, y, high = 8 + 16 * depth, 8 + 58 * depth, 270 - 70 * depth
        found += [box(x, y, WIDE - 2 * x, high, colour), box(x, y, WIDE - 2 * x, high, f"area {colour}")]
        found += [text(x + 18, y + 26, name, "b l flat"), text(x + 18, y + 45, says, "s l flat")]
        found.append(text(626, y + 35, example, "m r flat"))
    return found


BOTH, GAINED, LOST, TASKS = 23, 9, 1, 60  # tasks of the next diagram: solved before and after, only after, only before
T = 2.0  # the quantile of Student's t for 95 % and some 60 tasks


def intervals() -> tuple[tuple[float, float], tuple[float, float]]:
    """Returns the interval of the difference if the tasks were others, and that of the package, which pairs them."""
    rates = [(BOTH + one) / TASKS for one in (LOST, GAINED)]
    changes = [1.0] * (GAINED + 1) + [-1.0] * (LOST + 1) + [0.0] * (TASKS - GAINED - LOST)  # one of either is added
    reaches = T * sqrt(sum(rate * (1 - rate) / TASKS for rate in rates)), T * stdev(changes) / sqrt(len(changes))
    middles = rates[1] - rates[0], fmean(changes)
    return (middles[0] - reaches[0], middles[0] + reaches[0]), (middles[1] - reaches[1], middles[1] + reaches[1])


def pairing() -> Parts:
    """The same two pass rates: a wide interval where the tasks differ, a narrow one where they are paired."""
    found = [text(150 + 9 * (BOTH + GAINED / 2), 26, f"{GAINED} gained", "green"), text(442, 26, "1 lost", "orange l")]
    solved = {"before": {*range(BOTH), BOTH + GAINED}, "after": {*range(BOTH + GAINED)}}
    for row, (name, tasks) in enumerate(solved.items()):
        found += [text(8, 47 + 22 * row, name, "b l"), text(138, 47 + 22 * row, f"{len(tasks)} of {TASKS}", "s r")]
        for task in range(TASKS):
            colour = "blue" if task < BOTH else "green" if task < BOTH + GAINED else "orange"
            kind = f"bar {colour}" if task in tasks else "grey thin"
            found.append(box(150 + 9 * task, 36 + 22 * row, 7, 14, kind, 1))
    plot = Plot(150, 96, 525, 124, (-0.1, 0.4))
    found += plot.axes({x / 100: f"{x:+d}" if x else "0" for x in range(-10, 50, 10)}, {}, "difference in points")
    found.append(route([plot.at(0, 0), plot.at(0, 1)], "grey dash"))
    rows = (("unpaired", "two sets of tasks", 0.75, "grey"), ("paired", "the same tasks", 0.25, "blue"))
    for (name, says, y, colour), (low, high) in zip(rows, intervals(), strict=True):
        (left, level), (right, _) = plot.at(low, y), plot.at(high, y)
        found += [*stack(8, level - 2, "l", name, says), route([(left, level), (right, level)], f"thick {colour}")]
        found += [route([(end, level - 6), (end, level + 6)], f"thick {colour}") for end in (left, right)]
        found.append(box(plot.at((GAINED - LOST) / TASKS, y)[0] - 4, level - 4, 8, 8, f"bar {colour}", 4))
        found.append(text(right + 12, level + 4, "up" if low > 0 else "undecided", "l"))
    return found


def rewards() -> Parts:
    """A completion: its program goes through extractor and sandbox, its form past them; a weighted sum comes out."""
    lines = ("<thought>Minus.</thought>", "<answer>", "def negate_number(n):", "    return -n", "</answer>")
    found = [text(113, 24, "completion", "b"), box(8, 36, 210, 132)]
    found += [text(47 if line[0] == " " else 18, 60 + 23 * row, line.strip(), "m l") for row, line in enumerate(lines)]
    found += node(252, 40, 92, 56, "extractor", "the program") + node(378, 40, 92, 56, "sandbox", "the verdict")
    found += [*stack(424, 127, "", "", "shown and", "hidden asserts"), arrow((424, 128), (424, 98))]
    found += node(504, 40, 106, 56, "tests", "all hold: 1")
    found += node(485, 180, 125, 56, "strict_format", "tags in order: 1")
    found += [arrow((218, 68), (250, 68)), arrow((344, 68), (376, 68)), arrow((470, 68), (502, 68))]
    found += [arrow((113, 168), (113, 208), (483, 208)), arrow((610, 68), (662, 68), (662, 110))]
    found += [arrow((610, 208), (662, 208), (662, 166)), text(638, 56, "\u00d7 1", "b")]
    found += [text(644, 230, "\u00d7 0.25", "b"), box(632, 112, 60, 52, "thick")]
    return [*found, text(662, 144, f"{1 * 1 + 1 * 0.25:g}", "b")]


def sandbox() -> Parts:
    """Trainer, judge, candidate: the candidate gets its program and calls, but no expected value, and returns data."""
    found = [box(530, 8, 160, 210, "orange dash"), text(610, 28, "jail", "b orange")]
    for x, says in (
        (8, ("trainer", "sends checks,", "reads verdicts,", "parses nothing else")),
        (270, ("judge", "knows the tests,", "compares values")),
        (536, ("candidate", "runs the program")),
    ):
        found += [box(x, 40, 148, 104), *stack(x + 74, 64, "", *says)]
    found += [text(344, 130, "inc(1) == 2", "m"), text(610, 130, "def inc(n): ...", "m")]
    found += stack(610, 150, "s", "", "no files, no network,", "no other process,", "no expected value")
    for left, there, back in ((156, "program, tests", "verdict"), (418, "program, inc(1)", "2")):
        found += [arrow((left, 74), (left + 112, 74)), text(left + 53, 64, there, "s")]
        found += [arrow((left + 112, 112), (left + 2, 112), kind="green"), text(left + 53, 102, back, "s")]
    found += node(260, 180, 168, 66, "template", "forked for each check,", "sees no code")
    found += [arrow((344, 144), (344, 178), kind="grey"), text(352, 166, "start, kill", "s l")]
    found += [text(476, 203, "forks one", "s"), text(476, 231, "a check", "s")]
    return [*found, arrow((428, 213), (528, 213), kind="grey")]


def mixed() -> Parts:
    """The probability that a group of 4, 8 or 16 holds passes and failures: high in the middle, 0 at both ends."""
    plot, found = Plot(60, 36, 620, 220), [text(8, 18, "probability of a mixed group", "l")]
    found += plot.axes({x / 4: f"{x / 4:g}" for x in range(5)}, {0: "0", 0.5: "0.5", 1: "1"})
    for row, (size, colour) in enumerate({16: "green", 8: "blue", 4: "orange"}.items()):
        found.append(plot.curve(lambda p, size=size: 1 - p**size - (1 - p) ** size, colour))
        found.append(route([(330, 106 + 24 * row), (356, 106 + 24 * row)], f"thick {colour}"))
        found.append(text(366, 111 + 24 * row, f"G = {size}", "b l"))
    found += [text(60, 296, "every group fails", "s l"), text(680, 296, "every group passes", "s r")]
    return [*found, text(370, 296, "p, a completion's chance to pass")]


def pass_at_k() -> Parts:
    """The probability that one of k completions passes, 1 - (1 - p)^k, for tasks of different pass rates."""
    plot, found = Plot(60, 36, 612, 220, (0, 6)), [text(8, 18, "pass@k of a task with pass rate p", "l")]
    found += plot.axes({x: f"{2**x}" for x in range(7)}, {0: "0", 0.5: "0.5", 1: "1"}, "k, completions that are tried")
    for rate in (0.5, 0.2, 0.1, 0.05, 0.02):
        found.append(plot.curve(lambda x, rate=rate: 1 - (1 - rate) ** 2**x, "blue"))
        x, y = plot.at(log2(log(1 - 0.6) / log(1 - rate)), 0.6)
        found.append(text(x + 12, y + 10, f"p = {rate:g}" if rate == 0.5 else f"{rate:g}", "b l"))
    return found


GROUP = (1.25, 0.25, 0.0, 0.25, 1.25, 0.0, 0.25, 1.25)  # rewards of eight completions: tests 1, strict_format 0.25


def relative(earned: Sequence[float]) -> list[float]:
    """Returns the advantages of a group."""
    return [(one - fmean(earned)) / (stdev(earned) + 1e-4) for one in earned]


def loop() -> Parts:
    """The loop of GRPO: prompts, a group of completions for each, rewards, advantages, a gradient step, the policy."""
    found = node(8, 104, 92, 52, "prompts") + node(150, 20, 112, 240, "policy")
    found += node(326, 150, 150, 110, "gradient step", "praised: likelier", "blamed: less likely")
    four = GROUP[:4]
    for x, y, name in ((326, 20, "a group"), (540, 20, "rewards"), (540, 150, "advantages")):
        found += [box(x, y, 150, 110), text(x + 75, y + 22, name, "b")]
    for row, (length, one, relation) in enumerate(zip((96, 110, 58, 84), four, relative(four), strict=True)):
        y, left = 54 + 18 * row, 615 + min(0, 36 * relation)
        found += [box(346, y, length, 9, "bar grey", 2), text(632, y + 9, f"{one:.2f}", "r")]
        found.append(box(left, y + 130, 36 * abs(relation), 9, f"bar {'blue' if relation > 0 else 'orange'}", 2))
    found += [
        route([(615, 180), (615, 252)], "grey thin"),
        text(294, 66, "writes", "s"),
        text(294, 196, "updates", "s"),
    ]
    found += [arrow((100, 130), (148, 130)), arrow((262, 75), (324, 75)), arrow((476, 75), (538, 75))]
    return [*found, arrow((615, 130), (615, 148)), arrow((540, 205), (478, 205)), arrow((326, 205), (264, 205))]


def advantages() -> Parts:
    """A group's rewards around their mean become advantages around zero; where all are equal, nothing is left."""
    found = [text(160, 18, "rewards of a group", "b"), text(536, 18, "advantages", "b")]
    mean, equal = 160 - 88 * fmean(GROUP), [0.25] * len(GROUP)
    found += [route([(8, mean), (312, mean)], "green dash"), text(342, mean + 4, "mean", "green b")]
    found += bars(8, 160, GROUP, 88, ".2f") + bars(384, 114, relative(GROUP), 46, "+.2f")
    found += bars(8, 244, equal, 88, ".2f") + bars(384, 244, relative(equal), 46, ".0f")
    return [*found, text(160, 266, "without spread", "s"), text(536, 266, "no praise, no blame, no gradient", "s")]


def clip() -> Parts:
    """What a ratio earns: flat above 1 + epsilon if the advantage is positive, below 1 - epsilon if negative."""
    found: Parts = []
    for x, sign, title, colour in ((44, 1, "A > 0: praised", "blue"), (394, -1, "A < 0: blamed", "orange")):
        plot = Plot(x, 40, 296, 200, (0.5, 1.5), (0.4, 1.6) if sign > 0 else (-1.6, -0.4))
        found += plot.axes({0.8: "1 - ε", 1: "1", 1.2: "1 + ε"}, {sign: "A"}, "ratio")
        found += [
            route([plot.at(edge, plot.ys[0]), plot.at(edge, plot.ys[1])], "grey thin dash") for edge in (0.8, 1.2)
        ]
        found.append(route([plot.at(edge, sign * edge) for edge in plot.xs], "grey dash"))
        found.append(plot.curve(lambda r, sign=sign: min(r * sign, max(0.8, min(r, 1.2)) * sign), colour))
        flat, above = plot.at(1 + sign * 0.36, sign + 0.2), plot.at(1 + sign * 0.22, sign + 0.47)
        found += [text(x + 148, 20, title, f"b {colour}"), text(flat[0], flat[1] + 20, "no gradient", "s")]
        found.append(text(*above, "unclipped", "s l" if sign > 0 else "s r"))
    return found


def losses() -> Parts:
    """How much each token weighs under four losses: bars for the tokens of four completions in two micro-batches."""
    batches, limit = ((4, 12), (2, 6)), 16  # tokens of completions; and the most that one may have
    rules: dict[str, tuple[Callable[[int, tuple[int, int]], float], str, str]] = {
        "grpo": (lambda own, batch: 1 / own / len(batch) / len(batches), "each completion", "weighs the same"),
        "bnpo": (lambda own, batch: 1 / sum(batch) / len(batches), "each token of a", "micro-batch"),
        "dapo": (lambda own, batch: 1 / sum(map(sum, batches)), "each token", "of the batch"),
        "dr_grpo": (lambda own, batch: 1 / limit / len(batch) / len(batches), "each token,", "by a constant"),
    }
    found = [text(221, 18, "one micro-batch", "s"), text(445, 18, "another", "s"), text(630, 18, "same weight", "s")]
    for row, (name, (weight, *says)) in enumerate(rules.items()):
        x, y = 84, 88 + 66 * row
        found += [text(8, y - 4, name, "b l"), *stack(630, y - 33, "s", "", *says)]
        for own, batch in [(own, one) for one in batches for own in one]:
            high, is_first = 420 * weight(own, batch), own == batch[0]
            for token in range(own):
                found.append(box(x + 15 * token, y - high, 13, high, "bar blue" if is_first else "bar orange", 1))
            x += 15 * own + (14 if is_first else 34)
        found.append(route([(84, y + 1), (570, y + 1)], "grey thin"))
    return [*found, text(327, 314, "a bar is a token; the area of a completion is its weight", "s")]


def hack() -> Parts:
    """A sketch: what the grader pays and what is wanted rise together, then the one goes on and the other falls."""

    def share(step: float, side: int) -> float:
        return 0.08 + 0.5 / (1 + exp(16 * (0.25 - step))) + side * 0.36 / (1 + exp(14 * (0.62 - step)))

    plot, places = Plot(40, 36, 470, 220), [step / 60 for step in range(61)]
    edge = [plot.at(x, share(x, 1)) for x in places] + [plot.at(x, share(x, -1)) for x in reversed(places)]
    found = [*plot.axes({}, {0: "0", 1: "1"}), route(edge, "area orange"), text(8, 18, "share of completions", "l")]
    found += [plot.curve(lambda step: share(step, 1), "orange"), plot.curve(lambda step: share(step, -1), "blue")]
    found += stack(524, plot.at(1, share(1, 1))[1], "l", "proxy", "what the grader pays")
    found += stack(524, plot.at(1, share(1, -1))[1], "l", "wanted", "hidden tests that pass")
    found += [text(524, 150, "the gap", "l"), text(275, 280, "training")]
    return [*found, text(688, 280, "a sketch, not a measurement", "s r")]


def preferences() -> Parts:
    """Passing and failing completions of one group, paired by length, and the loss of DPO over a pair's margin."""
    passed, failed = (40, 28, 52), (30, 60, 24, 44)  # tokens

    def distance(partners: Sequence[int]) -> int:
        return sum(abs(length - failed[one]) for length, one in zip(passed, partners, strict=True))

    partners = min(permutations(range(len(failed)), len(passed)), key=distance)
    found = [text(90, 20, "passed", "b"), text(280, 20, "failed", "b"), text(185, 20, "one group", "s")]
    for row, (length, partner) in enumerate(zip(passed, partners, strict=True)):
        y, to = 60 + 46 * row, 60 + 46 * partner
        found.append(route([(146, y), (185, y), (185, to), (224, to)], is_bent=True))
        found += [box(140 - 2 * length, y - 8, 2 * length, 16, "bar green", 3)]
        found.append(text(130 - 2 * length, y + 4, f"{length}", "s r"))
    for row, length in enumerate(failed):
        found.append(box(230, 52 + 46 * row, 2 * length, 16, "bar orange" if row in partners else "orange dash", 3))
        found.append(text(240 + 2 * length, 64 + 46 * row, f"{length}", "s l"))
    plot = Plot(450, 36, 230, 190, (-4, 4), (0, 4))
    found += plot.axes({-4: "-4", 0: "0", 4: "4"}, {0: "0", log(2): "log 2", 4: "4"}, "margin: chosen - rejected")
    (x, y), (_, bottom) = plot.at(0, log(2)), plot.at(0, 0)
    found += [route([(x, bottom), (x, y)], "grey dash"), plot.curve(lambda margin: log(1 + exp(-margin)), "blue")]
    found += [box(x - 4, y - 4, 8, 8, "bar blue", 4), text(x + 10, y - 10, "at the start", "s l")]
    return [*found, text(404, 20, "loss of a pair", "b l"), text(185, 266, "pairs alike in length (tokens)")]


def teacher() -> Parts:
    """A teacher grades a completion's thought beside the tests; the control is trained without that grade."""
    digits = (0.02, 0.01, 0.02, 0.03, 0.05, 0.10, 0.17, 0.30, 0.20, 0.10)
    grade = sum(digit * share for digit, share in enumerate(digits)) / sum(digits) / 9
    found = [text(83, 22, "completion", "b"), box(8, 34, 150, 206), text(431, 22, f"grade: mean / 9 = {grade:.2f}")]
    found += node(20, 46, 126, 84, "thought", kind="grey") + node(20, 144, 126, 84, "answer", kind="grey")
    found += node(206, 46, 134, 84, "teacher", "sees no program,", "no test result")
    found += node(206, 144, 134, 84, "tests, format", "the recipe's", "own rewards")
    found += node(548, 46, 144, 84, "with teacher", "tests, format,", "0.25 \u00d7 grade")
    found += node(548, 144, 144, 84, "the control", "tests, format", kind="green")
    found += [box(382 + 10 * digit, 104 - 200 * p, 8, 200 * p, "bar blue", 1) for digit, p in enumerate(digits)]
    found += [text(386, 121, "0", "s"), text(431, 121, "digits", "s"), text(476, 121, "9", "s")]
    found += [arrow((146, 88), (204, 88)), arrow((340, 88), (376, 88)), arrow((488, 76), (546, 76))]
    found += [arrow((158, 186), (204, 186)), arrow((340, 186), (546, 186)), arrow((514, 186), (514, 104), (546, 104))]
    return [*found, text(620, 250, "same start, tasks, steps", "s")]


HEIGHTS = {
    chain: 462, grades: 286, pairing: 270, rewards: 246, sandbox: 252, mixed: 306, pass_at_k: 306, loop: 270,
    advantages: 276, clip: 290, losses: 324, hack: 290, preferences: 276, teacher: 260,
}  # fmt: skip
DIAGRAMS = {diagram.__name__.replace("_", "-"): diagram for diagram in HEIGHTS}


def draw(diagram: Callable[[], Parts]) -> str:
    """Returns a diagram as SVG, for light and dark pages."""
    return svg(WIDE, HEIGHTS[diagram], STYLE, [f"<title>{escape(diagram.__doc__ or '')}</title>", *diagram()])


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, diagram in DIAGRAMS.items():
        (FOLDER / f"{name}.svg").write_text(draw(diagram), encoding="utf-8")
        print(FOLDER / f"{name}.svg")
