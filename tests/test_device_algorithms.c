// Tables of algorithms: a product takes the algorithm that its row names, and a table that is from elsewhere or made up is
// refused with its line. The simulated GPU's objects are part of this program.
#include "base/file.h"
#include "cuda_fixture.h"
#include "device/algorithms.h"
#include <stdio.h>
#include <stdlib.h>

static const char *file_name(void) { return harness_path("table.txt"); }
enum { ROWS = 24, COLS = 16, INNER = 40 };

static Matmul product_of(Gpu *gpu) {
    return (Matmul){.a = gpu_tensor(gpu, F32, ROWS, INNER, 0),
                    .b = gpu_tensor(gpu, F32, INNER, COLS, 0),
                    .d = gpu_tensor(gpu, F32, ROWS, COLS, 0)};
}

// ---- tables -----------------------------------------------------------------------------------------------

static const char ABOUT[] = "gpu simulated GPU\nmultiprocessors 2\ncublaslt 130100\n";

static void add_hex(const void *bytes, size_t size, Text *out) {
    for (size_t i = 0; i < size; i++) text_add(out, "%02x", ((const unsigned char *)bytes)[i]);
}

// The row of a product of the fixture's shape, written out.
static void add_row(const cublasLtMatmulAlgo_t *algorithm, Text *out) {
    text_add(out,
             "m %d n %d k %d lda %d ldb %d ldd %d transpose_a 0 transpose_b 0 factor_a 0 factor_b 0 result 0 "
             "accumulate 0 has_bias 0 fast_sums 0 join 0 align_a 16 align_b 16 align_d 16 "
             "align_bias 0 align_extra 0 algorithm ",
             COLS, ROWS, INNER, COLS, INNER, COLS);
    add_hex(algorithm, sizeof *algorithm, out);
    text_add(out, "\n");
}

static void write_table(const char *about, const char *rows) {
    Text table = {0};
    text_add(&table, "%s\n%s%s", ALGORITHMS_TITLE, about, rows);
    algorithms_end(&table);
    EXPECT_OK(file_write(file_name(), text_string(&table), table.size));
    text_free(&table);
}

static Status take(Gpu *gpu) {
    char *text;
    TRY(algorithms_read(file_name(), &text));
    Status status = gpu->backend->algorithms_take(gpu->device, file_name(), text);
    free(text);
    return status;
}

static int candidates(Gpu *gpu, cublasLtMatmulAlgo_t found[MAX_ALGORITHMS]) {
    const Matmul product = product_of(gpu);
    const PlanKey key = products_key(&(JoinedProduct){.matmul = product});
    return products_candidates(gpu->device, &key, found);
}

// ---- taking -----------------------------------------------------------------------------------------------

static void multiply(Gpu *gpu, float *out) {
    Matmul p = product_of(gpu);
    for (int64_t i = 0; i < ROWS * INNER; i++) ((float *)p.a.data)[i] = 1.0f / (float)(3 + i % 101);
    for (int64_t i = 0; i < INNER * COLS; i++) ((float *)p.b.data)[i] = 1.0f / (float)(7 + i % 89);
    cuda_matmul(&gpu->exec, &p);
    gpu_wait(gpu);
    memcpy(out, p.d.data, ROWS * COLS * sizeof *out);
}

