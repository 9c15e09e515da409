// Predicts measured rows, each on its own machine, with the stack of the predictor.
#include "calibrate/row_predict.h"
#include <string.h>

static Status find_relatives(RowPredictor *predictor) {
    for (int i = 0; i < num_shipped_stacks && predictor->num_stacks < MAX_ROW_STACKS; i++) {
        Stack *stack = &predictor->stacks[predictor->num_stacks];
        TRY(stack_open(stack, shipped_stacks[i].name));
        predictor->num_stacks += !strcmp(stack->base, predictor->stack->name);
    }
    return OK;
}

Status row_predictor_open(RowPredictor *predictor, const Stack *stack) {
    memset(predictor, 0, sizeof *predictor);
    predictor->stack = stack;
    TRY(find_relatives(predictor));
    return plan_cache_open(&predictor->cache);
}

void row_predictor_close(RowPredictor *predictor) {
    for (int i = 0; i < predictor->num_machines; i++) machine_close(&predictor->machines[i]);
    plan_cache_close(predictor->cache);
    memset(predictor, 0, sizeof *predictor);
}

// Gives the machine the network bandwidth of the row's nodes, which may differ from that of the shipped machine.
static void set_network(Machine *machine, double node_gbs) {
    double here = machine->nics * machine->nic_gbs;
    if (node_gbs <= 0 || here <= 0) return;
    machine->nic_gbs *= node_gbs / here;
    for (int i = 0; i < machine->num_curves; i++)
        for (int k = 0; machine->curves[i].nodes > 1 && k < machine->curves[i].count; k++)
            machine->curves[i].points[k].gbs *= node_gbs / here;
}

static Status find_machine(RowPredictor *predictor, const PlanRow *row, const Machine **out) {
    for (int i = 0; i < predictor->num_machines; i++) {
        *out = &predictor->machines[i];
        if (!strcmp(predictor->names[i], row->machine) && predictor->node_gbs[i] == row->node_gbs) return OK;
    }
    if (!*row->machine)
        return fail(ERR_DATA,
                    "row %s: no machine with the GPU %s is known; --machine FILE.yaml describes one", row->id,
                    row->gpu);
    if (predictor->num_machines == MAX_ROW_MACHINES)
        return fail(ERR_DATA, "row %s: more than %d machines in one file", row->id, MAX_ROW_MACHINES);
    Machine *machine = &predictor->machines[predictor->num_machines];
    TRY(machine_open(machine, row->machine));
    set_network(machine, row->node_gbs);
    memcpy(predictor->names[predictor->num_machines], row->machine, sizeof row->machine);
    predictor->node_gbs[predictor->num_machines++] = row->node_gbs;
    *out = machine;
    return OK;
}

static bool is_called(const Stack *stack, const char *name) {
    bool found = !strcmp(stack->name, name);
    for (int i = 0; i < stack->aliases.count; i++) found |= !strcmp(stack->aliases.names[i], name);
    return found;
}

static const Stack *find_stack(const RowPredictor *predictor, const PlanRow *row) {
    for (int i = 0; i < predictor->num_stacks; i++)
        if (is_called(&predictor->stacks[i], row->stack)) return &predictor->stacks[i];
    return predictor->stack;
}

ParallelConfig row_config(const Stack *stack, const PlanRow *row) {
    ParallelConfig c = row->config;
    if (!row->has_attention) c.attention = stack->unfused_attention ? ATTENTION_UNFUSED : ATTENTION_FUSED;
    if (!row->has_scatter_gather) c.scatter_gather = stack->scatters_messages;
    if (!row->has_overlap_gradients) c.overlap_gradients = stack->overlaps_gradients;
    c.groups_experts = !stack->is_trireme;
    if (!stack->is_trireme || c.attention == ATTENTION_UNFUSED)
        c.context_way = stack_context_way(stack, c.attention);
    if (!row->has_overlap_tensor) c.overlap_tensor = stack->overlaps_tensor;
    return c;
}

Status row_predict(RowPredictor *predictor, const Constants *constants, const PlanRow *row, Prediction *out) {
    const Machine *machine;
    TRY(find_machine(predictor, row, &machine));
    const Stack *stack = find_stack(predictor, row);
    CostModel costs = {.machine = machine, .stack = stack, .constants = *constants};
    constants_on(&costs.constants, machine, predictor->stack);
    if (stack != predictor->stack) constants_overlay(&costs.constants, stack);
    stack_apply_variant(stack, row->kernel, &costs.constants);
    ParallelConfig config = row_config(stack, row);
    return predict(predictor->cache, &costs, &row->model, &config, out);
}

Status row_predict_step(void *self, const Constants *constants, const PlanRow *row, double *step_s) {
    Prediction prediction;
    char why[200];
    RowPredictor *predictor = self;
    const Machine *machine;
    *step_s = 0;
    TRY(find_machine(predictor, row, &machine));
    if (parallel_config_refuse(&row->model, machine, &row->config, why, sizeof why)) return OK;
    TRY(row_predict(predictor, constants, row, &prediction));
    *step_s = prediction.step_s;
    return OK;
}
