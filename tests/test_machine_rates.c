// Tests the prices of operations that are fitted to measurements of a machine.
#include "harness.h"
#include "machine/rates.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static WorkItem product(int64_t m, int64_t n, int64_t k) {
    return (WorkItem){.kind = WORK_OP,
                      .op = OP_MATMUL,
                      .dtype = F32,
                      .m = m,
                      .n = n,
                      .k = k,
                      .batch = 1,
                      .transpose_b = true,
                      .bytes = 4.0 * (double)(m * n + m * k + k * n),
                      .flops = 2.0 * (double)(m * n * k)};
}

static WorkItem attention(int64_t sequence, int64_t head, int64_t heads, bool dropout) {
    return (WorkItem){.op = OP_ATTENTION_FORWARD,
                      .m = sequence,
                      .n = head,
                      .k = sequence,
                      .batch = heads,
                      .dropout = dropout,
                      .flops = 4.0 * (double)(heads * sequence * sequence * head)};
}

static WorkItem moved(DeviceOp op, double bytes) { return (WorkItem){.op = (uint8_t)op, .bytes = bytes}; }

// What a machine with these seconds per term would take, with an error of one part in `noise` up and down.
static void add_products(Samples *samples, const double *seconds, double noise) {
    static const int64_t sizes[] = {64, 192, 512, 1024};
    for (int i = 0; i < 64; i++) {
        WorkItem item = product(sizes[i % 4], sizes[i / 4 % 4], sizes[i / 16]);
        Sample sample = {.terms = rate_terms(&item)};
        for (int j = 0; j < sample.terms.count; j++) sample.seconds += seconds[j] * sample.terms.values[j];
        if (noise > 0) sample.seconds *= 1 + (i % 2 ? 1 : -1) / noise;
        EXPECT_OK(samples_add(samples, sample));
    }
}

static Machine fitted(const double *seconds, double noise) {
    Machine machine = {.is_cpu = true, .devices_per_node = 2, .memory_gbs = 10, .peak_tflops = {[F32] = 0.1}};
    Samples samples = {0};
    add_products(&samples, seconds, noise);
    EXPECT_OK(rates_fit(&machine, &samples, 1));
    samples_free(&samples);
    return machine;
}

static const double SECONDS[] = {2e-6, 1e-11, 3e-10, 1e-10, 2e-10};

// ---- fits ------------------------------------------------------------------------------------------------

static void fit_recovers(void) {
    Machine machine = fitted(SECONDS, 0);
    EXPECT(machine.num_rates == 1 && !strcmp(machine.rates[0].op, "matmul_nt") && machine.rates[0].ranks == 1,
           "%d rates", machine.num_rates);
    EXPECT(machine.rates[0].error < 1e-4, "error %g", machine.rates[0].error);
    for (int j = 0; j < 5; j++)
        EXPECT(fabs(machine.rates[0].seconds[j] / SECONDS[j] - 1) < 0.01, "term %d: %g", j,
               machine.rates[0].seconds[j]);
    free(machine.rates);
}

static void fit_bears_noise(void) {
    Machine machine = fitted(SECONDS, 20);
    WorkItem other = product(300, 700, 900); // between what was measured
    double exact = 0, price = price_operation_by_rates(&machine, &other, 1);
    Terms terms = rate_terms(&other);
    for (int j = 0; j < terms.count; j++) exact += SECONDS[j] * terms.values[j];
    EXPECT(fabs(price / exact - 1) < 0.05, "%g, exact %g", price, exact);
    EXPECT(fabs(machine.rates[0].error - 0.05) < 0.02, "error %g", machine.rates[0].error);
    free(machine.rates);
}

// Of measurements that fall with the size, no line may.
static void fit_is_not_negative(void) {
    Machine machine = {0};
    Samples samples = {0};
    for (int i = 1; i <= 8; i++) {
        Sample sample = {rate_terms_of_bytes("copy", 1e5 * i), F32, 1e-3 / i};
        EXPECT_OK(samples_add(&samples, sample));
    }
    EXPECT_OK(rates_fit(&machine, &samples, 1));
    for (int j = 0; j < machine.rates[0].count; j++)
        EXPECT(machine.rates[0].seconds[j] >= 0, "term %d: %g", j, machine.rates[0].seconds[j]);
    samples_free(&samples);
    free(machine.rates);
}

static void median_counts(void) {
    static const double seconds[] = {1, 1, 50, 1, 900};
    Machine machine = {0};
    Samples samples = {0};
    for (int i = 0; i < 5; i++)
        EXPECT_OK(samples_add(&samples, (Sample){rate_terms_of_bytes("copy", 1e6), F32, seconds[i]}));
    EXPECT_OK(rates_fit(&machine, &samples, 1));
    const Rate *row = &machine.rates[0];
    EXPECT(fabs(row->seconds[0] + row->seconds[1] * 1e6 - 1) < 1e-3, "%g and %g", row->seconds[0],
           row->seconds[1]);
    samples_free(&samples);
    free(machine.rates);
}

