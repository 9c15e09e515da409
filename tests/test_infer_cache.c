// Laws of inference, on every grid of up to four ranks: neither the cache changes a result, nor does cutting a prompt
// into pieces, nor going back to an earlier position; every rank gets the same.
#include "infer_fixture.h"

enum { BATCH = 2, PROMPT = 6, STEPS = 12, LOGITS = BATCH * FIXTURE_VOCABULARY };

// What a model said: the tokens chosen, and the logits of each choice.
typedef struct {
    int32_t tokens[STEPS][BATCH];
    float logits[STEPS][LOGITS];
} Story;

static const Grid GRIDS[] = {GRID(1, 1, 1), GRID(1, 1, 2), GRID(1, 1, 3), GRID(1, 1, 4),
                             GRID(2, 1, 1), GRID(2, 1, 2), GRID(3, 1, 1), GRID(4, 1, 1)};
enum { NUM_GRIDS = sizeof GRIDS / sizeof *GRIDS };

static double largest_difference(const float *a, const float *b, int count) {
    double most = 0;
    for (int i = 0; i < count; i++) {
        double difference = fabs((double)a[i] - (double)b[i]);
        most = difference <= most ? most : difference; // a NaN wins
    }
    return most;
}

// ---- greedy generation ------------------------------------------------------------------------------------

static void expect_same_everywhere(Comm *world, const float *logits) {
    float first[LOGITS];
    memcpy(first, logits, sizeof first);
    comm_broadcast_host(world, first, sizeof first, 0);
    EXPECT(!memcmp(first, logits, sizeof first), "rank %d was told other logits", comm_rank(world));
}

static Status tell_story(Comm *world, void *arg) {
    const FixtureRun *run = arg;
    Story story;
    Infer *infer;
    int32_t text[PROMPT * BATCH];
    const int32_t *next = fixture_text(text, 0, PROMPT, BATCH);
    TRY(fixture_open(&infer, &run->shape, &run->spec, world));
    for (int step = 0; step < STEPS; step++) {
        infer_next(infer, next, step ? 1 : PROMPT, story.logits[step]);
        expect_same_everywhere(world, story.logits[step]);
        for (int b = 0; b < BATCH; b++)
            story.tokens[step][b] = fixture_largest(story.logits[step] + b * FIXTURE_VOCABULARY);
        next = story.tokens[step];
    }
    EXPECT(infer_position(infer) == PROMPT + STEPS - 1, "at position %d", infer_position(infer));
    if (comm_rank(world) == 0) *(Story *)run->result = story;
    infer_close(infer);
    return OK;
}

static Story story_of(ModelShape shape, InferSpec spec) {
    Story story = {0};
    FixtureRun run = {shape, spec, &story};
    EXPECT_OK(fixture_launch(&run, tell_story));
    return story;
}

static bool varied(const Story *story) {
    for (int step = 1; step < STEPS; step++)
        if (story->tokens[step][0] != story->tokens[0][0]) return true;
    return false;
}

static void expect_same_story(const Story *a, const Story *b, Grid grid, const char *what, double tolerance) {
    for (int step = 0; step < STEPS; step++) {
        double error = largest_difference(a->logits[step], b->logits[step], LOGITS);
        EXPECT(error <= tolerance, "t %d, p %d, step %d: logits differ by %.2g, %s",
               grid_along(grid, AXIS_TP), grid_along(grid, AXIS_PP), step, error, what);
        EXPECT(!memcmp(a->tokens[step], b->tokens[step], sizeof a->tokens[step]),
               "t %d, p %d, step %d: other tokens, %s", grid_along(grid, AXIS_TP), grid_along(grid, AXIS_PP),
               step, what);
    }
}

static void stories_of(ModelShape shape) {
    Story alone = story_of(shape, fixture_spec(1, 1, F32, true));
    EXPECT(varied(&alone), "it always says %d", (int)alone.tokens[0][0]);
    for (int i = 0; i < NUM_GRIDS; i += harness_short() ? 5 : 1) {
        Story with = story_of(
            shape, fixture_spec(grid_along(GRIDS[i], AXIS_TP), grid_along(GRIDS[i], AXIS_PP), F32, true));
        Story without = story_of(
            shape, fixture_spec(grid_along(GRIDS[i], AXIS_TP), grid_along(GRIDS[i], AXIS_PP), F32, false));
        expect_same_story(&with, &without, GRIDS[i], "with a cache and without", 2e-5);
        expect_same_story(&with, &alone, GRIDS[i], "on one rank", 2e-5);
    }
}

