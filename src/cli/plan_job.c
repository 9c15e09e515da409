// Makes the job of the verb plan from its options: machine, stack, the sizes that are given and those to search.
#include "cli/plan_verb.h"
#include "layout/topology.h"
#include "report/goodput_report.h"
#include <math.h>
#include <string.h>

static int or_zero(int value) { return value == INT_UNSET ? 0 : value; }

bool plan_is_given(const Options *options, const char *field) {
    Origin origin = options_origin(options, field);
    return origin == FROM_FILE || origin == FROM_COMMAND_LINE;
}

// ---- machine and stack --------------------------------------------------------------------------

static Status with_option(Status status, const char *option) {
    return status == OK ? OK : fail(status, "%s: %s", option, fail_message());
}

static Status machine_required(void) {
    Text names = {0};
    for (int i = 0; i < num_shipped_machines; i++)
        text_add(&names, "%s%s", i ? ", " : "", shipped_machines[i].name);
    Status status = fail(ERR_USAGE, "--machine is required: FILE.yaml, or one of %s", text_string(&names));
    text_free(&names);
    return status;
}

Status plan_machine(const Options *options, Machine *machine) {
    if (!options->machine) return machine_required();
    return with_option(machine_open(machine, options->machine), "--machine");
}

// Opens the stack that a machine's file names: a file lies beside it.
static Status open_stack_of(const Options *options, const Machine *machine, Stack *stack) {
    Text path = {0};
    const char *slash = strrchr(options->machine, '/');
    size_t length = strlen(machine->stack);
    bool is_file = length > 5 && !strcmp(machine->stack + length - 5, ".yaml");
    if (is_file && slash) text_add(&path, "%.*s", (int)(slash + 1 - options->machine), options->machine);
    text_add(&path, "%s", machine->stack);
    Status status = stack_open(stack, text_string(&path));
    text_free(&path);
    return status == OK ? OK : fail(status, "--machine %s: its stack: %s", options->machine, fail_message());
}

Status plan_stack(const Options *options, const Machine *machine, Stack *stack) {
    if (!options->stack && *machine->stack) return open_stack_of(options, machine, stack);
    RunKind run = {.low = options->fp8_format || options->fp4_format,
                   .experts = options->num_experts != INT_UNSET};
    if (!options->stack) return stack_for(stack, machine, run);
    return with_option(stack_open(stack, options->stack), "--stack");
}

static Status open_cost_model(PlanJob *job) {
    TRY(plan_machine(job->options, &job->machine));
    Status status = plan_stack(job->options, &job->machine, &job->stack);
    if (status != OK) {
        machine_close(&job->machine);
        return status;
    }
    job->costs = (CostModel){.machine = &job->machine,
                             .stack = &job->stack,
                             .constants = constants_of(&job->machine, &job->stack)};
    job->costs.constants.expert_imbalance *= job->options->expert_imbalance;
    return OK;
}

// ---- the job ------------------------------------------------------------------------------------

// Reads a number of tokens, which may be a fraction of its unit: "1.4T".
static Status read_tokens(const char *word, double *tokens) {
    static const char units[] = "KMBGT";
    static const double factors[] = {1e3, 1e6, 1e9, 1e9, 1e12};
    char number[32];
    size_t length = word ? strlen(word) : 0;
    *tokens = 0;
    if (!word) return OK;
    const char *unit = length ? strchr(units, word[length - 1]) : NULL;
    bool read = length < sizeof number;
    if (read) {
        snprintf(number, sizeof number, "%.*s", (int)(length - (unit != NULL)), word);
        read = parse_double(number, tokens) && *tokens > 0 && *tokens < 1e18;
    }
    if (!read)
        return fail(ERR_USAGE,
                    "--tokens %s: a number above 0 is expected, such as 300B, 1.4T or 300000000000", word);
    if (unit) *tokens *= factors[unit - units];
    return OK;
}

