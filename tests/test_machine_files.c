// Machines and stacks as files: what is shipped is right, what is printed reads back, and every mistake is
// told with file, line, key, value and what is allowed. No test depends on particular rows of constants.def.
#include "base/file.h"
#include "base/rng.h"
#include "harness.h"
#include "machine/machine.h"
#include <stdlib.h>
#include <string.h>

// The path of a file of these bytes in a folder of the test's own.
static const char *write_file(const char *name, const char *content) {
    static _Thread_local char path[512];
    snprintf(path, sizeof path, "%s/%s.yaml", harness_folder(), name);
    EXPECT_OK(file_write(path, content, strlen(content)));
    return path;
}

// Machines and stacks are compared as bytes: what opens them begins with zeros everywhere.
static Machine *new_machine(void) {
    Machine *machine = calloc(1, sizeof *machine);
    CHECK(machine, "no memory");
    return machine;
}

static void delete_machine(Machine *machine) {
    machine_close(machine);
    free(machine);
}

static bool same_machine(const Machine *a, const Machine *b) {
    Machine *copy = new_machine();
    size_t bytes = (size_t)a->num_rates * sizeof *a->rates;
    memcpy(copy, b, sizeof *copy);
    copy->rates = a->rates;
    bool same = !memcmp(copy, a, sizeof *copy) && (!bytes || !memcmp(a->rates, b->rates, bytes));
    free(copy);
    return same;
}

// ---- what is shipped ----------------------------------------------------------------------------

static void check_machine(const Machine *machine) {
    EXPECT(machine->num_tiles > 0 && !machine->is_cpu && machine->sms > 0, "%s", machine->name);
    EXPECT(machine->usable_gb < machine->memory_gb && machine->usable_gb > 0.97 * machine->memory_gb,
           "%s: %g of %g GB", machine->name, machine->usable_gb, machine->memory_gb);
    for (int i = 0; i < machine->num_curves; i++) {
        const Curve *curve = &machine->curves[i];
        // Latency makes small messages take the same time, within the noise of a measurement.
        for (int k = 1; k < curve->count; k++) {
            const CurvePoint *less = &curve->points[k - 1], *more = &curve->points[k];
            EXPECT(more->bytes / more->gbs > 0.97 * less->bytes / less->gbs, "%s: %g bytes are too fast",
                   machine->name, more->bytes);
        }
    }
}

static void shipped_machines_are_right(void) {
    EXPECT(num_shipped_machines >= 7, "%d machines", num_shipped_machines);
    for (int i = 0; i < num_shipped_machines; i++) {
        Machine *machine = new_machine(), *again = new_machine();
        Text text = {0};
        EXPECT_OK(machine_open(machine, shipped_machines[i].name));
        check_machine(machine);
        machine_print(machine, &text);
        EXPECT_OK(machine_open(again, write_file(machine->name, text_string(&text))));
        EXPECT(same_machine(machine, again), "%s", text_string(&text));
        text_free(&text);
        delete_machine(machine);
        delete_machine(again);
    }
}

static void names_are_found(void) {
    static const struct {
        const char *name, *found;
    } rows[] = {{"dgx-a100", "dgx-a100-80gb"}, {"selene", "dgx-a100-80gb"},
                {"eos", "dgx-h100"},           {"dgx-h100", "dgx-h100"},
                {"dgx-v100", "dgx-v100"},      {"a100-80gb-4nic", "a100-80gb-4nic"}};
    Machine *machine = new_machine();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        EXPECT_OK(machine_open(machine, rows[i].name));
        EXPECT(!strcmp(machine->name, rows[i].found), "%s is %s", rows[i].name, machine->name);
        machine_close(machine);
    }
    EXPECT(machine_open(machine, "dgx-a10") == ERR_USAGE &&
               strstr(fail_message(),
                      "unknown machine dgx-a10; did you mean dgx-a100? (there are a100-80gb-4nic, "),
           "%s", fail_message());
    EXPECT(machine_open(machine, "tpu") == ERR_USAGE && !strstr(fail_message(), "mean"), "%s",
           fail_message());
    EXPECT(machine_open(machine, "./no/such.yaml") == ERR_NO_INPUT, "%s", fail_message());
    free(machine);
}