static void gpt_tells_the_same(void) { stories_of(fixture_gpt()); }
static void llama_tells_the_same(void) { stories_of(fixture_llama()); }
static void limited_tell_the_same(void) {
    stories_of(fixture_limited(fixture_gpt()));
    stories_of(fixture_limited(fixture_llama()));
}

static void other_families_tell_the_same(void) {
    stories_of(fixture_sandwich());
    stories_of(fixture_post());
    stories_of(fixture_latent());
}

// In bf16 a choice between neighbours may fall otherwise, and then all that follows.
static void expect_like_story(const Story *a, const Story *b, Grid grid) {
    for (int step = 0; step < STEPS; step++) {
        double error = largest_difference(a->logits[step], b->logits[step], LOGITS), size = 0;
        for (int i = 0; i < LOGITS; i++) size = fmax(size, fabs((double)a->logits[step][i]));
        EXPECT(error <= 0.05 * size, "t %d, p %d, step %d: logits of %.2g differ by %.2g",
               grid_along(grid, AXIS_TP), grid_along(grid, AXIS_PP), step, size, error);
        if (memcmp(a->tokens[step], b->tokens[step], sizeof a->tokens[step])) return;
    }
}

static void narrow_stories_of(ModelShape shape) {
    for (int i = 0; i < NUM_GRIDS; i += harness_short() ? 3 : 1) {
        Story with = story_of(
            shape, fixture_spec(grid_along(GRIDS[i], AXIS_TP), grid_along(GRIDS[i], AXIS_PP), BF16, true));
        Story without = story_of(
            shape, fixture_spec(grid_along(GRIDS[i], AXIS_TP), grid_along(GRIDS[i], AXIS_PP), BF16, false));
        expect_like_story(&with, &without, GRIDS[i]);
    }
}

static void narrow_types_tell_alike(void) {
    narrow_stories_of(fixture_gpt());
    narrow_stories_of(fixture_llama());
}

// Nothing is read before it is written, no message is forgotten, memory is what was measured.
static void a_checking_device_agrees(void) {
    for (int cache = 0; cache < 2; cache++) {
        InferSpec spec = fixture_spec(2, 2, F32, cache), checked = spec;
        spec.device = "cpu", checked.device = "check";
        Story plain = story_of(fixture_gpt(), spec), strict = story_of(fixture_gpt(), checked);
        expect_same_story(&plain, &strict, spec.grid, "on a checking device", 0);
    }
}

// ---- pieces, going back, losses ---------------------------------------------------------------------------

// Feeds text from `first` up to `end`, at most `piece` positions at a time.
static void feed(Infer *infer, int first, int end, int piece, float *logits) {
    int32_t text[9 * BATCH];
    for (int n; first < end; first += n) {
        n = end - first < piece ? end - first : piece;
        infer_next(infer, fixture_text(text, first, n, BATCH), n, logits);
    }
}

static Status feed_in_pieces(Comm *world, void *arg) {
    const FixtureRun *run = arg;
    float once[LOGITS], pieces[LOGITS];
    Infer *infer;
    TRY(fixture_open(&infer, &run->shape, &run->spec, world));
    feed(infer, 0, 9, 9, once);
    for (int piece = 1; piece < 9; piece += harness_short() ? 3 : 1) {
        infer_rewind(infer, 0);
        feed(infer, 0, 9, piece, pieces);
        double error = largest_difference(once, pieces, LOGITS);
        EXPECT(error <= 2e-5, "%d at a time: %.2g", piece, error);
    }
    infer_close(infer);
    return OK;
}

// Every model on every grid, with a cache and without; in the short form half of them, among which are all pairs.
static void on_some_grids(RankMain *law, DType dtype) {
    for (int i = 0; i < 8; i++) {
        if (harness_short() && __builtin_parity((unsigned)i)) continue;
        FixtureRun run = {.shape = i & 1 ? fixture_llama() : fixture_gpt()};
        if (i % 3 == 0) run.shape = fixture_limited(run.shape);
        run.spec = fixture_spec(i & 2 ? 2 : 1, i & 2 ? 2 : 1, dtype, i & 4);
        EXPECT_OK(fixture_launch(&run, law));
    }
}

static void pieces_do_not_show(void) { on_some_grids(feed_in_pieces, F32); }

