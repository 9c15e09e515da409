// Tests measured rows: how they are read, what is refused, and how predictions are scored against them.
#include "base/file.h"
#include "base/rng.h"
#include "calibrate/calibrate.h"
#include "calibrate/csv.h"
#include "harness.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *file_of(const char *name, const char *text) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", harness_folder(), name);
    CHECK(file_write(path, text, strlen(text)) == OK, "%s", fail_message());
    return path;
}

// ---- CSV ----------------------------------------------------------------------------------------

static void write_cell(Text *out, const char *cell, bool quoted) {
    if (!quoted) {
        text_add(out, "%s", cell);
        return;
    }
    text_add(out, "\"");
    for (; *cell; cell++) text_add(out, *cell == '"' ? "\"\"" : "%c", *cell);
    text_add(out, "\"");
}

// Random tables, with quotes where they are needed and elsewhere by chance, come back cell by cell.
static void tables_come_back(void) {
    static const char *const WORDS[] = {"",           "x",       "12.5", "a,b",       "\"",
                                        "two\nlines", " blank ", "\r\n", "say \"no\""};
    RngKey key = rng_key(7, "csv", 0);
    enum { ROWS = 6, COLUMNS = 4 };
    for (uint64_t at = 0, turn = 0; turn < 60; turn++) {
        const char *cells[ROWS][COLUMNS];
        Text text = {0};
        for (int r = 0; r < ROWS; r++) {
            for (int c = 0; c < COLUMNS; c++) {
                cells[r][c] =
                    r ? WORDS[rng_word(key, 0, at++) % 9] : (const char *const[]){"a", "b", "c", "d"}[c];
                bool quoted = strpbrk(cells[r][c], ",\"\r\n") || rng_word(key, 0, at++) % 3 == 0;
                write_cell(&text, cells[r][c], quoted);
                text_add(&text, c + 1 < COLUMNS             ? ","
                                : r + 1 == ROWS && turn % 2 ? ""
                                : turn % 3                  ? "\n"
                                                            : "\r\n");
            }
        }
        CsvTable table;
        EXPECT_OK(csv_read(&table, file_of("table.csv", text_string(&text))));
        EXPECT(table.rows == ROWS - 1 && table.columns == COLUMNS, "%d x %d", table.rows, table.columns);
        for (int i = 0; i < ROWS * COLUMNS; i++)
            EXPECT(!strcmp(csv_cell(&table, i / COLUMNS - 1, i % COLUMNS), cells[i / COLUMNS][i % COLUMNS]),
                   "cell %d is '%s' in\n%s", i, csv_cell(&table, i / COLUMNS - 1, i % COLUMNS),
                   text_string(&text));
        csv_free(&table);
        text_free(&text);
    }
}

static void loose_tables_are_refused(void) {
    static const struct {
        const char *text, *says;
    } BAD[] = {{"", "empty"},
               {"\n\n", "empty"},
               {"a,b\n1\n", "line 2: 1 cells; the first line names 2 columns, and 'b' is missing"},
               {"a,b,c\n1,2,3\n1,2",
                "line 3: 2 cells; the first line names 3 columns, and 'c' is missing: the file"},
               {"a,b,c\n1,\"\n\"\n1,2,3\n", "line 2: 2 cells"},
               {"a,b\n\n1,2,3\n", "line 3: 3 cells"},
               {"a,b\n1,2\"3\n", "line 2: a quote inside"},
               {"a,b\n\"1\"2,3\n", "line 2: a quote inside"},
               {"a,b\n1,\"2\n\n", "line 2: a quoted cell does not end"},
               {"a,b\n1\r2,3\n", "line 2: a carriage return"},
               {"a,b,a\n", "two columns are named 'a'"}};
    CsvTable table;
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        Status status = csv_read(&table, file_of("bad.csv", BAD[i].text));
        EXPECT(status == ERR_DATA && strstr(fail_message(), BAD[i].says), "'%s': %s", BAD[i].text,
               fail_message());
    }
    EXPECT(csv_read(&table, file_of("bom.csv", "\xef\xbb\xbfname\nx\n")) == OK &&
               csv_column(&table, "name") == 0,
           "a byte order mark: %s", fail_message());
    csv_free(&table);
    EXPECT_OK(csv_read(&table, file_of("lines.csv", "a\r\n\r\n\"x\r\ny\"\r\nz")));
    EXPECT(table.rows == 2 && table.lines[1] == 3 && table.lines[2] == 5, "rows on lines %d and %d",
           table.lines[1], table.lines[2]);
    csv_free(&table);
}

