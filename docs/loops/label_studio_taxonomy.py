import json
import subprocess
from pathlib import Path

from label_studio_sdk.label_interface import LabelInterface

subprocess.run(["hgld", "convert", "shards", "--to", "label-studio", "--out", "for-label-studio"], check=True)

interface = LabelInterface(Path("for-label-studio/config.xml").read_text())
interface.validate()
tasks = json.loads(Path("for-label-studio/tasks-00000.json").read_text())
print(all(interface.validate_task(task) for task in tasks), tasks[0]["predictions"])
