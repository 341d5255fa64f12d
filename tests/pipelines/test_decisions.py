"""Decision files: reading, errors in entries, and appending to a full disk."""

import json
import unicodedata
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.errors import ConfigError, InputError, SchemaError
from hgld.pipelines.hierarchy.review import decisions as decisions_module
from hgld.pipelines.hierarchy.review.decisions import (
    Accept,
    Decision,
    Drop,
    Entry,
    GiveItem,
    Merge,
    Move,
    New,
    Refuse,
    Rename,
    SetTop,
    Split,
    format_decision,
    parse_decisions,
    read_decisions,
)
from hgld.pipelines.hierarchy.review.journal import append_decision
from tests.rows import each_row, refused

WHEN = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
SAID = {"who": "ada", "when": WHEN, "why": "a reason"}
ONE_OF_EACH = [
    Rename(group="summit", to="mountain", **SAID),
    Move(names=("mountain pass", "rail mountain pass"), to="pass", **SAID),
    Merge(groups=("lake", "group of lakes"), to="lake", **SAID),
    Split(group="mountain", names=("stratovolcano",), to="volcano", **SAID),
    Drop(names=("bridge failure",), **SAID),
    Drop(group="junk", **SAID),
    SetTop(group="park", top="human-made", **SAID),
    SetTop(group="oak", top="plants: trees", level="top", **SAID),
    Accept(group="pass", names=("mountain pass",), **SAID),
    Accept(group="pass", **SAID),
    New(names=("a", "b"), to="c", **SAID),
    Refuse(names=("a",), group="c", **SAID),
    GiveItem(split="train", id="12", name="a", group="c", **SAID),
    GiveItem(split="train", id="12", group="c", **{**SAID, "why": None}),
]
HEAD = "schema_version: 1\ndecisions:\n"
ENTRY = (
    '- action: move\n  names: pass\n  to: mountain pass\n  who: ada\n  when: 2026-11-21T09:30:00Z\n  why: "it is one"\n'
)


def write(folder: Path, text: str | bytes, name: str = "decisions.yaml") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def decisions(entries: list[Entry]) -> list[Decision]:
    return [entry.decision for entry in entries]


# -- reading -------------------------------------------------------------------------------------------------


def test_every_action_is_read_as_written(tmp_path):
    path = tmp_path / "decisions.yaml"
    for decision in ONE_OF_EACH:
        append_decision(path, decision)
    entries = read_decisions([path])
    assert decisions(entries) == ONE_OF_EACH
    assert [entry.number for entry in entries] == list(range(1, len(ONE_OF_EACH) + 1))
    lines = [line for line in path.read_text().splitlines() if line.startswith("- ")]
    assert [json.loads(line[2:])["action"] for line in lines] == [decision.action for decision in ONE_OF_EACH]
    assert {entry.role for entry in entries} == {"annotator"}


label = st.text(
    st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]) | st.sampled_from("'\":#-[]{}&*!|>%@`\\,? "),
    min_size=1,
    max_size=30,
).map(lambda text: unicodedata.normalize("NFC", text.strip()))
label = label.filter(lambda text: bool(text) and text == text.strip())
reason = label | st.just("two\nlines\tand a tab: \"quoted\" - 'as such' # not a comment\n- action: move")


@given(
    st.lists(label, min_size=1, max_size=4, unique=True),
    label,
    label,
    reason,
    st.datetimes(
        max_value=datetime(9998, 1, 1),  # noqa: DTZ001
        timezones=st.just(UTC),
    ),
)
def test_any_text_is_read_as_written(names, to, who, why, when):
    decision = Move(names=tuple(names), to=to, who=who, when=when, why=why)
    assert decisions(parse_decisions(HEAD + format_decision(decision), Path("d.yaml"))) == [decision]


