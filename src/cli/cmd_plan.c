// `trireme plan`: reads what is asked, and prints a plan, or measured rows beside their predictions.
#include "cli/plan_verb.h"
#include <stdio.h>
#include <string.h>

// ---- which of the three ---------------------------------------------------------------------------

// Writes the first of these options that the user has given as it is typed; "": none is given.
static void find_given(const Options *options, const char *const *fields, char name[64]) {
    *name = 0;
    for (; *fields && !*name; fields++)
        if (options_origin(options, *fields) != FROM_DEFAULT) snprintf(name, 64, "--%s", *fields);
    for (char *c = name; *c; c++)
        if (*c == '_') *c = '-';
}

static Status check_words(const Options *o) {
    static const char *const of_plan[] = {"gpus", "tokens", "price", "pue",        "goodput",
                                          "html", "vary",   "top",   "slow_nodes", NULL};
    static const char *const of_rows[] = {"loo", "leave_model_out", "folds", NULL};
    char name[64];
    bool rows = o->rows.count || o->calibrate.count;
    const char *mode = o->rows.count ? "--rows" : "--calibrate";
    if (o->positional.count)
        return fail(ERR_USAGE, "plan takes options only, not %s; such as --model gpt3-175b --gpus 1024",
                    o->positional.items[0]);
    if (o->rows.count && o->calibrate.count)
        return fail(ERR_USAGE,
                    "--rows and --calibrate cannot be used together: --rows predicts measured runs, "
                    "--calibrate fits constants to them");
    find_given(o, rows ? of_plan : of_rows, name);
    if (*name)
        return rows ? fail(ERR_USAGE, "%s: the rows say what was run; leave out %s", mode, name)
                    : fail(ERR_USAGE, "%s is for --rows and --calibrate: leave it out", name);
    if (o->slow_nodes && *o->slow_nodes && (o->html || o->vary.count))
        return fail(ERR_USAGE,
                    "--%s answers several questions, and --slow-nodes is about one: leave out --%s or that",
                    o->html ? "html" : "vary", o->html ? "html" : "vary");
    if (o->output && !o->calibrate.count)
        return fail(ERR_USAGE,
                    "--output is where --calibrate writes the stack: leave it out, or use --html FILE");
    if (o->calibrate.count && o->json)
        return fail(ERR_USAGE, "--calibrate prints text, and --output writes a stack: leave out --json");
    if (o->loo + o->leave_model_out + (o->folds != INT_UNSET) > 1)
        return fail(ERR_USAGE,
                    "--loo, --leave-model-out and --folds each say what is held out: give one of them");
    return OK;
}

// ---- the plan -------------------------------------------------------------------------------------

typedef struct {
    PlanCache *cache;
    const PlanJob *job;
    PlanAxes axes;
    const Options *asked; // the command line as it is
} Question;

static void print(const PlanReport *report, const PlanSweep *sweep, const Options *options) {
    Text text = {0};
    if (sweep && options->json)
        plan_sweep_json(sweep, &text);
    else if (sweep)
        plan_sweep_print(sweep, &text);
    else if (options->json)
        plan_report_json(report, &text);
    else
        plan_report_print(report, &text);
    fputs(text_string(&text), stdout);
    text_free(&text);
}

static Status tell(Question *q, const PlanReport *report) {
    const Options *o = q->asked;
    PlanSweepRun *run = NULL;
    Status status = OK;
    if (o->html || o->vary.count) {
        plan_axes_fill(&q->axes, q->job, o->html && !o->vary.count);
        status = plan_sweep_open(&run, q->cache, o, &q->axes);
    }
    if (status == OK && o->html) status = plan_html(q->cache, q->job, report, plan_sweep_of(run));
    if (status == OK) print(report, o->vary.count ? plan_sweep_of(run) : NULL, o);
    plan_sweep_close(run);
    return status;
}

