"""Runs the cells of the documentation's notebook; its losses must fall.

notebook.py FILE: works in the current folder."""
import json
import sys

names = {}
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        exec("".join(cell["source"]), names)
assert names["losses"][-1] < names["losses"][0] - 0.5, names["losses"]
