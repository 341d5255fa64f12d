"""The guide to extensions works: its package can be installed and its commands run."""

import os

import pytest

from tests.documented_files import write_documented_files
from tests.forked import starter
from tests.test_docs import DOCS, ROOT, SHORTER, blocks_of, commands_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
PAGE = DOCS / "how-to/adding.md"


@pytest.fixture(scope="module")
def followed(module_path):
    """Folder after all steps of the page, and the output of its commands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(module_path)
        write_documented_files(module_path, ["schema_version: 1\ndecisions: []\n"] * 2)
    said = {}
    path = os.pathsep.join((str(module_path / "lib"), str(ROOT)))
    with starter(module_path / "said", module_path, **os.environ | {"PYTHONPATH": path}) as python:
        for block in blocks_of(PAGE):
            if block.file:
                (module_path / block.file).parent.mkdir(parents=True, exist_ok=True)
                (module_path / block.file).write_text(block.text)
            for words in commands_of(block) if block.language == "sh" else ():
                name = " ".join(words[:2])
                said[name] = said.get(name, "") + python(*words_for_python(words))
    return module_path, said


def words_for_python(words: list[str]) -> list[str]:
    if words[0] == "pip":
        kept = ["--no-deps", "--no-index", "--no-build-isolation", "--target", "lib"]
        return ["-m", "pip", "--quiet", "--disable-pip-version-check", *words[1:], *kept]
    if words[0] == "hgld":
        return ["-m", *words, *SHORTER.get(" ".join(words[:2]), [])]
    return words[1:]


def test_every_extension_of_the_guide_is_used_by_its_command(followed):
    folder, said = followed
    config = (folder / "gap" / "config.json").read_text()
    assert all(text in config for text in ('"MeanScoreGap"', '"thumbnail:16"', '"margin": 0.3'))
    evaluated = said["hgld evaluate"]
    assert all(text in evaluated for text in ("| F1@2 |", "| AP |", "there", "protocol: both-ways"))
    assert (folder / "market" / "dataset.json").is_file()
    assert '"letters/1"' in (folder / "letters" / "stages" / "embed" / "encoder.json").read_text()
