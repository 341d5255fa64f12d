"""The review page in headless Chromium: keyboard, mouse, fast key presses, layout and contrast."""

import json
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hgld.local_server import serving
from hgld.pipelines.hierarchy.review.decisions import (
    Accept,
    Drop,
    GiveItem,
    Merge,
    Move,
    New,
    Refuse,
    Rename,
    SetTop,
    read_decisions,
)
from hgld.pipelines.hierarchy.review.journal import append_decision
from hgld.pipelines.hierarchy.review.server import application
from tests.pipelines.reviewed_build import SCRIPT, opened, write_build

pytestmark = pytest.mark.slow
PROGRESS = "document.getElementById('progress').textContent"
READY = "document.body?.dataset.ready === 'yes'"
DIALOG = "document.getElementById('dialog').open"
TOAST = "document.getElementById('toast').textContent"
TITLE = "document.getElementById('title').textContent"
GROUP = """(label =>
  [...document.querySelectorAll('#groups .row')].find((r) => r.querySelector('.label').textContent === label))"""
ROWS = "[...document.querySelectorAll('#names .row')]"
SHOWN = f"{ROWS}.map((row) => row.querySelector('.label').textContent)"
SELECTED = f"{ROWS}.filter((row) => row.ariaSelected === 'true').map((row) => row.querySelector('.label').textContent)"
LEFT = f"{ROWS}.filter((row) => !row.matches('.decided')).map((row) => row.querySelector('.label').textContent)"
ACTIVE = "document.querySelector('#names .active .label').textContent"
GROUPS = {
    0: ("bridge", "human-made", dict.fromkeys(("arch bridge", "beam bridge", "castle keep"), (5, 0.5, False, 1))),
    1: ("castle", "human-made", dict.fromkeys(("chateau", "citadel", "drawbridge"), (4, 0.5, False, 0))),
    2: ("lake", "natural", dict.fromkeys(("lagoon", "loch", "برج إيفل"), (3, 0.5, False, 0))),
}
HELD_BACK = """window.original ??= fetch;
window.released = new Promise((release) => { window.release = release; });
window.fetch = async (path, options) => {
  if (options.method === "POST") await released;
  return original(path, options);
};"""
PRESS = """document.getElementById('names').dispatchEvent(
  new KeyboardEvent('keydown', {{ key: '{key}', bubbles: true, repeat: {repeat} }}))"""


@contextmanager
def page_of(page, build, others=(), *, images=None, learns=False):
    """Show the page of a build that ada opened; fail on errors, blocked requests and dialogs."""
    addresses: list[str] = []
    review = opened(build, others=others, images=images, learns=learns)
    server = serving(partial(application, review), 0, addresses.append)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not addresses:  # the server's thread appends the address
            time.sleep(0.01)
        page.open(addresses[0])
        page.until(READY)
        yield page
        page.open("about:blank")
        assert (page.errors, page.dialogs) == ([], [])
    finally:
        server.should_exit = True
        thread.join()


def decisions(build: Path) -> list[Any]:
    file = build / "ada.yaml"
    return [entry.decision for entry in read_decisions([file])] if file.exists() else []


def told(build):
    """Return the type of each decision and its fields except who, when and why."""
    return [
        (type(d), *(v for f, v in vars(d).items() if f not in ("who", "when", "why") and v is not None))
        for d in decisions(build)
    ]


def after(page, number):
    """Wait until the page shows this number of decisions."""
    page.until(f"{PROGRESS}.includes(' {number} decision')")


def act(page, key, number, *texts):
    """Press a key, fill the dialog that it opens, if any, and wait until the page shows this number of decisions."""
    page.press(key)
    if texts:
        answer(page, *texts)
    after(page, number)


def answer(page, *texts):
    """Fill the dialog's first field, and the reason if a second text is given, and press Enter."""
    page.until(DIALOG)
    for position, text in enumerate(texts):
        if position:
            page.run("document.getElementById('why').select(), document.getElementById('why').focus()")
        page.write(text)
    page.press("Enter")
    page.until(f"!{DIALOG}")


