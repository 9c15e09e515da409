// Routers and the order of rows by experts against golden numbers, on every device, and against finite differences.
#include "gradients.h"

enum { T = 6, E = 4, K = 2 };
static const float LOGITS[T * E] = {1,    .5f,  -.5f, 0,   .2f, .9f, .1f, -1,   2,    -1,   .3f, .4f,
                                    -.3f, 1.2f, .7f,  .6f, .8f, .1f, 0,   1.1f, 1.5f, 1.4f, -2,  .3f};
static const int32_t CHOSEN[T * K] = {0, 1, 1, 0, 0, 3, 1, 2, 3, 0, 0, 1};

static void expect_values(Fixture *b, const char *what, Tensor x, int64_t first, const double *wanted, int n,
                          double tolerance) {
    double *got = doubles_of(b, x);
    for (int i = 0; i < n; i++)
        EXPECT(fabs(got[first + i] - wanted[i]) <= tolerance, "%s[%d] is %.10f, wanted %.10f", what,
               (int)first + i, got[first + i], wanted[i]);
    free(got);
}

static void expect_ints(Fixture *b, const char *what, Tensor x, const int32_t *wanted) {
    int32_t *got = values_of(b, x);
    for (int64_t i = 0; i < tensor_count(x); i++)
        EXPECT(got[i] == wanted[i], "%s[%d] is %d, wanted %d", what, (int)i, got[i], wanted[i]);
    free(got);
}

// ---- the router of six tokens, four experts, two each ------------------------------------------------------

typedef struct {
    Tensor logits, weights, experts;
} Routed;

static Routed route(Fixture *b, RouterRules rules) {
    Routed r = {from_floats(b, T, E, LOGITS), tensor_f32(b, T, K), tensor_of(b, I32, T, K)};
    router_forward(b->device, b->stream, (RouterForward){r.logits, {0}, r.weights, r.experts, rules});
    return r;
}

static void weights_of_forms(Fixture *b) {
    static const double after[] = {.6224593, .3775407, .6681878, .3318122, .8320184, .1679816,
                                   .6224593, .3775407, .5744425, .4255575, .5249792, .4750208};
    static const double before[] = {.4550542, .2760043, .4772170, .2369789, .6971716, .1407565,
                                    .4204379, .2550085, .4095727, .3034189, .4471814, .4046265};
    static const double sigmoids[] = {1.3502935, 1.1497065}, last[] = {1.3023227, 1.1976773};
    Routed r = route(b, (RouterRules){.topk = K});
    expect_ints(b, "experts", r.experts, CHOSEN);
    expect_values(b, "weights", r.weights, 0, after, T * K, 1e-7);
    r = route(b, (RouterRules){.topk = K, .pre_softmax = true});
    expect_ints(b, "experts before softmax", r.experts, CHOSEN);
    expect_values(b, "weights before softmax", r.weights, 0, before, T * K, 1e-7);
    r = route(b, (RouterRules){.topk = K, .sigmoid = true, .scale = 2.5f});
    expect_values(b, "weights of sigmoids", r.weights, 0, sigmoids, K, 3e-7);
    expect_values(b, "weights of sigmoids", r.weights, 4 * K, last, K, 3e-7);
}

// E / (k T^2) * the sum over experts of counts * sums, for each sample; the mean of them.
static double balance_loss(Fixture *b, Tensor counts, Tensor sums) {
    double *c = doubles_of(b, counts), *s = doubles_of(b, sums), tokens = (double)T / (double)counts.rows;
    double loss = 0;
    for (int64_t i = 0; i < counts.rows * E; i++) loss += c[i] * s[i / E * (E + 1) + i % E];
    free(c);
    free(s);
    return loss * E / (K * tokens * tokens) / (double)counts.rows;
}

// The rows of golden numbers are of samples one after the other; a microbatch has them side by side.
static Tensor side_by_side(Fixture *b) {
    float rows[T * E];
    for (int row = 0; row < T; row++)
        memcpy(rows + row * E, LOGITS + (row % 2 * 3 + row / 2) * E, E * sizeof *rows);
    return from_floats(b, T, E, rows);
}

