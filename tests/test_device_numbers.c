// Laws of the operations that are about numbers themselves, on every device that computes: into a narrow type
// and back, the largest magnitude, the sum of squares that no order and no partition can change, the
// optimizer's copy.
#include "device_fixture.h"

// ---- narrow types -----------------------------------------------------------------------------------------

enum { ALL_BITS = 1 << 16, PIECE = 4096 };

// y = x in the element type of y: what the optimizer does to a parameter that it has no reason to change.
static void narrow(Fixture *b, Tensor x, Tensor y) {
    Tensor g = zeros_of(b, F32, 1, PIECE), m = zeros_of(b, F32, 1, PIECE), v = zeros_of(b, F32, 1, PIECE);
    for (int64_t first = 0, count; first < x.cols; first += count) {
        count = x.cols - first < PIECE ? x.cols - first : PIECE;
        g.cols = m.cols = v.cols = count;
        adamw(b->device, b->stream,
              (AdamW){.gradient = g,
                      .parameter = tensor_part(x, first, count),
                      .m = m,
                      .v = v,
                      .value = tensor_part(y, first, count),
                      .epsilon = 1,
                      .correction1 = 1,
                      .correction2 = 1});
    }
}

// y = x in fp32: the sum of a single row.
static void widen(Fixture *b, Tensor x, Tensor y) {
    device_zero(b->device, b->stream, y);
    column_sum(b->device, b->stream, (ColumnSum){x, y});
}

// Every number of a narrow type is a number of fp32, and comes back from there. (A sum is never -0.)
static void narrow_numbers_are_exact(Fixture *b, DType dtype) {
    uint16_t bits[ALL_BITS];
    int count = 0;
    for (int i = 0; i < ALL_BITS; i++) {
        Tensor one = {&bits[count], 1, 1, dtype};
        bits[count] = (uint16_t)i;
        // The checking device would end at numbers that are not finite.
        count += isfinite(load(one, 0)) && i != 0x8000;
    }
    Tensor x = tensor_of(b, dtype, 1, count), back = tensor_of(b, dtype, 1, count);
    Tensor wide = tensor_f32(b, 1, count);
    device_upload(b->device, b->stream, x, bits);
    widen(b, x, wide);
    narrow(b, wide, back);
    expect_near(b, "there and back", back, x, 0);
    double *w = doubles_of(b, wide), *n = doubles_of(b, x);
    EXPECT(memcmp(w, n, (size_t)count * sizeof *w) == 0, "%s: another number in fp32", dtype_name(dtype));
    free(w);
    free(n);
}

static void exact(Fixture *b) {
    narrow_numbers_are_exact(b, BF16);
    narrow_numbers_are_exact(b, F16);
}

// Of each gap between neighbours: the points before, at and after the middle, both signs. Halfway goes to the
// even one.
static void gaps_round(Fixture *b, DType dtype, uint16_t limit) {
    enum { POINTS = 6 };
    int64_t count = (int64_t)limit * POINTS;
    Tensor wide = {malloc((size_t)count * 4), 1, count, F32},
           wanted = {malloc((size_t)count * 2), 1, count, dtype};
    CHECK(wide.data && wanted.data, "no memory");
    for (uint16_t k = 0; k < limit; k++) {
        uint16_t pair[2] = {k, (uint16_t)(k + 1)};
        Tensor ends = {pair, 1, 2, dtype};
        float middle = (float)((load(ends, 0) + load(ends, 1)) / 2);
        float points[3] = {nextafterf(middle, 0), middle, nextafterf(middle, INFINITY)};
        for (int i = 0; i < POINTS; i++) {
            bool up = i % 3 == 2 || (i % 3 == 1 && k % 2);
            int64_t at = (int64_t)k * POINTS + i;
            store(wide, at, (double)(i < 3 ? points[i] : -points[i - 3]));
            ((uint16_t *)wanted.data)[at] = (uint16_t)(pair[up] | (i < 3 ? 0 : 0x8000));
        }
    }
    Tensor x = tensor_f32(b, 1, count), y = tensor_of(b, dtype, 1, count), z = tensor_of(b, dtype, 1, count);
    device_upload(b->device, b->stream, x, wide.data);
    device_upload(b->device, b->stream, z, wanted.data);
    narrow(b, x, y);
    expect_near(b, "the nearer neighbour", y, z, 0);
    free(wide.data);
    free(wanted.data);
}