static Status goodput_of_ledger(const char *path, double *share) {
    Goodput goodput;
    Status status = goodput_read(&goodput, path);
    if (status != OK)
        return fail(status, "--goodput %s: neither a share above 0 and up to 1 nor a run's ledger: %s", path,
                    fail_message());
    *share = goodput_share(&goodput, TIME_PRODUCTIVE);
    goodput_free(&goodput);
    return *share > 0 ? OK : fail(ERR_DATA, "--goodput %s: no step of this run was training", path);
}

// Reads a share, or takes that of a run.
static Status read_goodput(const char *word, double *share) {
    *share = 1;
    if (!word) return OK;
    if (!parse_double(word, share)) return goodput_of_ledger(word, share);
    if (*share > 0 && *share <= 1) return OK;
    return fail(ERR_USAGE, "--goodput %s: a share above 0 and up to 1 is expected, such as 0.9", word);
}

static Status slow_nodes_expected(const char *word, const char *what) {
    return fail(ERR_USAGE,
                "--slow-nodes %s: %s; a number of nodes is expected, and what takes how many times as long "
                "there (compute, nic or uplink, from 1 to 1000), such as 1:compute=1.2 or 16:nic=2,uplink=4",
                word, what);
}

// Reads the next "what=factor" of the list, and moves `at` behind it.
static Status read_slowness(const char *word, const char **at, SlowNodes *slow) {
    const struct {
        const char *name;
        double *factor;
    } kinds[] = {{"compute=", &slow->compute}, {"nic=", &slow->nic}, {"uplink=", &slow->uplink}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t length = strlen(kinds[i].name), digits;
        char number[32];
        if (strncmp(*at, kinds[i].name, length) != 0) continue;
        if (*kinds[i].factor > 0) return slow_nodes_expected(word, "a factor is there twice");
        digits = strcspn(*at + length, ",");
        snprintf(number, sizeof number, "%.*s", (int)(digits < sizeof number ? digits : 0), *at + length);
        if (!parse_double(number, kinds[i].factor) || *kinds[i].factor < 1 || *kinds[i].factor > 1000)
            return slow_nodes_expected(word, "a factor is wrong");
        *at += length + digits;
        return OK;
    }
    return slow_nodes_expected(word, "what is slow there is not one of the three");
}

// Reads "N:compute=X,nic=X,uplink=X", of which what is left out takes as long as elsewhere.
static Status read_slow_nodes(const char *word, SlowNodes *slow) {
    char number[16];
    int64_t nodes;
    *slow = (SlowNodes){0};
    if (!word) return OK;
    size_t length = strcspn(word, ":");
    if (!word[length]) return slow_nodes_expected(word, "what is slow there is missing");
    snprintf(number, sizeof number, "%.*s", (int)(length < sizeof number ? length : 0), word);
    if (!parse_int(number, &nodes) || nodes < 1 || nodes > MAX_DEVICES)
        return slow_nodes_expected(word, "the number of nodes is wrong");
    slow->nodes = (int)nodes;
    for (const char *at = word + length; *at;) {
        at++;
        TRY(read_slowness(word, &at, slow));
    }
    slow->compute = fmax(1, slow->compute), slow->nic = fmax(1, slow->nic);
    slow->uplink = fmax(1, slow->uplink);
    return OK;
}

static Status check_slow_nodes(const PlanJob *job) {
    int per_node = job->machine.devices_per_node, nodes = (job->space.devices + per_node - 1) / per_node;
    if (job->costs.slow.nodes < nodes || !job->costs.slow.nodes) return OK;
    if (nodes == 1)
        return fail(ERR_CONFIG,
                    "--slow-nodes %s: there is one node, of %d devices: leave it out, or use more --gpus",
                    job->options->slow_nodes, per_node);
    return fail(
        ERR_CONFIG,
        "--slow-nodes %s: there are %d nodes, and not all can be slower than the others: use 1 to %d, or more "
        "--gpus, or a file of the slow machine",
        job->options->slow_nodes, nodes, nodes - 1);
}

// Returns the type for a user who names none: fp32 on a CPU; on a GPU bf16, else fp16, else fp32.
static DType usual_type(const Machine *machine) {
    if (machine->is_cpu) return F32;
    return machine->peak_tflops[BF16] > 0 ? BF16 : machine->peak_tflops[F16] > 0 ? F16 : F32;
}

