"""The review page in headless Chromium: by keyboard, by mouse, with hostile names, at the size of the real data."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hgld.pipelines.hierarchy.review.decisions.decision_files import append_decision, read_decisions
from hgld.pipelines.hierarchy.review.decisions.decisions import Move, New, Rename, SetTop, Split
from hgld.pipelines.hierarchy.review.decisions.journal import Journal
from hgld.pipelines.hierarchy.review.learning.teaching import Teacher
from hgld.pipelines.hierarchy.review.server import serving
from hgld.pipelines.hierarchy.review.state import Review
from hgld.pipelines.hierarchy.review.tables import BuildTables
from hgld.pipelines.hierarchy.review.thumbnails import Thumbnails
from tests.pipelines.headless_chromium import CHROMIUM, Page
from tests.pipelines.made_teacher import MadeTeacher
from tests.pipelines.reviewed_build import SCRIPT, write_build

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]
PROGRESS = "document.getElementById('progress').textContent"
READY = "document.body?.dataset.ready === 'yes'"
WIDE, PHONE = (1280, 800), (420, 800)


@contextmanager
def page_of(
    build: Path,
    profile: Path,
    size: tuple[int, int] = WIDE,
    others: tuple[Path, ...] = (),
    kinds: tuple[str, ...] = (),
    images: Path | None = None,
    is_taught: bool = False,
) -> Iterator[Page]:
    """The page of a build, opened by ada; nothing on it may have thrown, been blocked or opened a dialog.

    With ``kinds`` a teacher that knows nothing makes proposals of these kinds; with ``is_taught`` the build's own does.
    """
    tables = BuildTables(build)
    teacher = Teacher.of(build) if is_taught else MadeTeacher(tables.sizes, kinds) if kinds else None
    review = Review(tables, Journal(build / "ada.yaml", "ada", "annotator"), others, Thumbnails(images), teacher)
    addresses: list[str] = []
    server = serving(review, 0, addresses.append)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        with Page(profile, *size) as page:
            while not addresses:  # told by the server's thread
                time.sleep(0.01)
            page.open(addresses[0])
            page.until(READY)
            yield page
            assert (page.errors, page.dialogs) == ([], [])
    finally:
        server.should_exit = True
        thread.join()


def decisions(build: Path) -> list[Any]:  # of the actions that a test is about
    file = build / "ada.yaml"
    return [entry.decision for entry in read_decisions([file])] if file.exists() else []


def decided(build: Path) -> list[tuple[str, str | None]]:
    return [(decision.action, decision.why) for decision in decisions(build)]


def after(page: Page, number: int) -> None:
    """Wait until the page shows so many decisions."""
    page.until(f"{PROGRESS}.includes(' {number} decision')")


def answer(page: Page, *texts: str) -> None:
    """Fill the dialog's fields, in order, and press Enter."""
    page.until("document.getElementById('dialog').open")
    for position, text in enumerate(texts):
        if position:
            page.run("document.getElementById('why').select(), document.getElementById('why').focus()")
        page.write(text)
    page.press("Enter")
    page.until("!document.getElementById('dialog').open")


@pytest.mark.parametrize("size", [WIDE, PHONE])
def test_everything_by_keyboard(tmp_path, size):
    build = write_build(tmp_path / "build")
    with page_of(build, tmp_path / "profile", size) as page:
        assert page.run("document.querySelector('#names .active .label').textContent") == SCRIPT  # the least sure first
        page.press("c")
        after(page, 1)
        page.press("m")  # the next name is the active one now: the tug
        answer(page, "pass", "tugs pass")
        after(page, 2)
        page.run("document.getElementById('sort').value = 'label', document.getElementById('sort').onchange")
        page.press("ArrowLeft")
        page.press("End")
        page.until("document.activeElement.id === 'groups'")
        while page.run("document.getElementById('title').textContent") != "ship":
            page.press("ArrowUp")
        page.press("r")
        answer(page, "vessel", "clearer")
        after(page, 3)
        page.until("document.querySelector('#title').textContent === 'vessel'")
        page.press("n")
        after(page, 4)
        page.press("H", modifiers=8)
        answer(page, "of wood")
        after(page, 5)
        page.press("g")
        answer(page, "mountain", "joined")
        after(page, 6)
        page.press("ArrowRight")
        page.press("s")
        answer(page, "new one")
        after(page, 7)
        page.press("x")
        after(page, 8)
        page.press("d")
        after(page, 9)
        page.press("a")
        page.until(f"{PROGRESS}.includes(' 10 decision')")
        for left in (9, 8, 7, 6):
            page.press("u")
            after(page, left)
        page.press("/")
        page.write("gap")
        page.until("document.querySelectorAll('#names .row').length === 1")
        assert page.run("document.documentElement.scrollWidth") <= size[0]
    assert decided(build) == [
        ("accept", None),
        ("move", "tugs pass"),
        ("rename", "clearer"),
        ("set", None),
        ("set", "of wood"),
        ("merge", "joined"),
    ]


