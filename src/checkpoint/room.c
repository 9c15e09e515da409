// Whether the file system of a folder has room for the checkpoints that are to be saved there.
#include "checkpoint/manifest.h"
#include <inttypes.h>

// With a tenth to spare for what is not tensors.
static int64_t bytes_needed(int64_t bytes, int count) {
    int64_t all;
    if (__builtin_mul_overflow(bytes, (int64_t)count, &all) || all > INT64_MAX / 11 * 10) return INT64_MAX;
    return all + all / 10;
}

Status checkpoint_check_room(const char *save, int64_t bytes, int count) {
    int64_t room, need = bytes_needed(bytes, count);
    char each[64] = "";
    TRY(folder_room(save, &room));
    if (room >= need) return OK;
    if (count > 1) snprintf(each, sizeof each, " (%.1f MB each)", (double)bytes_needed(bytes, 1) / 1e6);
    return fail(ERR_CREATE, "%s: no space for %d checkpoint%s%s: %.1f MB are needed, %.1f MB are left", save,
                count, count > 1 ? "s" : "", each, (double)need / 1e6, (double)room / 1e6);
}