// ---- prices ----------------------------------------------------------------------------------------------

static Machine of_rows(Rate *rows, int count) {
    return (Machine){.is_cpu = true,
                     .devices_per_node = 4,
                     .memory_gbs = 10,
                     .peak_tflops = {[F32] = 0.1, [BF16] = 0.2},
                     .rates = rows,
                     .num_rates = count};
}

static void ranks_interpolate(void) {
    Rate rows[] = {{"add", F32, 4, 4, {0, 3e-10}, 0}, {"add", F32, 1, 4, {0, 1e-10}, 0}};
    Machine machine = of_rows(rows, 2);
    WorkItem item = moved(OP_ADD, 1e6);
    static const double expected[] = {1e-4, 1e-4 * (1 + 2.0 / 3), 1e-4 * (1 + 4.0 / 3), 3e-4, 3e-4};
    for (int ranks = 1; ranks <= 5; ranks++) {
        double price = price_operation_by_rates(&machine, &item, ranks);
        EXPECT(fabs(price / expected[ranks - 1] - 1) < 1e-12, "%d ranks: %g", ranks, price);
    }
}

// A class without a row falls to its row in fp32, then to the ceilings.
static void rows_missing(void) {
    Rate rows[] = {{"add", F32, 1, 4, {0, 1e-10}, 0}};
    Machine machine = of_rows(rows, 1);
    WorkItem narrow = moved(OP_ADD, 1e6), unknown = moved(OP_ROTARY, 1e6), large = product(1000, 1000, 1000);
    narrow.dtype = BF16;
    EXPECT(fabs(price_operation_by_rates(&machine, &narrow, 1) - 1e-4) < 1e-12, "fp32 row");
    EXPECT(fabs(price_operation_by_rates(&machine, &unknown, 1) - 1e-4) < 1e-12, "bandwidth");
    EXPECT(fabs(price_operation_by_rates(&machine, &large, 1) - 0.02) < 1e-12, "peak");
    EXPECT(price_collective_by_rates(&machine, 1, COMM_ALL_REDUCE, 1e6) == 0, "a group of one");
    EXPECT(price_collective_by_rates(&machine, 2, COMM_ALL_REDUCE, 1e6) > 0, "a group of two");
    EXPECT(price_message_by_rates(&machine, 2e6) > price_message_by_rates(&machine, 1e6), "messages");
}

// No price falls when a size grows.
static void prices_rise(void) {
    Rate rows[] = {{"matmul_nt", F32, 1, 5, {1e-6, 1e-11, 0, 2e-10, 1e-10}, 0},
                   {"attention_forward", F32, 1, 4, {1e-6, 1e-9, 2e-10, 1e-11}, 0},
                   {"add", F32, 1, 4, {1e-6, 1e-10, 1e-10, 1e-10}, 0}};
    Machine machine = of_rows(rows, 3);
    double before[3] = {0};
    for (int64_t size = 1; size <= 4096; size *= 2) {
        WorkItem items[] = {product(size, 300, 200), attention(size, 64, 8, false),
                            moved(OP_ADD, 1e4 * (double)size)};
        for (int i = 0; i < 3; i++) {
            double price = price_operation_by_rates(&machine, &items[i], 1);
            EXPECT(price > before[i], "%s of %lld: %g after %g", rows[i].op, (long long)size, price,
                   before[i]);
            before[i] = price;
        }
    }
}

// What is stored of a step's end: a pass for the norm, AdamW on what is stepped.
static void step_adds_up(void) {
    Rate rows[] = {{"sum_squares", F32, 1, 4, {0, 1e-10}, 0}, {"adamw", F32, 1, 4, {0, 1e-10}, 0}};
    Machine machine = of_rows(rows, 2);
    double whole = price_step_by_rates(&machine, 1000, F32, 1);
    double half = price_step_by_rates(&machine, 500, F32, 1);
    EXPECT(fabs(whole - 20e-7) < 1e-12, "%g", whole);
    EXPECT(fabs(half - 10e-7) < 1e-12, "%g", half);
    EXPECT(fabs(price_step_by_rates(&machine, 1000, BF16, 1) - 20e-7) < 1e-12, "bf16");
    EXPECT(fabs(price_step_by_rates(&machine, 1000, F16, 1) - 22e-7) < 1e-12, "fp16");
}

