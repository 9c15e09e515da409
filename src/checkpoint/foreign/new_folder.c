// Writes a folder under a temporary name and renames it when it is complete.
#include "checkpoint/foreign/new_folder.h"
#include "base/file.h"
#include <string.h>

Status folder_write_text(const char *path, const Text *text) {
    FileWriter file;
    TRY(file_writer_open(&file, path));
    Status status = file_writer_add(&file, text_string(text), text->size);
    if (status == OK) return file_writer_finish(&file);
    file_writer_abandon(&file);
    return status;
}

// Removes what was written, and keeps the message of the failure.
static Status give_up(Status status, const char *temporary) {
    char message[1024];
    snprintf(message, sizeof message, "%s", fail_message());
    (void)folder_remove(temporary);
    return fail(status, "%s", message);
}

Status folder_write_new(const char *folder, Status (*fill)(void *self, const char *temporary), void *self) {
    char name[4096], temporary[4096];
    int size = snprintf(name, sizeof name, "%s", folder);
    if (size >= (int)sizeof name) return fail(ERR_CREATE, "%s: the name is too long", folder);
    while (size > 1 && name[size - 1] == '/') name[--size] = 0;
    if (file_exists(name)) return fail(ERR_CREATE, "%s exists and is not replaced", name);
    TRY(file_temporary_name(name, temporary));
    Status status = folder_remove(temporary);
    if (status == OK) status = folder_make(temporary);
    if (status == OK) status = fill(self, temporary);
    if (status == OK) status = folder_sync(temporary);
    if (status == OK) status = file_publish(temporary, name);
    return status == OK ? OK : give_up(status, temporary);
}
