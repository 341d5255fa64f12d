import json
from pathlib import Path

from label_studio_sdk.label_interface import LabelInterface

import hgld
from hgld.pipelines.conversion.convert import convert

folder = Path("for-label-studio")
convert(hgld.open_dataset("shards"), folder, "label-studio")  # hgld convert shards --to label-studio ...
interface = LabelInterface((folder / "config.xml").read_text(encoding="utf-8"))
interface.validate()
tasks = json.loads((folder / "tasks-00000.json").read_text(encoding="utf-8"))
assert not [why for task in tasks for why in interface.validate_prediction(task["predictions"][0], return_errors=True)]
print(tasks[0]["data"], tasks[0]["predictions"][0]["result"][0]["value"])