def click(page, selector):
    """Click with the mouse, which also moves the focus."""
    box = page.run(f"document.querySelector('{selector}').getBoundingClientRect().toJSON()")
    for kind in ("mousePressed", "mouseReleased"):
        page.mouse(kind, box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def _move(who, name, to):
    return Move(names=(name,), to=to, who=who, when=datetime(2026, 1, 1, tzinfo=UTC), why=f"<b>{SCRIPT}</b>")


def test_groups_and_names_can_be_decided_with_the_keyboard(tmp_path, chromium):
    build = write_build(tmp_path / "build")
    with page_of(chromium, build) as page:
        assert page.run(ACTIVE) == SCRIPT  # the list starts with the least certain name
        act(page, "c", 1)
        act(page, "m", 2, "pass", "tugs pass")  # "tug" is now the active name
        page.run("document.getElementById('sort').value = 'label', document.getElementById('sort').onchange")
        page.press("ArrowLeft")
        page.press("End")
        page.until("document.activeElement.id === 'groups'")
        while page.run(TITLE) != "ship":
            page.press("ArrowUp")
        act(page, "r", 3, "vessel", "clearer")
        page.until(f"{TITLE} === 'vessel'")
        act(page, "n", 4)
        page.press("H", modifiers=8)
        answer(page, "of wood")
        after(page, 5)
        act(page, "g", 6, "mountain", "joined")
        page.press("ArrowRight")
        page.press("w")
        page.until(DIALOG)
        page.write("mountain")
        page.press("Enter")
        page.until("document.querySelector('#dialog .problem').textContent.startsWith('There is such a group')")
        page.run("document.getElementById('to').select()")
        answer(page, "new one")
        after(page, 7)
        act(page, "x", 8)
        act(page, "d", 9)
        page.press("a")
        after(page, 10)
        for left in (9, 8, 7, 6):
            act(page, "u", left)
        page.press("a", modifiers=2, text="")
        act(page, "c", 7)  # a single decision, because all marked names are in one group
        act(page, "u", 6)
        page.press("/")
        page.write("gap")
        page.until("document.querySelectorAll('#names .row').length === 1")
        page.press("Enter")
        page.press("ArrowLeft")
        page.until("document.activeElement.id === 'groups'")
        page.press("d")  # no group is open during a search, so this key decides nothing
        page.until(f"{TOAST}.startsWith('Open a group first')")
    assert [(type(d), d.why) for d in decisions(build)] == [
        (Accept, None),
        (Move, "tugs pass"),
        (Rename, "clearer"),
        (SetTop, None),
        (SetTop, "of wood"),
        (Merge, "joined"),
    ]


def test_last_screen_asks_for_the_classes_of_groups_and_the_page_says_which_are_open(tmp_path, chromium):
    build = write_build(tmp_path / "build", GROUPS)
    with page_of(chromium, build, learns=True) as page:
        count = 0
        while not page.run(f"{TITLE}.startsWith('Groups and their')"):
            assert page.run(f"{PROGRESS}.includes(' 0 of 3 groups decided')")
            page.press("Enter")
            page.until(f"!{PROGRESS}.includes(' {count} decision')")
            page.until("document.querySelectorAll('#names .pending').length === 0")
            count = len(decisions(build))
            page.until(f"{PROGRESS}.includes(' {count} decision')")
        assert sorted(page.run(SHOWN)) == ["bridge", "castle", "lake"]
        while page.run(ACTIVE) != "lake":
            page.press("ArrowDown")
        page.press("1")  # the first class
        page.until(f"{PROGRESS}.includes(' 1 of 3 groups decided')")
        page.press("w")
        page.until(f"{TOAST}.startsWith('These are groups')")
        page.press("r")  # rename the class of the active group, and so of all its groups
        answer(page, "natural")
        page.until(f"{PROGRESS}.includes(' 3 of 3 groups decided')")
        page.press("u")
        page.until(f"{PROGRESS}.includes(' 1 of 3 groups decided')")
        page.press("o")  # the postponed screen comes back, because nothing else is left
        assert sorted(page.run(SHOWN)) == ["bridge", "castle"]
        page.press("a")
        page.until(f"{PROGRESS}.includes(' 3 of 3 groups decided')")
        assert page.run(f"{PROGRESS}.includes('names wrong at any level')")
        page.until("document.getElementById('names').dataset.empty.includes('at every level')")
    made = {d.group: d.top for d in decisions(build) if isinstance(d, SetTop)}
    assert made == {"bridge": "human-made", "castle": "human-made", "lake": "natural"}


def test_typed_letters_list_labels_first_that_have_no_digit_key_and_begin_with_them(tmp_path, chromium):
    labels = ["Terns", "Tyrants", "Western terns", "the west"]
    fields = json.dumps([{"name": "to", "label": "To", "options": labels, "digits": labels[:1], "mustExist": True}])
    options = "[...document.querySelectorAll('#to-options span')].map((one) => one.textContent)"
    with page_of(chromium, write_build(tmp_path / "build")) as page:
        page.run(
            f"import('/dialog.js').then((dialog) => {{ dialog.ask({{ title: '', fields: {fields} }})"
            ".then((answer) => { window.chosen = answer.to; }); })"
        )
        assert page.run(options) == ["Tyrants", "Western terns", "the west", "Terns"]  # Terns has a digit key
        listed = {"t": ["Tyrants", "the west", "Terns", "Western terns"], "wes": ["Western terns", "the west"]}
        for letters, found in listed.items():
            page.run("document.getElementById('to').select(), document.getElementById('to').focus()")
            page.write(letters)
            assert page.run(options) == found
        page.press("2")
        page.until(f"!{DIALOG} && window.chosen === 'the west'")
        page.run(PRESS.format(key="2", repeat="true"))  # the key is still held down
        assert page.run(PROGRESS).count(" 0 decisions") == 1


def test_screen_of_the_queue_can_be_completed_with_the_keyboard(tmp_path, chromium):
    build = write_build(tmp_path / "build", GROUPS)
    with page_of(chromium, build, learns=True) as page:
        whole = page.run(SHOWN)
        assert page.run("document.activeElement.id") == "names"
        uncertain = f"{ROWS}.map((row) => parseInt(row.querySelector('.number, .badge').textContent))"
        percents = dict(zip(whole, page.run(uncertain), strict=True))
        assert percents[page.run(ACTIVE)] == max(percents.values())
        while not page.run(f"{PRESS.format(key=']', repeat='false')}, {SELECTED}"):
            page.press("ArrowDown")
            page.run("document.dispatchEvent(new KeyboardEvent('keyup', { bubbles: true }))")
        block = page.run(SELECTED)
        page.press("]")
        assert {*block} < {*page.run(SELECTED)}
        page.press("[")
        assert page.run(SELECTED) == block
        targets = page.run("[...document.querySelectorAll('#targets .target span')].map((t) => t.textContent)")
        page.press(str(targets.index("lake") + 1))
        after(page, 1)
        left = [name for name in whole if name not in block]
        assert page.run(ACTIVE) in left
        page.press("0")
        moved = page.run(ACTIVE)
        answer(page, "cas")  # Enter accepts the marked option
        after(page, 2)
        marked = page.run(ACTIVE)
        page.press(" ")  # mark the name as wrong
        page.until("document.getElementById('act-accept').textContent.includes(', not 1')")
        page.press("a")  # a letter is the key of a group here
        page.until(f"{TOAST}.startsWith('No group has the key a')")
        page.press("Enter")
        page.until(f"!{PROGRESS}.includes(' 2 decision')")
        page.until("document.querySelectorAll('#names .pending').length === 0")
        written = told(build)
        assert page.run(f"{PROGRESS}.includes('of all names in a wrong group (80% interval')")
        for count in (2, 1, 0):
            act(page, "Backspace", count)
        assert page.run("document.getElementById('undo').disabled")
    assert written[0][0] in (Move, Accept)
    assert ({*written[0][1]} if written[0][0] is Move else {*written[0][2]}) == {*block}
    assert written[1][1:] in (((moved,), "castle"), ("castle", (moved,)))
    assert {name for kind, *said in written[2:] if kind is Refuse for name in said[1]} == {marked}
    accepted = [name for kind, *said in written[2:] if kind is Accept for name in said[1]]
    assert {*accepted} == {*left} - {moved, marked}
    assert decisions(build) == []


def test_one_key_or_click_puts_a_name_or_its_block_into_any_group_of_a_screen(tmp_path, chromium):
    labels = ["bay", "bridge", "castle", "dam", "fort", "gate", "hill", "inn", "jetty", "kiln", "lake", "mill"]
    groups = {g: (label, None, {f"a {label}": (1, 0.5, g % 4 == 0, 0)}) for g, label in enumerate(labels)}
    build = write_build(tmp_path / "build", groups)
    with page_of(chromium, build, learns=True) as page:
        texts = (
            "[...document.querySelectorAll('#targets .target')].map((b) => [...b.children].map((c) => c.textContent))"
        )
        keys = dict(page.run(texts))
        assert sorted(keys.values()) == labels
        assert "".join(keys)[:9] == "123456789"
        key, group = [*keys.items()][-1]
        assert group.startswith(key)
        active = page.run(ACTIVE)
        page.press(key)
        after(page, 1)
        row = f"{ROWS}.findLast((row) => row.querySelector('.near'))"
        near = page.run(f"['.label', '.near'].map((one) => {row}.querySelector(one).textContent)")
        page.run(f"{row}.querySelector('.near').click()")
        after(page, 2)
        forks = "document.querySelectorAll('.fork')"
        around = "[...document.querySelectorAll('.near')].filter((one) => /^\\d+ /.test(one.textContent))"
        pair = f"{around}.find((one) => one.textContent.startsWith('2 '))"
        row = f"{pair}.closest('.row')"
        shown, joined = page.run(SHOWN), page.run(f"{row}.querySelector('.label').textContent")
        there = page.run(f"{pair}.querySelector('bdi').textContent")
        page.run(f"{pair}.click()")
        after(page, 3)
        similar = [name for name in shown if name not in (active, near[0]) and name not in page.run(LEFT)]
        assert joined == similar[1]
        blocks = page.run(f"[...{forks}].map((_, at) => ({forks}[at].click(), {SELECTED}))")
        block = max(blocks, key=len)
        assert {*block} == {*shown} - {active, near[0], *similar}
        assert len({*map(frozenset, blocks)}) == len(block) - 1
        page.run(f"{forks}[{blocks.index(block)}].click()")
        page.press(key)
        after(page, 4)
    assert told(build)[0] in ((Move, (active,), group), (Accept, group, (active,)))
    assert told(build)[1:] == [(Move, (near[0],), near[1]), (Move, tuple(similar), there), (Move, tuple(block), group)]


def test_hostile_names_and_decisions_of_another_annotator_are_shown_as_text(tmp_path, chromium):
    build = write_build(tmp_path / "build")
    bob = build / "bob.yaml"
    for file, who, to in ((bob, "bob", "ship"), (build / "ada.yaml", "ada", SCRIPT)):
        append_decision(file, _move(who, SCRIPT, to))
    with page_of(chromium, build, others=(bob,)) as page:
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
        page.press("m")
        page.until(DIALOG)
        page.press("Escape")
        page.until(f"!{DIALOG}")
        assert page.run("window.broken") is None
        assert page.run("document.querySelectorAll('script').length") == 1
        assert page.run("document.querySelectorAll('svg, main img').length") == 0
        page.press("t")
        page.until("document.querySelectorAll('#team .conflict').length === 1")
        assert "both decided 1 name" in page.run("document.querySelector('#team .few').textContent")
        page.run("document.querySelector('#team .side button').click()")
        page.until("document.querySelectorAll('#team .conflict').length === 0")
    assert told(build)[-1] == (Move, (SCRIPT,), "ship")


def test_page_shows_changes_by_other_programs_and_keeps_working(tmp_path, chromium):
    build = write_build(tmp_path / "build")
    with page_of(chromium, build) as page:
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
        act(page, "c", 2)
        act(page, "c", 3)
        assert all("/api/decide" in error for error in page.errors), page.errors
        page.errors.clear()  # Chromium logs refused requests as console errors
    assert len(decisions(build)) == 3


def test_fast_held_and_refused_key_presses_decide_once_about_the_shown_names(tmp_path, chromium):
    build = write_build(tmp_path / "fast", GROUPS)
    with page_of(chromium, build) as page:
        seen = page.run(SHOWN)
        page.run(f"for (let i = 0; i < 30; i++) {PRESS.format(key='c', repeat='false')}")
        after(page, len(seen))
    assert [d.names for d in decisions(build)] == [(name,) for name in seen]
    assert len({d.when for d in decisions(build)}) == len(seen)
    build = write_build(tmp_path / "held", GROUPS)
    with page_of(chromium, build) as page:
        for key in "c1d":
            page.run(PRESS.format(key=key, repeat="false"))
            page.run(f"for (let i = 0; i < 9; i++) {PRESS.format(key=key, repeat='true')}")
            page.run("document.dispatchEvent(new KeyboardEvent('keyup', { bubbles: true }))")
        after(page, 3)
        act(page, "u", 2)  # the server handles this undo after all requests from the held keys
        assert [type(d) for d in decisions(build)] == [Accept, Accept]
        page.press("u")
        act(page, "u", 0)
        page.run("document.querySelector('#groups .row.open').click()")
        page.run(HELD_BACK)
        page.run("document.getElementById('names').focus()")
        page.press("Home")
        page.press("c")
        page.run(  # make the second of three requests an invalid decision
            """window.was2 = JSON.stringify;
            window.no = { action: 'drop', names: ['nobody'] };
            JSON.stringify = (said) => was2({
              ...said,
              ...(said?.actions && { actions: said.actions.map((action, index) => index === 2 ? [no] : action) }),
              ...(said?.decisions?.[0].names[0] === 'chateau' && { decisions: [no] }),
            })"""
        )
        for _ in range(3):
            page.press("c")
        page.run("release()")
        after(page, 3)
        page.until(f"{TOAST}.includes('nobody')")
        page.run("JSON.stringify = was2")
        page.errors.clear()  # Chromium logs refused requests as console errors
        page.run("document.activeElement.blur()")  # a click on a row also removes the focus
        for key in "m?wm":
            page.press("Escape")
            page.press(key)
            assert page.run(DIALOG), key
        page.write("lake")
        page.press("Enter")
        after(page, 4)
    assert [d.names for d in decisions(build)][:3] == [("arch bridge",), ("beam bridge",), ("castle keep",)]
    assert (type(decisions(build)[3]), decisions(build)[3].to) == (Move, "lake")


def test_item_links_search_and_clicks_during_a_response_work(tmp_path, chromium):
    build = write_build(tmp_path / "build", GROUPS)
    folder = tmp_path / "images" / "train" / "0"
    folder.mkdir(parents=True)
    Image.fromarray(np.full((90, 120, 3), 90, np.uint8)).save(folder / "a.jpg")
    with page_of(chromium, build, images=tmp_path / "images") as page:
        page.until("document.querySelector('#details figure img')?.naturalWidth > 0")
        links = page.run("[...document.querySelectorAll('#details a')].map((a) => a.href)")
        assert links == ["http://x/"] * 5  # links point only to the URL in the source table
        page.press("i")
        act(page, "i", 1, "lake")
        page.until("document.querySelector('#details .given')?.textContent === '→ lake'")
        act(page, "u", 0)
        page.until("document.querySelector('#details .given') === null")
        for number, selector in enumerate(("#act-confirm", "#names .row:nth-child(4)"), 1):
            page.run(HELD_BACK + "window.answers = 0; released.then(() => setTimeout(() => answers++, 300)); 0")
            page.press("c")
            box = page.run(f"document.querySelector('{selector}').getBoundingClientRect().toJSON()")
            at = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
            page.mouse("mousePressed", *at)
            page.run("release()")
            page.until("answers > 0")
            page.mouse("mouseReleased", *at)  # the response comes between press and release
            after(page, 2 * number if number == 1 else 3)
        click(page, "#groups .row.history")
        assert page.run("document.getElementById('actions').hidden")
        page.press("/")
        page.write("lag")
        page.until("document.querySelectorAll('#names .row').length === 1")
        click(page, "#act-confirm")
        after(page, 4)
        page.press("/")
        page.run("document.getElementById('search').select()")
        page.write("cast")
        page.until("document.querySelectorAll('#groups .row').length === 1")
        click(page, "#groups .row.group")
        page.until(f"{TITLE} === 'castle' && document.querySelectorAll('#names .row').length === 3")
        assert page.run("document.getElementById('search').value") == ""
        page.until("document.querySelector('#details h2').textContent === 'castle'")
        page.until("document.querySelectorAll('#details .landmarks figure').length === 3")  # the details are complete
        page.press("d")  # the key acts on the list of groups, which has the focus
        page.until(DIALOG)
        page.press("Enter")
        after(page, 5)
    assert told(build)[3:] == [(Accept, "lake", ("lagoon",)), (Drop, told(build)[4][1])]
    assert not [d for d in decisions(build) if isinstance(d, GiveItem | New)]


def test_page_fits_the_window_and_text_has_sufficient_contrast(tmp_path, chromium):
    with page_of(chromium, write_build(tmp_path / "build"), learns=True) as page:
        page.press(" ")
        for size, scheme in product(((700, 800), (1280, 800)), ("dark", "light")):
            page.resize(*size)
            page.scheme(scheme)
            page.until(f"innerWidth === {size[0]} && document.getAnimations().length === 0")
            assert page.run("document.documentElement.scrollWidth") <= size[0]
            assert page.run(CONTRAST) >= 4.5  # minimum contrast of WCAG 2.2, level AA


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
