// Reads measured rows from a CSV file: checks every cell, and fills in what the source leaves open.
#include "calibrate/rows.h"
#include "calibrate/csv.h"
#include "layout/kinds.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

//  name, required
#define COLUMNS(X)                                                                                           \
    X(id, false)                                                                                             \
    X(set, false)                                                                                            \
    X(stack, false)                                                                                          \
    X(gpu, false)                                                                                            \
    X(gpus_per_node, false)                                                                                  \
    X(inter_node_gbps, false)                                                                                \
    X(model, false)                                                                                          \
    X(layers, true)                                                                                          \
    X(hidden, true)                                                                                          \
    X(heads, true)                                                                                           \
    X(kv_heads, false)                                                                                       \
    X(ffn_hidden, false)                                                                                     \
    X(mlp, false)                                                                                            \
    X(vocab, true)                                                                                           \
    X(tied_embedding, false)                                                                                 \
    X(seq, true)                                                                                             \
    X(gpus, false)                                                                                           \
    X(tp, true)                                                                                              \
    X(pp, true)                                                                                              \
    X(vp, false)                                                                                             \
    X(cp, false)                                                                                             \
    X(dp, true)                                                                                              \
    X(micro_batch, false)                                                                                    \
    X(global_batch, true)                                                                                    \
    X(schedule, false)                                                                                       \
    X(stash_limit, false)                                                                                    \
    X(recompute, false)                                                                                      \
    X(sequence_parallel, false)                                                                              \
    X(zero_stage, false)                                                                                     \
    X(precision, false)                                                                                      \
    X(attention, false)                                                                                      \
    X(attention_kernel, false)                                                                               \
    X(p2p_scatter_gather, false)                                                                             \
    X(tp_comm_overlap, false)                                                                                \
    X(dp_comm_overlap, false)                                                                                \
    X(metric, false)                                                                                         \
    X(step_s, true)                                                                                          \
    X(mem_gb, false)                                                                                         \
    X(note, false)

#define X(name, required) COLUMN_##name,
typedef enum { COLUMNS(X) NUM_COLUMNS } Column;
#undef X

static const struct {
    const char *name;
    bool required;
} columns[NUM_COLUMNS] = {
#define X(name, required) {#name, required},
    COLUMNS(X)
#undef X
};

// The row that is read.
typedef struct {
    const CsvTable *table;
    const char *path;
    int row;
    int places[NUM_COLUMNS]; // column of the file; -1: missing
} Source;

static const char *cell(const Source *s, Column column) {
    return s->places[column] < 0 ? "" : csv_cell(s->table, s->row, s->places[column]);
}

static int line_of(const Source *s) { return s->table->lines[s->row + 1]; }

static Status wrong(const Source *s, Column column, const char *allowed) {
    return fail(ERR_DATA, "%s: line %d: %s '%.40s': %s", s->path, line_of(s), columns[column].name,
                cell(s, column), allowed);
}

// ---- one cell -----------------------------------------------------------------------------------

static Status read_text(const Source *s, Column column, char *to, size_t size) {
    const char *text = cell(s, column);
    if (strlen(text) >= size)
        return fail(ERR_DATA, "%s: line %d: %s '%.40s...': at most %zu bytes", s->path, line_of(s),
                    columns[column].name, text, size - 1);
    strcpy(to, text);
    return OK;
}

// Reads a whole number; an empty cell counts as `unset`. With `unset` 0 it must not be empty.
static Status read_count(const Source *s, Column column, int unset, int most, int *value) {
    const char *text = cell(s, column);
    int64_t number = unset;
    if ((*text || !unset) && (!parse_int(text, &number) || number < 1 || number > most))
        return fail(ERR_DATA, "%s: line %d: %s '%.40s': a whole number from 1 to %d", s->path, line_of(s),
                    columns[column].name, text, most);
    *value = (int)number;
    return OK;
}

static Status read_positive(const Source *s, Column column, double *value) {
    const char *text = cell(s, column);
    *value = 0;
    if (*text && (!parse_double(text, value) || *value <= 0 || *value > 1e12))
        return wrong(s, column, "a number above 0");
    return OK;
}