static Status choose_type(PlanJob *job) {
    static const char *const flags[] = {[F32] = "fp32", [BF16] = "--bf16", [F16] = "--fp16"};
    const Options *o = job->options;
    bool given = plan_is_given(o, "bf16") || plan_is_given(o, "fp16");
    DType type = o->bf16 ? BF16 : o->fp16 ? F16 : given ? F32 : usual_type(&job->machine);
    if (job->machine.peak_tflops[type] <= 0)
        return fail(ERR_CONFIG, "%s: the machine %s does not compute in this type: leave it out, or use %s",
                    flags[type], job->machine.name, flags[usual_type(&job->machine)]);
    job->space.dtype = type;
    return OK;
}

static Status find_factors(const Options *o, FactorFormat *factors) {
    bool scaled = !strcmp(o->fp8_recipe, "tensorwise") || !strcmp(o->fp8_recipe, "delayed");
    bool block = !strcmp(o->fp8_recipe, "mxfp8");
    if (o->fp8_format && o->fp4_format)
        return fail(ERR_CONFIG,
                    "--fp8-format and --fp4-format each say what products take: give one of them");
    if (o->fp8_format && !scaled && !block)
        return fail(ERR_CONFIG, "--fp8-recipe %s: a plan has prices for tensorwise, delayed and mxfp8",
                    o->fp8_recipe);
    *factors = o->fp4_format    ? FACTORS_NVFP4
               : !o->fp8_format ? FACTORS_WHOLE
               : block          ? FACTORS_MXFP8
                                : FACTORS_FP8;
    return OK;
}

// Factors of 8 and 4 bits are made of bf16.
static Status choose_factors(PlanJob *job) {
    FactorFormat factors = FACTORS_WHOLE;
    TRY(find_factors(job->options, &factors));
    if (factors && job->space.dtype != BF16)
        return fail(ERR_CONFIG, "products in %s need --bf16, the type of all else: give it",
                    factor_format_name(factors));
    if (factors > FACTORS_FP8 && job->stack.is_trireme)
        return fail(ERR_CONFIG,
                    "--stack %s: trireme computes products in %s as bf16, and a plan has no price for their "
                    "factors: use --fp8-recipe tensorwise, or leave out --fp4-format",
                    job->stack.name, factor_format_name(factors));
    if (factors && job->stack.is_trireme && model_is_latent(&job->model))
        return fail(
            ERR_CONFIG,
            "--stack %s: trireme computes products of latent attention in bf16: leave out the products in %s, "
            "or --multi-latent-attention",
            job->stack.name, factor_format_name(factors));
    job->space.factors = factors;
    return OK;
}

static int fused_attention(const char *backend) {
    if (!strcmp(backend, "auto")) return -1;
    return strcmp(backend, "unfused") != 0 && strcmp(backend, "local") != 0;
}

// Returns the value of the option, or `otherwise` when it is unset.
static int flag_or(const Options *options, const char *field, bool value, int otherwise) {
    return plan_is_given(options, field) ? value : otherwise;
}

static int recompute_or(const Options *options, int otherwise) {
    if (!options->recompute_granularity) return otherwise;
    return strcmp(options->recompute_granularity, "full") ? RECOMPUTE_SELECTIVE : RECOMPUTE_UNIFORM;
}

