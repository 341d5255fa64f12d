"""Check the words of pages, help, docstrings, comments and messages against the style guide in CONTRIBUTING.md.

``python -m tests.prose FILE...`` prints each finding with its file and line; without files it checks the whole tree.
"""

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml
from markdown_it import MarkdownIt

from tests.interpreter import ROOT

LONGEST = 35  # maximum number of words per sentence; the style guide asks for 25

BANNED = {  # pattern: replacement to suggest
    r"see there": "say it here",
    r"in the mean\b": "on average",
    r"kept aside": "excluded, rejected",
    r"(?:the|a|no|its) way out": "fix, hint",
    r"(?:stands?|lies?|lie) (?:in|beside|below|under|behind)\b": "is in, is beside",
    r"names of (?:anything|levels)": "arbitrary class names, level names",
    r"given groups": "predefined groups",
    r"twins?": "reference implementation",
    r"verbs?(?! phrases?)": "subcommand",
    r"pictures?": "image, thumbnail, figure",
    r"fates?": "assignment, decision",
    r"faults?": "error, corrupt image",
    r"refused where": "fails if",
    r"at hand": "installed, available",
    r"what is gone of": "what is missing from",
    r"as asked for": "as requested",
}
_BANNED = [
    (re.compile(rf"\b(?:{pattern})\b" if pattern[-1] != "b" else rf"\b(?:{pattern})", re.IGNORECASE), pattern, instead)
    for pattern, instead in BANNED.items()
]
_NO_NOUN = re.compile(r"(?:of|by(?! default)|that|those|whose|what|which|where|without effect)\b", re.IGNORECASE)
_CODE = re.compile(r"``[^`]*``|`[^`]*`|\$[^$]*\$|:\w+:`[^`]*`|https?://\S+|<[^>]*>|--[\w-]+|\w+(?:[./]\w+)+")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[*]*[A-Z0-9#@/{])")


class Finding(NamedTuple):
    """One violation of the style guide."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


def plain(text: str) -> str:
    """Replace each piece of code in the text by one word."""
    return _CODE.sub("CODE", text)


def banned_words(text: str) -> Iterator[tuple[int, str]]:
    """Yield the offset and a message for each banned phrase outside code."""
    bare = _CODE.sub(lambda match: re.sub(r"[^\n]", "·", match.group()), text)
    for pattern, _, instead in _BANNED:
        for match in pattern.finditer(bare):
            yield match.start(), f"'{' '.join(match.group().split())}': write {instead}"


def long_sentences(text: str) -> Iterator[str]:
    """Yield a message for each sentence that is too long."""
    for sentence in _SENTENCE_END.split(plain(" ".join(text.split()))):
        words = [word for word in sentence.split() if re.search(r"\w", word)]
        if len(words) > LONGEST:
            yield f"{len(words)} words in the sentence that begins '{' '.join(words[:5])}'"


def check_text(text: str, file: str, line: int) -> Iterator[Finding]:
    """Check one paragraph."""
    for offset, message in banned_words(text):
        yield Finding(file, line + text[:offset].count("\n"), message)
    for message in long_sentences(text):
        yield Finding(file, line, message)


def check_page(text: str, file: str) -> Iterator[Finding]:
    """Check a Markdown page: paragraphs, table cells and headings."""
    front = re.match(r"---\n.*?\n---\n", text, re.DOTALL)
    if front:  # blank lines keep the line numbers
        text = "\n" * front.group().count("\n") + text[front.end() :]
    for token in MarkdownIt().enable("table").parse(text):
        if token.type == "inline" and token.map:
            words = "".join(
                "\n"
                if child.type in ("softbreak", "hardbreak")
                else "`code`"
                if child.type == "code_inline"
                else child.content
                for child in token.children or ()
                if child.type in ("text", "softbreak", "hardbreak", "code_inline")
            )
            yield from check_text(words, file, token.map[0] + 1)


def check_python(source: str, file: str) -> Iterator[Finding]:
    """Check docstrings (words, length, ``Args`` entries), messages of errors (words, length) and comments (words)."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(
            node
        ):
            first = node.body[0]
            assert isinstance(first, ast.Expr)
            yield from _check_docstring(ast.get_docstring(node) or "", file, first.lineno)
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            yield from check_text(_message(node.exc.args[0]), file, node.exc.args[0].lineno)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            for _, message in banned_words(token.string):
                yield Finding(file, token.start[0], message)


