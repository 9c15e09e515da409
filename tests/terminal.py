"""Runs a command on a terminal of its own and shows what is on its screen at the end.

Usage: terminal.py COLUMNS[,COLUMNS...] COMMAND...   each width for a second and a half, the last one until the end
Prints all lines that the command has left, the ones that have scrolled away too. Exit status: that of the command; 97
where a line with the status is as wide as the screen or a sequence is not known.

The command is stopped while the width changes, and what it has written before is read at the old width. A command that
was stopped between asking for the width and writing still writes one line for the old one: the first line with the
status after a change may be as wide as before.
"""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

widths = [int(word) for word in sys.argv[1].split(",")]


def resize(descriptor, columns):
    # A terminal that becomes narrower breaks its lines, and a wider one joins them: the rows above the cursor change.
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


pid, terminal = pty.fork()
if pid == 0:
    resize(0, widths[0])
    os.execvp(sys.argv[2], sys.argv[2:])


def readable(seconds):
    return bool(select.select([terminal], [], [], seconds)[0])


def read():
    """What the command has written since; b"" once it has closed the terminal."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


class Screen:
    """Lines as they were written; a terminal shows each in as many rows as it takes."""

    def __init__(self, columns):
        self.lines, self.row, self.column = [""], 0, 0
        self.columns = self.widest = columns
        self.pending, self.escapes, self.bad = "", 0, ""

    def resize(self, columns):
        self.widest, self.columns = max(columns, self.columns), columns

    def rows(self, line):
        return max(1, -(-len(line) // self.columns))

    def up(self, rows):
        while rows > 0 and self.row > 0:
            self.row -= 1
            rows -= self.rows(self.lines[self.row])
        if rows:
            sys.exit("%d rows too many were erased" % -rows)

    def write(self, text):
        if re.match("step [0-9]+/", text):
            if len(text) >= self.widest:
                self.bad = "%d columns, and a line of %d: %s" % (self.columns, len(text), text)
            self.widest = self.columns
        line = self.lines[self.row]
        self.lines[self.row] = line[: self.column] + text + line[self.column + len(text):]
        self.column += len(text)

    def newline(self):
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append("")

    def take(self, data):
        self.escapes += data.count(b"\x1b")
        self.pending += data.decode("utf-8", "surrogateescape")
        while self.pending:
            part = re.match(r"\r|\n|\x1b\[(\d*)([A-Za-z])|[^\r\n\x1b]+", self.pending)
            if not part:
                if len(self.pending) > 20:
                    self.bad = "unknown sequence: %r" % self.pending[:20]
                    self.pending = ""
                return
            self.pending = self.pending[part.end():]
            text = part.group()
            if text == "\r":
                self.column = 0
            elif text == "\n":
                self.newline()
            elif part.group(2) == "A":
                self.up(int(part.group(1) or 1))
            elif part.group(2) == "J":
                del self.lines[self.row + 1:]
                self.lines[self.row] = self.lines[self.row][: self.column]
            elif part.group(2):
                self.bad = "unknown sequence %r" % text
            else:
                self.write(text)


screen, since, status = Screen(widths.pop(0)), time.time(), None
while True:
    if widths and time.time() - since > 1.5:
        os.killpg(pid, signal.SIGSTOP)
        status = os.waitpid(pid, os.WUNTRACED)[1]
        while readable(0) and (data := read()):
            screen.take(data)
        if not os.WIFSTOPPED(status):
            break
        resize(terminal, widths[0])
        screen.resize(widths.pop(0))
        since = time.time()
        os.killpg(pid, signal.SIGCONT)
    if readable(0.05):
        data = read()
        if not data:
            status = os.waitpid(pid, 0)[1]
            break
        screen.take(data)
print("\n".join(screen.lines))
print("escapes: %d" % screen.escapes)
if screen.bad:
    sys.exit(print(screen.bad) or 97)
sys.exit(os.waitstatus_to_exitcode(status))