static void losses(Fixture *b) {
    RouterRules rules = {.topk = K};
    Routed r = route(b, rules);
    Tensor counts = tensor_f32(b, 1, E), sums = tensor_f32(b, 1, E + 1), dlogits = tensor_f32(b, T, E);
    Tensor zeros = zeros_of(b, F32, T, K);
    router_sums(b->device, b->stream, (RouterSums){r.logits, counts, sums, rules});
    static const double wanted_counts[] = {5, 4, 1, 2};
    expect_values(b, "counts", counts, 0, wanted_counts, E, 0);
    EXPECT(fabs(balance_loss(b, counts, sums) - 1.1877787910) < 3e-7, "balance loss %.10f",
           balance_loss(b, counts, sums));
    static const double z = 4.1682361324 * T;
    expect_values(b, "z", sums, E, &z, 1, 5e-6);

    float balance = (float)E / (K * T * T);
    router_backward(b->device, b->stream,
                    (RouterBackward){r.logits, r.experts, zeros, counts, dlogits, rules, balance, 0});
    static const double first[] = {.0299417, .0028270, -.0158827, -.0168859},
                        fourth[] = {.0111152, .0264571, -.0264544, -.0111179};
    expect_values(b, "gradient of the balance", dlogits, 0, first, E, 1e-7);
    expect_values(b, "gradient of the balance", dlogits, 3 * E, fourth, E, 1e-7);
    router_backward(b->device, b->stream,
                    (RouterBackward){r.logits, r.experts, zeros, {0}, dlogits, rules, 0, 1.0f / T});
    static const double dz[] = {.2711120, .1644377, .0604933, .0997365};
    expect_values(b, "gradient of z", dlogits, 0, dz, E, 1e-7);

    counts = tensor_f32(b, 2, E), sums = tensor_f32(b, 2, E + 1);
    router_sums(b->device, b->stream, (RouterSums){side_by_side(b), counts, sums, rules});
    EXPECT(fabs(balance_loss(b, counts, sums) - 1.2159073278) < 3e-7, "balance loss of samples %.10f",
           balance_loss(b, counts, sums));
}

static void drops_and_order(Fixture *b) {
    static const int32_t by_weight[] = {0, -1, 1, -1, 0, 3, 1, 2, 3, -1, 0, 1},
                         by_position[] = {0, 1, 1, 0, 0, 3, 1, 2, 3, -1, -1, -1};
    static const int32_t order[] = {0, 3, 4, 9, 10, 1, 2, 6, 11, 7, 5, 8}, counts[] = {5, 4, 1, 2},
                         positions[] = {0, 5, 6, 1, 2, 10, 7, 9, 11, 3, 4, 8};
    Routed r = route(b, (RouterRules){.topk = K});
    Tensor kept = tensor_of(b, I32, T, K), sorted = tensor_of(b, I32, 1, T * K), at = tensor_of(b, I32, T, K),
           count = tensor_of(b, I32, 1, E);
    router_drop(b->device, b->stream, (RouterDrop){r.weights, r.experts, kept, 1, 3, false});
    expect_ints(b, "kept by weight", kept, by_weight);
    router_drop(b->device, b->stream, (RouterDrop){r.weights, r.experts, kept, 1, 3, true});
    expect_ints(b, "kept by position", kept, by_position);
    sort_pairs(b->device, b->stream, (SortPairs){r.experts, sorted, at, count});
    expect_ints(b, "order", sorted, order);
    expect_ints(b, "positions", at, positions);
    expect_ints(b, "counts", count, counts);
    static const int32_t few[] = {2, 2, 1, 2};
    router_drop(b->device, b->stream, (RouterDrop){r.weights, r.experts, kept, 1, 2, false});
    sort_pairs(b->device, b->stream, (SortPairs){kept, sorted, at, count});
    expect_ints(b, "counts of those that are kept", count, few);
    int32_t *all = values_of(b, sorted), *place = values_of(b, at), *experts = values_of(b, kept);
    for (int i = 0; i < T * K; i++) {
        EXPECT(experts[i] < 0 ? place[i] == -1 : all[place[i]] == i, "the place of pair %d", i);
        EXPECT((experts[all[i]] < 0) == (i >= 7), "pair %d at place %d", all[i], i);
    }
    free(all);
    free(experts);
    free(place);
}

static void golden_router(Fixture *b) {
    weights_of_forms(b);
    losses(b);
    drops_and_order(b);
}

static void router_has_golden_numbers(void) { on_every_device(golden_router); }

// Twelve experts in three groups; the bias chooses and is not in the weights.
static void golden_groups(Fixture *b) {
    static const float all[12] = {.62f, .35f, .48f, .10f, .70f, .20f, .66f, .31f, .55f, .52f, .51f, .05f};
    static const float bias[12] = {0, 0, 0, .2f, -.1f, 0, 0, 0, .02f, 0, 0, 0};
    static const int32_t chosen[] = {6, 0, 4, 2}, without[] = {6, 0, 4, 8};
    static const double weights[] = {.6707317, .6300813, .7113821, .4878049};
    float logits[12];
    for (int i = 0; i < 12; i++) logits[i] = (float)log((double)all[i] / (1 - (double)all[i]));
    Tensor x = from_floats(b, 1, 12, logits), y = from_floats(b, 1, 12, bias);
    Tensor w = tensor_f32(b, 1, 4), e = tensor_of(b, I32, 1, 4);
    RouterRules rules = {.topk = 4, .groups = 3, .group_topk = 2, .sigmoid = true, .scale = 2.5f};
    router_forward(b->device, b->stream, (RouterForward){x, y, w, e, rules});
    expect_ints(b, "experts of open groups", e, chosen);
    expect_values(b, "weights", w, 0, weights, 4, 3e-7);
    rules.groups = 0;
    router_forward(b->device, b->stream, (RouterForward){x, y, w, e, rules});
    expect_ints(b, "experts without groups", e, without);
}

static void groups_have_golden_numbers(void) { on_every_device(golden_groups); }