static void row_decides(void) {
    float usual[ROWS * COLS], first[ROWS * COLS], last[ROWS * COLS];
    for (int number = -1; number < 3; number += number < 0 ? 1 : 2) {
        Gpu gpu = gpu_open();
        cublasLtMatmulAlgo_t found[MAX_ALGORITHMS];
        const int count = candidates(&gpu, found);
        EXPECT(count == 3, "%d algorithms", count);
        Text row = {0};
        if (number >= 0) {
            add_row(&found[number], &row);
            write_table(ABOUT, text_string(&row));
            EXPECT_OK(take(&gpu));
            const JoinedProduct product = {.matmul = product_of(&gpu)};
            EXPECT(!memcmp(&products_plan(gpu.device, &product)->algorithm, &found[number], sizeof *found),
                   "another algorithm than number %d", number);
        }
        multiply(&gpu, number < 0 ? usual : number ? last : first);
        text_free(&row);
        gpu_close(&gpu);
    }
    EXPECT(!memcmp(usual, first, sizeof usual), "the library's own choice differs from its first proposal");
    EXPECT(memcmp(usual, last, sizeof usual) != 0, "the last algorithm has the bits of the first");
    for (int i = 0; i < ROWS * COLS; i++)
        EXPECT(usual[i] > 0 && last[i] > 0 && last[i] / usual[i] < 1.0001f && usual[i] / last[i] < 1.0001f,
               "element %d: %g and %g", i, (double)usual[i], (double)last[i]);
}

// ---- refusing ---------------------------------------------------------------------------------------------

static void expect_refused(Gpu *gpu, const char *words) {
    EXPECT(take(gpu) == ERR_DATA && strstr(fail_message(), words), "'%s' is not in: %s", words,
           fail_message());
}

static void of_another_machine(void) {
    static const struct {
        const char *about, *words;
    } tables[] = {
        {"gpu NVIDIA H200\nmultiprocessors 2\ncublaslt 130100\n",
         "table.txt:2: 'gpu NVIDIA H200' is not 'gpu simulated GPU'"},
        {"gpu simulated GPU\nmultiprocessors 132\ncublaslt 130100\n",
         "table.txt:3: 'multiprocessors 132' is not"},
        {"gpu simulated GPU\nmultiprocessors 2\ncublaslt 130200\n",
         "table.txt:4: 'cublaslt 130200' is not 'cublaslt 130100'"},
        {"gpu simulated GPU\n", "table.txt:3: '' is not 'multiprocessors 2'"},
        {"", "table.txt:2: '' is not 'gpu simulated GPU'"},
    };
    Gpu gpu = gpu_open();
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        write_table(tables[i].about, "");
        expect_refused(&gpu, tables[i].words);
    }
    gpu_close(&gpu);
}

// A good row with one word replaced.
static void expect_row_refused(Gpu *gpu, const char *row, const char *word, const char *by,
                               const char *words) {
    Text rows = {0};
    const char *at = strstr(row, word);
    CHECK(at, "no '%s' in %s", word, row);
    text_add(&rows, "# a comment\n%.*s%s%s", (int)(at - row), row, by, at + strlen(word));
    write_table(ABOUT, text_string(&rows));
    expect_refused(gpu, words);
    text_free(&rows);
}

static void unknown_rows(void) {
    static const char *const words[][3] = {
        {"m 16 ", "m 0 ", "table.txt:6: this is no row"},
        {"m 16 ", "m 99999999999999999999 ", "table.txt:6: this is no row"},
        {"m 16 ", "m -5 ", "table.txt:6: this is no row"},
        {"m 16 ", "m  16 ", "table.txt:6: this is no row"},
        {"m 16 ", "rows 16 ", "table.txt:6: this is no row"},
        {"align_a 16", "align_a 32", "table.txt:6: this is no row"},
        {" algorithm 67", " algorithm 6", "table.txt:6: this is no row"},
        {" algorithm 67", " algorithm 6G", "table.txt:6: this is no row"},
        {" algorithm 67", " algorithm 6767", "table.txt:6: this is no row"},
        {"factor_a 0 factor_b 0", "factor_a 2 factor_b 2", "table.txt:6: the row's product is impossible"},
        {"factor_b 0", "factor_b 3", "table.txt:6: the row's product is impossible"},
        {"factor_a 0 factor_b 0", "factor_a 6 factor_b 6", "table.txt:6: the row's product is impossible"},
        {"fast_sums 0", "fast_sums 1", "table.txt:6: the row's product is impossible"},
        {"factor_b 0 result 0", "factor_b 0 result 3", "table.txt:6: the row's product is impossible"},
        {"align_a 16", "align_a 3", "table.txt:6: the row's product is impossible"},
        {"lda 16 ", "lda 8 ", "table.txt:6: the row's product is impossible"},
        {"has_bias 0", "has_bias 1", "table.txt:6: the row's product is impossible"},
        {"join 0", "join 1", "table.txt:6: the row's product is impossible"},
        {"join 0", "join 4", "table.txt:6: this is no row"},
        {"align_extra 0", "align_extra 16", "table.txt:6: the row's product is impossible"},
        {"k 40 lda 16 ldb 40", "k 32 lda 16 ldb 40",
         "table.txt:6: cuBLASLt has no such algorithm for this product"},
        {" algorithm 67", " algorithm 66", "table.txt:6: cuBLASLt has no such algorithm for this product"},
        {"align_b 16", "align_b 8", "table.txt:6: the algorithm needs addresses of larger alignment"},
    };
    Gpu gpu = gpu_open();
    cublasLtMatmulAlgo_t found[MAX_ALGORITHMS];
    Text row = {0};
    EXPECT(candidates(&gpu, found) > 0, "no algorithm");
    add_row(&found[0], &row);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        expect_row_refused(&gpu, text_string(&row), words[i][0], words[i][1], words[i][2]);
    const size_t size = row.size;
    add_row(&found[1], &row);
    write_table(ABOUT, text_string(&row));
    expect_refused(&gpu, "table.txt:6: an earlier row is of the same product");
    EXPECT(row.size > size, "one row");
    text_free(&row);
    gpu_close(&gpu);
}