static void rounding(Fixture *b) {
    gaps_round(b, F16, 0x7bff);
    gaps_round(b, BF16, 0x7f7f);
}

// What rounds to infinities, and NaNs, whose bits may all be in the part that is cut off. Not on the
// checking device, which would end at them.
static void infinities_and_nans(Fixture *b) {
    static const struct {
        DType dtype;
        float below, above; // the last number that rounds to a finite one, the first that does not
    } TYPES[] = {{BF16, 0x1.fefffep127f, 0x1.ffp127f}, {F16, 0x1.ffdffep15f, 0x1.ffep15f}};
    const float nan = float_of_bits(0xff800001);
    EXPECT(isnan(bf16_to_f32(bf16_of_f32(nan))) && isnan(f16_to_f32(f16_of_f32(nan))), "NaN as bits");
    for (int i = 0; i < 2; i++) {
        const float values[5] = {TYPES[i].above, -TYPES[i].above, NAN, nan, TYPES[i].below};
        Tensor x = from_floats_of(b, F32, 1, 5, values);
        Tensor y = tensor_of(b, TYPES[i].dtype, 1, 5), z = tensor_f32(b, 1, 5);
        narrow(b, x, y);
        widen(b, y, z);
        double *v = doubles_of(b, z), *halves = doubles_of(b, y);
        EXPECT(v[0] == INFINITY && v[1] == -INFINITY, "%s: %g %g", dtype_name(TYPES[i].dtype), v[0], v[1]);
        EXPECT(isnan(halves[2]) && isnan(halves[3]) && isnan(v[2]) && isnan(v[3]), "NaN stays");
        EXPECT(isfinite(v[4]), "%s of %a", dtype_name(TYPES[i].dtype), (double)TYPES[i].below);
        free(v);
        free(halves);
    }
}

// Not where a number that is none ends the job.
static void not_numbers(void) {
    int count;
    const char *const *kinds = device_kinds(&count);
    for (int i = 0; i < count; i++) {
        if (!is_wanted(kinds[i])) continue;
        Fixture b = fixture_open(kinds[i], 1);
        if (device_computes(b.device) && !ends_at_nans(kinds[i])) infinities_and_nans(&b);
        fixture_close(&b);
    }
}

// ---- the largest magnitude --------------------------------------------------------------------------------

static double largest(Fixture *b, double start, int64_t count, const float *x) {
    float first = (float)start;
    Tensor max = from_floats(b, 1, 1, &first);
    abs_max(b->device, b->stream, (AbsMax){from_floats(b, 1, count, x), max});
    double *values = doubles_of(b, max), result = *values;
    free(values);
    return result;
}

static void abs_max_values(Fixture *b) {
    float x[1000] = {0};
    x[997] = -7.25f, x[3] = 5;
    EXPECT(largest(b, 0, 1000, x) == 7.25, "the largest");
    EXPECT(largest(b, 8, 1000, x) == 8, "what was there before");
    EXPECT(largest(b, 0, 3, x) == 0, "of zeros");
    for (int i = 0; i < 1000; i += 111) {
        float kept = x[i];
        x[i] = NAN;
        EXPECT(largest(b, 0, 1000, x) == INFINITY, "NaN at %d", i);
        x[i] = -INFINITY;
        EXPECT(largest(b, 0, 1000, x) == INFINITY, "-infinity at %d", i);
        x[i] = kept;
    }
    EXPECT(largest(b, INFINITY, 1000, x) == INFINITY, "infinity stays");
}

