"""The queue on the review page: screens, batches, new groups, fast presses, single items, many names."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hgld.pipelines.hierarchy.review.decisions.decisions import Accept, Drop, GiveItem, Merge, Move, New, Refuse, Rename
from tests.pipelines.headless_chromium import CHROMIUM
from tests.pipelines.reviewed_build import write_build
from tests.pipelines.test_review_browser import (
    DIALOG,
    PHONE,
    TOAST,
    WIDE,
    after,
    answer,
    decisions,
    many,
    milliseconds,
    page_of,
)
from tests.pipelines.test_review_browser_search import GROUP, TITLE

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]
GROUPS = {
    0: ("bridge", "human-made", dict.fromkeys(("arch bridge", "beam bridge", "castle keep"), (5, 0.5, False, 1))),
    1: ("castle", "human-made", dict.fromkeys(("chateau", "citadel", "drawbridge"), (4, 0.5, False, 0))),
    2: ("lake", "natural", dict.fromkeys(("lagoon", "loch", "برج إيفل"), (3, 0.5, False, 0))),
}
ROWS = "[...document.querySelectorAll('#names .row')]"
SHOWN = f"{ROWS}.map((row) => row.querySelector('.label').textContent)"
SELECTED = f"{ROWS}.filter((row) => row.ariaSelected === 'true').map((row) => row.querySelector('.label').textContent)"
ACTIVE = "document.querySelector('#names .active .label').textContent"
HELD_BACK = """window.original ??= fetch;
window.released = new Promise((release) => { window.release = release; });
window.fetch = async (path, options) => {
  if (options.method === "POST") await released;
  return original(path, options);
};"""
FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def told(build: Path) -> list[tuple]:
    """Every decision's kind and its other fields but who and when."""
    return [
        (type(d), *(v for f, v in vars(d).items() if f not in ("who", "when", "why") and v is not None))
        for d in decisions(build)
    ]


@pytest.mark.parametrize("size", [WIDE, PHONE])
def test_a_screen_is_worked_through_by_keys(tmp_path, size):
    build = write_build(tmp_path / "build", GROUPS)
    with page_of(build, tmp_path / "profile", size, kinds=("sort",)) as page:
        assert page.run(SHOWN) == sorted(n for _, _, names in GROUPS.values() for n in names)[:8]
        assert page.run("document.activeElement.id") == "names"
        page.press("j")
        page.press("]")
        assert page.run(SELECTED) == ["arch bridge", "beam bridge"]
        page.press("]")
        assert page.run(SELECTED) == ["arch bridge", "beam bridge", "castle keep", "chateau"]
        page.press("[")
        digit = page.run(
            "[...document.querySelectorAll('#targets .target span')].findIndex((t) => t.textContent === 'lake') + 1"
        )
        page.press(str(digit))
        after(page, 1)
        assert page.run(ACTIVE) == "castle keep"
        page.press("m")
        answer(page, "cas")  # the option that is marked is taken
        after(page, 2)
        page.press("j")
        page.press(" ")  # the citadel stands wrong
        page.press("j")
        page.press(" ")
        page.press(" ")  # the drawbridge is left open
        page.until("document.getElementById('act-accept').textContent.startsWith('Accept 3, not 1')")
        page.press("a")
        after(page, 5)
        assert page.run("document.documentElement.scrollWidth") <= size[0]
        page.until(f"{SHOWN}.includes('برج إيفل')")
        assert (
            page.run(
                f"getComputedStyle({ROWS}.find((r) => r.textContent.includes('برج')).querySelector('.label')).direction"
            )
            == "rtl"
        )
        assert page.run("document.getElementById('progress').textContent.includes('are still wrong (80% interval')")
        page.press("u")
        after(page, 2)
        page.press("u")
        page.press("u")
        after(page, 0)
        assert page.run("document.getElementById('undo').disabled")
        page.press("a")
        after(page, 3)
    assert told(build) == [
        (Accept, "bridge", ("arch bridge", "beam bridge", "castle keep")),
        (Accept, "castle", ("chateau", "citadel", "drawbridge")),
        (Accept, "lake", ("lagoon", "loch")),
    ]