// Tells of the chosen configuration, and what it would be without slow nodes, and with fewer layers on them.
static Status tell_chosen(Question *q, PlanReport *report, Prediction *chosen) {
    const PlanJob *job = q->job;
    Prediction spared;
    bool is_found;
    report->chosen = chosen;
    if (!job->costs.slow.nodes) return tell(q, report);
    TRY(predict_slow_nodes(q->cache, &job->costs, &job->model, chosen));
    TRY(predict_fewer_layers(q->cache, &job->costs, &job->model, chosen, &spared, &is_found));
    report->spared = is_found ? &spared : NULL;
    return tell(q, report);
}

// A given configuration is compared with the best one for the same devices, batch and kernels.
static SearchSpace open_space(const SearchSpace *space) {
    return (SearchSpace){.devices = space->devices,
                         .batch = space->batch,
                         .sequence_parallel = -1,
                         .zero_stage = -1,
                         .fused_attention = space->fused_attention,
                         .recompute = -1,
                         .context_way = space->context_way,
                         .dtype = space->dtype,
                         .factors = space->factors,
                         .muon = space->muon,
                         .offload = space->offload};
}

static Status price_given(Question *q, PlanReport *report) {
    const PlanJob *job = q->job;
    Prediction given;
    PlanResult result;
    SearchSpace open = open_space(&job->space);
    TRY(predict(q->cache, &job->costs, &job->model, &job->config, &given));
    Status searched = plan_search(q->cache, &job->costs, &job->model, &open, job->options->top, &result);
    report->result = searched == OK ? &result : NULL;
    Status status = searched == OK || searched == ERR_CONFIG ? tell_chosen(q, report, &given) : searched;
    plan_result_free(&result);
    return status;
}

static Status tell_best(Question *q, PlanReport *report, PlanResult *result) {
    report->result = result;
    return tell_chosen(q, report, &result->best[0]);
}

static Status seek(Question *q, PlanReport *report) {
    const PlanJob *job = q->job;
    PlanResult result;
    Status status = plan_search(q->cache, &job->costs, &job->model, &job->space, job->options->top, &result);
    if (status == OK) status = tell_best(q, report, &result);
    plan_result_free(&result);
    return status;
}

static Status report_job(Question *q) {
    PlanReport report = plan_job_report(q->job);
    TRY(plan_cache_open(&q->cache));
    // Without a page the answers of --vary are all that is told.
    bool answers = q->asked->vary.count && !q->asked->html;
    Status status = answers ? tell(q, &report) : q->job->given ? price_given(q, &report) : seek(q, &report);
    plan_cache_close(q->cache);
    return status;
}

static Status plan_base(Question *q, Options *base) {
    PlanJob job;
    TRY(plan_job_open(&job, base));
    tell_notes(base);
    q->job = &job;
    Status status = report_job(q);
    plan_job_close(&job);
    return status;
}

static Status plan(const Options *options) {
    Question q = {.asked = options};
    Options base = {0};
    TRY(plan_axes_read(&q.axes, options));
    TRY(plan_axes_base(&q.axes, options, &base));
    Status status = plan_base(&q, &base);
    options_destroy(&base);
    return status;
}

// ---- the paper's takeaways ------------------------------------------------------------------------

static Status print_takeaways(const Machine *machine, const Stack *stack) {
    PlanCache *cache;
    Text text = {0};
    CostModel costs = {.machine = machine, .stack = stack, .constants = constants_of(machine, stack)};
    TRY(plan_cache_open(&cache));
    Status status = plan_takeaways(cache, &costs, &text);
    if (status == OK) fputs(text_string(&text), stdout);
    plan_cache_close(cache);
    text_free(&text);
    return status;
}

static Status takeaways(const Options *options) {
    Machine machine;
    Stack stack;
    TRY(plan_machine(options, &machine));
    Status status = plan_stack(options, &machine, &stack);
    if (status == OK) status = print_takeaways(&machine, &stack);
    machine_close(&machine);
    return status;
}

Status cmd_plan(Options *options) {
    TRY(check_words(options));
    if (options->takeaways) return takeaways(options);
    if (options->rows.count) return plan_on_rows(options);
    if (options->calibrate.count) return plan_calibration(options);
    return plan(options);
}