static Status go_back(Comm *world, void *arg) {
    const FixtureRun *run = arg;
    float first[LOGITS], again[LOGITS], other[LOGITS];
    Infer *infer;
    TRY(fixture_open(&infer, &run->shape, &run->spec, world));
    feed(infer, 0, 8, 8, other);
    feed(infer, 8, 14, 3, first);
    infer_rewind(infer, 8);
    feed(infer, 1, 7, 6, other);
    infer_rewind(infer, 8);
    EXPECT(infer_position(infer) == 8, "at %d", infer_position(infer));
    feed(infer, 8, 14, 3, again);
    EXPECT(!memcmp(first, again, sizeof first), "it remembers what it should not");
    EXPECT(largest_difference(first, other, LOGITS) > 1e-3, "another text gives the same");
    infer_close(infer);
    return OK;
}

static void going_back_forgets(void) {
    on_some_grids(go_back, F32);
    on_some_grids(go_back, BF16);
}

// -log softmax of one of the logits.
static double loss_of(const float *logits, int32_t label) {
    double sum = 0;
    for (int i = 0; i < FIXTURE_VOCABULARY; i++) sum += exp((double)logits[i] - (double)logits[label]);
    return log(sum);
}

static Status compare_losses(Comm *world, void *arg) {
    const FixtureRun *run = arg;
    enum { N = 7 };
    float nll[N * BATCH], margin[N * BATCH], logits[LOGITS];
    int32_t tokens[N * BATCH], labels[N * BATCH], one[BATCH];
    Infer *infer;
    TRY(fixture_open(&infer, &run->shape, &run->spec, world));
    fixture_text(labels, 1, N, BATCH);
    feed(infer, 0, 3, 3, logits);
    infer_score(infer, fixture_text(tokens, 0, N, BATCH), labels, N, nll, margin);
    EXPECT(infer_position(infer) == 3, "scoring moved the position to %d", infer_position(infer));
    infer_rewind(infer, 0);
    for (int s = 0; s < N; s++) {
        infer_next(infer, fixture_text(one, s, 1, BATCH), 1, logits);
        for (int b = 0; b < BATCH; b++) {
            int i = s * BATCH + b, label = labels[i];
            const float *row = logits + b * FIXTURE_VOCABULARY;
            double loss = loss_of(row, label), below = (double)row[label] - (double)row[fixture_largest(row)];
            EXPECT(fabs((double)nll[i] - loss) < 2e-5, "position %d: %.7g, not %.7g", s, (double)nll[i],
                   loss);
            EXPECT(fabs((double)margin[i] - below) < 2e-5 && (margin[i] == 0) == (below == 0),
                   "position %d: %.7g below the largest, not %.7g", s, (double)margin[i], below);
        }
    }
    infer_close(infer);
    return OK;
}

// Of another text, between two pieces of this one.
static Status score_between(Comm *world, void *arg) {
    const FixtureRun *run = arg;
    float first[LOGITS], again[LOGITS], nll[9 * BATCH];
    int32_t tokens[9 * BATCH], labels[9 * BATCH];
    Infer *infer;
    TRY(fixture_open(&infer, &run->shape, &run->spec, world));
    feed(infer, 0, 10, 5, first);
    infer_rewind(infer, 0);
    feed(infer, 0, 5, 5, again);
    fixture_text(labels, 21, 9, BATCH);
    infer_score(infer, fixture_text(tokens, 20, 9, BATCH), labels, 9, nll, NULL);
    feed(infer, 5, 10, 5, again);
    EXPECT(!memcmp(first, again, sizeof first), "it remembers what was scored");
    infer_close(infer);
    return OK;
}

static void scoring_leaves_no_trace(void) { on_some_grids(score_between, F32); }

