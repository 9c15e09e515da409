// Drawing tokens: the distribution is the one that was asked for, and a draw is a function of its arguments.
#include "harness.h"
#include "infer/infer.h"
#include <math.h>
#include <string.h>

enum { VOCABULARY = 9, DRAWS = 20000 };

// Out of order, two alike.
static const float LOGITS[VOCABULARY] = {0.5f, -1, 2, 1.25f, -3, 2, 0, 0.75f, -0.5f};

static int32_t draw(const SampleOptions *options, int sample, int position) {
    TokenLogit scratch[VOCABULARY];
    return sample_token(LOGITS, VOCABULARY, options, sample, position, scratch);
}

// The probability of each token among those that may be drawn.
static void shares(const bool *possible, double temperature, double *share) {
    double sum = 0;
    for (int i = 0; i < VOCABULARY; i++)
        sum += share[i] = possible[i] ? exp((double)LOGITS[i] / temperature) : 0;
    for (int i = 0; i < VOCABULARY; i++) share[i] /= sum;
}

// Pearson's statistic of DRAWS draws stays below its 99.9 % quantile for 8 degrees of freedom; what may not
// be drawn never is.
static void expect_shares(const char *name, const SampleOptions *options, const bool *possible) {
    double share[VOCABULARY], statistic = 0;
    int count[VOCABULARY] = {0};
    shares(possible, options->temperature, share);
    for (int i = 0; i < DRAWS; i++) count[draw(options, i % 100, i / 100)]++;
    for (int i = 0; i < VOCABULARY; i++) {
        double wanted = share[i] * DRAWS;
        EXPECT(share[i] > 0 || count[i] == 0, "%s: token %d was drawn %d times", name, i, count[i]);
        if (share[i] > 0) statistic += (count[i] - wanted) * (count[i] - wanted) / wanted;
    }
    EXPECT(statistic < 26.12, "%s: chi-square %.1f", name, statistic);
}

static const bool ALL[VOCABULARY] = {true, true, true, true, true, true, true, true, true};

static void softmax_of_the_temperature(void) {
    expect_shares("T 1", &(SampleOptions){.temperature = 1, .top_p = 1, .seed = 1}, ALL);
    expect_shares("T 0.5", &(SampleOptions){.temperature = 0.5, .top_p = 1, .seed = 2}, ALL);
    expect_shares("T 3", &(SampleOptions){.temperature = 3, .top_p = 1, .seed = 3}, ALL);
    expect_shares("more than there are", &(SampleOptions){1, 100, 1, 4}, ALL);
}

static void top_k_keeps_the_k_largest(void) {
    bool best[VOCABULARY] = {[2] = true};
    expect_shares("1", &(SampleOptions){1, 1, 1, 5}, best); // of two alike the first
    best[5] = true, best[3] = true;
    expect_shares("3", &(SampleOptions){1, 3, 1, 6}, best);
}

// The fewest that have the probability together, so the one that reaches it is in.
static void top_p_keeps_the_nucleus(void) {
    double share[VOCABULARY];
    shares(ALL, 1, share);
    bool best[VOCABULARY] = {[2] = true};
    expect_shares("none", &(SampleOptions){1, 0, 0, 7}, best);
    expect_shares("none alone", &(SampleOptions){1, 0, 1e-9, 7}, best);
    best[5] = true;
    expect_shares("just two", &(SampleOptions){1, 0, share[2] + share[5] - 1e-6, 8}, best);
    best[3] = true;
    expect_shares("and one more", &(SampleOptions){1, 0, share[2] + share[5] + 1e-6, 9}, best);
}

// top_p counts the probabilities of what top_k left.
static void top_p_after_top_k(void) {
    double share[VOCABULARY];
    bool best[VOCABULARY] = {[2] = true, [5] = true, [3] = true};
    shares(best, 1, share);
    best[3] = false;
    expect_shares("two of three", &(SampleOptions){1, 3, share[2] + share[5] - 1e-6, 10}, best);
}

static void zero_is_greedy(void) {
    for (int i = 0; i < 50; i++) {
        SampleOptions options = {0, i, 0.5, (uint64_t)i};
        EXPECT(draw(&options, i, i) == 2, "%d", (int)draw(&options, i, i));
    }
    SampleOptions cold = {.temperature = 1e-4, .top_p = 1};
    for (int i = 0; i < 50; i++) EXPECT(draw(&cold, 0, i) == 2 || draw(&cold, 0, i) == 5, "nearly cold");
}

static int differing(SampleOptions a, int sample_a, int shift_a, SampleOptions b, int sample_b, int shift_b) {
    int count = 0;
    for (int i = 0; i < 100; i++) count += draw(&a, sample_a, i + shift_a) != draw(&b, sample_b, i + shift_b);
    return count;
}

// The same draw always gives the same; another seed, sample or position another.
static void a_draw_is_a_function(void) {
    SampleOptions options = {.temperature = 1, .top_p = 1, .seed = 7}, other = options;
    other.seed = 8;
    EXPECT(differing(options, 3, 0, options, 3, 0) == 0, "the same");
    EXPECT(differing(options, 3, 0, other, 3, 0) > 40, "another seed");
    EXPECT(differing(options, 3, 0, options, 4, 0) > 40, "another sample");
    EXPECT(differing(options, 3, 0, options, 3, 1) > 40, "another position");
}

// Numbers that overflow an exponential are no obstacle.
static void large_logits(void) {
    const float logits[3] = {-1e30f, 3e4f, 3e4f - 1};
    SampleOptions options = {.temperature = 0.7, .top_p = 1, .seed = 1};
    TokenLogit scratch[3];
    int count[3] = {0};
    for (int i = 0; i < 1000; i++) count[sample_token(logits, 3, &options, 0, i, scratch)]++;
    EXPECT(count[0] == 0 && count[1] > 750 && count[2] > 150, "%d %d %d", count[0], count[1], count[2]);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"softmax_of_the_temperature", softmax_of_the_temperature},
                                      {"top_k_keeps_the_k_largest", top_k_keeps_the_k_largest},
                                      {"top_p_keeps_the_nucleus", top_p_keeps_the_nucleus},
                                      {"top_p_after_top_k", top_p_after_top_k},
                                      {"zero_is_greedy", zero_is_greedy},
                                      {"a_draw_is_a_function", a_draw_is_a_function},
                                      {"large_logits", large_logits},
                                      {0}},
                       argc, argv);
}