// ---- rows ---------------------------------------------------------------------------------------

// Reads a row given as "name=value name=value ..." over one that is right.
static Status read_one(const char *changes, PlanRows *rows) {
    static const char *const USUAL[] = {
        "id=r",     "gpu=a100-80gb",   "gpus_per_node=8", "layers=96", "hidden=1024",
        "heads=16", "vocab=512",       "seq=128",         "tp=2",      "pp=4",
        "dp=3",     "global_batch=48", "step_s=2",        "vp=2",      "micro_batch=2",
        "mlp=gelu", "recompute=none",  "attention=flash"};
    Text names = {0}, values = {0};
    for (size_t i = 0; i < sizeof USUAL / sizeof *USUAL; i++) {
        char name[32];
        snprintf(name, sizeof name, " %.*s=", (int)strcspn(USUAL[i], "="), USUAL[i]);
        if (strstr(changes, name)) continue;
        text_add(&names, "%.*s,", (int)strcspn(USUAL[i], "="), USUAL[i]);
        text_add(&values, "%s,", strchr(USUAL[i], '=') + 1);
    }
    char *copy = strdup(changes), *rest = NULL;
    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        if (value[1] == '-' && !value[2]) continue; // no such column
        text_add(&names, "%.*s,", (int)(value - word), word);
        text_add(&values, "%s,", value + 1);
    }
    text_add(&names, "unknown\n%s\n", text_string(&values));
    Status status = plan_rows_read(rows, file_of("row.csv", text_string(&names)));
    free(copy);
    text_free(&names);
    text_free(&values);
    return status;
}

static void rows_say_what_was_run(void) {
    PlanRows rows;
    EXPECT_OK(read_one(" heads=8 kv_heads=2 mlp=swiglu ffn_hidden=2816 tied_embedding=0 schedule=interleaved"
                       " recompute=selective precision=fp16 zero_stage=1 sequence_parallel=1 mem_gb=41.5 cp=2"
                       " gpus=48 tp_comm_overlap=0 note=suspect",
                       &rows));
    const PlanRow *row = &rows.items[0];
    const ModelShape *m = &row->model;
    const ParallelConfig *c = &row->config;
    EXPECT(rows.count == 1 && row->line == 2 && !strcmp(row->id, "r"), "%d rows", rows.count);
    EXPECT(m->layers == 96 && m->head_size == 128 && m->groups == 2 && m->ffn == 2816 && m->untied &&
               m->rms_norm,
           "the model");
    EXPECT(m->position == POSITION_ROTARY && m->no_linear_bias && m->hidden_dropout == 0, "a Llama");
    EXPECT(grid_along(c->grid, AXIS_TP) == 2 && grid_along(c->grid, AXIS_PP) == 4 &&
               grid_along(c->grid, AXIS_DP) == 3 && grid_along(c->grid, AXIS_CP) == 2 && c->chunks == 2,
           "the grid");
    EXPECT(!strcmp(c->schedule, "interleaved") && c->microbatch == 2 && c->batch == 48, "the schedule");
    EXPECT(c->recompute == RECOMPUTE_SELECTIVE && c->dtype == F16 && c->zero_stage == 1 &&
               c->sequence_parallel,
           "the method");
    EXPECT(row->has_zero_stage && row->has_overlap_tensor && !row->has_overlap_gradients, "what is told");
    EXPECT(row->step_s == 2 && row->memory_gb == 41.5 && row->suspect && !row->guessed, "the result");
    plan_rows_free(&rows);
}