// Reads 0 or 1; an empty cell leaves `value` as it is. `given`, unless NULL, says whether the cell was not empty.
static Status read_flag(const Source *s, Column column, bool *value, bool *given) {
    const char *text = cell(s, column);
    if (given) *given = *text != 0;
    if (!*text) return OK;
    if (strcmp(text, "0") && strcmp(text, "1")) return wrong(s, column, "0 or 1");
    *value = *text == '1';
    return OK;
}

// Writes the index of the cell's word in `words`, which ends with NULL; `unset` for an empty cell.
static Status read_word(const Source *s, Column column, const char *const *words, int unset, int *value) {
    const char *text = cell(s, column);
    Text known = {0};
    *value = unset;
    if (!*text) return OK;
    for (int i = 0; words[i]; i++) {
        if (!strcmp(text, words[i])) {
            *value = i;
            text_free(&known);
            return OK;
        }
        text_add(&known, "%s%s", i ? ", " : "one of ", words[i]);
    }
    Status status = wrong(s, column, text_string(&known));
    text_free(&known);
    return status;
}

// ---- the parts of a row -------------------------------------------------------------------------

enum { MAX_SIZE = 1 << 24, MAX_BATCH = 1 << 26 };
enum { MLP_GELU, MLP_RELU2, MLP_SWIGLU };

static Status check_model(const Source *s, const ModelShape *m) {
    if (m->hidden % m->heads) return wrong(s, COLUMN_heads, "hidden must be a multiple of it");
    if (m->heads % m->groups) return wrong(s, COLUMN_kv_heads, "heads must be a multiple of it");
    return OK;
}

static Status read_model(const Source *s, ModelShape *m) {
    static const char *const MLPS[] = {"gelu", "relu2", "swiglu", NULL};
    int mlp;
    bool tied = true;
    TRY(read_word(s, COLUMN_mlp, MLPS, MLP_GELU, &mlp));
    *m = (ModelShape){.activation = mlp == MLP_SWIGLU ? ACTIVATION_SWIGLU : ACTIVATION_GELU,
                      .rms_norm = mlp == MLP_SWIGLU,
                      .position = mlp == MLP_GELU ? POSITION_LEARNED : POSITION_ROTARY,
                      .no_linear_bias = mlp != MLP_GELU,
                      .hidden_dropout = mlp == MLP_GELU ? 0.1f : 0,
                      .attention_dropout = mlp == MLP_GELU ? 0.1f : 0,
                      .rotary_base = 10000,
                      .norm_epsilon = 1e-5f,
                      .init_std = 0.02f};
    TRY(read_count(s, COLUMN_layers, 0, 1 << 16, &m->layers));
    TRY(read_count(s, COLUMN_hidden, 0, 1 << 20, &m->hidden));
    TRY(read_count(s, COLUMN_heads, 0, 1 << 16, &m->heads));
    TRY(read_count(s, COLUMN_kv_heads, m->heads, 1 << 16, &m->groups));
    TRY(read_count(s, COLUMN_ffn_hidden, mlp == MLP_SWIGLU ? 0 : 4 * m->hidden, MAX_SIZE, &m->ffn));
    TRY(read_count(s, COLUMN_vocab, 0, MAX_SIZE, &m->vocabulary));
    TRY(read_count(s, COLUMN_seq, 0, MAX_SIZE, &m->sequence));
    TRY(read_flag(s, COLUMN_tied_embedding, &tied, NULL));
    TRY(check_model(s, m));
    m->untied = !tied;
    m->head_size = m->hidden / m->heads;
    m->positions = m->sequence;
    return OK;
}

