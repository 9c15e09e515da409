"""Runs a command on a terminal of its own and shows what is on its screen at the end.

Usage: terminal.py COLUMNS[,COLUMNS...] COMMAND...   each width for a second and a half, the last one until the end
Prints all lines that the command has left, the ones that have scrolled away too. Exit status: that of the command; 97
where a line with the status is as wide as the screen or a sequence is not known.
"""
import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time

widths = [int(word) for word in sys.argv[1].split(",")]
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[2], sys.argv[2:])


def resize(columns):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    # A terminal that becomes narrower breaks its lines, and a wider one joins them: the rows above the cursor change.
    return columns


class Screen:
    """Lines as they were written; a terminal shows each in as many rows as it takes."""

    def __init__(self):
        self.lines, self.row, self.column = [""], 0, 0

    def rows(self, line, columns):
        return max(1, -(-len(line) // columns))

    def up(self, rows, columns):
        while rows > 0 and self.row > 0:
            self.row -= 1
            rows -= self.rows(self.lines[self.row], columns)
        if rows:
            sys.exit("%d rows too many were erased" % -rows)

    def write(self, text):
        line = self.lines[self.row]
        self.lines[self.row] = line[: self.column] + text + line[self.column + len(text):]
        self.column += len(text)

    def newline(self):
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append("")


screen, pending, bad = Screen(), "", ""
columns, since = resize(widths.pop(0)), time.time()
raw = b""
while True:
    if widths and time.time() - since > 1.5:
        columns, since = resize(widths.pop(0)), time.time()
    if not select.select([terminal], [], [], 0.05)[0]:
        continue
    try:
        data = os.read(terminal, 65536)
    except OSError:
        break
    if not data:
        break
    raw += data
    pending += data.decode("utf-8", "surrogateescape")
    while pending:
        part = re.match(r"\r|\n|\x1b\[(\d*)([A-Za-z])|[^\r\n\x1b]+", pending)
        if not part:
            if len(pending) > 20:
                bad = "unknown sequence: %r" % pending[:20]
                pending = ""
            break
        pending = pending[part.end():]
        text = part.group()
        if text == "\r":
            screen.column = 0
        elif text == "\n":
            screen.newline()
        elif part.group(2) == "A":
            screen.up(int(part.group(1) or 1), columns)
        elif part.group(2) == "J":
            del screen.lines[screen.row + 1:]
            screen.lines[screen.row] = screen.lines[screen.row][: screen.column]
        elif part.group(2):
            bad = "unknown sequence %r" % text
        else:
            screen.write(text)
            if re.match("step [0-9]+/", text) and len(text) >= columns:
                bad = "%d columns, and a line of %d: %s" % (columns, len(text), text)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print("\n".join(screen.lines))
print("escapes: %d" % raw.count(b"\x1b"))
if bad:
    sys.exit(print(bad) or 97)
sys.exit(status)
