// `trireme checkpoint`: lists, shows, verifies, compares and rewrites checkpoints.
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "cli/cli.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { PIECE = 1 << 20 }; // elements that are compared at a time

// ---- finding ------------------------------------------------------------------------------------

static bool is_checkpoint(const char *path) {
    char manifest[4200];
    return snprintf(manifest, sizeof manifest, "%s/manifest.json", path) < (int)sizeof manifest &&
           file_exists(manifest);
}

// Lists the steps of a folder of checkpoints. Fails where there is none.
static Status steps_of(const char *path, int64_t **steps, int *count) {
    TRY(checkpoint_steps(path, steps, count));
    if (*count) return OK;
    free(*steps);
    if (is_checkpoint(path))
        return fail(ERR_NO_INPUT,
                    "%s is a checkpoint, not a folder of checkpoints: `trireme checkpoint inspect` shows it",
                    path);
    Text what = {0};
    model_absent(path, &what);
    Status status = fail(ERR_NO_INPUT, "%s: %s; it is neither a checkpoint nor a folder of checkpoints", path,
                         text_string(&what));
    text_free(&what);
    return status;
}

// Opens the checkpoint at the path, or the newest one of a folder.
static Status open_path(const char *path, Checkpoint **checkpoint) {
    if (is_checkpoint(path)) return checkpoint_open(checkpoint, path);
    int64_t *steps;
    int count;
    CheckpointNames names;
    TRY(steps_of(path, &steps, &count));
    Status status = checkpoint_names(path, steps[0], &names);
    free(steps);
    return status == OK ? checkpoint_open(checkpoint, names.final) : status;
}

// ---- list ---------------------------------------------------------------------------------------

// Finds the size of a checkpoint's files, and the time at which its manifest was written.
static int64_t folder_bytes(const char *folder, time_t *written) {
    char **names = NULL, path[4400];
    int count = 0;
    int64_t bytes = 0;
    if (folder_list(folder, &names, &count) != OK) return 0;
    for (int i = 0; i < count; i++) {
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        if (stat(path, &st)) continue;
        bytes += st.st_size;
        if (!strcmp(names[i], "manifest.json")) *written = st.st_mtime;
    }
    free(names);
    return bytes;
}

static void list_one(int64_t step, const char *folder) {
    Checkpoint *c = NULL;
    time_t written = 0;
    struct tm local;
    char date[32];
    double megabytes = (double)folder_bytes(folder, &written) / 1e6;
    strftime(date, sizeof date, "%Y-%m-%d %H:%M", localtime_r(&written, &local));
    printf("%10" PRId64 " %12.1f MB  %s  ", step, megabytes, date);
    if (checkpoint_open(&c, folder) != OK) {
        printf("damaged: %s\n", fail_message());
        return;
    }
    const CheckpointInfo *info = checkpoint_info(c);
    printf("%4d %3d %3d  %-5s  %-9s  %s\n", grid_along(info->grid, AXIS_TP), grid_along(info->grid, AXIS_PP),
           grid_along(info->grid, AXIS_DP), info->dtype, info->has_optimizer ? "yes" : "no", info->program);
    checkpoint_close(c);
}

static Status run_list(const Options *o) {
    int64_t *steps;
    int count;
    const char *folder = o->positional.items[1];
    TRY(steps_of(folder, &steps, &count));
    printf("%10s %15s  %-16s  %4s %3s %3s  %-5s  %-9s  %s\n", "step", "size", "written", "t", "p", "d",
           "dtype", "optimizer", "by");
    Status status = OK;
    for (int i = 0; i < count && status == OK; i++) {
        CheckpointNames names;
        status = checkpoint_names(folder, steps[i], &names);
        if (status == OK) list_one(steps[i], names.final);
    }
    free(steps);
    return status;
}

// ---- inspect ------------------------------------------------------------------------------------

static void print_tensors(const Checkpoint *c) {
    int64_t elements = 0;
    printf("\n%-64s %10s %10s %7s\n", "tensor", "rows", "columns", "slices");
    for (int i = 0; i < checkpoint_num_tensors(c); i++) {
        CheckpointTensor t = checkpoint_tensor(c, i);
        printf("%-64s %10" PRId64 " %10" PRId64 " %7d\n", t.name, t.rows, t.cols, t.num_slices);
        elements += t.rows * t.cols;
    }
    printf("%d tensors, %" PRId64 " elements\n", checkpoint_num_tensors(c), elements);
}

