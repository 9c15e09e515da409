// Whatever happens to the bytes of a checkpoint is found, and the message names the file; of tensors also the
// tensor. Every bit of manifest, headers and configuration, random bits of tensors, every kind of lost,
// swapped and foreign file.
#include "base/file.h"
#include "checkpoint/manifest.h"
#include "checkpoint_slices.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static const char folder_name[] = "save/step-00000020";

static const char *file_in(const char *name) {
    char joined[200];
    snprintf(joined, sizeof joined, "%s/%s", folder_name, name);
    return path_in(joined);
}

static const char *const files[] = {"manifest.json", "config.yaml", "rank-00000.safetensors",
                                    "rank-00001.safetensors"};
enum { NUM_FILES = 4 };

// Two ranks that both have something.
static Model *make(void) {
    Model *m = model_make(4, 2, 12, 1);
    EXPECT(m->num_slices[0] && m->num_slices[1], "a rank without slices");
    if (!file_exists(path_in(folder_name))) EXPECT_OK(model_save(m, path_in("save"), 20));
    return m;
}

// Opens and verifies; that it is ERR_DATA and that the message has these words.
static void expect_found(const char *file, const char *tensor, const char *what, int64_t where) {
    Checkpoint *c = NULL;
    Status status = checkpoint_open(&c, path_in(folder_name));
    if (status == OK) status = checkpoint_verify(c);
    checkpoint_close(c);
    EXPECT(status == ERR_DATA || (status == ERR_NO_INPUT && !strcmp(file, files[0])),
           "%s at %" PRId64 " of %s: status %d", what, where, file, (int)status);
    EXPECT(status == OK || (strstr(fail_message(), file) && strstr(fail_message(), tensor)),
           "%s at %" PRId64 " of %s, %s: %s", what, where, file, tensor, fail_message());
}

static void expect_whole(void) {
    Checkpoint *c = NULL;
    EXPECT_OK(checkpoint_open(&c, path_in(folder_name)));
    if (c) EXPECT_OK(checkpoint_verify(c));
    checkpoint_close(c);
}

// ---- bits ---------------------------------------------------------------------------------------

static void flip(int fd, int64_t bit) {
    unsigned char byte;
    EXPECT(pread(fd, &byte, 1, bit / 8) == 1, "cannot read byte %" PRId64, bit / 8);
    byte = (unsigned char)(byte ^ 1u << bit % 8);
    EXPECT(pwrite(fd, &byte, 1, bit / 8) == 1, "cannot write byte %" PRId64, bit / 8);
}

static int64_t size_of(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 ? st.st_size : -1;
}

static int64_t header_size(const char *path) {
    Safetensors *file = NULL;
    EXPECT_OK(safetensors_open(&file, path));
    int64_t size = file ? file->header_bytes : 0;
    safetensors_close(file);
    return size;
}

static void every_bit_of_what_is_not_tensors(void) {
    Model *m = make();
    for (int f = 0; f < NUM_FILES; f++) {
        const char *path = file_in(files[f]);
        int64_t bits = 8 * (f < 2 ? size_of(path) : header_size(path));
        int fd = open(path, O_RDWR);
        for (int64_t bit = 0; bit < bits; bit += harness_short() ? 53 : 1) {
            flip(fd, bit);
            expect_found(files[f], "", "bit", bit);
            flip(fd, bit);
        }
        close(fd);
    }
    expect_whole();
    model_free(m);
}

// The tensor that byte `at` of the file is of.
static const char *tensor_at(const Safetensors *file, int64_t at) {
    for (int i = 0; i < file->count; i++) {
        const SafeTensor *t = &file->tensors[i];
        if (at >= t->offset && at < t->offset + t->bytes) return t->name;
    }
    return "?";
}