def test_what_a_screen_writes(tmp_path):
    build = write_build(tmp_path / "build", GROUPS)
    with page_of(build, tmp_path / "profile", kinds=("sort",)) as page:
        page.press("End")
        page.press("c")
        after(page, 1)
        page.press("Home")
        page.press(" ")
        page.press("a")
        after(page, 5)
    assert told(build) == [
        (Accept, "lake", ("loch",)),
        (Accept, "bridge", ("beam bridge", "castle keep")),
        (Accept, "castle", ("chateau", "citadel", "drawbridge")),
        (Accept, "lake", ("lagoon",)),
        (Refuse, "bridge", ("arch bridge",)),
    ]
    when = [decision.when for decision in decisions(build)]
    assert len(set(when)) == 2  # one press, one action


@pytest.mark.parametrize(
    ("kind", "accepted", "refused"),
    [
        (
            "accept",
            [(Accept, "bridge", ("beam bridge", "arch bridge")), (Refuse, "bridge", ("castle keep",))],
            [(Refuse, "bridge", ("castle keep", "beam bridge", "arch bridge"))],
        ),
        (
            "place",
            [(Accept, "bridge", ("loch", "lagoon")), (Refuse, "bridge", ("برج إيفل",))],
            [(Refuse, "bridge", ("برج إيفل", "loch", "lagoon"))],
        ),
        (
            "merge",
            [(Merge, ("bridge", "lake"), "bridge"), (Refuse, "bridge", ("برج إيفل",))],
            [(Refuse, "bridge", "lake")],
        ),
        (
            "new",
            [(New, ("loch", "lagoon"), "a new one"), (Refuse, "a new one", ("برج إيفل",))],
            [(Refuse, "a new one", ("برج إيفل", "loch", "lagoon"))],
        ),
        (
            "split",
            [(New, ("loch", "lagoon"), "a part"), (Refuse, "a part", ("برج إيفل",))],
            [(Refuse, "a part", ("برج إيفل", "loch", "lagoon"))],
        ),
        (
            "rename",
            [(Rename, "lake", "water"), (Refuse, "water", ("lagoon",))],
            [(Rename, "lake", "lake")],
        ),
    ],
)
def test_a_batch_is_accepted_with_exceptions_or_refused(tmp_path, kind, accepted, refused):
    build = write_build(tmp_path / "build", GROUPS)
    with page_of(build, tmp_path / "profile", kinds=(kind,)) as page:
        page.press(" ")  # the least certain comes first
        page.press("a")
        after(page, len(accepted))
        page.press("u")
        after(page, 0)
        page.press("x")
        after(page, 1)
        written = told(build)
        page.press("u")
        after(page, 0)
        page.press(" ")
        page.press("a")
        after(page, len(accepted))
    assert written == refused
    assert told(build) == accepted


@pytest.mark.parametrize("size", [WIDE, PHONE])
def test_a_proposed_label_is_looked_at_and_another_one_given(tmp_path, size):
    build = write_build(tmp_path / "build", GROUPS)
    with page_of(build, tmp_path / "profile", size, kinds=("rename", "split")) as page:
        headline = "document.querySelector('#queue .active .label').textContent"
        assert page.run(f"[{headline}, {TITLE}]") == [
            "3 names of lake as a part",
            "These 3 of lake look like a group of their own: a part",
        ]
        page.press("o")
        page.until(f"{headline} === 'lake as water'")
        assert page.run(f"[{TITLE}, {SHOWN}]") == ["Is water a better label for lake?", ["lagoon", "loch", "برج إيفل"]]
        assert page.run("document.documentElement.scrollWidth") <= size[0]
        page.press("r")
        answer(page, "waters")
        page.until(f"{TITLE} === 'Is waters a better label for lake?'")
        page.press("a")
        after(page, 1)
    assert told(build) == [(Rename, "lake", "waters")]


def test_a_proposal_that_is_put_off_comes_back_when_its_estimate_changes(tmp_path):
    build = write_build(tmp_path / "build", GROUPS)
    with page_of(build, tmp_path / "profile", kinds=("accept",)) as page:
        first = page.run(TITLE)
        page.press("o")
        page.until(f"{TITLE} !== '{first}' && document.querySelectorAll('#queue .row').length === 2")
        page.press("o")
        page.until("document.querySelectorAll('#queue .row').length === 1")
        page.press("o")
        page.until("document.querySelectorAll('#names .row').length === 0")
        page.press("a")
        page.until(f"{TOAST}.startsWith('Nothing is left')")
    assert decisions(build) == []