// The rank a machine's numbers must have, from data sheets: what a typing error would break.
static void numbers_of_selene(void) {
    Machine *machine = new_machine();
    EXPECT_OK(machine_open(machine, "dgx-a100"));
    EXPECT(machine->peak_tflops[F16] == 312 && machine->peak_tflops[BF16] == 312, "peaks");
    EXPECT(machine->devices_per_node * machine->nics * machine->nic_gbs == 8 * 200, "8 NICs of 25 GB/s");
    EXPECT(machine->num_curves == 7 && machine->curves[6].ranks == 8 && machine->curves[6].nodes == 1,
           "curves");
    EXPECT(machine->curves[6].points[0].bytes == 1 << 20 && machine->curves[6].points[0].gbs == 19.78,
           "a point");
    delete_machine(machine);
}

// ---- stacks -------------------------------------------------------------------------------------

static void shipped_stacks_are_right(void) {
    EXPECT(num_shipped_stacks >= 7, "%d stacks", num_shipped_stacks);
    for (int i = 0; i < num_shipped_stacks; i++) {
        Stack stack, other;
        EXPECT_OK(stack_open(&stack, shipped_stacks[i].name));
        Machine *machine = new_machine();
        if (strcmp(stack.machine, "cpu") != 0) EXPECT_OK(machine_open(machine, stack.machine));
        delete_machine(machine);
        for (int k = 0; stack.preferred && k < i; k++) {
            EXPECT_OK(stack_open(&other, shipped_stacks[k].name));
            EXPECT(!other.preferred || strcmp(other.machine, stack.machine) != 0, "%s and %s are preferred",
                   stack.name, other.name);
        }
    }
}

static double roll(RngKey key, uint64_t *at, double lowest, double highest) {
    return lowest + (highest - lowest) * (rng_word(key, 0, (*at)++) / 4294967296.0);
}

static Stack random_stack(uint64_t seed) {
    static const char *const TEXTS[] = {"plain", "a: b # \"c\"", "'", "- [x]", "true", "12", "C:\\new"};
    RngKey key = rng_key(seed, "stack", 0);
    uint64_t at = 0;
    Stack stack;
    memset(&stack, 0, sizeof stack);
    char *texts[] = {stack.description, stack.machine, stack.accuracy.rows, stack.accuracy.method};
    for (size_t i = 0; i < 4; i++) strcpy(texts[i], TEXTS[(size_t)roll(key, &at, 0, 7)]);
    strcpy(stack.name, "stack");
    strcpy(stack.accuracy.date, "2024-07-01");
    stack.aliases.count = (int)roll(key, &at, 0, MAX_ALIASES + 1);
    for (int i = 0; i < stack.aliases.count; i++)
        strcpy(stack.aliases.names[i], TEXTS[(size_t)roll(key, &at, 0, 7)]);
    bool *flags[] = {&stack.preferred,         &stack.unfused_attention, &stack.overlaps_gradients,
                     &stack.overlaps_tensor,   &stack.overlaps_messages, &stack.scatters_messages,
                     &stack.overlaps_backward, &stack.gathers_logits,    &stack.balances_stages,
                     &stack.hides_gathers};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) *flags[i] = roll(key, &at, 0, 1) < 0.5;
    if (roll(key, &at, 0, 1) < 0.3) strcpy(stack.unmeasured, TEXTS[(size_t)roll(key, &at, 0, 7)]);
    stack.is_trireme = roll(key, &at, 0, 1) < 0.5;
    if (stack.is_trireme && roll(key, &at, 0, 1) < 0.5) strcpy(stack.device, "cuda");
    stack.state_bytes = roll(key, &at, 0, 20);
    stack.sharded_bytes = roll(key, &at, 0, 20);
    stack.gradient_bytes = roll(key, &at, 1, 8);
    for (int i = 0; i < num_constants; i++) {
        stack.set[i] = roll(key, &at, 0, 1) < 0.5;
        stack.is_free[i] = roll(key, &at, 0, 1) < 0.2;
        double value = roll(key, &at, constant_table[i].lowest, constant_table[i].highest);
        if (stack.set[i]) *constant_at(&stack.constants, i) = value;
        if (stack.is_free[i]) *constant_at(&stack.priors, i) = value;
    }
    stack.num_variants = (int)roll(key, &at, 0, MAX_VARIANTS + 1);
    for (int i = 0; i < stack.num_variants; i++) {
        Variant *variant = &stack.variants[i];
        snprintf(variant->name, sizeof variant->name, "kind-%d", i);
        variant->count = num_constants > 2 ? 2 : num_constants;
        for (int k = 0; k < variant->count; k++) {
            variant->items[k].constant = (i + k) % num_constants;
            variant->items[k].factor = roll(key, &at, 0.01, 100);
        }
    }
    stack.accuracy.count = 1 + (int)roll(key, &at, 0, 100);
    for (double *x = &stack.accuracy.mape; x <= &stack.accuracy.most_sequence; x++)
        *x = roll(key, &at, 0, 99);
    return stack;
}