// Labels after appended tokens have the losses of one call; the text goes on after them.
static Status append_labels(Comm *world, void *arg) {
    const FixtureRun *run = arg;
    enum { N = 9, SEEN = 4 };
    float nll[N * BATCH], margin[N * BATCH], late[N * BATCH], late_margin[N * BATCH], logits[LOGITS],
        alone[LOGITS];
    int32_t tokens[N * BATCH], labels[N * BATCH];
    Infer *infer;
    if (!run->spec.cache) return OK;
    TRY(fixture_open(&infer, &run->shape, &run->spec, world));
    infer_score(infer, fixture_text(tokens, 0, N, BATCH), fixture_text(labels, 1, N, BATCH), N, nll, margin);
    for (int round = 0; round < 2; round++) {
        infer_rewind(infer, 0);
        infer_append(infer, tokens, NULL, SEEN, NULL, NULL);
        infer_append(infer, tokens + SEEN * BATCH, labels + SEEN * BATCH, N - SEEN, late, late_margin);
        EXPECT(infer_position(infer) == N, "position %d", infer_position(infer));
        for (int i = 0; i < (N - SEEN) * BATCH; i++) {
            EXPECT(fabsf(late[i] - nll[SEEN * BATCH + i]) < 2e-5f, "label %d: %.7g, not %.7g", i,
                   (double)late[i], (double)nll[SEEN * BATCH + i]);
            EXPECT(fabsf(late_margin[i] - margin[SEEN * BATCH + i]) < 2e-5f, "label %d: another margin", i);
        }
    }
    feed(infer, N, N + 3, 3, logits);
    infer_rewind(infer, 0);
    feed(infer, 0, N + 3, 3, alone);
    EXPECT(!memcmp(logits, alone, sizeof logits), "it goes on otherwise after labels");
    infer_close(infer);
    return OK;
}

static void labels_after_others(void) { on_some_grids(append_labels, F32); }

static void losses_are_those_of_the_logits(void) { on_some_grids(compare_losses, F32); }

// ---- what cannot be run -----------------------------------------------------------------------------------

static void expect_refused(const ModelShape *shape, InferSpec spec, int ranks, const char *words) {
    FixtureRun run = {.shape = *shape, .spec = spec};
    CommOptions options = {.transport = "threads", .ranks = ranks, .timeout_s = 60};
    Status status = comm_launch(options, tell_story, &run);
    EXPECT(status == ERR_CONFIG && strstr(fail_message(), words), "%s: %d %s", words, (int)status,
           fail_message());
}

static void refusals(void) {
    ModelShape gpt = fixture_gpt(), llama = fixture_llama();
    InferSpec spec = fixture_spec(1, 1, F32, true);
    expect_refused(&gpt, spec, 2, "2 ranks");
    spec.capacity = FIXTURE_POSITIONS + 1;
    expect_refused(&gpt, spec, 1, "41 positions are needed, but the model has learned 40");
    spec = fixture_spec(2, 1, F32, true);
    gpt.heads = 11;
    expect_refused(&gpt, spec, 2, "11 attention heads");
    llama.groups = 3;
    expect_refused(&llama, spec, 2, "3 query groups");
    llama.groups = 12, llama.ffn = 97;
    expect_refused(&llama, spec, 2, "97 columns of the mlp");
}

static Status fail_to_read(void *self, const char *name, Rect rect, float *out, int64_t stride) {
    (void)rect, (void)out, (void)stride;
    return self ? fail(ERR_DATA, "%s is damaged", name) : OK;
}

static Status open_damaged(Comm *world, void *arg) {
    const FixtureRun *run = arg;
    Infer *infer;
    WeightReader reader = {fail_to_read, comm_rank(world) == 1 ? world : NULL};
    Status status = infer_open_with(&infer, &run->shape, reader, &run->spec, world);
    EXPECT(status == ERR_DATA && !infer, "status %d", (int)status);
    return status;
}

static void damage_on_one_rank(void) {
    FixtureRun run = {.shape = fixture_gpt(), .spec = fixture_spec(1, 2, F32, true)};
    Status status = fixture_launch(&run, open_damaged);
    EXPECT(status == ERR_DATA && strstr(fail_message(), "is damaged"), "%s", fail_message());
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"gpt_tells_the_same", gpt_tells_the_same},
                                      {"llama_tells_the_same", llama_tells_the_same},
                                      {"limited_tell_the_same", limited_tell_the_same},
                                      {"other_families_tell_the_same", other_families_tell_the_same},
                                      {"narrow_types_tell_alike", narrow_types_tell_alike},
                                      {"a_checking_device_agrees", a_checking_device_agrees},
                                      {"pieces_do_not_show", pieces_do_not_show},
                                      {"going_back_forgets", going_back_forgets},
                                      {"losses_are_those_of_the_logits", losses_are_those_of_the_logits},
                                      {"labels after others", labels_after_others},
                                      {"scoring_leaves_no_trace", scoring_leaves_no_trace},
                                      {"refusals", refusals},
                                      {"damage_on_one_rank", damage_on_one_rank},
                                      {0}},
                       argc, argv);
}
