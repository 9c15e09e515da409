// Prints a plan as JSON. Times are in seconds, sizes in bytes; rates have their unit in the name.
#include "formats/formats.h"
#include "report/plan_sweep.h"
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

// ---- members ------------------------------------------------------------------------------------

// Adds a comma, except before the first member of an object or array.
static void separate(Text *out) {
    char last = out->size ? out->data[out->size - 1] : '{';
    if (last != '{' && last != '[') text_add(out, ", ");
}

static void add_key(const char *key, Text *out) {
    separate(out);
    text_add(out, "\"%s\": ", key);
}

static void add_number(const char *key, double value, Text *out) {
    add_key(key, out);
    json_add_double(out, value);
}

static void add_count(const char *key, int64_t value, Text *out) {
    add_key(key, out);
    text_add(out, "%" PRId64, value);
}

static void add_string(const char *key, const char *value, Text *out) {
    add_key(key, out);
    json_add_string(out, value, strlen(value));
}

static void add_flag(const char *key, bool value, Text *out) {
    add_key(key, out);
    text_add(out, value ? "true" : "false");
}

typedef struct {
    const char *key;
    size_t offset;
} Member;

#define MEMBER(Struct, name)                                                                                 \
    { #name, offsetof(Struct, name) }

static void add_numbers(const Member *members, size_t count, const void *from, Text *out) {
    for (size_t i = 0; i < count; i++) {
        double value;
        memcpy(&value, (const char *)from + members[i].offset, sizeof value);
        add_number(members[i].key, value, out);
    }
}

// ---- one configuration --------------------------------------------------------------------------

static void add_configuration(const ParallelConfig *c, Text *out) {
    add_key("configuration", out);
    text_add(out, "{");
    add_count("tp", grid_along(c->grid, AXIS_TP), out);
    add_count("pp", grid_along(c->grid, AXIS_PP), out);
    add_count("dp", grid_along(c->grid, AXIS_DP), out);
    add_count("cp", grid_along(c->grid, AXIS_CP), out);
    add_count("ep", grid_along(c->grid, AXIS_EP), out);
    add_count("etp", grid_along(c->grid, AXIS_ETP), out);
    add_count("vp", c->chunks, out);
    add_count("micro_batch_size", c->microbatch, out);
    add_count("global_batch_size", c->batch, out);
    add_count("num_microbatches", parallel_config_microbatches(c), out);
    add_string("schedule", c->schedule, out);
    add_string("recompute", recompute_word(c->recompute), out);
    add_string("attention", c->attention == ATTENTION_FUSED ? "fused" : "unfused", out);
    add_string("dtype", dtype_name(c->dtype), out);
    add_string("factors", factor_format_name(c->factors), out);
    add_flag("sequence_parallel", c->sequence_parallel, out);
    add_count("zero_stage", c->zero_stage, out);
    add_number("optimizer_offload_fraction", c->offload, out);
    add_count("optimizer_instances", c->grid.instances > 1 ? c->grid.instances : 1, out);
    add_string("cp_comm_type", context_way_word(c->context_way), out);
    add_flag("scatter_gather", c->scatter_gather, out);
    add_flag("overlap_gradients", c->overlap_gradients, out);
    add_flag("overlap_tensor", c->overlap_tensor, out);
    text_add(out, "}");
}

static void add_breakdown(const Breakdown *parts, Text *out) {
    static const Member members[] = {
        MEMBER(Breakdown, compute), MEMBER(Breakdown, recompute), MEMBER(Breakdown, tensor),
        MEMBER(Breakdown, experts), MEMBER(Breakdown, stages),    MEMBER(Breakdown, bubble),
        MEMBER(Breakdown, data),    MEMBER(Breakdown, optimizer), MEMBER(Breakdown, other),
    };
    add_key("breakdown_s", out);
    text_add(out, "{");
    add_numbers(members, sizeof members / sizeof *members, parts, out);
    text_add(out, "}");
}

static void add_memory(const MemoryNeed *need, Text *out) {
    static const Member members[] = {
        MEMBER(MemoryNeed, parameters),  MEMBER(MemoryNeed, gradients), MEMBER(MemoryNeed, optimizer),
        MEMBER(MemoryNeed, activations), MEMBER(MemoryNeed, ends),      MEMBER(MemoryNeed, buffers),
        MEMBER(MemoryNeed, reserve),     MEMBER(MemoryNeed, total),     MEMBER(MemoryNeed, capacity),
    };
    add_key("memory_bytes", out);
    text_add(out, "{");
    add_numbers(members, sizeof members / sizeof *members, need, out);
    text_add(out, "}");
    add_number("host_memory_bytes", need->host, out);
    add_count("memory_rank", need->rank, out);
    add_number("memory_margin", need->margin, out);
    add_string("fits", verdict_word(memory_verdict(need)), out);
}

static void add_prediction(const PlanReport *a, const Prediction *p, Text *out) {
    static const Member members[] = {
        MEMBER(Prediction, step_s),
        MEMBER(Prediction, low_s),
        MEMBER(Prediction, high_s),
        MEMBER(Prediction, tflops),
        MEMBER(Prediction, mfu),
        MEMBER(Prediction, hfu),
        MEMBER(Prediction, model_flops),
        MEMBER(Prediction, hardware_flops),
        MEMBER(Prediction, bubble),
        MEMBER(Prediction, edge_bytes),
        MEMBER(Prediction, edge_bandwidth),
        MEMBER(Prediction, data_bandwidth),
    };
    text_add(out, "{");
    add_configuration(&p->config, out);
    add_numbers(members, sizeof members / sizeof *members, p, out);
    add_flag("extrapolates", p->extrapolates, out);
    if (a->tokens > 0) add_number("run_s", plan_report_seconds(a, p->step_s), out);
    if (a->tokens > 0 && a->price > 0) add_number("run_dollars", plan_report_dollars(a, p->step_s), out);
    if (a->tokens > 0 && machine_watts(a->costs->machine) > 0)
        add_number("run_kwh", plan_report_kwh(a, p->step_s), out);
    add_breakdown(&p->parts, out);
    add_memory(&p->memory, out);
    text_add(out, "}");
}

// ---- the question -------------------------------------------------------------------------------

static void add_model(const PlanReport *a, Text *out) {
    const ModelShape *m = a->model;
    add_key("model", out);
    text_add(out, "{");
    if (a->model_name) add_string("name", a->model_name, out);
    add_count("parameters", model_parameters(m), out);
    add_count("layers", m->layers, out);
    add_count("hidden", m->hidden, out);
    add_count("heads", m->heads, out);
    add_count("groups", model_groups(m), out);
    add_count("ffn", m->ffn, out);
    add_count("sequence", m->sequence, out);
    add_count("vocabulary", m->vocabulary, out);
    text_add(out, "}");
}

static void add_question(const PlanReport *a, Text *out) {
    add_model(a, out);
    add_string("machine", a->costs->machine->name, out);
    add_string("stack", a->costs->stack->name, out);
    add_count("devices", a->space->devices, out);
    add_count("global_batch_size", a->space->batch, out);
    if (a->tokens > 0) add_number("tokens", a->tokens, out);
    if (a->price > 0) add_number("price", a->price, out);
    if (a->tokens > 0) add_number("goodput", a->goodput, out);
    double watts = machine_watts(a->costs->machine);
    if (a->tokens > 0 && watts > 0) add_number("watts", watts, out), add_number("pue", a->pue, out);
}

// ---- the answer ---------------------------------------------------------------------------------

static void add_flags(const PlanReport *a, Text *out) {
    const ParallelConfig *c = &a->chosen->config;
    Text trireme = {0}, megatron = {0};
    flags_trireme(a->costs, a->model, c, &trireme);
    flags_megatron(a->costs, a->model, c, &megatron);
    add_key("flags", out);
    text_add(out, "{");
    add_string("trireme", text_string(&trireme), out);
    add_string("megatron_lm", text_string(&megatron), out);
    text_add(out, "}");
    text_free(&trireme);
    text_free(&megatron);
}

static void add_rejected(const PlanResult *result, Text *out) {
    static const char *const classes[] = {"rule", "memory", "bound"};
    add_key("rejected", out);
    text_add(out, "{");
    for (int i = 0; i < NUM_REJECTS; i++) {
        add_key(classes[i], out);
        text_add(out, "{");
        add_count("count", result->rejected[i], out);
        add_string("example", result->examples[i], out);
        text_add(out, "}");
    }
    text_add(out, "}");
}

static void add_result(const PlanReport *a, Text *out) {
    const PlanResult *result = a->result;
    add_count("tried", result->tried, out);
    add_count("replayed", result->replayed, out);
    add_rejected(result, out);
    add_key("ranking", out);
    text_add(out, "[");
    for (int i = 0; i < result->count; i++) {
        separate(out);
        add_prediction(a, &result->best[i], out);
    }
    text_add(out, "]");
    add_key("alternatives", out);
    text_add(out, "[");
    for (int i = 0; i < result->num_alternatives; i++) {
        separate(out);
        text_add(out, "{");
        add_string("choice", result->alternatives[i].choice, out);
        add_key("prediction", out);
        add_prediction(a, &result->alternatives[i].prediction, out);
        text_add(out, "}");
    }
    text_add(out, "]");
}

static void add_accuracy(const PlanReport *a, Text *out) {
    static const Member members[] = {
        MEMBER(Accuracy, mape),          MEMBER(Accuracy, median),       MEMBER(Accuracy, p90),
        MEMBER(Accuracy, worst),         MEMBER(Accuracy, naive),        MEMBER(Accuracy, least_gpus),
        MEMBER(Accuracy, most_gpus),     MEMBER(Accuracy, least_hidden), MEMBER(Accuracy, most_hidden),
        MEMBER(Accuracy, least_tp),      MEMBER(Accuracy, most_tp),      MEMBER(Accuracy, least_sequence),
        MEMBER(Accuracy, most_sequence),
    };
    const Accuracy *accuracy = &a->costs->stack->accuracy;
    add_key("accuracy", out);
    text_add(out, "{");
    add_count("rows", accuracy->count, out);
    if (accuracy->count) {
        add_string("of", accuracy->rows, out);
        add_string("method", accuracy->method, out);
        add_string("date", accuracy->date, out);
        add_numbers(members, sizeof members / sizeof *members, accuracy, out);
    }
    if (*a->costs->stack->unmeasured) add_string("unmeasured", a->costs->stack->unmeasured, out);
    add_flag("same_machine", stack_is_of(a->costs->stack, a->costs->machine), out);
    text_add(out, "}");
}

static void add_slow_nodes(const PlanReport *a, Text *out) {
    static const Member factors[] = {MEMBER(SlowNodes, compute), MEMBER(SlowNodes, nic),
                                     MEMBER(SlowNodes, uplink)};
    const SlowNodes *slow = &a->costs->slow;
    const Prediction *p = a->chosen;
    Text layout = {0};
    if (!slow->nodes) return;
    add_key("slow_nodes", out);
    text_add(out, "{");
    add_count("nodes", slow->nodes, out);
    add_numbers(factors, sizeof factors / sizeof *factors, slow, out);
    add_number("even_s", p->even_s, out);
    add_count("first_rank", p->config.slow.first, out);
    add_count("ranks", p->config.slow.count, out);
    add_number("worst_s", p->worst_s, out);
    add_count("worst_first_rank", p->worst.first, out);
    if (a->spared && plan_report_layout(a, &a->spared->config, &layout) == OK) {
        add_number("spared_s", a->spared->step_s, out);
        add_string("spared_layout", text_string(&layout), out);
    }
    text_add(out, "}");
    text_free(&layout);
}

static void add_cell(const SweepCell *cell, Text *out) {
    const PlanReport *a = &cell->report;
    separate(out);
    text_add(out, "{");
    add_question(a, out);
    add_flag("on_front", cell->on_front, out);
    if (a->chosen) {
        add_key("chosen", out);
        add_prediction(a, a->chosen, out);
    } else {
        add_string("why", cell->why, out);
    }
    text_add(out, "}");
}

void plan_sweep_json(const PlanSweep *sweep, Text *out) {
    text_add(out, "{\"cells\": [");
    for (int i = 0; i < sweep->count; i++) add_cell(&sweep->cells[i], out);
    text_add(out, "]}\n");
}

void plan_report_json(const PlanReport *a, Text *out) {
    Text words = {0};
    text_add(out, "{");
    add_question(a, out);
    plan_report_paragraph(a, &words);
    add_string("answer", text_string(&words), out);
    add_flag("given", a->given, out);
    add_key("chosen", out);
    add_prediction(a, a->chosen, out);
    add_flags(a, out);
    add_slow_nodes(a, out);
    if (a->result) add_result(a, out);
    add_accuracy(a, out);
    text_add(out, "}\n");
    text_free(&words);
}
