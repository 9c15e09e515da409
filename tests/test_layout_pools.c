// Where receives are posted, and how many buffers of each kind an executor needs.
#include "layout/buffers.h"
#include "layout/kinds.h"
#include "layout_fixture.h"
#include <limits.h>
#include <string.h>

// ---- every kind that there is -----------------------------------------------------------------------------

typedef void Law(const Schedule *schedule, const char *kind, int receive_ahead);

static void for_each_schedule(Law *law) {
    for (int i = 0; i < num_schedule_kinds * 6 * 3 * 10; i++) {
        const ScheduleKind *kind = schedule_kinds[i % num_schedule_kinds];
        int j = i / num_schedule_kinds, p = 1 + j % 6, v = 1 + j / 6 % 3, m = 1 + j / 18;
        ScheduleSpec shape = {.kind = kind->name, .ranks = p, .chunks = v, .microbatches = m};
        char why[256];
        if (schedule_kind_refuse(kind, &shape, why, sizeof why)) continue;
        for (int ahead = 0; ahead < 3; ahead++) {
            Schedule s;
            create(&s, kind->name, p, v, m, ahead);
            law(&s, kind->name, ahead);
            schedule_destroy(&s);
        }
    }
}

static bool consumes(Instr receive, Instr in) {
    bool forward = receive.op == OP_RECV_FORWARD;
    bool fits = forward ? in.op == OP_FORWARD : in.op == OP_BACKWARD || in.op == OP_BACKWARD_INPUT;
    return fits && in.chunk == receive.chunk && in.microbatch == receive.microbatch;
}

static bool next_compute_pairs(const Program *program, int at) {
    while (schedule_ops[program->instrs[at].op].kind != COMPUTE) at++;
    return program->instrs[at].pairs;
}

// How many computes lie between a receive and its own, or would but for the start of the program. Nothing is posted
// within a pair: what its second compute receives, or is ahead of that, is posted before the first.
static void ahead_law(const Schedule *s, const char *kind, int receive_ahead) {
    for (int r = 0; r < s->num_ranks; r++) {
        const Program *program = &s->programs[r];
        for (int i = 0, before = 0; i < program->count; i++) {
            int between = 0, j = i + 1;
            before += schedule_ops[program->instrs[i].op].kind == COMPUTE;
            if (schedule_ops[program->instrs[i].op].kind != RECV) continue;
            while (!consumes(program->instrs[i], program->instrs[j]))
                between += schedule_ops[program->instrs[j++].op].kind == COMPUTE;
            EXPECT(between == receive_ahead || (between < receive_ahead && before == 0) ||
                       (between == receive_ahead + 1 && next_compute_pairs(program, i)),
                   "%s p %d m %d rank %d instr %d: %d ahead, not %d", kind, s->num_ranks, s->num_microbatches,
                   r, i, between, receive_ahead);
        }
    }
}

static void receives_go_ahead(void) { for_each_schedule(ahead_law); }

static double ends_us(const Schedule *s, int num_sending, ScheduleCosts costs) {
    Schedule with = *s;
    Simulation sim;
    with.num_sending = num_sending;
    schedule_simulate(&with, costs, &sim);
    double us = sim.ends_us;
    simulation_destroy(&sim, &with);
    return us;
}

// No compute is later than with any number of buffers, and half as many would not do.
static void sending_law(const Schedule *s, const char *kind, int receive_ahead) {
    int half = s->num_sending / 2;
    ScheduleCosts costs = {
        .forward_us = s->num_chunks, .backward_us = 2 * s->num_chunks, .weight_fraction = 0.5};
    double undelayed_us = ends_us(s, INT_MAX, costs);
    Schedule with = *s;
    with.num_sending = half;
    bool fewer = half && schedule_verify(&with) == OK && ends_us(s, half, costs) <= undelayed_us;
    EXPECT(ends_us(s, s->num_sending, costs) == undelayed_us && !fewer,
           "%s p %d v %d m %d ahead %d: %d buffers", kind, s->num_ranks, s->num_chunks, s->num_microbatches,
           receive_ahead, s->num_sending);
}

static void sending_takes_as_few_buffers_as_can_be(void) { for_each_schedule(sending_law); }