# -- one press, one decision ---------------------------------------------------------------------------------------

PRESS = """document.getElementById('names').dispatchEvent(
  new KeyboardEvent('keydown', {{ key: '{key}', bubbles: true, repeat: {repeat} }}))"""


def test_thirty_fast_presses_decide_each_name_once(tmp_path):
    build = write_build(tmp_path / "build", many(16, 3, 500))
    with page_of(build, tmp_path / "profile") as page:
        seen = page.run(SHOWN)
        page.run(f"for (let i = 0; i < 30; i++) {PRESS.format(key='c', repeat='false')}")
        after(page, 16)
        page.until(f"{TOAST} !== ''")
    assert [d.names for d in decisions(build)] == [(name,) for name in seen]
    assert len({d.when for d in decisions(build)}) == 16


def test_a_press_while_another_is_on_its_way_means_what_is_then_shown(tmp_path):
    build = write_build(tmp_path / "build", GROUPS)
    with page_of(build, tmp_path / "profile", kinds=("accept",)) as page:
        page.run(HELD_BACK)
        shown = []
        for _ in range(2):
            shown.append(page.run(f"[{TITLE}, {SHOWN}]"))
            page.press("a")
        page.press("c")  # a name of the third, which is shown by now
        shown.append(page.run(f"[{TITLE}, {SHOWN}]"))
        page.run("release()")
        after(page, 3)
    assert len({title for title, _ in shown}) == 3
    assert [set(d.names) for d in decisions(build)[:2]] == [set(names) for _, names in shown[:2]]
    assert decisions(build)[2].names == (shown[2][1][0],)


def test_a_key_that_is_held_decides_once(tmp_path):
    build = write_build(tmp_path / "build", GROUPS)
    with page_of(build, tmp_path / "profile", kinds=("accept",)) as page:
        for key in "c1ad":
            page.run(PRESS.format(key=key, repeat="false"))
            page.run(f"for (let i = 0; i < 9; i++) {PRESS.format(key=key, repeat='true')}")
            page.run("document.dispatchEvent(new KeyboardEvent('keyup', { bubbles: true }))")
        after(page, 4)
        written = [type(d) for d in decisions(build)]
        page.press("u")  # goes after whatever the held keys may have sent
        after(page, 3)
    assert written == [Accept, Accept, Accept, Drop]


