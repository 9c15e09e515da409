// The ledger of a run: an append-only file of JSON objects, one a line, that says when a run was started, trained,
// saved and ended. Several processes write it at the same time: the ranks' first one, and the program that starts them
// again. docs/goodput.md lists the events; train/goodput.h reads them.
#pragma once
#include "base/text.h"

// Appends one line by one write() with O_APPEND, so that lines of several processes never mix. `object` is a JSON
// object on one line with at least one member; these members are added before its own:
//   at      UTC, "2026-11-24T06:55:50.123Z"
//   mono_s  CLOCK_MONOTONIC in seconds, comparable between lines of the same boot
//   boot    the first 8 digits of the kernel's boot id: lines of another machine, or from before a reboot, differ in it
//   pid     of the process
// Creates the file. A torn line, which a process that was killed or a full disk has left at the end, is ended first, so
// that it damages no other line. The file is not synced: after a crash of the machine the last lines may be missing.
// Fails with the status of errno, or with ERR_IO where the line could not be written as a whole; the message names the
// file. Any thread may call it.
Status ledger_append(const char *path, const Text *object);

// Calls `visit` for each whole line of a ledger's text until one fails; `number` counts from 1. A last line without a
// line feed is torn and left out, and so are empty lines.
typedef Status LedgerLine(void *self, int64_t number, const char *line, size_t size);
Status ledger_lines(const char *text, size_t size, LedgerLine *visit, void *self);
