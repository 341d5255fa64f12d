"""Pages and help keep to the style guide; docstrings and comments come closer to it with every commit."""

import pytest

from tests.prose import (
    ROOT,
    Finding,
    check_file,
    check_help,
    check_page,
    check_python,
    check_yaml,
    findings_beyond,
    read_todo,
    tracked_files,
)


@pytest.mark.checks
def test_no_file_has_more_to_mend_than_the_list_says():
    beyond = findings_beyond({f.relative_to(ROOT).as_posix(): check_file(f) for f in tracked_files()}, read_todo())
    assert not beyond, "python -m tests.prose FILE names them too:\n" + "\n".join(map(str, beyond))


@pytest.mark.checks
def test_help_keeps_to_the_style_guide():
    findings = list(check_help())
    assert not findings, "\n".join(map(str, findings))


@pytest.mark.parametrize(
    ("page", "line"),
    [
        ("One.\n\nA `fault` is code, a fault is not.\n", 3),
        ("One.\n\n" + "word " * 36 + "end.\n", 3),
        ("The command\n\n```sh\nhgld\n```\n\nruns.\n", 3),
        ("| a |\n|---|\n| kept aside |\n", 3),
    ],
)
def test_a_page_that_breaks_a_rule_is_named_with_its_line(page, line):
    findings = list(check_page(page, "page.md"))
    assert findings
    assert findings[0].line == line


@pytest.mark.parametrize(
    "page",
    ["`faults` is a column:\n\n```sh\nhgld\n```\n\nIt runs.\n", "Short. " * 40, "# A heading\n\n```sh\nhgld\n```\n"],
)
def test_a_plain_page_has_no_findings(page):
    assert not list(check_page(page, "page.md"))


def test_an_argument_that_begins_without_its_noun_is_named():
    source = 'def f(dim):\n    """Do it.\n\n    Args:\n        dim: of an embedding.\n    """\n'
    assert [finding.line for finding in check_python(source, "f.py")] == [5]


def test_a_key_that_is_there_twice_is_named():
    assert [finding.line for finding in check_yaml("a: 1\nb: 2\na: 3\n", "a.yaml")] == [3]
    assert not list(check_yaml("a: 1\nb: {a: 2}\n", "a.yaml"))


def test_findings_may_move_within_a_folder_and_never_grow():
    one = Finding("hgld/losses/a.py", 1, "x")
    todo = {"hgld/losses/a.py": 1, "hgld/losses/b.py": 1}
    assert not findings_beyond({"hgld/losses/a.py": [one, one]}, todo)
    assert findings_beyond({"hgld/losses/a.py": [one] * 3}, todo)


@pytest.mark.checks
def test_pages_and_cards_have_nothing_left_to_mend():
    assert not [file for file in read_todo() if file.endswith((".md", ".yaml", ".yml"))]