static void a_printed_stack_reads_back(void) {
    for (uint64_t seed = 0; seed < 200; seed++) {
        Stack stack = random_stack(seed), again;
        Text text = {0};
        if (seed % 5 == 0) memset(&stack.accuracy, 0, sizeof stack.accuracy);
        stack_print(&stack, &text);
        EXPECT_OK(stack_open(&again, write_file("stack", text_string(&text))));
        EXPECT(!memcmp(&stack, &again, sizeof stack), "%s", text_string(&text));
        text_free(&text);
    }
}

static void stacks_for_machines(void) {
    static const struct {
        const char *machine, *stack;
        bool is_of;
        RunKind run;
    } rows[] = {{"dgx-a100", "megatron-lm-2022", true, {0}},
                {"a100-80gb-4nic", "megatron-deepspeed-vtrain", true, {0}},
                {"dgx-a100-40gb", "megatron-lm-2022", false, {0}},
                {"dgx-v100", "megatron-lm-2022", false, {0}},
                {"dgx-h100", "nemo-h100", true, {0}},
                {"dgx-h200", "nemo-h100", false, {0}},
                {"dgx-b200", "nemo-h100", false, {0}},
                {"dgx-h100", "nemo-h100-fp8", true, {.low = true}},
                {"dgx-h200", "nemo-h100-fp8", false, {.low = true}},
                {"gb200-nvl72", "megatron-bridge", true, {.low = true}},
                {"gb300", "megatron-bridge", false, {.low = true}},
                {"dgx-b200", "megatron-bridge", false, {.low = true}},
                {"gb200-nvl72", "megatron-bridge-experts", true, {.experts = true}},
                {"dgx-h100", "megatron-bridge-experts", false, {.low = true, .experts = true}}};
    Machine *machine = new_machine();
    Stack stack;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        EXPECT_OK(machine_open(machine, rows[i].machine));
        EXPECT_OK(stack_for(&stack, machine, rows[i].run));
        EXPECT(!strcmp(stack.name, rows[i].stack), "%s gets %s", rows[i].machine, stack.name);
        EXPECT(stack_is_of(&stack, machine) == rows[i].is_of, "%s on %s", stack.name, rows[i].machine);
        machine_close(machine);
    }
    strcpy(machine->name, "mine");
    machine->is_cpu = true;
    EXPECT_OK(stack_for(&stack, machine, (RunKind){0}));
    EXPECT(!strcmp(stack.name, "trireme-cpu") && stack_is_of(&stack, machine), "a CPU gets %s", stack.name);
    machine->is_cpu = false;
    strcpy(machine->gpu, "a100-80gb");
    EXPECT_OK(stack_for(&stack, machine, (RunKind){0}));
    EXPECT(!strcmp(stack.name, "megatron-lm-2022") && !stack_is_of(&stack, machine), "the same GPU: %s",
           stack.name);
    free(machine);
}

static void constants_of_both(void) {
    Machine *machine = new_machine();
    Stack stack = {0};
    for (int i = 0; i < num_constants; i++) {
        *constant_at(&machine->constants, i) = i + 0.25;
        *constant_at(&stack.constants, i) = i + 0.5;
        machine->set[i] = i % 2;
        stack.set[i] = i % 3 == 0;
        const ConstantInfo *info = &constant_table[i];
        EXPECT(constant_find(info->name) == i && info->lowest <= info->usual && info->usual <= info->highest,
               "%s", info->name);
    }
    Constants both = constants_of(machine, &stack);
    for (int i = 0; i < num_constants; i++) {
        double expected = i % 3 == 0 ? i + 0.5 : i % 2 ? i + 0.25 : constant_table[i].usual;
        EXPECT(*constant_at(&both, i) == expected, "%s is %g", constant_table[i].name,
               *constant_at(&both, i));
    }
    EXPECT(constant_find("no_such") == -1, "found");
    free(machine);
}

