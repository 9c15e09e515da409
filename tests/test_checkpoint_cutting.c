// Whatever the cutting a model is written with, any other cutting reads the same bytes; slices that do not
// cover a tensor exactly once are never committed.
#include "base/file.h"
#include "checkpoint_slices.h"

// Random rectangles of every tensor, into memory with room around them.
static void read_other_cutting(Checkpoint *c, const Model *m, Dice *dice) {
    for (int n = 0; n < 40; n++) {
        const ModelTensor *t = &m->tensors[roll(dice, m->num_tensors)];
        int64_t row = roll(dice, t->rows), col = roll(dice, t->cols);
        Rect r = {row, col, 1 + roll(dice, t->rows - row), 1 + roll(dice, t->cols - col)};
        int64_t stride = r.cols + roll(dice, 3), size = r.rows * stride;
        float *out = malloc((size_t)size * sizeof *out);
        CHECK(out, "no memory for a rectangle");
        for (int64_t i = 0; i < size; i++) out[i] = 1e30f;
        EXPECT_OK(checkpoint_read(c, checkpoint_find(c, t->name), r, out, stride));
        int wrong = 0;
        for (int64_t i = 0; i < size; i++) {
            int64_t y = i / stride, x = i % stride;
            wrong += out[i] != (x < r.cols ? t->values[(row + y) * t->cols + col + x] : 1e30f);
        }
        EXPECT(!wrong, "%d elements of %s are wrong", wrong, t->name);
        free(out);
    }
}

static void any_cutting_reads_any_cutting(void) {
    int count = harness_short() ? 15 : 100;
    for (int seed = 0; seed < count; seed++) {
        Dice dice = dice_of(1000 + (uint64_t)seed);
        Model *m = model_make((uint64_t)seed, 1 + (int)roll(&dice, MAX_RANKS), 24, seed % 4);
        EXPECT_OK(model_save(m, path_in("cut"), seed));
        CheckpointNames names;
        Checkpoint *c = NULL;
        EXPECT_OK(checkpoint_names(path_in("cut"), seed, &names));
        EXPECT_OK(checkpoint_open(&c, names.final));
        if (c) {
            read_other_cutting(c, m, &dice);
            expect_model(c, m);
            EXPECT_OK(checkpoint_verify(c));
        }
        checkpoint_close(c);
        model_free(m);
    }
    EXPECT_OK(folder_remove(path_in("cut")));
}

static void rows_longer_than_a_piece(void) {
    Model *m = model_make(7, 1, 8, 0);
    ModelTensor *t = &m->tensors[0];
    int64_t cols = (1 << 20) + 37;
    float *values = malloc((size_t)(3 * cols) * sizeof *values);
    CHECK(values, "no memory for long rows");
    for (int64_t i = 0; i < 3 * cols; i++) values[i] = (float)(i % 1013);
    free(t->values);
    *t = (ModelTensor){.rows = 3, .cols = cols, .values = values};
    snprintf(t->name, sizeof t->name, "embedding.word_embeddings.weight");
    // In parts with rows of a stride of their own, short and long ones.
    m->num_ranks = 1;
    for (int i = 0; i < m->num_slices[0]; i++)
        if (!strcmp(m->slices[0][i].tensor, t->name)) m->slices[0][i] = m->slices[0][--m->num_slices[0]];
    Dice dice = dice_of(8);
    give_slice(m, t, (Rect){0, 0, 3, 5}, &dice);
    give_slice(m, t, (Rect){0, 5, 3, 500000}, &dice); // two rows make a piece
    give_slice(m, t, (Rect){0, 500005, 3, cols - 500005}, &dice);
    EXPECT_OK(model_save(m, path_in("long"), 1));
    expect_saved(m, path_in("long"), 1);
    CheckpointNames names;
    Checkpoint *c = NULL;
    EXPECT_OK(checkpoint_names(path_in("long"), 1, &names));
    EXPECT_OK(checkpoint_open(&c, names.final));
    if (c) EXPECT_OK(checkpoint_reshard(c, path_in("long2"), 2, 0));
    checkpoint_close(c);
    expect_saved(m, path_in("long2"), 1);
    model_free(m);
}

static void resharding_keeps_the_bytes(void) {
    for (int files = 1; files <= 5; files++) {
        Model *m = model_make(50 + (uint64_t)files, 4, 20, 3);
        CheckpointNames names, others;
        Checkpoint *from = NULL, *to = NULL;
        EXPECT_OK(model_save(m, path_in("from"), files));
        EXPECT_OK(checkpoint_names(path_in("from"), files, &names));
        EXPECT_OK(checkpoint_names(path_in("to"), files, &others));
        EXPECT_OK(checkpoint_open(&from, names.final));
        if (from) EXPECT_OK(checkpoint_reshard(from, path_in("to"), files, 0));
        expect_saved(m, path_in("to"), files);
        EXPECT_OK(checkpoint_open(&to, others.final));
        for (int i = 0; to && i < checkpoint_num_tensors(to); i++)
            EXPECT(checkpoint_tensor(to, i).num_slices == 1, "%s is cut", checkpoint_tensor(to, i).name);
        if (to) EXPECT(!strcmp(checkpoint_info(to)->config, info_at(0).config), "another configuration");
        if (from)
            EXPECT(checkpoint_reshard(from, path_in("to"), 1, 0) == ERR_CREATE, "replaces %s", others.final);
        checkpoint_close(from);
        checkpoint_close(to);
        model_free(m);
    }
}

