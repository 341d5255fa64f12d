"""Draw the figures of README and the concept pages.

``python docs/figures.py`` writes docs/concepts/*.svg; ``python docs/figures.py hgld-demo`` writes
docs/pictures/query.png from the files of ``hgld demo``.
"""

import sys
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent / "concepts"
PICTURE = Path(__file__).parent / "pictures" / "query.png"
INK, GREY, PAPER = "#1f2933", "#7b8794", "#ffffff"
FILLS = ("#e4e7eb", "#c6dbef", "#6baed6", "#2171b5")  # colours of grade 0 to 3
_ON_DARK = 3


def text(x: float, y: float, words: str, *, size: int = 13, color: str = INK, anchor: str = "middle") -> str:
    """Return words at a point."""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{color}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, words: str, grade: int = 0) -> str:
    """Return a box with words in it, filled by grade."""
    ink = PAPER if grade == _ON_DARK else INK
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
    shape = f'<rect {place} rx="5" fill="{FILLS[grade]}" stroke="{GREY}"/>'
    lines = words.split("\n")
    top = y + height / 2 + 4.5 - 8 * (len(lines) - 1)
    return shape + "".join(text(x + width / 2, top + 16 * i, line, color=ink) for i, line in enumerate(lines))


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    """Return an arrow between two points."""
    place = f'x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}"'
    return f'<line {place} stroke="{GREY}" stroke-width="1.5" marker-end="url(#tip)"/>'


def figure(width: int, height: int, title: str, *shapes: str) -> str:
    """Return a whole SVG with a white ground and a title for screen readers."""
    tip = '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    tip += f'<path d="M0 0L8 4L0 8z" fill="{GREY}"/></marker>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
    head += ' role="img" font-family="sans-serif">'
    ground = f'<rect width="{width}" height="{height}" fill="{PAPER}"/>'
    return "\n".join([head, f"<title>{escape(title)}</title><defs>{tip}</defs>", ground, *shapes, "</svg>\n"])


def draw_levels() -> str:
    """Draw a tree of three levels; colours show each landmark's grade for one query."""
    leaves = [("Chartres", 3), ("Reims", 2), ("Tower Bridge", 1), ("Lake Como", 0)]
    shapes = [
        text(8, y, level, color=GREY, anchor="start") for y, level in ((38, "top"), (108, "group"), (178, "landmark"))
    ]
    for x, words, grade in ((110, "human-made", 1), (530, "natural", 0)):
        shapes.append(box(x, 20, 130 if x > 500 else 400, 30, words, grade))
    for x, width, words, grade in ((110, 265, "church", 2), (395, 115, "bridge", 1), (530, 130, "lake", 0)):
        shapes += [arrow(x + width / 2, 50, x + width / 2, 88), box(x, 90, width, 30, words, grade)]
    for x, (words, grade) in zip((110, 250, 395, 530), leaves, strict=True):
        width = 130 if x == 530 else 125 if x < 300 else 115
        shapes += [arrow(x + width / 2, 120, x + width / 2, 158), box(x, 160, width, 30, words, grade)]
        shapes.append(text(x + width / 2, 215, f"grade {grade}", color=GREY))
    return figure(680, 230, "A tree of landmark, group and top, coloured by grade towards Chartres", *shapes)


def draw_batches() -> str:
    """Draw three batches of P = 3 classes with K = 4 items."""
    shapes = []
    for number in range(3):
        left = 20 + 220 * number
        shapes.append(text(left + 90, 25, f"batch {number + 1}"))
        for row in range(3):
            name = chr(ord("A") + 3 * number + row)
            shapes += [box(left + 46 * column, 40 + 44 * row, 40, 36, name, row + 1) for column in range(4)]
    shapes.append(
        text(
            340, 195, "3 batches of P = 3 classes (rows) with K = 4 items each: every item has 3 positives", color=GREY
        )
    )
    return figure(680, 210, "Three batches of three classes with four items each", *shapes)


def draw_ranking() -> str:
    """Draw one ranked list with grades and the terms of H-AP."""
    items = [("Chartres", 3), ("Tower Bridge", 1), ("Lake Como", 0), ("Reims", 2), ("Lake Garda", 0)]
    terms = ["1 / 1", "2/3 / 2", "", "5/3 / 4", ""]
    labels = ((66, "item"), (125, "rank"), (150, "grade"), (175, "relevance"), (200, "Hrank⁺ / rank"))
    shapes = [text(8, y, words, color=GREY, anchor="start") for y, words in labels]
    for place, ((name, grade), term) in enumerate(zip(items, terms, strict=True)):
        x = 115 + 112 * place
        shapes.append(box(x, 40, 104, 44, name.replace(" ", "\n"), grade))
        values = (str(place + 1), str(grade), ("0", "1/3", "2/3", "1")[grade], term or "–")
        shapes += [text(x + 52, y, value) for (y, _), value in zip(labels[1:], values, strict=True)]
    shapes.insert(0, text(115, 25, "query: Chartres (church, human-made)", anchor="start"))
    return figure(680, 215, "A ranked list of five items with ranks, grades, relevances and terms of H-AP", *shapes)