static void variants_multiply(void) {
    Stack stack = {.num_variants = 2,
                   .variants = {{"flash1", 1, {{0, 0.5}}}, {"flash", 2, {{0, 3}, {num_constants - 1, 7}}}}};
    static const struct {
        const char *words;
        double first, last;
    } rows[] = {{"flash1", 0.5, 1},    {"flash", 3, 7},  {"flash1+flash", 1.5, 7},
                {"x+flash1+", 0.5, 1}, {"flash2", 1, 1}, {"", 1, 1},
                {"+", 1, 1},           {"flas", 1, 1}};
    CHECK(num_constants > 1, "%d constants", num_constants);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Constants constants = {0};
        for (int k = 0; k < num_constants; k++) *constant_at(&constants, k) = 1;
        stack_apply_variant(&stack, rows[i].words, &constants);
        double first = *constant_at(&constants, 0), last = *constant_at(&constants, num_constants - 1);
        EXPECT(first == rows[i].first && last == rows[i].last, "%s: %g, %g", rows[i].words, first, last);
    }
}

static void mistakes_in_stacks(void) {
    static const char GOOD_STACK[] =
        "description: x\nmachine: dgx-h100\nstate_bytes: 1\nsharded_bytes: 1\n"
        "gradient_bytes: 2\nunfused_attention: true\noverlaps_gradients: true\n"
        "overlaps_tensor: true\noverlaps_messages: true\nscatters_messages: true\n"
        "overlaps_backward: true\ngathers_logits: true\nbalances_stages: true\n"
        "hides_gathers: false\n";
    static const struct {
        const char *more, *message;
    } rows[] = {
        {"variants: [1]\n", "bad.yaml:15: variants: a list: a mapping of at most 8"},
        {"variants: {v: 1}\n", "bad.yaml:15: v: 1: a mapping of 1 to 4 constants"},
        {"variants: {v: {no_such: 1}}\n", "bad.yaml:15: no_such: 1: the name of a constant"},
        {"variants: {\"\": {no_such: 1}}\n", "bad.yaml:15: : a mapping: a name of 1 to 31"},
        {"priors: {no_such: 1}\n", "bad.yaml:15: "},
        {"priors: x\n", "bad.yaml:15: priors: x: a mapping"},
        {"base: no-such-stack\n", "bad.yaml:15: base: no-such-stack: a known stack that has no base"},
        {"accuracy: {rows: x}\n", "bad.yaml:15: the key method is missing under accuracy"},
        {"is_trireme: true\ndevice: gpu\n", "bad.yaml:16: device: gpu: cpu, cuda or cuda-sim is expected"},
        {"device: cuda\n", "bad.yaml:15: device: cuda: no device without is_trireme: true"},
        {"unmeasured: \"\"\n", "bad.yaml:15: unmeasured: "},
        {"preferred: 1\n", "bad.yaml:15: preferred: 1: true or false is expected"},
    };
    Stack stack;
    EXPECT_OK(stack_open(&stack, write_file("good", GOOD_STACK)));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Text text = {0};
        text_add(&text, "%s%s", GOOD_STACK, rows[i].more);
        EXPECT(stack_open(&stack, write_file("bad", text_string(&text))) == ERR_DATA &&
                   strstr(fail_message(), rows[i].message),
               "'%s' instead of '%s'", fail_message(), rows[i].message);
        text_free(&text);
    }
    EXPECT(stack_open(&stack, "megatron-ml-2021") == ERR_USAGE &&
               strstr(fail_message(), "mean megatron-lm-2021?"),
           "%s", fail_message());
}

// ---- mistakes -----------------------------------------------------------------------------------

static const char GOOD[] = "description: mine\n"                   // 1
                           "gpu: a100-80gb\n"                      // 2
                           "devices_per_node: 8\n"                 // 3
                           "peak_tflops: {f32: 19.5, bf16: 312}\n" // 4
                           "memory_gb: 80\n"                       // 5
                           "usable_gb: 79\n"                       // 6
                           "memory_gbs: 2000\n"                    // 7
                           "sms: 108\n"                            // 8
                           "link_gbs: 300\n"                       // 9
                           "nics: 8\n"                             // 10
                           "nic_gbs: 25\n"                         // 11
                           "tiles: [[256, 128, 1]]\n"              // 12
                           "curves:\n"                             // 13
                           "  - ranks: 8\n"                        // 14
                           "    points: [[1e6, 20], [2e6, 30]]\n"; // 15

// GOOD with the first `from` replaced.
static void edit(Text *out, const char *from, const char *to) {
    const char *at = strstr(GOOD, from);
    CHECK(at, "no '%s'", from);
    text_add(out, "%.*s%s%s", (int)(at - GOOD), GOOD, to, at + strlen(from));
}