def test_hostile_names_stay_text(tmp_path):
    build = write_build(tmp_path / "build")
    others = build / "bob.yaml"
    for file, to in ((others, "ship"), (build / "ada.yaml", SCRIPT)):
        append_decision(file, _move("bob" if file == others else "ada", SCRIPT, to))
    with page_of(build, tmp_path / "profile", others=(others,)) as page:
        for kind, drawn in (
            ("all", "#names .row:nth-child(5)"),
            ("team", "#team .conflict"),
            ("history", "#details .said"),
            ("group", "#details .landmarks figure"),
        ):
            page.run(f"document.querySelector('#groups .row.{kind}').click()")
            page.until(f"document.querySelector('{drawn}')?.checkVisibility()")
        page.run("[...document.querySelectorAll('#groups .row')].find(r => r.textContent.includes('<script>')).click()")
        page.until("document.querySelector('#details h2').textContent.includes('<script>')")
        for key in "mw":
            page.press(key)
            page.until("document.getElementById('dialog').open")
            page.press("Escape")
            page.until("!document.getElementById('dialog').open")
        assert page.run("window.broken") is None
        assert page.run("document.querySelectorAll('script').length") == 1
        assert page.run("document.querySelectorAll('svg, main img').length") == 0


def _move(who: str, name: str, to: str) -> Move:
    return Move(names=(name,), to=to, who=who, when=datetime(2026, 1, 1, tzinfo=UTC), why=f"<b>{SCRIPT}</b>")


def test_two_annotators_side_by_side(tmp_path):
    many_names = {
        0: ("one", "natural", {f"name {i}": (1, 0.5, False, 1) for i in range(12)}),
        1: ("two", None, {"x": (1, 0.5, False, 0)}),
    }
    build = write_build(tmp_path / "build", many_names)
    others = build / "bob.yaml"
    for number in range(10):
        append_decision(others, _move("bob", f"name {number}", "two" if number < 6 else "one"))
        if number < 9:
            append_decision(build / "ada.yaml", _move("ada", f"name {number}", "two" if number < 5 else "one"))
    with page_of(build, tmp_path / "profile", others=(others,)) as page:
        page.press("t")
        page.until("document.querySelectorAll('#team .conflict .side').length === 2")
        assert "both decided 9 names" in page.run("document.querySelector('#team .few').textContent")
        assert page.run("document.querySelector('#team .card')") is None  # nine names say nothing
        assert page.run("document.querySelector('#groups .active').classList.contains('team')")
        page.run("document.querySelector('#team .side button').click()")
        page.until("document.querySelectorAll('#team .conflict').length === 0")
        append_decision(build / "ada.yaml", _move("ada", "name 9", "one"))
        page.run("location.reload()")
        page.until(f"{READY} && {PROGRESS}.includes(' 11 decision')")
        page.press("t")
        page.until("document.querySelector('#team .card b')?.textContent === 'κ 1.00'")
    assert decisions(build)[-1] == Move(names=("name 5",), to="two", who="ada", when=decisions(build)[-1].when)


