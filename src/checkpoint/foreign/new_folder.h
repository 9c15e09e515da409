// Writes a new folder for another program, whole or not at all.
#pragma once
#include "base/text.h"

// Has `fill` write the files of a folder under a temporary name, and renames it to `folder` when all are written and
// synced. Fails with ERR_CREATE where `folder` exists, or as `fill` does; then nothing is left.
Status folder_write_new(const char *folder, Status (*fill)(void *self, const char *temporary), void *self);
Status folder_write_text(const char *path, const Text *text); // one of its files, synced