static Status read_grid(const Source *s, ParallelConfig *c) {
    TRY(read_count(s, COLUMN_tp, 0, MAX_SIZE, &c->grid.size[AXIS_TP]));
    TRY(read_count(s, COLUMN_pp, 0, SCHEDULE_MAX_RANKS, &c->grid.size[AXIS_PP]));
    TRY(read_count(s, COLUMN_dp, 0, MAX_SIZE, &c->grid.size[AXIS_DP]));
    TRY(read_count(s, COLUMN_cp, 1, MAX_SIZE, &c->grid.size[AXIS_CP]));
    double devices = (double)grid_along(c->grid, AXIS_TP) * grid_along(c->grid, AXIS_PP) *
                     grid_along(c->grid, AXIS_DP) * grid_along(c->grid, AXIS_CP);
    if (devices > MAX_SIZE)
        return fail(ERR_DATA, "%s: line %d: tp pp cp dp make %.0f GPUs: at most %d", s->path, line_of(s),
                    devices, MAX_SIZE);
    int gpus;
    TRY(read_count(s, COLUMN_gpus, (int)devices, MAX_SIZE, &gpus));
    if (gpus != (int)devices)
        return fail(ERR_DATA, "%s: line %d: gpus %d is not tp %d x pp %d x cp %d x dp %d = %.0f", s->path,
                    line_of(s), gpus, grid_along(c->grid, AXIS_TP), grid_along(c->grid, AXIS_PP),
                    grid_along(c->grid, AXIS_CP), grid_along(c->grid, AXIS_DP), devices);
    return OK;
}

// 1 keeps a pipeline's bubble small. Without a pipeline: 4, or 2 where 4 does not divide.
static int usual_microbatch(const ParallelConfig *c) {
    int size = grid_along(c->grid, AXIS_PP) > 1 ? 1 : 4;
    while (c->batch % ((int64_t)size * grid_along(c->grid, AXIS_DP)) && size > 1) size /= 2;
    return size;
}

static Status read_batch(const Source *s, PlanRow *row) {
    ParallelConfig *c = &row->config;
    TRY(read_count(s, COLUMN_global_batch, 0, MAX_BATCH, &c->batch));
    TRY(read_count(s, COLUMN_micro_batch, usual_microbatch(c), MAX_BATCH, &c->microbatch));
    row->guessed |= !*cell(s, COLUMN_micro_batch);
    int64_t multiple = (int64_t)c->microbatch * grid_along(c->grid, AXIS_DP);
    if (c->batch % multiple)
        return fail(ERR_DATA, "%s: line %d: global_batch %d is no multiple of micro_batch %d x dp %d = %lld",
                    s->path, line_of(s), c->batch, c->microbatch, grid_along(c->grid, AXIS_DP),
                    (long long)multiple);
    return OK;
}

// Two layers in a chunk where that divides, else one. Interleaving needs microbatches in groups of p.
static int usual_chunks(const ModelShape *model, const ParallelConfig *c) {
    int layers = model->layers / grid_along(c->grid, AXIS_PP),
        m = c->batch / c->microbatch / grid_along(c->grid, AXIS_DP);
    if (grid_along(c->grid, AXIS_PP) == 1 || model->layers % grid_along(c->grid, AXIS_PP) ||
        m % grid_along(c->grid, AXIS_PP))
        return 1;
    int chunks = layers % 2 ? layers : layers / 2;
    return chunks < SCHEDULE_MAX_CHUNKS ? chunks : 1;
}

static Status unknown_schedule(const Source *s) {
    Text known = {0};
    text_add(&known, "it must be none, ");
    schedule_kind_names(0, ", ", &known);
    Status status = wrong(s, COLUMN_schedule, text_string(&known));
    text_free(&known);
    return status;
}