// Of equal values the lowest number is chosen.
static void equal_logits(Fixture *b) {
    static const float same[10] = {1, 1, 1, 1, 1, 2, 0, 2, 0, 2};
    static const int32_t lowest[] = {0, 1, 2, 0, 2, 4};
    Tensor x = from_floats(b, 2, 5, same), w = tensor_f32(b, 2, 3), e = tensor_of(b, I32, 2, 3);
    router_forward(b->device, b->stream, (RouterForward){x, {0}, w, e, {.topk = 3}});
    expect_ints(b, "lowest numbers", e, lowest);
}

static void ties_have_an_order(void) { on_every_device(equal_logits); }

// ---- finite differences: inputs: logits [T, E]; y: the weights --------------------------------------------

static RouterRules form;

static void declare_router(Fixture *b, Problem *p) {
    add_input(b, p, 0, 5, 7);
    float values[35];
    for (int i = 0; i < 35; i++)
        values[i] = (float)(i * 11 % 35) / 7 - 2.4f; // differences stay above the steps
    p->inputs[0] = from_floats(b, 5, 7, values);
    set_y(b, p, 5, form.topk);
    p->other[0] = tensor_of(b, I32, 5, form.topk);
}

static void router_step(Fixture *b, Problem *p) {
    router_forward(b->device, b->stream, (RouterForward){p->inputs[0], {0}, p->y, p->other[0], form});
}

static void router_back(Fixture *b, Problem *p) {
    router_backward(b->device, b->stream,
                    (RouterBackward){p->inputs[0], p->other[0], p->dy, {0}, p->gradients[0], form, 0, 0});
}

static void weights_have_gradients(void) {
    static const RouterRules forms[] = {{.topk = 3},
                                        {.topk = 3, .pre_softmax = true, .scale = 1.5f},
                                        {.topk = 1, .pre_softmax = true},
                                        {.topk = 3, .sigmoid = true, .scale = 2.5f},
                                        {.topk = 1, .sigmoid = true}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        form = forms[i];
        check_gradients_on("reference", "router", declare_router, router_step, router_back);
        check_gradients_on("cpu", "router", declare_router, router_step, router_back);
    }
}

// y: the sums of a single sample, whose dy are counts, and z.
static void declare_sums(Fixture *b, Problem *p) {
    declare_router(b, p);
    set_y(b, p, 1, 8);
    p->other[1] = tensor(b, 1, 7), p->other[2] = zeros_of(b, F32, 5, form.topk);
    router_step(b,
                &(Problem){.inputs = {p->inputs[0]}, .y = tensor(b, 5, form.topk), .other = {p->other[0]}});
}

static void sums_step(Fixture *b, Problem *p) {
    router_sums(b->device, b->stream, (RouterSums){p->inputs[0], p->other[1], p->y, form});
}

static void sums_back(Fixture *b, Problem *p) {
    float *dy = values_of(b, p->dy);
    router_backward(b->device, b->stream,
                    (RouterBackward){p->inputs[0], p->other[0], p->other[2], tensor_part(p->dy, 0, 7),
                                     p->gradients[0], form, 1, dy[7]});
    free(dy);
}

static void losses_have_gradients(void) {
    static const RouterRules forms[] = {{.topk = 2}, {.topk = 2, .sigmoid = true}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        form = forms[i];
        check_gradients_on("reference", "losses of a router", declare_sums, sums_step, sums_back);
        check_gradients_on("cpu", "losses of a router", declare_sums, sums_step, sums_back);
    }
}

// inputs: rows of experts [7, H], weights [T, k]; y [T, H]
static void declare_rows(Fixture *b, Problem *p) {
    static const int32_t positions[] = {0, 3, 1, 2, -1, 4, 6, 5};
    add_input(b, p, 0, 7, 6);
    add_input(b, p, 1, 4, 2);
    set_y(b, p, 4, 6);
    p->other[0] = from_ints(b, 8, positions);
    p->other[0].rows = 4, p->other[0].cols = 2;
}

static void rows_step(Fixture *b, Problem *p) {
    combine_rows(b->device, b->stream, (CombineRows){p->inputs[0], p->other[0], p->inputs[1], p->y});
}

static void rows_back(Fixture *b, Problem *p) {
    combine_backward(
        b->device, b->stream,
        (CombineBackward){p->dy, p->inputs[0], p->other[0], p->inputs[1], p->gradients[0], p->gradients[1]});
}

static void rows_have_gradients(void) {
    check_gradients_on("reference", "rows of experts", declare_rows, rows_step, rows_back);
    check_gradients_on("cpu", "rows of experts", declare_rows, rows_step, rows_back);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"router_has_golden_numbers", router_has_golden_numbers},
                                      {"groups_have_golden_numbers", groups_have_golden_numbers},
                                      {"ties_have_an_order", ties_have_an_order},
                                      {"weights_have_gradients", weights_have_gradients},
                                      {"losses_have_gradients", losses_have_gradients},
                                      {"rows_have_gradients", rows_have_gradients},
                                      {0}},
                       argc, argv);
}