def _message(node: ast.expr) -> str:
    """Return the text of a string with its inserted values as code; an empty string if the node is not a string."""
    pieces = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(
        str(piece.value) if isinstance(piece, ast.Constant) else "`x`" if isinstance(node, ast.JoinedStr) else ""
        for piece in pieces
    )


def _check_docstring(text: str, file: str, line: int) -> Iterator[Finding]:
    lines = text.splitlines()
    paragraph: list[str] = []
    begin, section = 0, ""
    for number, row in enumerate([*lines, ""]):
        entry = re.match(r" +\*{0,2}\w+(?: \([^)]*\))?: (.*)", row) if section else None
        is_code = row.lstrip().startswith((">>>", "...")) or (row.startswith("    ") and not section)
        ends = not row.strip() or entry or is_code or re.match(r"\s*(?:[-*|]|\d\.) ", row) or re.fullmatch(r"\w+:", row)
        if ends and paragraph:
            yield from check_text("\n".join(paragraph), file, line + begin)
            paragraph = []
        if re.fullmatch(r"\w+:", row):
            section = row
        elif entry:
            if section in ("Args:", "Attributes:") and _NO_NOUN.match(entry.group(1)):
                yield Finding(
                    file, line + number, f"an argument begins with '{entry.group(1).split()[0]}': name what it is"
                )
            paragraph, begin = [entry.group(1)], number
        elif row.strip() and not is_code:
            begin = begin if paragraph else number
            paragraph.append(row)


class _UniqueKeys(yaml.SafeLoader):
    """YAML loader that refuses duplicate keys in a mapping."""


def _mapping_once(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict:
    seen: set[object] = set()
    for key, _ in node.value:
        name = loader.construct_object(key)
        if name in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key {name!r} is there twice", key.start_mark)
        seen.add(name)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


_UniqueKeys.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping_once)


def check_yaml(text: str, file: str) -> Iterator[Finding]:
    """Find duplicate keys in mappings."""
    try:
        list(yaml.load_all(text, _UniqueKeys))
    except yaml.constructor.ConstructorError as error:
        if error.problem_mark and "twice" in (error.problem or ""):
            yield Finding(file, error.problem_mark.line + 1, error.problem or "")


def check_help() -> Iterator[Finding]:
    """Check the help of every subcommand."""
    import click

    from hgld.cli import VERBS, cli

    for name in VERBS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        for paragraph in (command.help or "").split("\n\n"):
            yield from check_text(paragraph.replace("\b\n", ""), f"hgld {name}", 0)
        for option in command.params:
            if isinstance(option, click.Option) and option.help:
                where = f"hgld {name} {option.opts[0]}"
                yield from check_text(option.help, where, 0)
                if _NO_NOUN.match(option.help):
                    yield Finding(where, 0, f"the help begins with '{option.help.split()[0]}': name what it is")


CHECKS = {".md": check_page, ".py": check_python, ".yaml": check_yaml, ".yml": check_yaml}


def check_file(path: Path) -> list[Finding]:
    """Check a file by its ending."""
    check = CHECKS.get(path.suffix)
    name = path.resolve().relative_to(ROOT).as_posix() if path.resolve().is_relative_to(ROOT) else str(path)
    return [] if check is None else list(check(path.read_text(encoding="utf-8"), name))


def tracked_files() -> list[Path]:
    """List the checked files under version control."""
    named = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    skipped = ("tests/fake_releases/", "tests/faults/kept/", "tests/prose.py")
    return [ROOT / n for n in named if Path(n).suffix in CHECKS and not n.startswith(skipped) and (ROOT / n).is_file()]


def main() -> int:
    """Print all findings; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    files = parser.parse_args().files
    findings = [finding for file in files or tracked_files() for finding in check_file(file)]
    findings += [] if files else check_help()
    sys.stdout.writelines(f"{finding}\n" for finding in findings)
    return int(bool(findings))


if __name__ == "__main__":
    raise SystemExit(main())
