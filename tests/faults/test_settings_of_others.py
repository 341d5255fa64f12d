"""Commands under other people's settings of the shell, Python and libraries write the same bytes."""

import pytest

from tests.faults.commands import COMMANDS, contents, place_of
from tests.interpreter import python

pytestmark = [pytest.mark.slow, pytest.mark.long]
SETTINGS = {
    "LC_ALL": "C",
    "TZ": "Asia/Kathmandu",
    "PYTHONWARNINGS": "default",
    "PYTHONHASHSEED": "7",
    "OMP_NUM_THREADS": "1",
    "POLARS_MAX_THREADS": "1",
    "COLUMNS": "31",
    "NO_COLOR": "1",
}


@pytest.mark.parametrize("name", ["build-hierarchy", "build-shards", "evaluate", "report", "audit"])
def test_settings_of_the_environment_do_not_change_the_files(name, base, tmp_path):
    noisy, matplotlib = tmp_path / "noisy", tmp_path / "matplotlib"
    for folder in (noisy, matplotlib):
        folder.mkdir()
    (noisy / "sitecustomize.py").write_text("print('a message of the site')\n")
    (matplotlib / "matplotlibrc").write_text("text.usetex: True\nfont.size: 30\nsvg.fonttype: path\n")
    others = {**SETTINGS, "PYTHONPATH": str(noisy), "MATPLOTLIBRC": str(matplotlib)}
    found = []
    for number, settings in enumerate(({}, others)):
        place = place_of(COMMANDS[name], base, tmp_path / str(number))
        words = [word.replace("{base}", str(base)) for word in COMMANDS[name].words.split()]
        python("-m", "hgld", *words, cwd=place, **settings)
        found.append(contents(place))
    assert found[0] == found[1]