def test_deciding_as_the_other_did_where_labels_differ(tmp_path):
    build = write_build(tmp_path / "build")
    bob = build / "bob.yaml"
    said: dict[str, Any] = {"who": "bob", "when": datetime(2026, 1, 1, tzinfo=UTC), "why": "w"}
    for decision in (
        Split(group="ship", names=("tug",), to="tugboat", **said),
        Move(names=("peak",), to="pass", **said),
        Rename(group="pass", to="gap", **said),
        SetTop(group="gap", top="natural", **said),
    ):
        append_decision(bob, decision)
    said = said | {"who": "ada"}
    for decision in (
        Move(names=("tug",), to="mountain", **said),
        Move(names=("peak",), to="ship", **said),
        Rename(group="pass", to="notch", **said),
        SetTop(group="notch", top="human-made", **said),
    ):
        append_decision(build / "ada.yaml", decision)
    with page_of(build, tmp_path / "profile", others=(bob,)) as page:
        page.press("t")
        for left in (4, 3, 2, 1):
            page.until(f"document.querySelectorAll('#team .conflict').length === {left}")
            page.run("document.querySelector('#team .side button').click()")
        page.until("document.querySelectorAll('#team .conflict').length === 0")
    added = [e.decision for e in read_decisions([build / "ada.yaml"])[4:]]
    assert [(d.action, getattr(d, "to", None)) for d in added] == [
        ("rename", "gap"),
        ("move", "gap"),
        ("new", "tugboat"),
        ("set", None),
    ]


DIALOG = "document.getElementById('dialog').open"
TOAST = "document.getElementById('toast').textContent"


def test_confirming_in_several_groups_is_one_action(tmp_path):
    build = write_build(tmp_path / "build")
    with page_of(build, tmp_path / "profile") as page:
        page.press("c")
        after(page, 1)
        page.press("a", modifiers=2, text="")
        page.press("c")
        after(page, 5)
        page.press("u")
        after(page, 1)
    assert len(decided(build)) == 1


FOREIGN = """(() => {{
  const dataTransfer = new DataTransfer();
  dataTransfer.setData("{type}", "another page");
  const event = new DragEvent("{kind}", {{ bubbles: true, cancelable: true, dataTransfer }});
  document.querySelector("#groups .row.group").dispatchEvent(event);
  return event.defaultPrevented;
}})()"""


def test_what_is_dragged_here_from_elsewhere_moves_no_name(tmp_path):
    with page_of(write_build(tmp_path / "build"), tmp_path / "profile") as page:
        assert not page.run(FOREIGN.format(kind="dragover", type="text/plain"))
        for kind in ("text/plain", "application/x-hgld-names"):
            page.run(FOREIGN.format(kind="drop", type=kind))
            assert not page.run(DIALOG)


def test_a_change_from_elsewhere_is_shown_and_the_page_lives_on(tmp_path):
    build = write_build(tmp_path / "build")
    with page_of(build, tmp_path / "profile") as page:
        append_decision(build / "ada.yaml", _move("ada", "tug", "pass"))
        page.press("c")
        page.until(f"{TOAST}.startsWith('The decisions changed')")
        after(page, 1)
        page.run(
            "window.was = fetch; window.fetch = (path, o) => (path === '/api/state' ? Promise.reject() : was(path, o))"
        )
        append_decision(build / "ada.yaml", _move("ada", "peak", "pass"))
        page.press("c")
        page.until(f"{TOAST}.startsWith('hgld review is not running')")
        page.run("window.fetch = was")
        page.press("c")
        after(page, 2)
        page.press("c")
        after(page, 3)
        assert all("/api/decide" in error for error in page.errors), page.errors
        page.errors.clear()  # the refusals, as Chromium tells them
    assert len(decided(build)) == 3


def test_whose_decisions_a_file_holds_is_told(tmp_path):
    build = write_build(tmp_path / "build")
    append_decision(build / "ada.yaml", _move("bob", "tug", "pass"))
    with page_of(build, tmp_path / "profile") as page:
        assert "decisions of bob too" in page.run(TOAST)
        page.until("document.querySelector('#groups .row.team') !== null")
        after(page, 0)


DRAG = """(() => {
  const dataTransfer = new DataTransfer();
  const row = (list, text) => [...document.querySelectorAll(`#${list} .row`)]
    .find((r) => r.querySelector(".label").textContent === text);
  const fire = (element, kind) =>
    element.dispatchEvent(new DragEvent(kind, { bubbles: true, cancelable: true, dataTransfer }));
  fire(row("names", "mountain pass"), "dragstart");
  const to = row("groups", "TO");
  fire(to, "dragover");
  fire(to, "drop");
})()"""