static void info_comes_back(void) {
    Model *m = model_make(3, 2, 8, 1);
    CheckpointNames names;
    Checkpoint *c = NULL;
    CheckpointInfo want = info_at(42);
    EXPECT_OK(model_save(m, path_in("info"), 42));
    EXPECT_OK(checkpoint_names(path_in("info"), 42, &names));
    EXPECT_OK(checkpoint_open(&c, names.final));
    if (!c) return;
    const CheckpointInfo *got = checkpoint_info(c);
    Text a = {0}, b = {0};
    checkpoint_describe(&want, &a);
    checkpoint_describe(got, &b);
    EXPECT(!strcmp(text_string(&a), text_string(&b)), "wrote\n%sread\n%s", text_string(&a), text_string(&b));
    EXPECT(got->state.usual_loss == 1.0 / 3 && got->shape.hidden_dropout == 0.1f, "rounded");
    EXPECT(grid_along(got->grid, AXIS_TP) == 2 && grid_along(got->grid, AXIS_DP) == 3 &&
               grid_along(got->grid, AXIS_PP) == 1 && got->num_chunks == 1,
           "the grid");
    EXPECT(!strcmp(got->config, want.config) && !strcmp(got->program, want.program), "strings");
    EXPECT(!strcmp(checkpoint_folder(c), names.final), "%s", checkpoint_folder(c));
    for (int i = 1; i < checkpoint_num_tensors(c); i++) {
        const char *before = checkpoint_tensor(c, i - 1).name, *name = checkpoint_tensor(c, i).name;
        EXPECT(!(strstr(before, "exp_avg") && !strstr(name, "exp_avg")), "%s before %s", before, name);
    }
    EXPECT(!strncmp(checkpoint_tensor(c, 0).name, "embedding.", 10), "%s", checkpoint_tensor(c, 0).name);
    EXPECT(checkpoint_find(c, "no such tensor") == -1, "finds what is not there");
    text_free(&a);
    text_free(&b);
    checkpoint_close(c);
    model_free(m);
}

// ---- what must not be committed -----------------------------------------------------------------

static void refused(Model *m, const char *tensor) {
    Status status = model_save(m, path_in("refused"), 5);
    EXPECT(status == ERR_DATA, "status %d", (int)status);
    EXPECT(strstr(fail_message(), tensor), "%s is not named: %s", tensor, fail_message());
    int64_t *steps = NULL;
    int count = 0;
    EXPECT_OK(checkpoint_steps(path_in("refused"), &steps, &count));
    EXPECT(count == 0 && !file_exists(path_in("refused/.tmp-step-00000005")), "something is left");
    free(steps);
}

// One slice doubled, of another shape, moved, too large or too small.
static void slices_cover_exactly_once(void) {
    for (int seed = 0; seed < (harness_short() ? 10 : 60); seed++) {
        Dice dice = dice_of(77 + (uint64_t)seed);
        Model *m = model_make(200 + (uint64_t)seed, 3, 12, 3);
        int rank = 0;
        while (m->num_slices[rank] < 2) rank++;
        int at = (int)roll(&dice, m->num_slices[rank]);
        Slice *s = &m->slices[rank][at], kept = *s;
        switch (seed % 4) {
        case 0: // twice, on another rank
            m->slices[(rank + 1) % 3][m->num_slices[(rank + 1) % 3]++] = kept;
            break;
        case 1: // of another tensor
            s->cols++;
            break;
        case 2: // moved out of the tensor
            s->rect.row += s->rows;
            break;
        case 3: // a row more, or less
            s->rect.rows++;
            if (s->rect.row + s->rect.rows > s->rows) s->rect.rows -= 2;
            if (!s->rect.rows) s->rect.rows = 1, s->rows++;
            break;
        }
        refused(m, kept.tensor);
        model_free(m);
    }
}

// The area is right, yet some elements are there twice and others never.
static void equal_areas_do_not_suffice(void) {
    Model *m = model_make(9, 1, 4, 0);
    ModelTensor *t = &m->tensors[0];
    free(t->values);
    t->rows = 4, t->cols = 4;
    t->values = calloc(16, sizeof *t->values);
    static const Rect wrong[][4] = {
        {{0, 0, 2, 4}, {0, 0, 2, 4}},
        {{0, 0, 4, 2}, {0, 1, 4, 2}},
        {{0, 0, 2, 2}, {0, 2, 2, 2}, {2, 0, 2, 2}, {2, 1, 2, 2}},
        {{0, 0, 3, 2}, {0, 2, 3, 2}, {3, 0, 1, 2}, {2, 2, 1, 2}},
        {{0, 0, 2, 4}, {1, 0, 2, 4}},
        {{0, 0, 4, 4}, {0, 0, 4, 4}, {0, 0, 4, 4}}, // an odd number of times
    };
    for (int w = 0; w < (int)(sizeof wrong / sizeof wrong[0]); w++) {
        Dice dice = dice_of(1);
        memset(m->num_slices, 0, sizeof m->num_slices);
        for (int i = 0; i < 4 && wrong[w][i].rows; i++) { // each on a rank of its own
            m->num_ranks = 1;
            give_slice(m, t, wrong[w][i], &dice);
            m->slices[i][0] = m->slices[0][--m->num_slices[0]];
            m->num_slices[i] = 1;
        }
        m->num_ranks = 4;
        refused(m, t->name);
    }
    model_free(m);
}

int main(int argc, char **argv) {
    use_memory_for_files();
    return harness_run((const Test[]){{"any_cutting_reads_any_cutting", any_cutting_reads_any_cutting},
                                      {"rows_longer_than_a_piece", rows_longer_than_a_piece},
                                      {"resharding_keeps_the_bytes", resharding_keeps_the_bytes},
                                      {"info_comes_back", info_comes_back},
                                      {"slices_cover_exactly_once", slices_cover_exactly_once},
                                      {"equal_areas_do_not_suffice", equal_areas_do_not_suffice},
                                      {0}},
                       argc, argv);
}