static const struct {
    const char *from, *to, *message;
} MISTAKES[] = {
    {"sms", "sns", "bad.yaml:8: unknown key sns; did you mean sms?"},
    {"link_gbs: 300\n", "", "bad.yaml:1: the key link_gbs is missing"},
    {"nic_gbs: 25\n", "", "bad.yaml:1: the key nic_gbs is missing"},
    {"tiles: [[256, 128, 1]]\n", "", "bad.yaml:1: the key tiles is missing"},
    {"gpu: a100-80gb\n", "", "bad.yaml:1: the key gpu is missing"},
    {"f32: 19.5, ", "", "bad.yaml:4: the key f32 is missing under peak_tflops"},
    {"300", "-300", "bad.yaml:9: link_gbs: -300: a number from 0.01 to 100000 GB/s is expected"},
    {"300", "0", "bad.yaml:9: link_gbs: 0: a number from "},
    {"300", "fast", "bad.yaml:9: link_gbs: fast: a number from "},
    {"300", "'300'", "bad.yaml:9: link_gbs: 300: a number from "},
    {"300", "[1]", "bad.yaml:9: link_gbs: a list: a number from "},
    {"300", "1e999", "bad.yaml:9: link_gbs: 1e999: a number from "},
    {"nics: 8", "nics: 7.5", "bad.yaml:10: nics: 7.5: a whole number from 0 to 1024 is expected"},
    {"nics: 8", "nics: true", "bad.yaml:10: nics: true: a whole number"},
    {"description: mine", "description: 3", "bad.yaml:1: description: 3: a text of 1 to 159 printable"},
    {"a100-80gb", "\"a\\e[1m\"", "bad.yaml:2: gpu: a?[1m: a text of 1 to 63 printable"},
    {"gpu: a100-80gb", "gpu: x\ncpu: x", "bad.yaml:3: cpu: x: either gpu or cpu is expected"},
    {"usable_gb: 79", "usable_gb: 81", "bad.yaml:6: usable_gb: 81: at most memory_gb is expected"},
    {"sms: 108", "sms: 108\ndevice_watts: 400\nnode_watts: 3000",
     "bad.yaml:10: node_watts: 3000: at least those of all its devices is expected"},
    {"bf16: 312", "bf17: 1", "bad.yaml:4: unknown key bf17; did you mean bf16?"},
    {"{f32: 19.5, bf16: 312}", "312", "bad.yaml:4: peak_tflops: 312: a mapping is expected"},
    {"[[256, 128, 1]]", "[[256, 1]]", "bad.yaml:12: item of the list: a list: a list of 3 numbers"},
    {"[[256, 128, 1]]", "[[256, 128, 2]]", "bad.yaml:12: rate: 2: a number from 0.01 to 1 of the best"},
    {"[[256, 128, 1]]", "[]", "bad.yaml:12: tiles: a list: a list of 1 to 8 items is expected"},
    {"ranks: 8", "ranks: 9", "bad.yaml:14: ranks: 9: a whole number from 2 to 8 of a node is expected"},
    {"ranks: 8", "nodes: 1", "bad.yaml:14: nodes: 1: a whole number from 2 to"},
    {"ranks: 8", "nodes: 2\n    ranks: 2", "bad.yaml:14: nodes: 2: either ranks"},
    {"- ranks: 8\n    points", "- points", "bad.yaml:14: the key ranks is missing"},
    {"[2e6, 30]", "[1e6, 30]", "bad.yaml:15: bytes: 1e6: more than at the point before is expected"},
    {"[2e6, 30]", "[2e6, 0]", "bad.yaml:15: gbs: 0: a number from"},
    {"[2e6, 30]", "2e6", "bad.yaml:15: item of the list: 2e6: a list of 2 numbers"},
    {"    points: [[1e6, 20], [2e6, 30]]\n", "", "bad.yaml:14: the key points is missing"},
    {"curves:\n", "curves:\n  - {ranks: 8, points: [[1, 1]]}\n",
     "bad.yaml:15: item of the list: a mapping: another"},
    {"curves:\n", "constants: {no_such: 1}\ncurves:\n", "bad.yaml:13: unknown key no_such; "},
    {"curves:\n", "rates: [{op: x, ranks: 1, dtype: f8, seconds: [1]}]\ncurves:\n",
     "bad.yaml:13: dtype: f8: f32, bf16"},
    {"curves:\n", "rates: [{op: x, ranks: 1, dtype: f32, seconds: [-1]}]\ncurves:\n",
     "bad.yaml:13: item of the list: -1"},
    {"curves:\n", "aliases: [a, b, c, d, e]\ncurves:\n", "bad.yaml:13: aliases: a list: a list of at most 4"},
    {"sms: 108", "colour: red", "bad.yaml:8: unknown key colour; allowed: description, gpu, cpu, "},
    {"curves:\n", "constants: [1]\ncurves:\n", "bad.yaml:13: constants: a list: a mapping is expected"},
    {GOOD, "12\n", "bad.yaml: lines of `key: value` are expected"},
    {GOOD, "", "bad.yaml: lines of `key: value` are expected"},
};