def test_a_name_is_dragged_to_a_group(tmp_path):
    build = write_build(tmp_path / "build")
    with page_of(build, tmp_path / "profile") as page:
        page.run(DRAG.replace("TO", "pass"))
        after(page, 1)
        page.run("document.querySelector('#groups .row.all').click()")
        page.press("a", modifiers=2, text="")
        page.run(DRAG.replace("TO", "＋ New group"))
        answer(page, "all in one")
        after(page, 2)
    one, other = decisions(build)
    assert one == Move(names=("mountain pass",), to="pass", who="ada", when=one.when)
    assert isinstance(other, New)
    assert (len(other.names), other.to) == (9, "all in one")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_runs_over_on_a_phone_and_text_stands_out(tmp_path, scheme):
    kinds = ("sort", "accept")
    with page_of(write_build(tmp_path / "build"), tmp_path / "profile", PHONE, kinds=kinds) as page:
        page.press(" ")
        page.scheme(scheme)
        for pane in ("groups", "middle", "details"):
            page.run(f"document.body.dataset.pane = '{pane}'")
            page.until("document.getAnimations().length === 0")
            assert page.run("document.documentElement.scrollWidth") <= PHONE[0]
            assert page.run(CONTRAST) >= 4.5, pane  # WCAG 2.2, AA


CONTRAST = """(() => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d");
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = rgb(getComputedStyle(e).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255];
  };
  let worst = 21;
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility({ opacityProperty: true })) continue;
    if (e.closest(":disabled, #toast, noscript, option")) continue;
    const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
    worst = Math.min(worst, (a + 0.05) / (b + 0.05));
  }
  return worst;
})()"""


def many(names: int, groups: int, landmarks: int) -> dict:
    """Groups of names as many as the real data has, sizes falling as 1/rank."""
    harmonic = sum(1 / rank for rank in range(1, names + 1))
    found: dict = {g: (f"group {g:03d}", ("natural", "human-made", None)[g % 3], {}) for g in range(groups)}
    for rank in range(1, names + 1):
        size = max(1, round(landmarks / harmonic / rank))
        facts = (size, (rank * 37 % 1000) / 1000, rank % 10 == 0, (rank + 1) % groups)
        found[rank % groups][2][f"name {rank:05d} of a thing"] = facts
    return found


def test_fluid_at_the_size_of_the_real_data(tmp_path):
    build = write_build(tmp_path / "build", many(5_700, 78, 200_000))
    with page_of(build, tmp_path / "profile") as page:
        page.run("document.querySelector('#groups .row.all').click()")
        page.until("document.getElementById('names').scrollHeight > 5700 * 40")
        assert page.run("document.querySelectorAll('#names .row').length") < 60
        page.run("document.getElementById('names').focus()")
        for action in FLUID.values():
            milliseconds(page, *action)
            assert page.run("document.querySelectorAll('#names .row').length") < 60


SEARCH = "(s => {{ s.value = '{}'; s.dispatchEvent(new Event('input')); }})(document.getElementById('search'))"
FLUID = {  # action: how it is started, and what the page then says; nothing: the next frame shows it
    "search": (SEARCH.format("name 04"), ""),
    "all names again": (SEARCH.format(""), ""),
    "open a group": ("document.querySelector('#groups .row.group').click()", ""),
    "scroll": ("document.getElementById('names').scrollTop = 1e6", ""),
    "confirm": ("document.getElementById('act-confirm').click()", "1 decision"),
    "undo": ("document.getElementById('undo').click()", "0 decisions"),
}


def milliseconds(page: Page, script: str, said: str) -> float:
    """From the action to the frame that shows it, by the page's own clock."""
    return page.run(
        f"""(async () => {{
          const start = performance.now();
          {script};
          while (!document.getElementById('progress').textContent.includes('{said}')) await new Promise(setTimeout);
          await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
          return performance.now() - start;
        }})()"""
    )