def test_a_press_that_is_refused_takes_no_other_with_it(tmp_path):
    build = write_build(tmp_path / "build", GROUPS)
    with page_of(build, tmp_path / "profile") as page:
        page.run(HELD_BACK)
        page.press("c")
        page.run(  # what the server will refuse, between two presses
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
        page.until(f"!document.querySelector('#names .pending') && {SHOWN}.length === 6")
        page.errors.clear()  # the refusals, as Chromium tells them
    assert [d.names for d in decisions(build)] == [("arch bridge",), ("beam bridge",), ("castle keep",)]


def test_a_press_right_after_a_dialog_closed_is_not_lost(tmp_path):
    build = write_build(tmp_path / "build", GROUPS)
    with page_of(build, tmp_path / "profile") as page:
        page.run("document.activeElement.blur()")  # as after a click on a row
        for key in "m?wm":
            page.press("Escape")
            page.press(key)
            assert page.run(DIALOG), key
        page.write("lake")
        page.press("Enter")
        after(page, 1)
    [moved] = decisions(build)
    assert (type(moved), moved.names, moved.to) == (Move, ("arch bridge",), "lake")


ANSWERS = """(() => {
  const was = fetch;
  let skips = 0;
  window.answers = 0;
  window.fetch = async (path, options) => {
    const isFirst = path === "/api/skip" && skips++ === 0, answer = await was(path, options);
    if (isFirst) await new Promise((done) => setTimeout(done, 200));
    if (options.method === "POST") answers++;
    return answer;
  };
})();"""


def test_a_click_whose_halves_lie_before_and_after_an_answer(tmp_path):
    build = write_build(tmp_path / "build", GROUPS)
    with page_of(build, tmp_path / "profile") as page:
        for selector, number in (("#act-confirm", 2), ("#names .row:nth-child(4)", 3)):
            page.run(HELD_BACK + ANSWERS)
            page.press("c")
            box = page.run(f"document.querySelector('{selector}').getBoundingClientRect().toJSON()")
            at = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
            label = page.run(f"document.querySelector('{selector} .label')?.textContent ?? null")
            page.mouse("mousePressed", *at)
            page.run("release()")
            page.until("answers > 0")
            page.run(FRAMES)
            page.mouse("mouseReleased", *at)
            after(page, number)
            if label is not None:
                assert page.run(ACTIVE) == label


def test_two_proposals_put_off_one_after_the_other_stay_away(tmp_path):
    build = write_build(tmp_path / "build", GROUPS)
    with page_of(build, tmp_path / "profile", kinds=("accept",)) as page:
        page.run(ANSWERS)  # the first would come last
        page.press("o")
        page.press("o")
        page.until("answers === 2")
        page.run(FRAMES)
        assert page.run("document.querySelectorAll('#queue .row').length") == 1


# -- groups of names of several groups; single items ------------------------------------------------------------------


def test_a_new_group_of_names_that_were_put_aside(tmp_path):
    build = write_build(tmp_path / "build", GROUPS)
    with page_of(build, tmp_path / "profile") as page:
        for group, keys in (("bridge", "jjb"), ("castle", "b")):
            page.run(f"{GROUP}('{group}').click()")
            page.until(f"{TITLE} === '{group}'")
            page.run("document.getElementById('names').focus()")
            for key in keys:
                page.press(key)
        page.until("document.querySelectorAll('#tray .chip').length === 2")
        page.press("w")
        page.until(f"{DIALOG} && document.querySelectorAll('#to-options div').length > 1")
        page.press("Escape")
        page.until(f"!{DIALOG}")
        page.press("w")
        page.until(DIALOG)
        page.write("castle")
        page.press("Enter")
        page.until("document.querySelector('#dialog .problem').textContent.startsWith('There is such a group')")
        page.run("document.getElementById('to').select()")
        page.write("stronghold")
        page.press("Enter")
        after(page, 1)
        assert page.run("document.getElementById('tray').hidden")
    assert told(build) == [(New, ("castle keep", "chateau"), "stronghold")]


def test_a_single_item_is_given_elsewhere_beside_its_photograph(tmp_path):
    build = write_build(tmp_path / "build", GROUPS)
    folder = tmp_path / "images" / "train" / "0"
    folder.mkdir(parents=True)
    Image.fromarray(np.full((90, 120, 3), 90, np.uint8)).save(folder / "a.jpg")
    with page_of(build, tmp_path / "profile", images=tmp_path / "images") as page:
        page.until("document.querySelector('#details figure img')?.naturalWidth > 0")
        links = page.run("[...document.querySelectorAll('#details a')].map((a) => a.href)")
        assert links == ["http://x/"] * 5  # where the table has it from, and nowhere else
        page.press("i")
        page.press("i")
        answer(page, "lake")
        after(page, 1)
        page.until("document.querySelector('#details .given')?.textContent === '→ lake'")
        page.press("u")
        after(page, 0)
        page.until("document.querySelector('#details .given') === null")
        page.press("i")
        page.press("i")
        answer(page, "lake")
        after(page, 1)
    assert told(build) == [(GiveItem, "train", "0", "lake")]


# -- many names ---------------------------------------------------------------------------------------------------


def test_fifty_thousand_names_stay_fluid(tmp_path):
    build = write_build(tmp_path / "build", many(50_000, 200, 2_000_000))
    with page_of(build, tmp_path / "profile", is_taught=True) as page:
        assert page.run("document.querySelectorAll('#names .row').length") < 60
        page.run("document.querySelector('#groups .row.all').click()")
        page.until("document.getElementById('names').scrollHeight > 50_000 * 40")
        for action in (  # benchmarks/review_page.py times them
            "document.getElementById('names').scrollTop = 1e6",
            PRESS.format(key="ArrowDown", repeat="false"),
            "document.getElementById('act-confirm').click()",
        ):
            milliseconds(page, action, "")
        assert page.run("document.querySelectorAll('#names .row').length") < 60
        after(page, 1)
        page.press("u")
        after(page, 0)