// ---- the sum of squares -----------------------------------------------------------------------------------

enum { COUNT = 30011 };

// Adds up x, cut after every `piece` elements.
static void sum_in_pieces(Fixture *b, Tensor x, int64_t piece, int exponent, double sum[3]) {
    Tensor total = zeros_of(b, F64, 1, 3);
    for (int64_t first = 0; first < tensor_count(x); first += piece) {
        int64_t count = tensor_count(x) - first < piece ? tensor_count(x) - first : piece;
        sum_squares(b->device, b->stream,
                    (SumSquares){.x = tensor_part(x, first, count), .sum = total, .exponent = exponent});
    }
    double *values = doubles_of(b, total);
    memcpy(sum, values, 3 * sizeof *sum);
    free(values);
}

// Numbers over forty powers of two, the largest at the very limit; in order, backwards, cut into pieces.
static void no_order_changes_the_sum(Fixture *b) {
    float x[COUNT], reversed[COUNT];
    rng_fill_normal(rng_key(5, "squares", 0), 0, COUNT, 0, 1, x);
    double expected = 0, sum[3], other[3];
    for (int i = 0; i < COUNT; i++) {
        x[i] = i == 77 ? -0x1p9f : ldexpf(fminf(fmaxf(x[i], -8), 8), i % 40 - 34);
        expected += (double)x[i] * (double)x[i];
    }
    for (int i = 0; i < COUNT; i++) reversed[i] = x[COUNT - 1 - i];
    Tensor forward = from_floats(b, 1, COUNT, x), backward = from_floats(b, 1, COUNT, reversed);
    sum_in_pieces(b, forward, COUNT, 9, sum);
    static const int64_t PIECES[] = {61, 307, 4096, COUNT};
    for (int i = 0; i < 8; i++) {
        sum_in_pieces(b, i % 2 ? forward : backward, PIECES[i / 2], 9, other);
        EXPECT(memcmp(sum, other, sizeof sum) == 0, "pieces of %lld: %a %a %a, not %a %a %a",
               (long long)PIECES[i / 2], other[0], other[1], other[2], sum[0], sum[1], sum[2]);
    }
    double value = ldexp(sum[0] + sum[1] + sum[2], 18);
    EXPECT(fabs(value - expected) <= 1e-12 * expected, "%.17g, not %.17g", value, expected);
}

// What each of the three sums gets of (1/3)^2, so that any device adds the same to the same: whole quanta,
// rounded down, which are exact to add up over ranks too.
static void sums_are_whole_quanta(Fixture *b) {
    float third = 1.0f / 3;
    double sum[3], rest = (double)third * (double)third;
    sum_in_pieces(b, from_floats(b, 1, 1, &third), 1, 0, sum);
    for (int i = 0; i < 3; i++) {
        double quantum = ldexp(1, -20 * (i + 1)), wanted = quantum * floor(rest / quantum);
        EXPECT(sum[i] == wanted && wanted != 0, "sum %d is %a, not %a", i, sum[i], wanted);
        rest -= wanted;
    }
}

// The finest, the largest and the smallest number of fp32.
static void squares_of_single_numbers(Fixture *b) {
    static const struct {
        float x;
        int exponent;
        double expected;
    } ROWS[] = {{1 + 0x1p-20f, 1, 1 + 0x1p-19 + 0x1p-40},
                {0x1.fffffep127f, 128, 0x1.fffffep127 * 0x1.fffffep127},
                {-0x1p-149f, -149, 0x1p-298},
                {0x1p-149f, 100, 0},
                {0, -149, 0}};
    for (int i = 0; i < 5; i++) {
        double sum[3];
        sum_in_pieces(b, from_floats(b, 1, 1, &ROWS[i].x), 1, ROWS[i].exponent, sum);
        double value = ldexp(sum[0] + sum[1] + sum[2], 2 * ROWS[i].exponent);
        EXPECT(value == ROWS[i].expected, "the square of %a is %a, not %a", (double)ROWS[i].x, value,
               ROWS[i].expected);
    }
}

