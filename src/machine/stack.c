// Reads stack files into Stack, prints them, and chooses the stack for a machine.
#include "machine/files.h"
#include <math.h>
#include <string.h>

#define PERCENT 0, 1e6, "percent"
#define HULL    0, 1e9, NULL

static const YamlField STACK_FIELDS[] = {
    FIELD(Stack, TEXT, description, true, 0, 0, NULL),
    FIELD(Stack, TEXT, machine, true, 0, 0, NULL),
    FIELD_ELSEWHERE("aliases"),
    FIELD(Stack, FLAG, preferred, false, 0, 0, NULL),
    FIELD(Stack, FLAG, low_factors, false, 0, 0, NULL),
    FIELD(Stack, FLAG, of_experts, false, 0, 0, NULL),
    FIELD(Stack, TEXT, base, false, 0, 0, NULL),
    FIELD(Stack, FLAG, is_trireme, false, 0, 0, NULL),
    FIELD(Stack, TEXT, device, false, 0, 0, NULL),
    FIELD(Stack, TEXT, unmeasured, false, 0, 0, NULL),
    FIELD(Stack, NUMBER, state_bytes, true, 0, 1000, "bytes"),
    FIELD(Stack, NUMBER, sharded_bytes, true, 0, 1000, "bytes"),
    FIELD(Stack, NUMBER, gradient_bytes, true, 1, 8, "bytes"),
    FIELD(Stack, FLAG, unfused_attention, true, 0, 0, NULL),
    FIELD(Stack, FLAG, overlaps_gradients, true, 0, 0, NULL),
    FIELD(Stack, FLAG, overlaps_tensor, true, 0, 0, NULL),
    FIELD(Stack, FLAG, overlaps_messages, true, 0, 0, NULL),
    FIELD(Stack, FLAG, scatters_messages, true, 0, 0, NULL),
    FIELD(Stack, FLAG, overlaps_backward, true, 0, 0, NULL),
    FIELD(Stack, FLAG, hides_gathers, true, 0, 0, NULL),
    FIELD(Stack, FLAG, gathers_logits, true, 0, 0, NULL),
    FIELD(Stack, FLAG, balances_stages, true, 0, 0, NULL),
    FIELD(Stack, FLAG, steps_apart, false, 0, 0, NULL),
    FIELD(Stack, FLAG, fills_stages, false, 0, 0, NULL),
    FIELD(Stack, FLAG, shards_weights, false, 0, 0, NULL),
    FIELD(Stack, FLAG, offloads_optimizer, false, 0, 0, NULL),
    FIELD(Stack, FLAG, dispatches_once, false, 0, 0, NULL),
    FIELD_ELSEWHERE("constants"),
    FIELD_ELSEWHERE("priors"),
    FIELD_ELSEWHERE("variants"),
    FIELD_ELSEWHERE("accuracy"),
};

static const YamlField ACCURACY_FIELDS[] = {
    FIELD(Accuracy, TEXT, rows, true, 0, 0, NULL),      FIELD(Accuracy, TEXT, method, true, 0, 0, NULL),
    FIELD(Accuracy, TEXT, date, true, 0, 0, NULL),      FIELD(Accuracy, COUNT, count, true, 1, 1e9, NULL),
    FIELD(Accuracy, NUMBER, mape, true, PERCENT),       FIELD(Accuracy, NUMBER, median, true, PERCENT),
    FIELD(Accuracy, NUMBER, p90, true, PERCENT),        FIELD(Accuracy, NUMBER, worst, true, PERCENT),
    FIELD(Accuracy, NUMBER, naive, true, PERCENT),      FIELD(Accuracy, NUMBER, least_gpus, true, HULL),
    FIELD(Accuracy, NUMBER, most_gpus, true, HULL),     FIELD(Accuracy, NUMBER, least_hidden, true, HULL),
    FIELD(Accuracy, NUMBER, most_hidden, true, HULL),   FIELD(Accuracy, NUMBER, least_tp, true, HULL),
    FIELD(Accuracy, NUMBER, most_tp, true, HULL),       FIELD(Accuracy, NUMBER, least_sequence, true, HULL),
    FIELD(Accuracy, NUMBER, most_sequence, true, HULL),
};

// ---- reading ------------------------------------------------------------------------------------

// A base must not have a base itself.
static Status read_base(const char *file, const Json *root, Stack *stack) {
    Stack base;
    if (!*stack->base) return OK;
    if (stack_open(&base, stack->base) != OK || *base.base)
        return value_wrong(file, json_member(root, "base"), "a known stack that has no base");
    stack->base_constants = base.constants;
    memcpy(stack->base_set, base.set, sizeof base.set);
    stack->accuracy = base.accuracy;
    stack->inherits_accuracy = true;
    return OK;
}