@given(st.lists(st.sampled_from(ONE_OF_EACH), max_size=2), st.sampled_from(ONE_OF_EACH), reason, st.data())
def test_error_about_a_truncated_last_entry_contains_its_number_at_any_cut(before, last, why, data):
    last = type(last)(**{**vars(last), "why": why})
    whole = (HEAD + "".join(map(format_decision, before))).encode()
    entry = format_decision(last).encode()
    cut = data.draw(st.integers(1, len(entry) - 2))  # an entry that lacks only its newline is complete
    try:
        text = (whole + entry[:cut]).decode()
    except UnicodeDecodeError:
        return  # another test truncates inside a UTF-8 character
    with pytest.raises(InputError, match=rf"d.yaml: entry {len(before) + 1} \(line \d+\).*cut off"):
        parse_decisions(text, Path("d.yaml"))


def test_yaml_values_are_read_as_nfc_text():
    names = ["no", "1984", "1_000", "null", "12:30:45", "~", "2026-11-21"]
    text = HEAD + ENTRY.replace("names: pass", f"names: [{', '.join(names)}]").replace("mountain pass", "cha\u0302teau")
    [entry] = parse_decisions(text, Path("d.yaml"))
    assert entry.decision == Move(names=tuple(names), to="château", **{**SAID, "why": "it is one"})


@each_row(
    ("text", "count"),
    [
        ("", 0),
        (HEAD, 0),
        (HEAD.replace("decisions:", "decisions: []"), 0),
        ("\ufeff" + (HEAD + ENTRY).replace("\n", "\r\n"), 1),
        (HEAD + ENTRY.replace('"it is one"', '""'), 1),
    ],
)
def test_empty_files_and_unusual_line_ends_are_read(tmp_path, text, count):
    assert len(read_decisions([write(tmp_path, text)])) == count


def test_entries_are_ordered_by_time_then_file_then_number(tmp_path):
    early, late = "2026-11-21", "2026-11-21T10:30:00+02:00"  # late is 08:30 UTC on the same day
    b = write(tmp_path, HEAD + ENTRY + ENTRY.replace("2026-11-21T09:30:00Z", early), "b.yaml")
    a = write(tmp_path, HEAD + ENTRY + ENTRY.replace("2026-11-21T09:30:00Z", late), "a.yaml")
    expected = [("b.yaml", 2), ("a.yaml", 2), ("a.yaml", 1), ("b.yaml", 1)]
    for order in ([a, b], [b, a]):
        assert [(entry.file.name, entry.number) for entry in read_decisions(order)] == expected


# -- invalid input ----------------------------------------------------------------------------------------------------


@each_row(
    ("old", "new", "message"),
    [
        ("action: move", "action: moov", r"entry 1 \(line 3\): action is 'moov'; expected one of rename, move"),
        ("  to: mountain pass\n", "  to: [a]\n", "to is .*; expected one text"),
        ("  to: mountain pass\n", "  to: a\n  to: b\n", r"entry 1 \(line 3\): not YAML: a field is given twice"),
        ("  to: mountain pass\n", '  to: " a "\n', "remove the spaces"),
        ("  to: mountain pass\n", '  to: "a\\u0007b"\n', r"control character U\+0007"),
        ("  to: mountain pass\n", "  into: a\n", "move has no field 'into'; its fields are who, when, why, names, to"),
        ("  to: mountain pass\n", "  to: *a\n", "YAML alias"),
        ("names: pass", "names: [a, b, a]", "names lists 'a' twice"),
        ("2026-11-21T09:30:00Z", "yesterday", "when is 'yesterday'; expected a time such as"),
        ("2026-11-21T09:30:00Z", "2026-11-21T09:30:00", "ends with Z for UTC"),
    ],
)
def test_invalid_entries_are_refused_with_their_line(tmp_path, old, new, message):
    path = write(tmp_path, HEAD + ENTRY.replace(old, new))
    with pytest.raises(InputError, match=message) as caught:
        read_decisions([path])
    assert str(path) in str(caught.value)