static Status run_inspect(const Options *o) {
    Checkpoint *c = NULL;
    Text text = {0};
    TRY(open_path(o->positional.items[1], &c));
    const CheckpointInfo *info = checkpoint_info(c);
    checkpoint_describe(info, &text);
    printf("%s\nwritten by %s on a grid of t=%d p=%d d=%d, %d chunks per rank\n\n%s", checkpoint_folder(c),
           info->program, grid_along(info->grid, AXIS_TP), grid_along(info->grid, AXIS_PP),
           grid_along(info->grid, AXIS_DP), info->num_chunks, text_string(&text));
    print_tensors(c);
    text_free(&text);
    checkpoint_close(c);
    return OK;
}

// ---- verify -------------------------------------------------------------------------------------

static Status verify_one(const char *folder) {
    Checkpoint *c = NULL;
    Status status = checkpoint_open(&c, folder);
    if (status == OK) status = checkpoint_verify(c);
    const char *tensor = NULL;
    int64_t non_finite = status == OK ? checkpoint_non_finite(c, &tensor) : 0;
    if (status == OK) printf("%s: every byte is as it was written\n", folder);
    if (non_finite)
        printf("%s: WARNING: %" PRId64 " values are NaN or infinite, the first in tensor %s\n", folder,
               non_finite, tensor);
    checkpoint_close(c);
    return status;
}

// Verifies all checkpoints of a folder, also after a damaged one. main prints the last failure.
static Status run_verify(const Options *o) {
    const char *path = o->positional.items[1];
    if (is_checkpoint(path)) return verify_one(path);
    int64_t *steps;
    int count, damaged = 0;
    TRY(steps_of(path, &steps, &count));
    Status status = OK;
    for (int i = count - 1; i >= 0; i--) {
        CheckpointNames names;
        Status one = checkpoint_names(path, steps[i], &names);
        if (one == OK) one = verify_one(names.final);
        if (one == OK) continue;
        status = one;
        damaged++;
        printf("%s\n", fail_message());
    }
    free(steps);
    if (damaged) return fail(status, "%s: %d of %d checkpoints are damaged", path, damaged, count);
    return OK;
}

// ---- diff ---------------------------------------------------------------------------------------

typedef struct {
    int64_t elements; // that differ
    double most;      // absolute difference, or NaN
} Difference;

static void compare(const float *a, const float *b, int64_t count, Difference *difference) {
    for (int64_t i = 0; i < count; i++) {
        if (!memcmp(&a[i], &b[i], sizeof *a)) continue;
        double distance = fabs((double)a[i] - (double)b[i]);
        difference->elements++;
        if (!(distance <= difference->most)) difference->most = distance;
    }
}

// `pieces` has room for two.
static Status compare_tensor(Checkpoint *a, int i, Checkpoint *b, int j, float *pieces,
                             Difference *difference) {
    CheckpointTensor t = checkpoint_tensor(a, i);
    int64_t cols = t.cols < PIECE ? t.cols : PIECE, rows = PIECE / cols;
    for (int64_t row = 0; row < t.rows; row += rows)
        for (int64_t col = 0; col < t.cols; col += cols) {
            Rect part = {row, col, t.rows - row < rows ? t.rows - row : rows,
                         t.cols - col < cols ? t.cols - col : cols};
            TRY(checkpoint_read(a, i, part, pieces, part.cols));
            TRY(checkpoint_read(b, j, part, pieces + PIECE, part.cols));
            compare(pieces, pieces + PIECE, part.rows * part.cols, difference);
        }
    return OK;
}

// Counts the tensors of `a` that differ in `b`.
static Status diff_tensors(Checkpoint *a, Checkpoint *b, float *pieces, int *differ) {
    for (int i = 0; i < checkpoint_num_tensors(a); i++) {
        CheckpointTensor t = checkpoint_tensor(a, i);
        Difference d = {0};
        int j = checkpoint_find(b, t.name);
        CheckpointTensor other = j < 0 ? (CheckpointTensor){0} : checkpoint_tensor(b, j);
        bool same_shape = j >= 0 && other.rows == t.rows && other.cols == t.cols;
        if (same_shape) TRY(compare_tensor(a, i, b, j, pieces, &d));
        if (same_shape && !d.elements) continue;
        ++*differ;
        if (j < 0)
            printf("%-64s only in %s\n", t.name, checkpoint_folder(a));
        else if (!same_shape)
            printf("%-64s [%" PRId64 ", %" PRId64 "] and [%" PRId64 ", %" PRId64 "]\n", t.name, t.rows,
                   t.cols, other.rows, other.cols);
        else
            printf("%-64s %" PRId64 " of %" PRId64 " elements, by at most %g\n", t.name, d.elements,
                   t.rows * t.cols, d.most);
    }
    return OK;
}