static void fill_space(PlanJob *job) {
    const Options *o = job->options;
    SearchSpace *space = &job->space;
    bool tensor = plan_is_given(o, "tensor_model_parallel_size");
    bool pipeline = plan_is_given(o, "pipeline_model_parallel_size");
    *space = (SearchSpace){
        .batch = o->global_batch_size,
        .grid.size = {[AXIS_TP] = tensor ? o->tensor_model_parallel_size : 0,
                      [AXIS_PP] = pipeline ? o->pipeline_model_parallel_size : 0,
                      [AXIS_DP] = or_zero(o->data_parallel_size),
                      [AXIS_CP] = plan_is_given(o, "context_parallel_size") ? o->context_parallel_size : 0},
        .chunks = or_zero(o->num_virtual_stages_per_pipeline_rank),
        .microbatch = or_zero(o->micro_batch_size),
        .fused_attention = fused_attention(o->attention_backend),
        .schedule = o->schedule};
    space->grid.size[AXIS_EP] =
        plan_is_given(o, "expert_model_parallel_size") ? o->expert_model_parallel_size : 0;
    space->grid.size[AXIS_ETP] = or_zero(o->expert_tensor_parallel_size);
    space->grid.instances = o->num_distributed_optimizer_instances;
    space->context_way = plan_is_given(o, "cp_comm_type") ? (int)options_context_way(o) : -1;
    space->muon = muon_options(o);
    space->offload = options_offload(o);
    space->reduce_every = o->reduce_grads_every_microbatch;
    job->given = space->grid.size[AXIS_TP] && space->grid.size[AXIS_PP] && space->microbatch;
    int open = job->given ? 0 : -1;
    space->sequence_parallel = flag_or(o, "sequence_parallel", o->sequence_parallel, open);
    space->zero_stage = o->data_parallel_sharding_strategy
                            ? (int)options_sharding(o)
                            : flag_or(o, "use_distributed_optimizer", o->use_distributed_optimizer, open);
    space->recompute = recompute_or(o, job->given ? RECOMPUTE_NOTHING : -1);
}

// ---- the devices --------------------------------------------------------------------------------

// Adds the sizes that the user has given, and returns their product.
static int64_t decided_sizes(const SearchSpace *space, Text *out) {
    static const struct {
        const char *name;
        Axis axis;
    } sizes[] = {{"t", AXIS_TP}, {"p", AXIS_PP}, {"d", AXIS_DP}, {"c", AXIS_CP}};
    int64_t product = 1;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int size = space->grid.size[sizes[i].axis];
        if (!size) continue;
        text_add(out, "%s%s = %d", out->size ? ", " : "", sizes[i].name, size);
        product *= size;
    }
    return product;
}

// Returns whether the user has given the whole grid; context parallelism has a default.
static bool is_whole(Grid grid) { return grid.size[AXIS_TP] && grid.size[AXIS_PP] && grid.size[AXIS_DP]; }

static Status sizes_fit(const SearchSpace *space, int64_t devices) {
    Text text = {0};
    Status status = OK;
    int64_t decided = decided_sizes(space, &text);
    bool all = is_whole(space->grid);
    if (all ? devices != decided : devices % decided != 0)
        status = fail(ERR_CONFIG, "%s ask for %s%lld devices, not %lld: use --gpus %lld, or other sizes",
                      text_string(&text), all ? "" : "a multiple of ", (long long)decided, (long long)devices,
                      (long long)(decided * (all ? 1 : devices / decided + 1)));
    text_free(&text);
    return status;
}

static Status count_devices(PlanJob *job) {
    SearchSpace *space = &job->space;
    int given = job->options->gpus;
    if (given == INT_UNSET && !is_whole(space->grid))
        return fail(ERR_USAGE, "--gpus is required, such as --gpus 1024: the number of devices");
    const int *size = space->grid.size;
    int64_t devices =
        (int64_t)size[AXIS_TP] * size[AXIS_PP] * size[AXIS_DP] * grid_along(space->grid, AXIS_CP);
    if (given != INT_UNSET) devices = given;
    if (devices > MAX_DEVICES)
        return fail(ERR_CONFIG, "t * p * d * c = %lld devices: at most %d are possible", (long long)devices,
                    MAX_DEVICES);
    TRY(sizes_fit(space, devices));
    space->devices = job->asked_devices = (int)devices;
    return OK;
}