// Adds up x with an exponent, beside a `start` of the largest.
typedef struct {
    double sum[3], max;
} SumAndMax;

static SumAndMax sum_and_max(Fixture *b, int64_t count, const float *x, int exponent, float start) {
    SumAndMax result;
    Tensor sum = zeros_of(b, F64, 1, 3), max = from_floats(b, 1, 1, &start);
    sum_squares(b->device, b->stream,
                (SumSquares){.x = from_floats(b, 1, count, x), .sum = sum, .max = max, .exponent = exponent});
    double *sums = doubles_of(b, sum), *largest = doubles_of(b, max);
    memcpy(result.sum, sums, sizeof result.sum);
    result.max = *largest;
    free(sums), free(largest);
    return result;
}

// The largest magnitude comes with the squares, which it leaves as they are; where their exponent is too small, it is
// right alone.
static void squares_come_with_the_largest(Fixture *b) {
    enum { SOME = 1003 };
    float x[SOME];
    double alone[3];
    rng_fill_normal(rng_key(6, "squares", 0), 0, SOME, 0, 1, x);
    x[1001] = -7.5f;
    sum_in_pieces(b, from_floats(b, 1, SOME, x), SOME, 3, alone);
    SumAndMax both = sum_and_max(b, SOME, x, 3, 1);
    EXPECT(both.max == 7.5 && !memcmp(both.sum, alone, sizeof alone), "%g, %a", both.max, both.sum[0]);
    EXPECT(sum_and_max(b, SOME, x, 3, 8).max == 8, "what was there before");
    EXPECT(sum_and_max(b, SOME, x, -9, 0).max == 7.5, "an exponent that is too small");
    for (int i = 0; i < SOME; i += 167) {
        float kept = x[i];
        x[i] = i % 2 ? NAN : -INFINITY;
        EXPECT(sum_and_max(b, SOME, x, 3, 0).max == INFINITY, "%g at %d", (double)x[i], i);
        x[i] = kept;
    }
}

// ---- the optimizer's copy ---------------------------------------------------------------------------------

// The value is the new parameter, rounded, and its presence changes nothing else.
static void value_is_the_parameter(Fixture *b) {
    enum { WIDTH = 333 };
    Tensor g = normals_f32(b, 1, WIDTH), p[2], m[2], v[2], value = tensor(b, 1, WIDTH);
    p[0] = normals_f32(b, 1, WIDTH), m[0] = normals_f32(b, 1, WIDTH), v[0] = zeros_of(b, F32, 1, WIDTH);
    p[1] = copy_of(b, p[0]), m[1] = copy_of(b, m[0]), v[1] = copy_of(b, v[0]);
    for (int i = 0; i < 2; i++)
        adamw(b->device, b->stream,
              (AdamW){g, p[i], m[i], v[i], i ? value : (Tensor){0}, 1e-2, 0.9, 0.95, 1e-8, 0.1, 0.19, 0.0975,
                      1, 0, NULL});
    float *parameters = values_of(b, p[1]);
    expect_near(b, "the value", value, from_floats(b, 1, WIDTH, parameters), 0);
    free(parameters);
    expect_near(b, "the parameter", p[1], p[0], 0);
    expect_near(b, "m", m[1], m[0], 0);
    expect_near(b, "v", v[1], v[0], 0);
}