static void wrong_rows_are_refused(void) {
    static const struct {
        const char *changes, *says;
    } BAD[] = {{" layers=0", "line 2: layers '0': a whole number from 1"},
               {" layers=x", "line 2: layers 'x'"},
               {" hidden=1e3", "hidden '1e3'"},
               {" heads=7", "heads '7': hidden must be a multiple"},
               {" kv_heads=3", "kv_heads '3': heads must be a multiple"},
               {" step_s=-1", "step_s '-1': a number above 0"},
               {" step_s=nan", "step_s 'nan'"},
               {" step_s=", "step_s '': seconds"},
               {" metric=oom", "step_s '2': a run that did not fit"},
               {" gpus=25", "gpus 25 is not tp 2 x pp 4 x cp 1 x dp 3 = 24"},
               {" global_batch=50", "global_batch 50 is no multiple of micro_batch 2 x dp 3 = 6"},
               {" mlp=silu", "mlp 'silu': one of gelu, relu2, swiglu"},
               {" mlp=swiglu", "ffn_hidden ''"},
               {" recompute=some", "recompute 'some': one of none, selective, full"},
               {" precision=int8", "precision 'int8': one of bf16, fp16, fp32"},
               {" sequence_parallel=2", "sequence_parallel '2': 0 or 1"},
               {" schedule=none", "schedule 'none'"},
               {" stash_limit=0", "stash_limit '0': a whole number from 1"},
               {" schedule=1f1b", "vp '2': the schedule 1f1b has 1 chunk per rank"},
               {" schedule=2f2b", "schedule '2f2b'"},
               {" tp=16777216 dp=16777216", "GPUs"},
               {" id=a-name-that-is-much-longer-than-any-name-of-a-row-may-be", "at most 47"},
               {" tp=- step_s=-", "no column tp step_s; required are layers hidden heads vocab seq tp pp"}};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        PlanRows rows;
        Status status = read_one(BAD[i].changes, &rows);
        EXPECT(status == ERR_DATA && strstr(fail_message(), BAD[i].says), "%s: %d %s", BAD[i].changes, status,
               status == OK ? "" : fail_message());
        if (status == OK) plan_rows_free(&rows);
    }
}

static void runs_without_room_and_fp8(void) {
    PlanRows rows;
    EXPECT_OK(read_one(" metric=oom step_s=", &rows));
    EXPECT(rows.count == 1 && rows.items[0].step_s == 0, "a run that did not fit");
    plan_rows_free(&rows);
    EXPECT_OK(read_one(" precision=fp8", &rows));
    EXPECT(rows.count == 1 && rows.items[0].config.dtype == BF16 &&
               rows.items[0].config.factors == FACTORS_FP8,
           "%d rows", rows.count);
    plan_rows_free(&rows);
    EXPECT_OK(read_one(" precision=nvfp4", &rows));
    EXPECT(rows.items[0].config.factors == FACTORS_NVFP4, "nvfp4 is %d", rows.items[0].config.factors);
    plan_rows_free(&rows);
}

// A schedule that needs other chunks is refused by the prediction of its row, and the file is read; where the row has
// no number of chunks, it is the schedule's.
static void schedules_have_their_chunks(void) {
    PlanRows rows;
    EXPECT_OK(read_one(" schedule=zb-v vp=", &rows));
    EXPECT(rows.count == 1 && rows.items[0].config.chunks == 2, "zb-v without vp");
    plan_rows_free(&rows);
    EXPECT_OK(read_one(" schedule=zb-v vp=3", &rows));
    EXPECT(rows.count == 1 && rows.items[0].config.chunks == 3, "zb-v with vp 3");
    plan_rows_free(&rows);
    EXPECT_OK(read_one(" schedule=auto vp=1 stash_limit=8", &rows));
    EXPECT(parallel_config_schedule(&rows.items[0].config).stash_limit == 8, "auto with 8 stashes");
    plan_rows_free(&rows);
}

// However a file is cut off, no part of a row is taken for a row.
static void files_cut_off_say_where(void) {
    static const char *const FILE_TEXT =
        "layers,hidden,heads,vocab,seq,tp,pp,dp,global_batch,step_s,note\n24,2304,24,51200,2048,1,1,32,512,3.5,x\n";
    size_t first = strcspn(FILE_TEXT, "\n") + 1, note = strlen(FILE_TEXT) - strlen("x\n");
    for (size_t size = 0; size < note; size++) {
        char text[200] = "";
        PlanRows rows;
        memcpy(text, FILE_TEXT, size);
        Status status = plan_rows_read(&rows, file_of("cut.csv", text));
        const char *says = !size                              ? "empty"
                           : size < first - strlen(",note\n") ? "line 1: no column"
                           : size <= first                    ? "line 1 names the columns, and no row follows"
                                                              : "is missing: the file ends there";
        EXPECT(status == ERR_DATA && strstr(fail_message(), says), "%zu bytes: %d %s", size, status,
               status == OK ? "" : fail_message());
        if (status == OK) plan_rows_free(&rows);
    }
}