// The simulated library lets an algorithm say how it adds; 1 is in place, 4 in the type of the output.
static void unordered_sums(void) {
    Gpu gpu = gpu_open();
    cublasLtMatmulAlgo_t found[MAX_ALGORITHMS];
    EXPECT(candidates(&gpu, found) > 0, "no algorithm");
    static const uint32_t schemes[] = {1, 4};
    for (int i = 0; i < 2; i++) {
        cublasLtMatmulAlgo_t other = found[0];
        memcpy((char *)&other + 24, &schemes[i], sizeof schemes[i]);
        Text row = {0};
        add_row(&other, &row);
        write_table(ABOUT, text_string(&row));
        expect_refused(&gpu, "table.txt:5: the algorithm adds partial sums in no fixed order");
        text_free(&row);
    }
    cublasLtMatmulAlgo_t large = found[0];
    const uint64_t bytes = PRODUCT_WORKSPACE + 1;
    memcpy((char *)&large + 16, &bytes, sizeof bytes);
    Text row = {0};
    add_row(&large, &row);
    write_table(ABOUT, text_string(&row));
    expect_refused(&gpu, "table.txt:5: the algorithm needs more workspace");
    text_free(&row);
    gpu_close(&gpu);
}

// ---- timing -----------------------------------------------------------------------------------------------

// A plan for each algorithm is made before the clock runs: the host would be slower than a small product.
static void turns_share_a_plan(void) {
    Gpu gpu = gpu_open();
    cublasLtMatmulAlgo_t found[MAX_ALGORITHMS];
    Text table = {0};
    const JoinedProduct product = {.matmul = product_of(&gpu)};
    const size_t before = sim_num_objects_made();
    const size_t plans = (size_t)candidates(&gpu, found), plan = sim_num_objects_made() - before;
    EXPECT_OK(gpu.backend->algorithms_time(&gpu.exec, &product, &table));
    const size_t made = sim_num_objects_made() - before - plan;
    EXPECT(made <= (1 + plans) * plan, "%zu objects for %zu algorithms, %zu for a plan", made, plans, plan);
    EXPECT(strstr(text_string(&table), " algorithm "), "no row: %s", text_string(&table));
    text_free(&table);
    gpu_close(&gpu);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"row_decides", row_decides},
                                      {"turns_share_a_plan", turns_share_a_plan},
                                      {"of_another_machine", of_another_machine},
                                      {"unknown_rows", unknown_rows},
                                      {"unordered_sums", unordered_sums},
                                      {0}},
                       argc, argv);
}