// The kinds on which the trainer runs: the others are for tests of operations.
static Status check_device(const char *file, const Json *root, const Stack *stack) {
    static const char *const kinds[] = {"cpu", "cuda", "cuda-sim"};
    const Json *device = json_member(root, "device");
    bool known = !device;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        known = known || !strcmp(stack->device, kinds[i]);
    if (!known) return value_wrong(file, device, "cpu, cuda or cuda-sim");
    if (device && !stack->is_trireme)
        return value_wrong(file, device,
                           "no device without is_trireme: true, as other programs have none of trireme's,");
    return OK;
}

static Status stack_read(const char *file, const Json *root, Stack *stack) {
    const Json *accuracy = json_member(root, "accuracy");
    TRY(fields_read(file, root, STACK_FIELDS, FIELD_COUNT_OF(STACK_FIELDS), stack));
    if (!json_member(root, "is_trireme")) stack->is_trireme = !strcmp(stack->machine, "cpu");
    TRY(check_device(file, root, stack));
    TRY(read_base(file, root, stack));
    TRY(aliases_read(file, json_member(root, "aliases"), &stack->aliases));
    TRY(constants_read(file, json_member(root, "constants"), &stack->constants, stack->set));
    TRY(constants_read(file, json_member(root, "priors"), &stack->priors, stack->is_free));
    TRY(variants_read(file, json_member(root, "variants"), stack));
    if (!accuracy) return OK;
    stack->inherits_accuracy = false;
    return fields_read(file, accuracy, ACCURACY_FIELDS, FIELD_COUNT_OF(ACCURACY_FIELDS), &stack->accuracy);
}

Status stack_open(Stack *stack, const char *name) {
    YamlDocument document;
    Library library = {"stack", "stacks", shipped_stacks, num_shipped_stacks};
    memset(stack, 0, sizeof *stack);
    TRY(document_open(&document, &library, name));
    memcpy(stack->name, document.name, sizeof stack->name);
    Status status = stack_read(document.file, document.root, stack);
    document_close(&document);
    return status;
}

// ---- choosing -----------------------------------------------------------------------------------

bool stack_is_of(const Stack *stack, const Machine *machine) {
    return !strcmp(stack->machine, machine->is_cpu ? "cpu" : machine->name);
}

static double peak(const Machine *machine) {
    double most = 0;
    for (int i = 0; i < NUM_DTYPES; i++) most = fmax(most, machine->peak_tflops[i]);
    return most;
}

// The distance of the stack's machine from this one: 0 for the same machine, 0.5 for another one with the same GPU,
// else 1 plus the logarithm of the ratio of their peaks.
static Status distance(const Stack *stack, const Machine *machine, double *out) {
    Machine measured;
    *out = stack_is_of(stack, machine) ? 0 : INFINITY;
    if (*out == 0 || machine->is_cpu || !strcmp(stack->machine, "cpu")) return OK;
    TRY(machine_open(&measured, stack->machine));
    double ratio = fabs(log(peak(&measured) / peak(machine)));
    *out = strcmp(measured.gpu, machine->gpu) ? 1 + ratio : 0.5;
    machine_close(&measured);
    return OK;
}

static bool is_for(const Stack *stack, const Machine *machine, RunKind run) {
    if (*stack->unmeasured) return false;
    if (machine->is_cpu) return !stack->of_experts && !stack->low_factors;
    if (run.experts || stack->of_experts) return stack->of_experts == run.experts;
    return stack->low_factors == run.low;
}

Status stack_for(Stack *stack, const Machine *machine, RunKind run) {
    double least = INFINITY;
    for (int i = 0; i < num_shipped_stacks; i++) {
        Stack candidate;
        double d;
        TRY(stack_open(&candidate, shipped_stacks[i].name));
        if (!is_for(&candidate, machine, run)) continue;
        TRY(distance(&candidate, machine, &d));
        if (d < least || (d == least && isfinite(d) && candidate.preferred)) {
            least = d;
            *stack = candidate;
        }
    }
    CHECK(isfinite(least), "no shipped stack is for %s", machine->name);
    return OK;
}

// ---- writing ------------------------------------------------------------------------------------

void stack_print(const Stack *stack, Text *out) {
    fields_print(STACK_FIELDS, FIELD_COUNT_OF(STACK_FIELDS), stack, "", out);
    aliases_print(&stack->aliases, out);
    constants_print("priors", &stack->priors, stack->is_free, out);
    constants_print("constants", &stack->constants, stack->set, out);
    variants_print(stack, out);
    if (!stack->accuracy.count || stack->inherits_accuracy) return;
    text_add(out, "accuracy:\n");
    fields_print(ACCURACY_FIELDS, FIELD_COUNT_OF(ACCURACY_FIELDS), &stack->accuracy, "  ", out);
}