// What the rule makes of what is open.
static void open_choices_follow_the_rule(void) {
    static const struct {
        const char *changes;
        int microbatch, chunks;
        Recompute recompute;
        bool sequence_parallel;
    } CASES[] = {
        {" micro_batch= vp= recompute= attention=", 1, 12, RECOMPUTE_NOTHING,
         false},                                                  // 24 layers: 12 chunks of 2
        {" vp=- layers=12", 2, 3, RECOMPUTE_NOTHING, false},      // 3 layers: 3 chunks of 1
        {" vp= layers=9", 2, 1, RECOMPUTE_NOTHING, false},        // uneven stages
        {" vp= global_batch=42", 2, 1, RECOMPUTE_NOTHING, false}, // 7 microbatches, p = 4
        {" vp= schedule=1f1b", 2, 1, RECOMPUTE_NOTHING, false},
        {" vp= schedule=none pp=1 recompute=-", 2, 1, RECOMPUTE_NOTHING, false},
        {" recompute= attention=unfused", 2, 2, RECOMPUTE_UNIFORM, false},
        {" recompute= tp_comm_overlap=1", 2, 2, RECOMPUTE_NOTHING, true},
        {" micro_batch= tp=1 tp_comm_overlap=1", 1, 2, RECOMPUTE_NOTHING, false},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        PlanRows rows;
        EXPECT_OK(read_one(CASES[i].changes, &rows));
        const ParallelConfig *c = &rows.items[0].config;
        EXPECT(c->microbatch == CASES[i].microbatch && c->chunks == CASES[i].chunks &&
                   c->recompute == CASES[i].recompute && c->sequence_parallel == CASES[i].sequence_parallel,
               "%s: b %d, v %d, recompute %d, %d", CASES[i].changes, c->microbatch, c->chunks,
               (int)c->recompute, c->sequence_parallel);
        EXPECT(rows.items[0].guessed == !strstr(CASES[i].changes, "schedule=1f1b") ||
                   strstr(CASES[i].changes, "vp="),
               "%s: guessed %d", CASES[i].changes, rows.items[0].guessed);
        plan_rows_free(&rows);
    }
}

static void rows_find_their_machines(void) {
    static const struct {
        const char *changes, *machine;
    } CASES[] = {{" inter_node_gbps=1600", "dgx-a100-80gb"},
                 {" inter_node_gbps=800", "a100-80gb-4nic"},
                 {" inter_node_gbps=400", "a100-80gb-4nic"},
                 {" inter_node_gbps=", "dgx-a100-80gb"},
                 {" gpu=h100-80gb", "dgx-h100"},
                 {" gpu=abacus", ""}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        PlanRows rows;
        EXPECT_OK(read_one(CASES[i].changes, &rows));
        EXPECT(!strcmp(rows.items[0].machine, CASES[i].machine), "%s: '%s'", CASES[i].changes,
               rows.items[0].machine);
        plan_rows_free(&rows);
    }
}

// ---- errors -------------------------------------------------------------------------------------

// SC'21, table 1: layers, hidden, heads, t, p, v, d, b, B, seconds (by eq. 3 from the TFLOP/s printed there).
static const struct {
    int layers, hidden, heads, t, p, v, d, b, batch;
    double step_s;
} TABLE_1[] = {
    {24, 2304, 24, 1, 1, 1, 32, 16, 512, 3.52802},   {30, 3072, 32, 2, 1, 1, 32, 16, 512, 3.69741},
    {36, 4096, 32, 4, 1, 1, 32, 16, 512, 3.69633},   {40, 6144, 48, 8, 1, 1, 32, 8, 1024, 9.3993},
    {48, 8192, 64, 8, 2, 1, 32, 4, 1536, 14.4535},   {60, 10240, 80, 8, 4, 1, 32, 2, 1792, 16.0578},
    {80, 12288, 96, 8, 8, 2, 24, 2, 2304, 24.8174},  {96, 16384, 128, 8, 16, 2, 15, 1, 2160, 37.6143},
    {105, 20480, 128, 8, 35, 3, 9, 1, 2520, 54.085}, {128, 25600, 160, 8, 64, 1, 6, 1, 3072, 102.63}};