// All buffers are free in the end, and never more are held than the pools have, in an evaluation too.
static void balance_law(const Schedule *s, const char *kind, int receive_ahead) {
    for (int r = 0; r < 2 * s->num_ranks; r++) {
        const Program *program = &s->programs[r / 2];
        int held[NUM_BUFFER_KINDS] = {0}, peak[NUM_BUFFER_KINDS] = {0};
        bool training = r % 2;
        for (int i = 0; i < program->count; i++) {
            if (!training && schedule_ops[program->instrs[i].op].direction == BACKWARDS) continue;
            BufferChanges changes = schedule_buffer_changes(s, r / 2, program->instrs[i], training);
            for (int c = 0; c < changes.count; c++) {
                int *now = &held[changes.items[c].kind], *most = &peak[changes.items[c].kind];
                *now += changes.items[c].alloc ? 1 : -1;
                if (*now > *most) *most = *now;
            }
        }
        for (BufferKind b = 0; b < NUM_BUFFER_KINDS; b++)
            EXPECT(held[b] == 0 && peak[b] <= schedule_pool(s, r / 2, b),
                   "%s p %d m %d ahead %d rank %d, %s: %d of %d held, %d left", kind, s->num_ranks,
                   s->num_microbatches, receive_ahead, r / 2, buffer_names[b], peak[b],
                   schedule_pool(s, r / 2, b), held[b]);
    }
}

static void all_buffers_are_free_in_the_end(void) { for_each_schedule(balance_law); }

// ---- how many buffers -------------------------------------------------------------------------------------

static void expect_pools(const Schedule *s, int rank, const int expected[NUM_BUFFER_KINDS]) {
    for (BufferKind kind = 0; kind < NUM_BUFFER_KINDS; kind++)
        EXPECT(schedule_pool(s, rank, kind) == expected[kind], "rank %d kind %d: %d, not %d", rank, kind,
               schedule_pool(s, rank, kind), expected[kind]);
}

// Columns: input, stash, recomputed, output, output gradient, input gradient. The first stage sends no
// gradient, the last no output but keeps the gradient of its own loss.
static void pools_of_1f1b_and_gpipe(void) {
    Schedule s;
    create(&s, "1f1b", 4, 1, 8, 0);
    expect_pools(&s, 0, (const int[NUM_BUFFER_KINDS]){4, 4, 0, 1, 1, 0});
    expect_pools(&s, 1, (const int[NUM_BUFFER_KINDS]){3, 3, 0, 1, 1, 1});
    expect_pools(&s, 3, (const int[NUM_BUFFER_KINDS]){1, 1, 0, 0, 1, 1});
    schedule_destroy(&s);
    create(&s, "1f1b", 4, 1, 8, 2);
    expect_pools(&s, 0, (const int[NUM_BUFFER_KINDS]){4, 4, 0, 1, 3, 0});
    expect_pools(&s, 1, (const int[NUM_BUFFER_KINDS]){5, 3, 0, 1, 3, 1});
    expect_pools(&s, 3, (const int[NUM_BUFFER_KINDS]){3, 1, 0, 0, 1, 1});
    schedule_destroy(&s);
    create(&s, "gpipe", 2, 1, 5, 0);
    expect_pools(&s, 0, (const int[NUM_BUFFER_KINDS]){5, 5, 0, 1, 1, 0});
    expect_pools(&s, 1, (const int[NUM_BUFFER_KINDS]){5, 5, 0, 0, 5, 1});
    schedule_destroy(&s);
}

// What is handed over on the same rank is no message, but it lies in a buffer from one compute to the other.
static void pools_of_a_hand_over(void) {
    Schedule s;
    EXPECT_OK(schedule_parse(&s, "stages: 0.0 1.0 1.1 0.1\n"
                                 "0: F0.0 F1.0 F0.1 I0.1 W0.1 F1.1 I1.1 W1.1 I0.0 W0.0 I1.0 W1.0\n"
                                 "1: F0.0 F1.0 F0.1 F1.1 I0.1 I1.1 I0.0 W0.0 W0.1 W1.1 I1.0 W1.0\n"));
    expect_pools(&s, 0, (const int[NUM_BUFFER_KINDS]){3, 3, 1, 1, 1, 1});
    expect_pools(&s, 1, (const int[NUM_BUFFER_KINDS]){4, 4, 3, 3, 3, 1});
    schedule_destroy(&s);
}

static void received_ahead_but_not_yet_computed(void) {
    Schedule s;
    EXPECT_OK(schedule_parse(&s, "0: F0 sf0 F1 sf1 rb0 B0 rb1 B1 R\n1: rf0 F0 rf1 B0 sb0 F1 B1 sb1 R\n"));
    EXPECT(schedule_peak_stash(&s, 0) == 2 && schedule_peak_stash(&s, 1) == 1, "%d",
           schedule_peak_stash(&s, 1));
    EXPECT(schedule_pool(&s, 1, BUFFER_INPUT) == 2, "%d", schedule_pool(&s, 1, BUFFER_INPUT));
    schedule_destroy(&s);
}