static void mistakes(void) {
    Machine *machine = new_machine();
    EXPECT_OK(machine_open(machine, write_file("good", GOOD)));
    EXPECT(!strcmp(machine->name, "good"), "%s", machine->name);
    machine_close(machine);
    for (size_t i = 0; i < sizeof MISTAKES / sizeof *MISTAKES; i++) {
        Text text = {0};
        edit(&text, MISTAKES[i].from, MISTAKES[i].to);
        Status status = machine_open(machine, write_file("bad", text_string(&text)));
        EXPECT(status == ERR_DATA && strstr(fail_message(), MISTAKES[i].message), "'%s' instead of '%s'",
               fail_message(), MISTAKES[i].message);
        text_free(&text);
    }
    free(machine);
}

static void constants_out_of_range(void) {
    Machine *machine = new_machine();
    for (int i = 0; i < num_constants; i++) {
        const ConstantInfo *info = &constant_table[i];
        double values[] = {info->lowest, info->highest, info->lowest - 1e-3, info->highest * 1.001};
        for (int k = 0; k < 4; k++) {
            Text text = {0};
            text_add(&text, "%sconstants:\n  %s: %.17g\n", GOOD, info->name, values[k]);
            Status status = machine_open(machine, write_file("bad", text_string(&text)));
            EXPECT((status == OK) == (k < 2), "%s: %g", info->name, values[k]);
            EXPECT(k < 2 || (strstr(fail_message(), "bad.yaml:17: ") && strstr(fail_message(), info->name)),
                   "%s", fail_message());
            if (status == OK)
                EXPECT(machine->set[i] && *constant_at(&machine->constants, i) == values[k], "kept");
            if (status == OK) machine_close(machine);
            text_free(&text);
        }
    }
    free(machine);
}

static void a_cpu(void) {
    Machine *machine = new_machine(), *again = new_machine();
    Text text = {0};
    EXPECT_OK(machine_open(
        machine,
        write_file("cpu", "description: mine\n"
                          "cpu: Zen 5\n"
                          "devices_per_node: 2\n"
                          "peak_tflops: {f32: 0.5}\n"
                          "memory_gb: 16\n"
                          "usable_gb: 15\n"
                          "memory_gbs: 40\n"
                          "rates:\n"
                          "  - {op: matmul_nt, dtype: f32, ranks: 2, seconds: [1e-6, 2e-12], error: 0.03}\n"
                          "  - {op: adamw, dtype: bf16, ranks: 1, seconds: [0]}\n")));
    EXPECT(machine->is_cpu && machine->num_rates == 2 && machine->rates[0].seconds[1] == 2e-12, "rates");
    EXPECT(machine->rates[0].count == 2 && machine->rates[1].dtype == BF16, "rates");
    machine_print(machine, &text);
    EXPECT_OK(machine_open(again, write_file("cpu", text_string(&text))));
    EXPECT(same_machine(machine, again), "%s", text_string(&text));
    text_free(&text);
    delete_machine(machine);
    delete_machine(again);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"shipped_machines", shipped_machines_are_right},
                                      {"names", names_are_found},
                                      {"selene", numbers_of_selene},
                                      {"shipped_stacks", shipped_stacks_are_right},
                                      {"printed_stack", a_printed_stack_reads_back},
                                      {"stacks_for_machines", stacks_for_machines},
                                      {"constants_of_both", constants_of_both},
                                      {"variants", variants_multiply},
                                      {"mistakes_in_stacks", mistakes_in_stacks},
                                      {"mistakes", mistakes},
                                      {"constants_out_of_range", constants_out_of_range},
                                      {"cpu", a_cpu},
                                      {0}},
                       argc, argv);
}