// Kept as a bf16 value and what this leaves out, the parameter takes the same steps to the bit, and the value
// is it rounded.
static void split_parameters_step_alike(Fixture *b) {
    enum { WIDTH = 333, STEPS = 5 };
    float start[WIDTH];
    uint16_t values[WIDTH], remainders[WIDTH], rest;
    rng_fill_normal(rng_key(9, "split", 0), 0, WIDTH, 0, 1, start);
    for (int i = 0; i < 4; i++) start[i] = float_of_bits(0x3f808000u + (uint32_t)i * 0x10000); // halfway
    for (int i = 0; i < WIDTH; i++) values[i] = bf16_split(start[i], &remainders[i]);
    Tensor g = normals_f32(b, 1, WIDTH), p[2], m[2], v[2], value = tensor_of(b, BF16, 1, WIDTH);
    p[0] = from_floats(b, 1, WIDTH, start), p[1] = tensor_of(b, U16, 1, WIDTH);
    device_upload(b->device, b->stream, p[1], remainders);
    device_upload(b->device, b->stream, value, values);
    for (int i = 0; i < 2; i++) m[i] = zeros_of(b, F32, 1, WIDTH), v[i] = zeros_of(b, F32, 1, WIDTH);
    for (int step = 0; step < STEPS; step++)
        for (int i = 0; i < 2; i++)
            adamw(b->device, b->stream,
                  (AdamW){g, p[i], m[i], v[i], i ? value : (Tensor){0}, step ? 1e-3 : 0, 0.9, 0.95, 1e-8, 0.1,
                          0.19, 0.0975, 1, 0, NULL});
    float *whole = values_of(b, p[0]);
    device_download(b->device, b->stream, values, value);
    device_download(b->device, b->stream, remainders, p[1]);
    for (int i = 0; i < WIDTH; i++) {
        float joined = bf16_join(values[i], remainders[i]);
        EXPECT(bits_of_float(joined) == bits_of_float(whole[i]), "%d: %a, not %a", i, (double)joined,
               (double)whole[i]);
        EXPECT(values[i] == bf16_split(whole[i], &rest), "%d: the value is not the parameter rounded", i);
    }
    free(whole);
    expect_near(b, "m", m[1], m[0], 0);
    expect_near(b, "v", v[1], v[0], 0);
}

// Any fp32 number comes back from its two parts; the value is a nearest one.
static void parts_join(void) {
    int64_t bad = 0, far = 0;
    for (uint64_t i = 0; i < 1u << 22; i++) {
        const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x5a5a, (uint32_t)i & 0xffff};
        uint32_t bits = (uint32_t)(i >> 3) << 16 | low[i & 7];
        float x = float_of_bits(bits);
        uint16_t remainder, value = bf16_split(x, &remainder);
        float joined = bf16_join(value, remainder);
        bad += isnan(x) ? !isnan(joined) || !isnan(bf16_to_f32(value)) : bits_of_float(joined) != bits;
        bool halfway = (bits & 0xffff) == 0x8000;
        far += !isnan(x) && value != (halfway ? (bits >> 16) + 1 : bf16_of_f32(x));
    }
    EXPECT(!bad, "%lld numbers do not come back", (long long)bad);
    EXPECT(!far, "%lld values are not the nearest", (long long)far);
}

static void adamw_split(void) { on_every_device(split_parameters_step_alike); }
static void narrow_exact(void) { on_every_device(exact); }
static void narrow_rounding(void) { on_every_device(rounding); }
static void magnitudes(void) { on_every_device(abs_max_values); }
static void squares_order(void) { on_every_device(no_order_changes_the_sum); }
static void squares_quanta(void) { on_every_device(sums_are_whole_quanta); }
static void squares_single(void) { on_every_device(squares_of_single_numbers); }
static void squares_largest(void) { on_every_device(squares_come_with_the_largest); }
static void adamw_value(void) { in_every_type(value_is_the_parameter); }

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"narrow_exact", narrow_exact},
                                      {"narrow_rounding", narrow_rounding},
                                      {"narrow_not_numbers", not_numbers},
                                      {"abs_max", magnitudes},
                                      {"sum_squares_order", squares_order},
                                      {"sum_squares_quanta", squares_quanta},
                                      {"sum_squares_single", squares_single},
                                      {"sum_squares_largest", squares_largest},
                                      {"adamw_value", adamw_value},
                                      {"adamw_split", adamw_split},
                                      {"parts_join", parts_join},
                                      {0}},
                       argc, argv);
}
