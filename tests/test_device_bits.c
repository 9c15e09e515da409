// The bits of the CUDA device. Most of its kernels are made of operations whose results IEEE 754 defines, in an order that
// the shapes decide: so a CPU can tell what every GPU must give. tests/golden/gpu_bits.txt has it, from the simulated GPU;
// TRIREME_TEST_DEVICE=cuda compares a GPU with it. What tensor cores do has no rows there, and no products but those
// whose sums are exact in every order.
//
//   test_device_bits list      prints the names of the cases
//   test_device_bits print     prints the rows of the golden file, of the device that TRIREME_TEST_DEVICE names
#include "device_cases.h"
#include <stdio.h>

enum { TIMES = 3, MAX_ROW = 160 };

static bool has_golden(const Case *c, DType element) {
    bool multiplies = c->run == run_matmul || c->run == run_matmul_float8 || case_joins_product(c);
    return (!multiplies || case_is_exact(c)) && (c->run != run_attention || element == F32);
}

// FNV-1a.
static uint64_t hash_bytes(const void *bytes, size_t size) {
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t i = 0; i < size; i++) hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3;
    return hash;
}

// The hashes of what a case leaves; returns how many there are.
static int hash_case(const Case *c, DType element, const char *names[FIXTURE_OUTPUTS],
                     uint64_t hashes[FIXTURE_OUTPUTS]) {
    Fixture b = fixture_open_as(harness_device("cuda-sim"), 1, element, element);
    c->run(&b, c->n, c->p);
    for (int k = 0; k < b.num_outputs; k++) {
        Tensor x = b.outputs[k].tensor;
        void *values = values_of(&b, x);
        names[k] = b.outputs[k].name;
        hashes[k] = hash_bytes(values, tensor_bytes(x));
        free(values);
    }
    int count = b.num_outputs;
    fixture_close(&b);
    return count;
}

static void write_row(char row[MAX_ROW], const Case *c, DType element, const char *output, uint64_t hash) {
    snprintf(row, MAX_ROW, "%s, %s, %s: %016llx\n", c->name, dtype_name(element), output,
             (unsigned long long)hash);
}

// Calls `visit` with every row that a golden file has.
static void each_row(void (*visit)(const char *row)) {
    for (int i = 0; i < NUM_CASES * NUM_ELEMENTS; i++) {
        const Case *c = &CASES[i / NUM_ELEMENTS];
        DType element = ELEMENTS[i % NUM_ELEMENTS];
        const char *names[FIXTURE_OUTPUTS];
        uint64_t hashes[FIXTURE_OUTPUTS];
        if (!has_golden(c, element) || !case_is_chosen(c)) continue;
        int count = hash_case(c, element, names, hashes);
        for (int k = 0; k < count; k++) {
            char row[MAX_ROW];
            write_row(row, c, element, names[k], hashes[k]);
            visit(row);
        }
    }
}

static void print_row(const char *row) { fputs(row, stdout); }

static FILE *golden;
static int rows_met;

// The file has the rows in the same order; rows of other cases lie between where one case is chosen.
static void expect_row(const char *row) {
    char line[MAX_ROW];
    size_t named = strcspn(row, ":");
    do {
        if (!fgets(line, sizeof line, golden)) {
            EXPECT(false, "no row in tests/golden/gpu_bits.txt: %s", row);
            rewind(golden);
            return;
        }
    } while (strncmp(line, row, named + 1) != 0);
    rows_met++;
    EXPECT(!strcmp(line, row), "%.*s has other bits than %s", (int)strcspn(row, "\n"), row, line);
}

static void golden_bits(void) {
    golden = fopen(TEST_FOLDER "/golden/gpu_bits.txt", "r");
    CHECK(golden, "no " TEST_FOLDER "/golden/gpu_bits.txt");
    each_row(expect_row);
    EXPECT(rows_met > 0 || chosen_case(), "no row was met");
    if (!chosen_case()) EXPECT(fgetc(golden) == EOF, "a row of golden/gpu_bits.txt is of no case");
    fclose(golden);
}

static void expect_repeated(const Case *c, DType element) {
    const char *names[FIXTURE_OUTPUTS];
    uint64_t first[FIXTURE_OUTPUTS], again[FIXTURE_OUTPUTS];
    int count = hash_case(c, element, names, first);
    for (int time = 1; time < TIMES; time++) {
        hash_case(c, element, names, again);
        for (int k = 0; k < count; k++)
            EXPECT(first[k] == again[k], "%s in %s: %s has other bits when it is done again", c->name,
                   dtype_name(element), names[k]);
    }
}

// Every case, also those on tensor cores; on the simulated GPU in one type each.
static void bits_repeat(void) {
    bool all = !strcmp(harness_device("cuda-sim"), "cuda");
    for (int i = 0; i < NUM_CASES; i++)
        for (int e = 0; e < NUM_ELEMENTS; e++)
            if (case_is_chosen(&CASES[i]) && (all || e == i % NUM_ELEMENTS))
                expect_repeated(&CASES[i], ELEMENTS[e]);
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "list")) {
        for (int i = 0; i < NUM_CASES; i++) puts(CASES[i].name);
        return 0;
    }
    if (argc == 2 && !strcmp(argv[1], "print")) {
        each_row(print_row);
        return 0;
    }
    return harness_run((const Test[]){{"golden_bits", golden_bits}, {"bits_repeat", bits_repeat}, {0}}, argc,
                       argv);
}