// Makes the given configuration as train would read the options: a flag that is not given is off.
static Status config_given(PlanJob *job) {
    const SearchSpace *space = &job->space;
    ParallelConfig c = parallel_config_of_stack(&job->stack, space);
    c.grid = space->grid;
    c.grid.size[AXIS_DP] = 1;
    c.grid.size[AXIS_DP] = space->devices / grid_size(c.grid);
    int required = space->schedule ? schedule_kind_chunks(schedule_kind(space->schedule)) : 0;
    c.chunks = space->chunks ? space->chunks : required ? required : 1;
    c.microbatch = space->microbatch;
    c.schedule = space->schedule ? space->schedule : schedule_kind_default(c.chunks)->name;
    c.recompute = (Recompute)space->recompute;
    c.sequence_parallel = space->sequence_parallel && space->grid.size[AXIS_TP] > 1;
    c.zero_stage = space->zero_stage;
    job->config = c;
    char why[200];
    if (parallel_config_refuse(&job->model, &job->machine, &c, why, sizeof why))
        return fail(ERR_CONFIG, "%s", why);
    return OK;
}

static bool can_offload(const Stack *stack) { return stack->is_trireme || stack->offloads_optimizer; }

// Appends the names of the shipped stacks whose programs keep optimizer state on hosts: "trireme-cpu, trireme-cuda".
static Status add_offloading_stacks(Text *names) {
    for (int i = 0; i < num_shipped_stacks; i++) {
        Stack stack;
        TRY(stack_open(&stack, shipped_stacks[i].name));
        if (can_offload(&stack)) text_add(names, "%s%s", names->size ? ", " : "", stack.name);
    }
    return OK;
}

static Status offload_refused(const char *stack) {
    Text names = {0};
    Status status = add_offloading_stacks(&names);
    if (status == OK)
        status =
            fail(ERR_CONFIG,
                 "--optimizer-cpu-offload with --stack %s: this program keeps all optimizer state on its "
                 "devices: leave the option out, or use --stack %s, or a file with offloads_optimizer: true",
                 stack, text_string(&names));
    text_free(&names);
    return status;
}

// Refuses what the stack's program lacks of the optimizer.
static Status check_optimizer(const PlanJob *job) {
    const Options *o = job->options;
    if (options_offload(o) > 0 && !can_offload(&job->stack)) return offload_refused(job->stack.name);
    if (strcmp(o->optimizer, "muon") != 0 || job->stack.is_trireme) return OK;
    return fail(
        ERR_CONFIG,
        "--optimizer muon with --stack %s: a plan knows trireme's own Muon alone: use --stack trireme, or "
        "leave it out",
        job->stack.name);
}

static Status fill(PlanJob *job) {
    const Options *o = job->options;
    TRY(check_optimizer(job));
    if (o->global_batch_size == INT_UNSET)
        return fail(ERR_USAGE,
                    "--global-batch-size is required, such as --global-batch-size 1536: the samples "
                    "of a step over all devices");
    fill_space(job);
    TRY(read_tokens(o->tokens, &job->tokens));
    TRY(read_goodput(o->goodput, &job->goodput));
    TRY(read_slow_nodes(o->slow_nodes, &job->costs.slow));
    job->price = o->price > 0 ? o->price : job->machine.price;
    job->pue = o->pue;
    job->model = options_model(o, o->vocab_size);
    TRY(choose_type(job));
    TRY(choose_factors(job));
    TRY(count_devices(job));
    TRY(check_slow_nodes(job));
    return job->given ? config_given(job) : OK;
}

Status plan_job_ask(PlanJob *job, int devices, int batch) {
    bool same = devices == job->asked_devices;
    job->space.grid.size[AXIS_DP] = same ? or_zero(job->options->data_parallel_size) : 0;
    job->space.devices = devices, job->space.batch = batch;
    TRY(sizes_fit(&job->space, devices));
    return job->given ? config_given(job) : OK;
}

PlanReport plan_job_report(const PlanJob *job) {
    return (PlanReport){.model_name = job->options->model,
                        .model = &job->model,
                        .costs = &job->costs,
                        .space = &job->space,
                        .given = job->given,
                        .tokens = job->tokens,
                        .price = job->price,
                        .goodput = job->goodput,
                        .pue = job->pue};
}

Status plan_job_open(PlanJob *job, Options *options) {
    *job = (PlanJob){.options = options};
    TRY(options_resolve(options, 1));
    TRY(open_cost_model(job));
    Status status = fill(job);
    if (status != OK) plan_job_close(job);
    return status;
}

void plan_job_close(PlanJob *job) { machine_close(&job->machine); }