static Status read_schedule(const Source *s, PlanRow *row) {
    ParallelConfig *c = &row->config;
    const char *text = cell(s, COLUMN_schedule);
    bool plain = !strcmp(text, "none");
    const ScheduleKind *kind = plain ? schedule_kind_default(1) : *text ? schedule_kind(text) : NULL;
    if (*text && !kind) return unknown_schedule(s);
    int required = kind ? schedule_kind_chunks(kind) : 0;
    int usual = required ? required : usual_chunks(&row->model, c);
    TRY(read_count(s, COLUMN_vp, usual, SCHEDULE_MAX_CHUNKS, &c->chunks));
    row->guessed |= !*cell(s, COLUMN_vp) && grid_along(c->grid, AXIS_PP) > 1;
    if (plain && grid_along(c->grid, AXIS_PP) > 1) return wrong(s, COLUMN_schedule, "none needs pp 1");
    if (!kind) kind = schedule_kind_default(c->chunks);
    c->schedule = kind->name;
    if (*cell(s, COLUMN_stash_limit)) TRY(read_count(s, COLUMN_stash_limit, 0, 1 << 20, &c->stash_limit));
    if (!kind->is_default || !required || c->chunks == required) return OK; // a prediction refuses the others
    char why[80];
    snprintf(why, sizeof why, "the schedule %s has %d chunk%s per rank", kind->name, required,
             required > 1 ? "s" : "");
    return wrong(s, COLUMN_vp, why);
}

static Status read_method(const Source *s, PlanRow *row) {
    static const char *const ATTENTION[] = {"flash", "unfused", NULL};
    static const char *const RECOMPUTE[] = {"none", "selective", "full", NULL};
    static const Recompute KINDS[] = {RECOMPUTE_NOTHING, RECOMPUTE_SELECTIVE, RECOMPUTE_UNIFORM};
    static const char *const STAGES[] = {"0", "1", "2", "3", NULL};
    static const char *const PRECISIONS[] = {"bf16", "fp16", "fp32", "fp8", "mxfp8", "nvfp4", NULL};
    static const DType DTYPES[] = {BF16, F16, F32, BF16, BF16, BF16};
    static const FactorFormat FACTORS[] = {[3] = FACTORS_FP8, FACTORS_MXFP8, FACTORS_NVFP4};
    ParallelConfig *c = &row->config;
    int attention, recompute, precision;
    TRY(read_word(s, COLUMN_precision, PRECISIONS, 0, &precision));
    TRY(read_word(s, COLUMN_attention, ATTENTION, 0, &attention));
    TRY(read_word(s, COLUMN_recompute, RECOMPUTE, attention ? 2 : 0, &recompute));
    TRY(read_word(s, COLUMN_zero_stage, STAGES, 0, &c->zero_stage));
    TRY(read_flag(s, COLUMN_p2p_scatter_gather, &c->scatter_gather, &row->has_scatter_gather));
    TRY(read_flag(s, COLUMN_tp_comm_overlap, &c->overlap_tensor, &row->has_overlap_tensor));
    TRY(read_flag(s, COLUMN_dp_comm_overlap, &c->overlap_gradients, &row->has_overlap_gradients));
    bool has_sequence = false;
    c->sequence_parallel = c->overlap_tensor;
    TRY(read_flag(s, COLUMN_sequence_parallel, &c->sequence_parallel, &has_sequence));
    c->sequence_parallel = c->sequence_parallel && grid_along(c->grid, AXIS_TP) > 1;
    c->dtype = DTYPES[precision];
    c->factors = FACTORS[precision];
    row->has_attention = *cell(s, COLUMN_attention) != 0;
    c->attention = attention ? ATTENTION_UNFUSED : ATTENTION_FUSED;
    c->recompute = KINDS[recompute];
    row->has_zero_stage = *cell(s, COLUMN_zero_stage) != 0;
    row->guessed |= !*cell(s, COLUMN_recompute) || (!has_sequence && c->sequence_parallel);
    return OK;
}

static Status read_experts(const Source *s, PlanRow *row) {
    if (row_experts_read(cell(s, COLUMN_note), row)) return OK;
    return fail(
        ERR_DATA,
        "%s: line %d: note '%.60s': \"MoE: ep=N E=N k=N\" with whole numbers says what experts a row has",
        s->path, line_of(s), strstr(cell(s, COLUMN_note), "MoE: "));
}