test_invalid_decision_files_are_refused = refused(
    lambda text, *, tmp_path: read_decisions([write(tmp_path, text)]),
    [
        ("decisions:\n" + ENTRY, SchemaError, "schema_version is None; this hgld reads decisions of version 1"),
        ("schema_version: 1\n", InputError, "the field 'decisions' is missing"),
        (HEAD + "- move\nextra: 1\n", InputError, "unknown field 'extra'"),
        ("schema_version: 1\nrole: boss\ndecisions:\n", InputError, "role is 'boss'; expected annotator or"),
        ("schema_vers", InputError, "the file is not a mapping"),
        (HEAD + ENTRY + "---\na: b\n", InputError, "expected a single document"),
        (HEAD + "\tbad", InputError, "line 3: not YAML"),
        (HEAD + ENTRY + "- @x\n" + ENTRY, InputError, r"entry 2 \(line \d+\)"),
        (HEAD + "- " * 300_000, InputError, "nested too deep"),
    ],
)


def test_error_about_invalid_utf8_contains_entry_and_line(tmp_path):
    cut = (HEAD + ENTRY + ENTRY.replace("it is one", "Zürich")).encode()
    path = write(tmp_path, cut[: cut.rindex("ü".encode()) + 1])
    with pytest.raises(InputError, match=r"entry 2 \(line 14\): byte 0xc3 is not UTF-8; save.* as UTF-8.*cut off"):
        read_decisions([path])


def test_missing_too_large_and_repeated_decision_files_are_refused(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_decisions([tmp_path / "none.yaml"])
    path = write(tmp_path, HEAD + ENTRY)
    with pytest.raises(ConfigError, match="given twice"):
        read_decisions([path, tmp_path / "." / path.name])
    monkeypatch.setattr(decisions_module, "MAX_BYTES", 20)
    with pytest.raises(InputError, match="too many for a file of decisions"):
        read_decisions([path])


test_invalid_decisions_are_refused = refused(
    lambda make: make(),
    [
        (lambda: Merge(groups=("a",), to="a", **SAID), "merged into itself"),
        (lambda: Split(group="a", names=("x",), to="a", **SAID), "expected a new label"),
        (lambda: Drop(**SAID), "either names or group"),
        (lambda: GiveItem(split="a", id="1", **SAID), "expected name, group or both"),
        (lambda: Move(names=("a",) * 10_001, to="b", **SAID), "1 to 10000"),
        (lambda: Move(names=("a" * 501,), to="b", **SAID), "501 characters; expected at most 500"),
        (lambda: Move(names=("a\ud800",), to="b", **SAID), "U\\+D800"),
        (lambda: Drop(group="a", who="ada", when=datetime(9999, 1, 1, tzinfo=UTC)), "a time before 9999"),
    ],
    InputError,
)


# -- appending ----------------------------------------------------------------------------------------------------


def test_appending_keeps_the_text_of_hand_written_files(tmp_path):
    for end in ("\n# done so far\n", ""):
        text = "# our file\n" + HEAD + ENTRY.rstrip() + end
        path = write(tmp_path, text)
        append_decision(path, ONE_OF_EACH[3])
        assert path.read_text() == text + "\n" * (not end) + format_decision(ONE_OF_EACH[3])
        assert decisions(read_decisions([path]))[1] == ONE_OF_EACH[3]


@each_row(
    ("text", "message"),
    [
        (HEAD + ENTRY + ENTRY[:40], "entry 2 .*cut off"),
        (HEAD + "".join("  " + line + "\n" for line in ENTRY.splitlines()), "nothing can be appended"),
        (HEAD.replace("decisions:", "decisions: []"), "nothing can be appended"),
    ],
)
def test_files_to_which_no_entry_can_be_appended_are_refused_unchanged(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(InputError, match=message):
        append_decision(path, ONE_OF_EACH[0])
    assert path.read_text() == text