def draw_build() -> str:
    """Draw the stages of a hierarchy build with the review as a loop."""
    stages = ["names", "clean", "embed", "evidence", "cluster", "top level"]
    shapes = []
    for place, stage in enumerate(stages):
        x = 15 + 110 * place
        shapes += [box(x, 20, 90, 34, stage, 1)] + ([arrow(x + 90, 37, x + 108, 37)] if place < len(stages) - 1 else [])
    shapes += [arrow(610, 54, 610, 98), box(565, 100, 90, 34, "review", 3), arrow(565, 117, 437, 117)]
    shapes += [
        box(345, 100, 90, 34, "export", 1),
        arrow(345, 117, 217, 117),
        box(90, 100, 125, 34, "labels, tree, page", 1),
    ]
    shapes += [box(345, 160, 310, 34, "decisions.yaml of people (or a model)", 2), arrow(610, 160, 610, 136)]
    return figure(680, 210, "Stages of a build from names to labels; people's decisions enter at the review", *shapes)


def draw_resuming() -> str:
    """Draw how a file is written to a temporary name, renamed, and marked done."""
    steps = ["work", ".NAME.part\n(temporary file)", "NAME\n(renamed)", "done.json\n(key + hashes)"]
    shapes = []
    for place, step in enumerate(steps):
        x = 15 + 168 * place
        shapes += [box(x, 25, 138, 50, step, min(place, 2))] + ([arrow(x + 138, 50, x + 166, 50)] if place < 3 else [])
    words = "stopped here: the old file stays", "stopped here: the same command resumes"
    shapes += [text(252, 105, words[0], color=GREY), text(588, 105, "finished: it does nothing", color=GREY)]
    shapes.append(text(420, 130, words[1], color=GREY))
    return figure(680, 150, "A file is written under a temporary name, renamed, and marked done", *shapes)


def draw_query(demo: Path) -> None:
    """Draw a test image of the demo with its first results, coloured by grade, below their tree of classes."""
    import matplotlib.pyplot as plt
    import numpy as np
    from PIL import Image

    import hgld
    from hgld.report_page.figures import grade_color

    shown = 7
    test = hgld.open_dataset(demo / "shards", "test")
    embeddings = hgld.load_model(demo / "runs" / "HAPPIER").encode(test)
    grades = hgld.shared_levels(test.labels, test.labels)
    scores = embeddings @ embeddings.T
    np.fill_diagonal(scores, -np.inf)
    first = np.argsort(-scores, axis=1, kind="stable")[:, :shown]
    found = np.take_along_axis(np.asarray(grades), first, axis=1)
    # Show the query whose results have the most different grades.
    query = int(np.argmax([len(set(row)) for row in found.tolist()]))
    items = [query, *first[query].tolist()]
    names = [[test.hierarchy.names[level][label] for level, label in enumerate(test.labels[i])] for i in items]
    levels = len(test.levels)
    figure = plt.figure(figsize=(13.6, 2.5), dpi=100)
    tree = figure.add_axes((0.0, 0.0, 0.25, 1.0), xlim=(0, 1), ylim=(0, 1))
    tree.axis("off")
    nodes = sorted({tuple(reversed(path))[:depth] for path in names for depth in range(1, levels + 1)})
    own = tuple(reversed(names[0]))
    for row, node in enumerate(nodes):
        shared = sum(a == b for a, b in zip(node, own, strict=False))
        label = node[-1] + ("  (query)" if node == own else "")
        at = {"x": 0.04 + 0.09 * (len(node) - 1), "y": 0.95 - 0.9 * (row + 0.5) / len(nodes)}
        tree.text(at["x"] - 0.03, at["y"], "●", color=grade_color(shared, levels), fontsize=11, va="center")
        tree.text(at["x"] + 0.025, at["y"], _cut(label, 34), color=INK, fontsize=9.5, va="center")
    for column, (item, words, grade) in enumerate(zip(items, names, [levels, *found[query].tolist()], strict=True)):
        place = figure.add_axes((0.245 + 0.0945 * column, 0.27, 0.084, 0.6))
        place.imshow(test[item]["image"])
        place.set(xticks=[], yticks=[])
        color = INK if column == 0 else grade_color(grade, levels)
        for side in place.spines.values():
            side.set(color=color, linewidth=5)
        place.set_xlabel("\n".join(_cut(word, 19) for word in words), fontsize=8.5, color=INK, linespacing=1.35)
        place.set_title(f"grade {grade}" if column else "query", fontsize=10, color=color, fontweight="bold")
    figure.savefig(PICTURE, metadata={"Software": None})
    Image.open(PICTURE).convert("RGB").quantize(128).save(PICTURE, optimize=True)


def _cut(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 1] + "…"


FIGURES = {
    "levels.svg": draw_levels,
    "batches.svg": draw_batches,
    "ranking.svg": draw_ranking,
    "build.svg": draw_build,
    "resuming.svg": draw_resuming,
}

if __name__ == "__main__":
    for demo in sys.argv[1:]:
        draw_query(Path(demo))
    for name, draw in FIGURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