static void random_bits_of_tensors(void) {
    Model *m = make();
    Dice dice = dice_of(11);
    for (int n = 0; n < (harness_short() ? 60 : 2000); n++) {
        const char *name = files[2 + roll(&dice, 2)], *path = file_in(name);
        Safetensors *file = NULL;
        EXPECT_OK(safetensors_open(&file, path));
        int64_t at = file->header_bytes + roll(&dice, file->file_bytes - file->header_bytes);
        int fd = open(path, O_RDWR);
        int64_t bit = 8 * at + roll(&dice, 8);
        flip(fd, bit);
        expect_found(name, tensor_at(file, at), "bit", bit);
        flip(fd, bit);
        close(fd);
        safetensors_close(file);
    }
    expect_whole();
    model_free(m);
}

// A reader of a rectangle of a damaged slice is told as well.
static void reading_verifies(void) {
    Model *m = make();
    int64_t size = size_of(file_in(files[2]));
    int fd = open(file_in(files[2]), O_RDWR);
    flip(fd, 8 * (size - 1));
    Checkpoint *c = NULL;
    EXPECT_OK(checkpoint_open(&c, path_in(folder_name)));
    int failed = 0;
    for (int i = 0; c && i < checkpoint_num_tensors(c); i++) {
        CheckpointTensor t = checkpoint_tensor(c, i);
        float *all = malloc((size_t)(t.rows * t.cols) * sizeof *all), one = 0;
        bool bad = checkpoint_read(c, i, (Rect){0, 0, t.rows, t.cols}, all, t.cols) != OK;
        failed += bad;
        if (bad) EXPECT(checkpoint_read(c, i, (Rect){0, 0, t.rows, t.cols}, all, t.cols) != OK, "forgotten");
        if (bad && t.num_slices == 1) // at its other end
            EXPECT(checkpoint_read(c, i, (Rect){0, 0, 1, 1}, &one, 1) == ERR_DATA, "reads a damaged slice");
        free(all);
    }
    EXPECT(failed == 1, "%d tensors are damaged", failed);
    checkpoint_close(c);
    flip(fd, 8 * (size - 1));
    close(fd);
    model_free(m);
}

// ---- files --------------------------------------------------------------------------------------

static void other_lengths(void) {
    Model *m = make();
    Dice dice = dice_of(12);
    for (int f = 0; f < NUM_FILES; f++) {
        char *data = NULL;
        size_t size = 0;
        const char *path = file_in(files[f]);
        EXPECT_OK(file_read(path, 1 << 20, &data, &size));
        for (int n = 0; n < (harness_short() ? 15 : 400); n++) {
            int64_t length = n == 0 ? 0 : n == 1 ? (int64_t)size - 1 : roll(&dice, (int64_t)size);
            EXPECT(truncate(path, length) == 0, "cannot truncate");
            expect_found(files[f], "", "length", length);
            EXPECT_OK(file_write(path, data, size));
        }
        EXPECT(truncate(path, (int64_t)size + 1) == 0, "cannot extend");
        expect_found(files[f], "", "length", (int64_t)size + 1);
        EXPECT_OK(file_write(path, data, size));
        free(data);
    }
    expect_whole();
    model_free(m);
}

static void copy(const char *from, const char *to) {
    char *data = NULL;
    size_t size = 0;
    EXPECT_OK(file_read(from, 1 << 20, &data, &size));
    EXPECT_OK(file_write(to, data, size));
    free(data);
}

static void lost_files(void) {
    Model *m = make();
    for (int f = 0; f < NUM_FILES; f++) {
        EXPECT(rename(file_in(files[f]), path_in("aside")) == 0, "cannot rename");
        expect_found(files[f], "", "lost", 0);
        EXPECT(rename(path_in("aside"), file_in(files[f])) == 0, "cannot rename");
    }
    expect_whole();
    model_free(m);
}

static void swapped_and_foreign_files(void) {
    Model *m = make();
    const char *one = file_in(files[2]), *two = file_in(files[3]);
    copy(one, path_in("one"));
    copy(two, path_in("two"));
    copy(two, one); // one twice
    expect_found(files[2], "", "copy", 0);
    copy(path_in("one"), two); // swapped
    expect_found(files[2], "", "swap", 0);
    copy(path_in("one"), one);
    expect_found(files[3], "", "copy", 0);
    copy(path_in("two"), two);
    expect_whole();
    EXPECT_OK(model_save(m, path_in("save"), 30)); // the same slices of another step
    copy(path_in("save/step-00000030/rank-00001.safetensors"), two);
    expect_found(files[3], "", "other step", 0);
    copy(path_in("two"), two);
    copy(path_in("save/step-00000030/manifest.json"), file_in(files[0]));
    expect_found("rank-0000", "", "other manifest", 0);
    EXPECT_OK(folder_remove(path_in("save")));
    model_free(m);
}

