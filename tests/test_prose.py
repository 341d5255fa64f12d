"""Pages, help, docstrings, comments and messages keep to the style guide."""

import pytest

from tests.prose import check_file, check_help, check_page, check_python, check_yaml, tracked_files
from tests.rows import each_row


@pytest.mark.checks
def test_every_file_keeps_to_the_style_guide():
    findings = [finding for file in tracked_files() for finding in check_file(file)]
    assert not findings, "\n".join(map(str, findings))


@pytest.mark.checks
def test_help_keeps_to_the_style_guide():
    findings = list(check_help())
    assert not findings, "\n".join(map(str, findings))


@each_row(
    ("page", "line"),
    [
        ("One.\n\nA `fault` is code, a fault is not.\n", 3),
        ("One.\n\n" + "word " * 36 + "end.\n", 3),
        ("| a |\n|---|\n| kept aside |\n", 3),
    ],
)
def test_page_finding_has_the_line_of_the_broken_rule(page, line):
    findings = list(check_page(page, "page.md"))
    assert findings
    assert findings[0].line == line


def test_a_plain_page_has_no_findings():
    assert not list(check_page("`faults` is a column. " + "Short. " * 40, "page.md"))


def test_argument_description_without_noun_is_found():
    source = 'def f(dim):\n    """Do it.\n\n    Args:\n        dim: of an embedding.\n    """\n'
    assert [finding.line for finding in check_python(source, "f.py")] == [5]


def test_duplicate_yaml_key_is_found():
    assert [finding.line for finding in check_yaml("a: 1\nb: 2\na: 3\n", "a.yaml")] == [3]
    assert not list(check_yaml("a: 1\nb: {a: 2}\n", "a.yaml"))


def test_message_finding_has_the_line_of_the_broken_rule():
    source = 'def f(x):\n    raise ValueError(\n        f"{x} lies in "\n        "two files."\n    )\n'
    assert [finding.line for finding in check_python(source, "f.py")] == [3]