static Status read_result(const Source *s, PlanRow *row) {
    TRY(read_positive(s, COLUMN_step_s, &row->step_s));
    TRY(read_positive(s, COLUMN_mem_gb, &row->memory_gb));
    bool fits = strcmp(cell(s, COLUMN_metric), "oom") != 0;
    if (!fits && row->step_s > 0)
        return wrong(s, COLUMN_step_s, "a run that did not fit (metric oom) took no time");
    if (fits && row->step_s <= 0)
        return wrong(s, COLUMN_step_s, "seconds of a step; empty only where metric is oom");
    row->suspect = strstr(cell(s, COLUMN_note), "suspect") != NULL;
    // PyTorch's own data parallelism overlaps reductions with the backward, whatever the framework does.
    if (strstr(cell(s, COLUMN_note), "DDP implementation torch"))
        row->config.overlap_gradients = row->has_overlap_gradients = true;
    return OK;
}

static Status read_origin(const Source *s, PlanRow *row) {
    double node_gbit;
    TRY(read_text(s, COLUMN_id, row->id, sizeof row->id));
    TRY(read_text(s, COLUMN_set, row->set, sizeof row->set));
    TRY(read_text(s, COLUMN_stack, row->stack, sizeof row->stack));
    TRY(read_text(s, COLUMN_model, row->model_name, sizeof row->model_name));
    TRY(read_text(s, COLUMN_gpu, row->gpu, sizeof row->gpu));
    TRY(read_text(s, COLUMN_attention_kernel, row->kernel, sizeof row->kernel));
    TRY(read_count(s, COLUMN_gpus_per_node, 8, MAX_SIZE, &row->devices_per_node));
    TRY(read_positive(s, COLUMN_inter_node_gbps, &node_gbit));
    row->line = line_of(s);
    row->node_gbs = node_gbit / 8;
    if (!*row->id) snprintf(row->id, sizeof row->id, "line-%d", row->line);
    return OK;
}

static Status read_row(const Source *s, PlanRow *row) {
    TRY(read_origin(s, row));
    TRY(read_model(s, &row->model));
    TRY(read_grid(s, &row->config));
    TRY(read_batch(s, row));
    TRY(read_schedule(s, row));
    TRY(read_method(s, row));
    TRY(read_experts(s, row));
    return read_result(s, row);
}

// ---- the file -----------------------------------------------------------------------------------

static Status find_columns(Source *s) {
    Text required = {0}, missing = {0};
    for (int c = 0; c < NUM_COLUMNS; c++) {
        s->places[c] = csv_column(s->table, columns[c].name);
        if (!columns[c].required) continue;
        text_add(&required, " %s", columns[c].name);
        if (s->places[c] < 0) text_add(&missing, " %s", columns[c].name);
    }
    Status status = OK;
    if (missing.size)
        status = fail(ERR_DATA, "%s: line %d: no column%s; required are%s", s->path, s->table->lines[0],
                      text_string(&missing), text_string(&required));
    text_free(&required);
    text_free(&missing);
    return status;
}

static Status read_rows(PlanRows *rows, const CsvTable *table, const char *path) {
    Source source = {.table = table, .path = path};
    TRY(find_columns(&source));
    if (!table->rows)
        return fail(ERR_DATA, "%s: line %d names the columns, and no row follows", path, table->lines[0]);
    for (; source.row < table->rows; source.row++) {
        PlanRow row = {0};
        TRY(read_row(&source, &row));
        TRY(plan_rows_add(rows, &row));
    }
    return rows_find_machines(rows);
}

Status plan_rows_read(PlanRows *rows, const char *path) {
    *rows = (PlanRows){0};
    CsvTable table;
    TRY(csv_read(&table, path));
    Status status = read_rows(rows, &table, path);
    csv_free(&table);
    if (status != OK) plan_rows_free(rows);
    return status;
}

Status plan_rows_add(PlanRows *rows, const PlanRow *row) {
    if (rows->count == rows->capacity) {
        int capacity = rows->capacity ? 2 * rows->capacity : 64;
        PlanRow *items = realloc(rows->items, (size_t)capacity * sizeof *items);
        if (!items) return fail(ERR_OS, "no memory for %d measured rows", capacity);
        rows->items = items;
        rows->capacity = capacity;
    }
    rows->items[rows->count++] = *row;
    return OK;
}

void plan_rows_free(PlanRows *rows) {
    free(rows->items);
    *rows = (PlanRows){0};
}