// ---- manifests that are whole but say what cannot be ---------------------------------------------------

// Replaces the first `from` in the manifest and gives it the right last line.
static void forge(const char *from, const char *to, Status want, const char *words) {
    char *data = NULL;
    size_t size = 0;
    Text text = {0};
    EXPECT_OK(file_read(file_in(files[0]), 1 << 20, &data, &size));
    const char *at = strstr(data, from), *last = strrchr(data, '\n');
    EXPECT(at && last, "no %s in the manifest", from);
    while (last > data && last[-1] != '\n') last--;
    text_add(&text, "%.*s%s%.*s", (int)(at - data), data, to, (int)(last - at - (int64_t)strlen(from)),
             at + strlen(from));
    manifest_write_last_line(text.data, text.size, &text);
    EXPECT_OK(file_write(file_in(files[0]), text.data, text.size));
    Checkpoint *c = NULL;
    Status status = checkpoint_open(&c, path_in(folder_name));
    EXPECT(status == want && strstr(fail_message(), words), "%s for %s: status %d, %s", to, from, (int)status,
           fail_message());
    checkpoint_close(c);
    EXPECT_OK(file_write(file_in(files[0]), data, size));
    text_free(&text);
    free(data);
}

// A file has more than the manifest says: that of its first tensor.
static void forge_without_first_tensor(void) {
    char *data = NULL;
    size_t size = 0;
    EXPECT_OK(file_read(file_in(files[0]), 1 << 20, &data, &size));
    char *first = data ? strstr(data, "\"tensors\": [") : NULL;
    first = first ? strstr(first, "\n  {") : NULL;
    char *second = first ? strstr(first + 1, "\n  {") : NULL;
    EXPECT(second, "the manifest has no second tensor");
    if (second) *second = 0;
    if (second) forge(first, "", ERR_DATA, "of which the manifest knows");
    free(data);
}