enum { TABLE_1_ROWS = sizeof TABLE_1 / sizeof *TABLE_1 };

static PlanRows table_1(void) {
    Text text = {0};
    PlanRows rows;
    text_add(&text, "step_s,layers,hidden,heads,vocab,seq,tp,pp,vp,dp,micro_batch,global_batch,recompute,"
                    "attention\n");
    for (int i = 0; i < TABLE_1_ROWS; i++)
        text_add(&text, "%g,%d,%d,%d,51200,2048,%d,%d,%d,%d,%d,%d,full,unfused\n", TABLE_1[i].step_s,
                 TABLE_1[i].layers, TABLE_1[i].hidden, TABLE_1[i].heads, TABLE_1[i].t, TABLE_1[i].p,
                 TABLE_1[i].v, TABLE_1[i].d, TABLE_1[i].b, TABLE_1[i].batch);
    EXPECT_OK(plan_rows_read(&rows, file_of("table_1.csv", text_string(&text))));
    text_free(&text);
    return rows;
}

// The paper's TFLOP/s come out again, and one rate for all rows is wrong by 6.6 %.
static void the_naive_error_of_table_1(void) {
    static const double TFLOPS[] = {137, 138, 142, 135, 138, 140, 148, 155, 163, 163};
    PlanRows rows = table_1();
    double predicted[TABLE_1_ROWS];
    for (int i = 0; i < TABLE_1_ROWS; i++) {
        const ParallelConfig *c = &rows.items[i].config;
        double tflops = plan_row_flops(&rows.items[i]) / rows.items[i].step_s / grid_size(c->grid) / 1e12;
        EXPECT(fabs(tflops - TFLOPS[i]) < 0.6, "row %d: %g TFLOP/s", i, tflops);
        predicted[i] = 1.1 * rows.items[i].step_s;
    }
    ErrorSummary s = error_summary(&rows, predicted);
    EXPECT(fabs(s.naive - 6.62) < 0.01, "naive %g", s.naive);
    EXPECT(fabs(s.mape - 10) < 1e-9 && fabs(s.bias - 10) < 1e-9 && fabs(s.skill - (1 - 10 / s.naive)) < 1e-9,
           "mape %g, bias %g, skill %g", s.mape, s.bias, s.skill);
    plan_rows_free(&rows);
}

// Korthikanti 2022, section 6: for each layer four times as much as the model's forward when all is computed
// again, and the two products of attention once more when only they are.
static void what_is_computed_again_counts(void) {
    PlanRows rows = table_1();
    PlanRow row = rows.items[6];
    double full = plan_row_flops(&row), s = 2048, h = 12288, layers = 80, head = 6 * s * h * 51200 * 2304;
    row.config.recompute = RECOMPUTE_NOTHING;
    double model = plan_row_flops(&row);
    row.config.recompute = RECOMPUTE_SELECTIVE;
    double selective = plan_row_flops(&row);
    EXPECT(fabs((full - head) / (model - head) - 4.0 / 3) < 1e-12, "full: %g of %g", full, model);
    EXPECT(fabs((selective - model) / (2304 * layers * 4 * s * s * h) - 1) < 1e-9, "selective: %g more",
           selective - model);
    plan_rows_free(&rows);
}

static void errors_add_up(void) {
    PlanRows rows = table_1();
    static const double ERRORS[] = {1, -2, 3, -4, 5, -6, 7, -8, 9};
    double predicted[TABLE_1_ROWS] = {0};
    for (int i = 0; i < 9; i++) predicted[i] = (1 + ERRORS[i] / 100) * rows.items[i].step_s;
    ErrorSummary s = error_summary(&rows, predicted);
    EXPECT(s.count == 9 && fabs(s.mape - 5) < 1e-9 && fabs(s.median - 5) < 1e-9 && fabs(s.worst - 9) < 1e-9,
           "%d rows, %g, %g, %g", s.count, s.mape, s.median, s.worst);
    EXPECT(fabs(s.p90 - 8.2) < 1e-9 && fabs(s.bias - 5.0 / 9) < 1e-9, "p90 %g, bias %g", s.p90, s.bias);
    memset(predicted, 0, sizeof predicted);
    s = error_summary(&rows, predicted);
    EXPECT(s.count == 0 && isnan(s.mape) && isnan(s.naive), "nothing predicted: %g", s.mape);
    plan_rows_free(&rows);
}

