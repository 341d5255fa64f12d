"""Draw the figures of README and the documentation.

``python -m docs.figures`` writes docs/concepts/*.svg; ``python -m docs.figures hgld-demo`` also writes docs/pictures
from the files of ``hgld demo``, with Chromium.
"""

import base64
import contextlib
import csv
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path

from tests.pipelines.headless_chromium import Page

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "concepts"
PICTURES = ROOT / "docs" / "pictures"
SOURCES = PICTURES / "sources.json"  # what the images were made from
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


def draw_memory() -> str:
    """Draw the memory of one of two processes that evaluate, from rows of benchmarks/processes.py --over-time."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in csv.DictReader((ROOT / "benchmarks/results/memory_over_time.csv").read_text("utf-8").splitlines()):
        lines.setdefault(row["kind"], []).append((float(row["seconds"]), float(row["MB"])))
    most_s, most_mb = (max(point[axis] for line in lines.values() for point in line) for axis in (0, 1))
    left, bottom, width, height = 70, 220, 580, 190
    shapes = []
    for mb in range(0, int(most_mb) + 1, 500):
        y = bottom - height * mb / most_mb
        shapes += [text(left - 8, y + 4, f"{mb:,} MB", size=11, color=GREY, anchor="end")]
        shapes.append(f'<line x1="{left}" y1="{y:.1f}" x2="{left + width}" y2="{y:.1f}" stroke="{FILLS[0]}"/>')
    for (kind, line), color in zip(lines.items(), (FILLS[2], INK), strict=True):
        points = [(left + width * s / most_s, bottom - height * mb / most_mb) for s, mb in line]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        shapes.append(f'<polyline points="{drawn}" fill="none" stroke="{color}" stroke-width="2"/>')
        x, y = max(points, key=lambda point: -point[1])
        shapes.append(text(min(x, left + width - 60), y - 6, kind, color=color))
    shapes.append(text(left + width, bottom + 18, f"{most_s:.0f} s", size=11, color=GREY, anchor="end"))
    return figure(680, 245, "Memory of one of two processes: gathered embeddings against one file", *shapes)


def photograph(demo: Path) -> None:
    """Photograph the pages that hgld makes of the files of ``hgld demo``, and write what they were made from."""
    with tempfile.TemporaryDirectory() as folder, Page(Path(folder) / "profile", 1200, 1000) as page:
        run, shards, work = demo / "runs" / "HAPPIER", demo / "shards", Path(folder)
        _hgld("show", shards, "--html", work / "tree.html")
        runs = (demo / "runs" / "ROADMAP", run)
        _hgld("report", *runs, "--data", shards, "--out", work / "report.html", "--title", "hgld demo")
        _hgld("audit", "--checkpoint", run, "--data", shards, "--out", work / "audit")
        for name, file in {"tree": "tree.html", "report": "report.html", "audit": "audit/audit.html"}.items():
            page.open((work / file).as_uri())
            page.until("document.readyState === 'complete' && location.href.endsWith('.html')")
            _save(page, name, "header", ".icicle, article:nth-of-type(2)")
            if name == "report":
                _save(page, "strips", "h3", ".strip:nth-of-type(4)")
        with _review(demo / "labels") as address:
            page.open(address)
            page.until("document.body?.dataset.ready === 'yes'")
            _save(page, "review", "body", "body")
    SOURCES.write_text(json.dumps(fingerprints(), indent=1) + "\n", encoding="utf-8")


def fingerprints() -> dict[str, str]:
    """Return the SHA-256 of every file that sets the look of a photographed page, by path."""
    rooms = ("hgld/templates", "hgld/report_page", "hgld/label_audit", "pipelines/hierarchy/review/page")
    files = sorted(file for room in rooms for kind in ("css", "html") for file in (ROOT / room).glob(f"*.{kind}"))
    return {str(file.relative_to(ROOT)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def _hgld(*words: object) -> None:
    command = [sys.executable, "-m", "hgld", *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - commands of this file


@contextlib.contextmanager
def _review(build: Path) -> Iterator[str]:
    """Run the review of a build, without a place for its decisions, and give its address."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["review", str(build), "--decisions", f"{folder}/decisions.yaml", "--json"]
        process = subprocess.Popen([sys.executable, "-m", "hgld", *words], stdout=subprocess.PIPE, text=True)  # noqa: S603
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.terminate()
            process.wait()


def _save(page: Page, name: str, first: str, last: str) -> None:
    """Save the part of a page from one element to another, in its true colours."""
    time.sleep(1)  # drawings and fonts are ready
    box = page.run(
        f"(([a, b]) => ({{y: Math.max(a.top + scrollY - 12, 0), bottom: b.bottom + scrollY + 12}}))"
        f"([{first!r}, {last!r}].map(one => document.querySelector(one).getBoundingClientRect()))"
    )
    height = min(box["bottom"] - box["y"], 1000)
    clip = {"x": 0, "y": box["y"], "width": 1200, "height": height, "scale": 1}
    taken = page.call("Page.captureScreenshot", format="webp", quality=90, clip=clip, captureBeyondViewport=True)
    (PICTURES / f"{name}.webp").write_bytes(base64.b64decode(taken["data"]))


FIGURES = {
    "levels.svg": draw_levels,
    "batches.svg": draw_batches,
    "ranking.svg": draw_ranking,
    "build.svg": draw_build,
    "resuming.svg": draw_resuming,
    "memory.svg": draw_memory,
}

if __name__ == "__main__":
    for demo in sys.argv[1:]:
        photograph(Path(demo).resolve())
    for name, draw in FIGURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