static void forged_manifests(void) {
    Model *m = make();
    forge("\"version\": 1", "\"version\": 7", ERR_UNAVAILABLE, "written by trireme test in version 7");
    forge("\"version\": 1", "\"version\": \"1\"", ERR_DATA, "\"version\"");
    for (int i = 0; i < 6; i++) {
        static const char *const bad[] = {"{}",
                                          "{\"samples\": []",
                                          "{\"samples\": [[3, 2]]",
                                          "{\"samples\": [[-1, 2]]",
                                          "{\"samples\": [[5, 9], [10, 11]]",
                                          "{\"samples\": [[1]]"};
        char with[160];
        snprintf(with, sizeof with, "\"skipped\": %s%s,\n\"model\"", bad[i], i ? ", \"rewinds\": 0}" : "");
        forge("\"model\"", with, ERR_DATA, "no rising ranges");
    }
    forge("\"model\"", "\"skipped\": {\"samples\": [[1, 2]], \"rewinds\": -1},\n\"model\"", ERR_DATA,
          "\"rewinds\"");
    forge("rank-00000", "../anything", ERR_DATA, "name of a file");
    forge("\"bytes\": ", "\"bytes\": -", ERR_DATA, "\"bytes\"");
    forge("\"at\": [0, 0]", "\"at\": [0, 9223372036854775807]", ERR_DATA, "not within it");
    forge("\"at\": [0, 0]", "\"at\": [9223372036854775807, 0]", ERR_DATA, "not within it");
    forge("\"at\": [0, 0]", "\"at\": [0]", ERR_DATA, "two whole numbers");
    forge("\"file\": 0", "\"file\": 2", ERR_DATA, "\"file\"");
    forge("\"file\": 0", "\"file\": -1", ERR_DATA, "\"file\"");
    forge("\"shape\": [", "\"shape\": [4611686018427387904, 4], \"is\": [", ERR_DATA, "\"shape\"");
    forge("\"heads\": 2", "\"heads\": 0", ERR_DATA, "heads");
    forge("\"layers\": 2", "\"layer\": 2", ERR_DATA, "\"layers\"");
    forge("\"iteration\": 20", "\"iteration\": -20", ERR_DATA, "\"iteration\"");
    forge("\"iteration\": 20", "\"iteration\": 4611686018427387904", ERR_DATA,
          "\"iteration\" is missing or no");
    forge("\"iteration\": 20", "\"iteration\": 161", ERR_DATA, "\"iteration\" is larger than \"consumed\"");
    forge("\"consumed\": 160", "\"consumed\": 160.5", ERR_DATA, "\"consumed\"");
    forge("\"evaluated\": 0", "\"evaluated\": 21", ERR_DATA, "\"evaluated\" is larger than \"iteration\"");
    forge("\"optimizer_steps\": 0", "\"optimizer_steps\": 21", ERR_DATA, "\"optimizer_steps\"");
    forge("\"stepped\": 0", "\"stepped\": 161", ERR_DATA, "\"stepped\"");
    forge("\"skipped_in_a_row\": 0", "\"skipped_in_a_row\": 4294967296", ERR_DATA, "\"skipped_in_a_row\"");
    forge("\"loss_scale_left\": 0", "\"loss_scale_left\": 4294967296", ERR_DATA, "\"loss_scale_left\"");
    forge("\"loss_scale\": ", "\"loss_scale\": -", ERR_DATA, "\"loss_scale\"");
    forge("\"usual_loss\": ", "\"usual_loss\": null, \"was\": ", ERR_DATA, "\"usual_loss\"");
    forge("\"norm_epsilon\": ", "\"norm_epsilon\": null, \"was\": ", ERR_DATA, "\"norm_epsilon\"");
    forge("\"norm_epsilon\": ", "\"norm_epsilon\": 0, \"was\": ", ERR_DATA, "\"norm_epsilon\"");
    forge("\"hidden_dropout\": ", "\"hidden_dropout\": 1, \"was\": ", ERR_DATA, "\"hidden_dropout\"");
    forge("\"init_std\": ", "\"init_std\": 1e300, \"was\": ", ERR_DATA, "\"init_std\"");
    forge("\"rotary_base\": ", "\"rotary_base\": 0, \"was\": ", ERR_DATA, "\"rotary_base\"");
    forge("\"rotary_columns\": 4", "\"rotary_columns\": 6", ERR_DATA, "\"rotary_columns\"");
    forge("\"rms_norm\": true", "\"rms_norm\": 1", ERR_DATA, "\"rms_norm\"");
    forge("\"tensor\": 2", "\"tensor\": 2147483647", ERR_DATA, "\"tensor\"");
    forge("\"trireme checkpoint\"", "\"checkpoint\"", ERR_DATA, "\"format\"");
    forge("\"state\": {", "\"states\": {", ERR_DATA, "\"state\"");
    forge("\"swiglu\"", "\"relu\"", ERR_DATA, "activation");
    forge("\"dtype\": \"bf16\"", "\"dtype\": \"%n%s\"", ERR_DATA, "dtype");
    forge("\"tensors\": [", "\"tensors\": [], \"x\": [", ERR_DATA, "no tensors");
    forge_without_first_tensor();
    expect_whole();
    model_free(m);
}

int main(int argc, char **argv) {
    use_memory_for_files();
    return harness_run((const Test[]){{"every_bit_of_what_is_not_tensors", every_bit_of_what_is_not_tensors},
                                      {"random_bits_of_tensors", random_bits_of_tensors},
                                      {"reading_verifies", reading_verifies},
                                      {"other_lengths", other_lengths},
                                      {"lost_files", lost_files},
                                      {"swapped_and_foreign_files", swapped_and_foreign_files},
                                      {"forged_manifests", forged_manifests},
                                      {0}},
                       argc, argv);
}
