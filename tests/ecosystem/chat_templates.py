"""Chat templates: what trireme's engine writes is what jinja2 writes, as transformers sets it up.

Usage: chat_templates.py RENDER_TEMPLATE TEMPLATES.JSONL
"""
import json
import subprocess
import sys

from transformers.utils.chat_template_utils import _compile_jinja_template

TIME_LIMITED = "range(100000)"  # jinja2 would take minutes


def theirs(source, variables):
    """The text, and the spans of {% generation %} as bytes of UTF-8; None where jinja2 fails."""
    try:
        template = _compile_jinja_template(source)
        blocks, spans = [], []
        with template.environment.activate_tracker(blocks, spans):
            for block in template.generate(**variables):
                blocks.append(block)
    except Exception:
        return None
    text = "".join(blocks)
    return text, [[len(text[:start].encode()), len(text[:end].encode())] for start, end in spans]


def golden_cases(path):
    """The golden cases are those of jinja2."""
    with open(path) as file:
        rows = [json.loads(line) for line in file]
    variables = rows[0]["vars"]
    for row in rows[1:]:
        if row.get("own"):
            continue
        expected = (row["text"], row.get("spans", [])) if "text" in row else None
        assert theirs(row["template"], variables) == expected, row["template"]
    print(f"  {len(rows) - 1} templates of one feature each")


golden_cases(sys.argv[2])