// Whatever is sent late waits in a buffer of its own.
static void pools_of_late_sends(void) {
    Schedule s;
    EXPECT_OK(schedule_parse(&s, "0: F0 sf0 F1 sf1 F2 sf2 rb0 B0 rb1 B1 rb2 B2 R\n"
                                 "1: rf0 F0 B0 rf1 F1 B1 rf2 F2 B2 sb0 sb1 sb2 R\n"));
    expect_pools(&s, 1, (const int[NUM_BUFFER_KINDS]){1, 1, 0, 0, 1, 3});
    schedule_destroy(&s);
    EXPECT_OK(schedule_parse(&s, "0: F0 F1 sf1 rb1 B1 F2 sf0 sf2 rb0 B0 rb2 B2 R\n"
                                 "1: rf1 F1 B1 sb1 rf0 F0 B0 sb0 rf2 F2 B2 sb2 R\n"));
    expect_pools(&s, 0, (const int[NUM_BUFFER_KINDS]){2, 2, 0, 2, 1, 0});
    schedule_destroy(&s);
}

// Channels alone let this end. With one buffer each rank's next output waits for one that the other takes
// only later.
static void too_few_buffers_hang(void) {
    static const char computes[] =
        "F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 B0.1 B1.1 B2.1 B3.1 B0.0 B1.0 B2.0 B3.0";
    Schedule s;
    Text text = {0};
    text_add(&text, "0: %s\n1: %s\n", computes, computes);
    EXPECT_OK(schedule_parse(&s, text_string(&text)));
    EXPECT(s.num_sending == 4, "%d", s.num_sending);
    s.num_sending = 1;
    EXPECT(schedule_verify(&s) == ERR_DATA &&
               !strcmp(fail_message(), "deadlock: rank 0 instr 6: F3.0 waits for rank 1 to receive; "
                                       "rank 1 instr 4: F1.0 waits for rank 0 to receive"),
           "%s", fail_message());
    schedule_destroy(&s);
    text_free(&text);
}

// Of the kinds that promise it: a pipeline made for many microbatches runs schedules of fewer.
static void pools_grow_with_microbatches(void) {
    for (int i = 0; i < num_schedule_kinds * 8 * 2 * 3; i++) {
        const ScheduleKind *kind = schedule_kinds[i % num_schedule_kinds];
        int j = i / num_schedule_kinds, p = 1 + j % 8, v = 1 + j / 8 % 2, ahead = j / 16;
        int before[8][NUM_BUFFER_KINDS] = {{0}};
        for (int m = 1; m <= 16; m++) {
            ScheduleSpec shape = {.kind = kind->name, .ranks = p, .chunks = v, .microbatches = m};
            char why[256];
            if (!kind->pools_grow || schedule_kind_refuse(kind, &shape, why, sizeof why)) continue;
            Schedule s;
            create(&s, kind->name, p, v, m, ahead);
            for (int k = 0; k < p * NUM_BUFFER_KINDS; k++) {
                int *least = &before[k / NUM_BUFFER_KINDS][k % NUM_BUFFER_KINDS];
                int size = schedule_pool(&s, k / NUM_BUFFER_KINDS, (BufferKind)(k % NUM_BUFFER_KINDS));
                EXPECT(size >= *least, "%s p %d v %d m %d ahead %d rank %d kind %d: %d after %d", kind->name,
                       p, v, m, ahead, k / NUM_BUFFER_KINDS, k % NUM_BUFFER_KINDS, size, *least);
                *least = size;
            }
            schedule_destroy(&s);
        }
    }
}

int main(int argc, char **argv) {
    static const Test tests[] = {
        {"receives go ahead", receives_go_ahead},
        {"sending takes as few buffers as can be", sending_takes_as_few_buffers_as_can_be},
        {"all buffers are free in the end", all_buffers_are_free_in_the_end},
        {"pools of 1f1b and gpipe", pools_of_1f1b_and_gpipe},
        {"pools of a hand-over", pools_of_a_hand_over},
        {"received ahead but not yet computed", received_ahead_but_not_yet_computed},
        {"pools of late sends", pools_of_late_sends},
        {"too few buffers hang", too_few_buffers_hang},
        {"pools grow with microbatches", pools_grow_with_microbatches},
        {0},
    };
    return harness_run(tests, argc, argv);
}
