// Says which files of a checkpoint a folder has, where others lie in folders of other machines.
#include "base/file.h"
#include "checkpoint/manifest.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static Status add_file(CheckpointPart *part, const char *folder, const char *name, int64_t bytes) {
    char path[PATH_ROOM];
    struct stat st;
    TRY(path_join(path, folder, name));
    int size = snprintf(part->names[part->count], CHECKPOINT_FILE_NAME, "%s", name);
    if (size >= CHECKPOINT_FILE_NAME) return fail(ERR_DATA, "%s: the name is too long", path);
    part->present[part->count++] = lstat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == bytes;
    return OK;
}

static Status add_files(CheckpointPart *part, const Manifest *m, const char *folder) {
    size_t count = (size_t)m->num_files + (size_t)m->num_others + 1;
    part->names = calloc(count, sizeof *part->names);
    part->present = calloc(count, sizeof *part->present);
    CHECK(part->names && part->present, "no memory for the names of %zu files", count);
    for (int i = 0; i < m->num_files; i++) TRY(add_file(part, folder, m->files[i].name, m->files[i].bytes));
    for (int i = 0; i < m->num_others; i++)
        TRY(add_file(part, folder, m->others[i].name, m->others[i].bytes));
    return OK;
}

Status checkpoint_part(const char *save, int64_t step, CheckpointPart *part) {
    enum { MAX_BYTES = 1 << 30 };
    CheckpointNames names;
    Manifest manifest = {0};
    char path[PATH_ROOM], *text = NULL;
    size_t size;
    *part = (CheckpointPart){0};
    TRY(checkpoint_names(save, step, &names));
    TRY(path_join(path, names.final, "manifest.json"));
    TRY(file_read(path, MAX_BYTES, &text, &size));
    part->hash = hash64_of(text, size);
    Status status = manifest_read(&manifest, text, size, path);
    free(text);
    if (status == OK && manifest.info.state.iteration != step)
        status = fail(ERR_DATA, "%s: it is of step %" PRId64, path, manifest.info.state.iteration);
    if (status == OK) status = add_files(part, &manifest, names.final);
    manifest_free(&manifest);
    if (status != OK) checkpoint_part_free(part);
    return status;
}

void checkpoint_part_free(CheckpointPart *part) {
    free(part->names);
    free(part->present);
    *part = (CheckpointPart){0};
}