static int print_absent(const Checkpoint *a, const Checkpoint *b) {
    int absent = 0;
    for (int j = 0; j < checkpoint_num_tensors(b); j++) {
        const char *name = checkpoint_tensor(b, j).name;
        if (checkpoint_find(a, name) >= 0) continue;
        absent++;
        printf("%-64s only in %s\n", name, checkpoint_folder(b));
    }
    return absent;
}

// Both describe the same fields in the same order.
static int diff_info(const Checkpoint *a, const Checkpoint *b) {
    Text one = {0}, two = {0};
    int differ = 0;
    checkpoint_describe(checkpoint_info(a), &one);
    checkpoint_describe(checkpoint_info(b), &two);
    const char *x = text_string(&one), *y = text_string(&two);
    while (*x && *y) {
        size_t x_size = strcspn(x, "\n"), y_size = strcspn(y, "\n"), name = strcspn(y, " ");
        if (x_size != y_size || memcmp(x, y, x_size) != 0) {
            name += strspn(y + name, " ");
            printf("%.*s, other: %.*s\n", (int)x_size, x, (int)(y_size - name), y + name);
            differ++;
        }
        x += x_size + 1, y += y_size + 1;
    }
    text_free(&one);
    text_free(&two);
    return differ;
}

static Status diff(Checkpoint *a, Checkpoint *b) {
    float *pieces = malloc(2 * PIECE * sizeof *pieces);
    if (!pieces) return fail(ERR_OS, "no memory to compare %s", checkpoint_folder(a));
    int differ = 0, fields = diff_info(a, b);
    Status status = diff_tensors(a, b, pieces, &differ);
    free(pieces);
    TRY(status);
    differ += print_absent(a, b);
    printf("%d of %d tensors and %d values of state and model differ\n", differ, checkpoint_num_tensors(a),
           fields);
    return differ || fields ? ERR_OTHER : OK;
}

static Status run_diff(const Options *o) {
    Checkpoint *a = NULL, *b = NULL;
    Status status = open_path(o->positional.items[1], &a);
    if (status == OK) status = open_path(o->positional.items[2], &b);
    if (status == OK) status = diff(a, b);
    checkpoint_close(a);
    checkpoint_close(b);
    return status;
}

// ---- reshard ------------------------------------------------------------------------------------

static Status run_reshard(const Options *o) {
    Checkpoint *from = NULL;
    if (!o->output || !*o->output)
        return fail(ERR_USAGE, "checkpoint reshard needs --output FOLDER: it writes FOLDER/step-...");
    TRY(open_path(o->positional.items[1], &from));
    Status status = checkpoint_reshard(from, o->output, o->files, o->lock_timeout);
    if (status == OK)
        printf("%s/step-%08" PRId64 ": %d tensors, the bytes of %s\n", o->output,
               checkpoint_info(from)->state.iteration, checkpoint_num_tensors(from), checkpoint_folder(from));
    checkpoint_close(from);
    return status;
}

// ---- the verb -----------------------------------------------------------------------------------

// In the order of the verb's forms (config/help.c).
static const struct {
    const char *name;
    int num_paths;
    Status (*run)(const Options *);
} actions[] = {{"list", 1, run_list},
               {"inspect", 1, run_inspect},
               {"verify", 1, run_verify},
               {"diff", 2, run_diff},
               {"reshard", 1, run_reshard}};
enum { NUM_ACTIONS = sizeof actions / sizeof actions[0] };

Status cmd_checkpoint(Options *o) {
    tell_notes(o);
    const char *word = o->positional.count ? o->positional.items[0] : NULL;
    for (int i = 0; word && i < NUM_ACTIONS; i++) {
        if (strcmp(word, actions[i].name) != 0) continue;
        if (o->positional.count == 1 + actions[i].num_paths) return actions[i].run(o);
        return options_misused(FOR_CHECKPOINT, i, "");
    }
    return options_no_word(FOR_CHECKPOINT, word);
}