// Dropout, kept probabilities and transposition tell classes apart; a table counts by the rows looked up.
static void classes_differ(void) {
    WorkItem plain = attention(64, 16, 2, false), dropped = attention(64, 16, 2, true);
    WorkItem forward = product(8, 8, 8), weight = forward;
    weight.transpose_a = true, weight.transpose_b = false;
    EXPECT(!strcmp(rate_terms(&plain).name, "attention_forward"), "%s", rate_terms(&plain).name);
    EXPECT(!strcmp(rate_terms(&dropped).name, "attention_forward_dropout"), "%s", rate_terms(&dropped).name);
    EXPECT(!strcmp(rate_terms(&weight).name, "matmul_tn"), "%s", rate_terms(&weight).name);
    WorkItem lookup = {.op = OP_EMBEDDING_FORWARD, .m = 1000, .n = 10, .bytes = 40000 + 4000 + 400};
    EXPECT(rate_terms(&lookup).values[1] == 2 * 4400, "%g bytes", rate_terms(&lookup).values[1]);
}

// ---- GPUs ----------------------------------------------------------------------------------------

enum { SMS = 10 };

static Machine gpu_of(Rate *rows, int count) {
    Machine machine = of_rows(rows, count);
    machine.is_cpu = false, machine.sms = SMS;
    return machine;
}

static double gpu_price(const Machine *machine, int64_t m, int64_t n, int64_t k) {
    WorkItem item = product(m, n, k);
    return price_operation_by_rates(machine, &item, 1);
}

// With one second for a wave: ten tiles of 128 x 256 at once, and a fifth of what a last wave leaves idle.
static void gpu_products_go_by_waves(void) {
    Rate rows[] = {{"matmul_nt", F32, 1, 4, {0, 1, 0, 0}, 0}};
    Machine machine = gpu_of(rows, 1);
    static const struct {
        int64_t m, n;
        double waves;
    } cases[] = {{128, 256, 1},     {1, 1, 1},         {1280, 256, 1},       {1280, 512, 2},
                 {1281, 256, 1.28}, {1281, 512, 2.36}, {128, 256 * 15, 1.6}, {128 * 20, 256 * 2, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double waves = gpu_price(&machine, cases[i].m, cases[i].n, 64);
        EXPECT(fabs(waves - cases[i].waves) < 1e-9, "%lld x %lld: %g waves, not %g", (long long)cases[i].m,
               (long long)cases[i].n, waves, cases[i].waves);
    }
    rows[0] = (Rate){"matmul_nt", F32, 1, 4, {0, 0, 1, 0}, 0};
    EXPECT(gpu_price(&machine, 1280, 512, 64) == 128, "two waves of 64: %g",
           gpu_price(&machine, 1280, 512, 64));
    WorkItem item = product(10, 20, 30), more = item;
    more.accumulate = true;
    EXPECT(rate_terms_gpu(&item, SMS).values[3] == item.bytes &&
               rate_terms_gpu(&more, SMS).values[3] == item.bytes + 4 * 200,
           "a sum is read before it is written");
}

static void gpu_prices_rise(void) {
    Rate rows[] = {{"matmul_nt", F32, 1, 4, {1e-6, 1e-6, 1e-9, 1e-12}, 0},
                   {"attention_forward", F32, 1, 4, {1e-6, 1e-9, 2e-10, 1e-11}, 0},
                   {"add", F32, 1, 3, {1e-6, 1e-10, 1e-10}, 0}};
    Machine machine = gpu_of(rows, 3);
    double before[5] = {0};
    for (int64_t size = 1; size <= 1 << 14; size += 1 + size / 9) {
        WorkItem items[] = {product(size, 700, 200), product(700, size, 200), product(700, 300, size),
                            attention(size, 64, 8, false), moved(OP_ADD, 1e5 * (double)size)};
        for (int i = 0; i < 5; i++) {
            double price = price_operation_by_rates(&machine, &items[i], 1);
            EXPECT(price >= before[i] && price > 0, "%d of %lld: %g after %g", i, (long long)size, price,
                   before[i]);
            before[i] = price;
        }
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"fit_recovers", fit_recovers},
                                      {"fit_bears_noise", fit_bears_noise},
                                      {"fit_is_not_negative", fit_is_not_negative},
                                      {"median_counts", median_counts},
                                      {"ranks_interpolate", ranks_interpolate},
                                      {"rows_missing", rows_missing},
                                      {"prices_rise", prices_rise},
                                      {"step_adds_up", step_adds_up},
                                      {"classes_differ", classes_differ},
                                      {"gpu_products_go_by_waves", gpu_products_go_by_waves},
                                      {"gpu_prices_rise", gpu_prices_rise},
                                      {0}},
                       argc, argv);
}