static void tables_name_what_is_left_out(void) {
    PlanRows rows = table_1();
    Text text = {0};
    double predicted[TABLE_1_ROWS] = {0};
    for (int i = 1; i < TABLE_1_ROWS; i++) predicted[i] = 0.9 * rows.items[i].step_s;
    rows.items[9].step_s = 0;
    rows.items[3].guessed = true;
    accuracy_print(&rows, predicted, (AccuracyTerms){"leave one out", 5}, &text);
    static const char *const WORDS[] = {"line-11",
                                        "no room",
                                        "refused",
                                        "  -10.0\n",
                                        "1 row whose source",
                                        "1 row that did",
                                        "1 row whose configuration is refused",
                                        "n 8, 5 free constants, leave one out: MAPE 10.0 %, median 10.0"};
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++)
        EXPECT(strstr(text_string(&text), WORDS[i]), "'%s' is not in\n%s", WORDS[i], text_string(&text));
    text_free(&text);
    plan_rows_free(&rows);
}

// ---- our own logs -------------------------------------------------------------------------------

static Status read_metrics(const char *text, PlanRows *rows) {
    ModelShape model = {.layers = 2, .hidden = 64, .heads = 4};
    ParallelConfig config = {.grid = GRID(1, 1, 1), .batch = 8};
    *rows = (PlanRows){0};
    return plan_rows_add_metrics(rows, file_of("run.jsonl", text), &model, &config, "laptop");
}

static void logs_give_their_median(void) {
    PlanRows rows;
    Text text = {0};
    static const double MS[] = {900, 30, 10, 20, 50};
    text_add(&text, "{\"event\": \"resume\", \"from\": 3}\n{\"iteration\": 1, \"validation_loss\": 2.0}\n");
    text_add(&text, "{\"elapsed_ms\": 1.0, \"global_batch_size\": 4}\n\n");
    for (int i = 0; i < 5; i++) text_add(&text, "{\"elapsed_ms\": %g, \"global_batch_size\": 8}\n", MS[i]);
    EXPECT_OK(read_metrics(text_string(&text), &rows));
    EXPECT(rows.count == 1 && fabs(rows.items[0].step_s - 0.025) < 1e-12 &&
               !strcmp(rows.items[0].id, "run.jsonl"),
           "%d rows, %g s", rows.count, rows.count ? rows.items[0].step_s : 0);
    EXPECT(!strcmp(rows.items[0].machine, "laptop"), "on %s", rows.items[0].machine);
    plan_rows_free(&rows);
    text_free(&text);
    static const char *const BAD[] = {
        "",      "{\"elapsed_ms\": 10, \"global_batch_size\": 8}\n",      "{]\n",
        "[1]\n", "{\"elapsed_ms\": \"NaN\", \"global_batch_size\": 8}\n", "{\"elapsed_ms\": 10}\n"};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++)
        EXPECT(read_metrics(BAD[i], &rows) == ERR_DATA && strstr(fail_message(), "run.jsonl"), "'%s'",
               BAD[i]);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"csv: tables come back", tables_come_back},
                                      {"csv: loose tables are refused", loose_tables_are_refused},
                                      {"rows say what was run", rows_say_what_was_run},
                                      {"wrong rows are refused", wrong_rows_are_refused},
                                      {"files that are cut off say where", files_cut_off_say_where},
                                      {"runs without room, and fp8", runs_without_room_and_fp8},
                                      {"schedules have their chunks", schedules_have_their_chunks},
                                      {"open choices follow the rule", open_choices_follow_the_rule},
                                      {"rows find their machines", rows_find_their_machines},
                                      {"the naive error of table 1", the_naive_error_of_table_1},
                                      {"what is computed again counts", what_is_computed_again_counts},
                                      {"errors add up", errors_add_up},
                                      {"tables name what is left out", tables_name_what_is_left_out},
                                      {"logs give their median", logs_give_their_median},
                                      {0}},
                       argc, argv);
}
