// The verifier itself: an independent walk over queues agrees with it, planted faults are named, lists that
// hang are found.
#include "layout/buffers.h"
#include "layout/kinds.h"
#include "layout_fixture.h"
#include <stdlib.h>
#include <string.h>

// ---- an independent walk: streams of blocking messages ----------------------------------------------------
// Each rank issues its list into queues: computes into one, messages into others. A message moves when both
// of its ends head their queues; a compute waits for the receive that it consumes, a send for the compute
// before it.

typedef enum { ONE_STREAM, STREAM_PER_DIRECTION, STREAM_PER_CHANNEL } Streams;
enum { MAX_RANKS = 8, MAX_QUEUES = 1 + 4 * MAX_RANKS };

typedef struct {
    const Schedule *schedule;
    Streams streams;
    bool *done[MAX_RANKS];
    int head[MAX_RANKS][MAX_QUEUES];
} Issue;

static OpKind kind_of(Instr in) { return schedule_ops[in.op].kind; }
static bool is_message(Instr in) { return kind_of(in) == SEND || kind_of(in) == RECV; }
static bool is_backward(Instr in) { return in.op == OP_SEND_BACKWARD || in.op == OP_RECV_BACKWARD; }

static int queue_of(const Issue *issue, Instr in) {
    if (!is_message(in)) return 0;
    if (issue->streams == ONE_STREAM) return 1;
    if (issue->streams == STREAM_PER_DIRECTION) return 1 + is_backward(in);
    return 1 + 4 * in.peer + 2 * is_backward(in) + (kind_of(in) == SEND);
}

// The index of the instruction at the head of a queue, -1 when the queue is empty.
static int head_of(Issue *issue, int rank, int queue) {
    const Program *program = &issue->schedule->programs[rank];
    int *head = &issue->head[rank][queue];
    while (*head < program->count &&
           (issue->done[rank][*head] || queue_of(issue, program->instrs[*head]) != queue))
        ++*head;
    return *head < program->count ? *head : -1;
}

static bool is_ready(const Issue *issue, int rank, int at) {
    const Instr *instrs = issue->schedule->programs[rank].instrs;
    if (kind_of(instrs[at]) == RECV || kind_of(instrs[at]) == REDUCE) return true;
    for (int i = at - 1; i >= 0; i--) {
        bool its_input = instrs[i].op == (instrs[at].op == OP_FORWARD ? OP_RECV_FORWARD : OP_RECV_BACKWARD) &&
                         instrs[i].microbatch == instrs[at].microbatch && instrs[i].chunk == instrs[at].chunk;
        bool awaited = is_message(instrs[at]) ? !is_message(instrs[i]) : its_input;
        if (awaited) return issue->done[rank][i];
    }
    return true;
}

// Runs what heads the queue, if it can run.
static bool advance(Issue *issue, int rank, int queue) {
    int at = head_of(issue, rank, queue);
    if (at < 0 || !is_ready(issue, rank, at)) return false;
    Instr in = issue->schedule->programs[rank].instrs[at];
    if (!is_message(in)) return issue->done[rank][at] = true;
    if (kind_of(in) == RECV) return false;
    Instr wanted = in;
    wanted.op = is_backward(in) ? OP_RECV_BACKWARD : OP_RECV_FORWARD;
    wanted.peer = (int16_t)rank;
    int other = head_of(issue, in.peer, queue_of(issue, wanted));
    if (other < 0) return false;
    Instr met = issue->schedule->programs[in.peer].instrs[other];
    if (met.op != wanted.op || met.peer != rank) return false;
    return issue->done[rank][at] = issue->done[in.peer][other] = true;
}

static bool runs_to_the_end(const Schedule *schedule, Streams streams) {
    Issue issue = {.schedule = schedule, .streams = streams};
    for (int r = 0; r < schedule->num_ranks; r++)
        issue.done[r] = calloc((size_t)schedule->programs[r].count, 1);
    for (bool progress = true; progress;) {
        progress = false;
        for (int i = 0; i < schedule->num_ranks * MAX_QUEUES; i++)
            while (advance(&issue, i / MAX_QUEUES, i % MAX_QUEUES)) progress = true;
    }
    bool all = true;
    for (int r = 0; r < schedule->num_ranks; r++) {
        for (int i = 0; i < schedule->programs[r].count; i++) all &= issue.done[r][i];
        free(issue.done[r]);
    }
    return all;
}

// How many of the schedules with p = 2..6 and m = 1..12 (v = 2, 3 when interleaved, whole groups) end.
static int count_ending(const char *kind, int receive_ahead, Streams streams, int *tried) {
    int ending = 0;
    *tried = 0;
    for (int i = 0; i < 5 * 12 * 3; i++) {
        int p = 2 + i % 5, m = 1 + i / 5 % 12, v = 1 + i / 60;
        ScheduleSpec spec = {.kind = kind, .ranks = p, .chunks = v, .microbatches = m};
        char why[256];
        if (schedule_kind_refuse(schedule_kind(kind), &spec, why, sizeof why)) continue;
        Schedule schedule;
        create(&schedule, kind, p, v, m, receive_ahead);
        ending += runs_to_the_end(&schedule, streams);
        ++*tried;
        schedule_destroy(&schedule);
    }
    return ending;
}

static void one_stream_per_channel_never_hangs(void) {
    for (int i = 0; i < num_schedule_kinds * 3; i++) {
        const char *kind = schedule_kinds[i / 3]->name;
        int tried, ending = count_ending(kind, i % 3, STREAM_PER_CHANNEL, &tried);
        EXPECT(ending == tried && tried >= 34, "%s: %d of %d", kind, ending, tried);
    }
}

// The same lists on fewer streams: the walk above can tell the difference.
static void fewer_streams_hang(void) {
    int tried;
    EXPECT(count_ending("gpipe", 0, ONE_STREAM, &tried) == 60, "of %d", tried);
    EXPECT(count_ending("1f1b", 0, ONE_STREAM, &tried) == 5, "of %d", tried);
    EXPECT(count_ending("zb-h1", 0, ONE_STREAM, &tried) == 5, "of %d", tried);
    EXPECT(count_ending("interleaved", 0, ONE_STREAM, &tried) == 0, "of %d", tried);
    EXPECT(count_ending("1f1b", 0, STREAM_PER_DIRECTION, &tried) == 60, "of %d", tried);
    EXPECT(count_ending("zb-h1", 0, STREAM_PER_DIRECTION, &tried) == 60, "of %d", tried);
    EXPECT(count_ending("interleaved", 0, STREAM_PER_DIRECTION, &tried) == 0, "of %d", tried);
}

// ---- planted faults ---------------------------------------------------------------------------------------

static int find(const Schedule *s, int rank, const char *text) {
    for (int i = 0; i < s->programs[rank].count; i++) {
        char found[16];
        instr_print(s, s->programs[rank].instrs[i], found);
        if (!strcmp(found, text)) return i;
    }
    EXPECT(false, "rank %d has no %s", rank, text);
    return 0;
}

static void drop(Schedule *s, int rank, const char *text) {
    Program *program = &s->programs[rank];
    int at = find(s, rank, text);
    program->count--;
    memmove(&program->instrs[at], &program->instrs[at + 1], (size_t)(program->count - at) * sizeof(Instr));
}

static void swap(Schedule *s, int rank, const char *one, const char *other) {
    Instr *instrs = s->programs[rank].instrs;
    int a = find(s, rank, one), b = find(s, rank, other);
    Instr kept = instrs[a];
    instrs[a] = instrs[b];
    instrs[b] = kept;
}

// Creates a schedule, plants a fault, expects its description.
static void expect_fault(const char *kind, int p, int v, int m, void (*plant)(Schedule *),
                         const char *message) {
    Schedule s;
    create(&s, kind, p, v, m, 0);
    plant(&s);
    Status status = schedule_verify(&s);
    EXPECT(status == ERR_DATA && !strcmp(fail_message(), message), "\n%s\n%s", status ? fail_message() : "OK",
           message);
    schedule_destroy(&s);
}

static void drop_send(Schedule *s) { drop(s, 1, "sb0"); }
static void drop_last_send(Schedule *s) { drop(s, 1, "sb3"); }
static void drop_receive(Schedule *s) { drop(s, 1, "rf2"); }
static void drop_reduction(Schedule *s) { drop(s, 1, "R"); }
static void swap_computes(Schedule *s) { swap(s, 2, "F0", "F1"); }
static void swap_backwards(Schedule *s) { swap(s, 2, "B0", "F0"); }
static void swap_sends(Schedule *s) { swap(s, 0, "sf0", "sf1"); }
static void swap_receives(Schedule *s) { swap(s, 0, "rb0", "rb1"); }
static void reduce_early(Schedule *s) { swap(s, 0, "R", "B3"); }
static void wrong_peer(Schedule *s) { s->programs[1].instrs[find(s, 1, "sf2")].peer = 0; }
static void wrong_chunk(Schedule *s) { s->programs[1].instrs[2].chunk = 1; }
static void send_beyond_the_end(Schedule *s) {
    s->programs[2].instrs[find(s, 2, "sb1")].op = OP_SEND_FORWARD;
}

static void drop_send_of_chunk_1(Schedule *s) { drop(s, 1, "sf2.1"); }
static void swap_hand_over(Schedule *s) { swap(s, 2, "F1.0", "F1.1"); }
static void swap_halves(Schedule *s) { swap(s, 1, "I1", "W1"); }
static void drop_weight_half(Schedule *s) { drop(s, 1, "W2"); }
static void swap_gradients(Schedule *s) { swap(s, 1, "sb1", "sb2"); }

static void forget_microbatch_2(Schedule *s) {
    for (int r = 0; r < s->num_ranks; r++) {
        Program *program = &s->programs[r];
        int kept = 0;
        for (int i = 0; i < program->count; i++)
            if (program->instrs[i].microbatch != 2) program->instrs[kept++] = program->instrs[i];
        program->count = kept;
    }
}

static void surplus_send(Schedule *s) {
    Program *program = &s->programs[0];
    int at = find(s, 0, "sf3");
    drop(s, 0, "R");
    memmove(&program->instrs[at + 1], &program->instrs[at], (size_t)(program->count - at) * sizeof(Instr));
    program->count++;
}

static void faults_are_named(void) {
    expect_fault("1f1b", 3, 1, 4, drop_send, "rank 0 instr 6: rb0 meets microbatch 1 of stage 1");
    expect_fault("1f1b", 3, 1, 4, drop_last_send,
                 "deadlock: rank 0 instr 15: B3 waits for rank 1 to send, which has ended");
    expect_fault("1f1b", 3, 1, 4, drop_receive, "rank 1 instr 9: F2 out of order: rf2 must come first");
    expect_fault("1f1b", 3, 1, 4, drop_reduction,
                 "rank 1: R of chunk 0 must come after its last gradient, instr 22");
    expect_fault("1f1b", 3, 1, 4, swap_computes, "rank 2 instr 1: F1 out of order: rf1 must come first");
    expect_fault("1f1b", 3, 1, 4, swap_backwards, "rank 2 instr 1: B0 out of order: F0 must come first");
    expect_fault("gpipe", 2, 1, 4, swap_sends, "rank 0 instr 1: sf1 out of order: F1 must come first");
    expect_fault("gpipe", 2, 1, 4, swap_receives, "rank 0 instr 9: B0 out of order: rb0 must come first");
    expect_fault("gpipe", 2, 1, 4, reduce_early,
                 "rank 0: R of chunk 0 must come after its last gradient, instr 16");
    expect_fault("1f1b", 3, 1, 4, wrong_peer,
                 "rank 1 instr 11: sf2 names rank 0, but the neighbouring stage is on rank 2");
    expect_fault("1f1b", 3, 1, 4, wrong_chunk,
                 "rank 1 instr 2: op 2, chunk 1, microbatch 0: no such thing in this schedule");
    expect_fault("1f1b", 3, 1, 4, send_beyond_the_end,
                 "rank 2 instr 7: sf1 has no other end: stage 2 of 3 has no such neighbour on another rank");
    expect_fault("1f1b", 4, 1, 6, forget_microbatch_2, "rank 0: microbatch 2 of chunk 0 is not finished");
    expect_fault("1f1b", 2, 1, 4, surplus_send, "rank 0 instr 12: sf3 out of order: it comes a second time");
}

static void faults_of_split_backwards_are_named(void) {
    expect_fault("zb-h1", 3, 1, 4, swap_halves, "rank 1 instr 13: W1 out of order: I1 must come first");
    expect_fault("zb-h1", 3, 1, 4, drop_weight_half, "rank 1: microbatch 2 of chunk 0 is not finished");
    expect_fault("zb-h1", 3, 1, 4, swap_gradients, "rank 1 instr 14: sb2 out of order: I2 must come first");
    expect_fault("zb-v", 3, 2, 6, drop_send_of_chunk_1,
                 "rank 0 instr 20: rf2.1 meets microbatch 3 of stage 4");
    expect_fault("zb-v", 3, 2, 6, swap_hand_over, "rank 2 instr 5: F1.1 out of order: F1.0 must come first");
}

// Each instruction of a schedule matters: without any one of them it does not verify.
static void expect_all_needed(const char *kind, int p, int v, int m, int receive_ahead) {
    Schedule s;
    create(&s, kind, p, v, m, receive_ahead);
    for (int r = 0; r < p; r++) {
        Program *program = &s.programs[r], whole = *program;
        Instr *instrs = program->instrs;
        program->instrs = malloc((size_t)whole.count * sizeof *instrs);
        program->count--;
        for (int i = 0; i < whole.count; i++) {
            memcpy(program->instrs, instrs, (size_t)i * sizeof *instrs);
            memcpy(program->instrs + i, instrs + i + 1, (size_t)(whole.count - i - 1) * sizeof *instrs);
            EXPECT(schedule_verify(&s) == ERR_DATA, "%s: rank %d without instr %d verifies", kind, r, i);
        }
        free(program->instrs);
        *program = whole;
    }
    EXPECT_OK(schedule_verify(&s));
    schedule_destroy(&s);
}

static void nothing_can_be_left_out(void) {
    for (int ahead = 0; ahead < 3; ahead++) {
        expect_all_needed("interleaved", 3, 2, 6, ahead);
        expect_all_needed("zb-h2", 3, 1, 6, ahead);
        expect_all_needed("zb-v", 3, 2, 6, ahead);
    }
}

// ---- lists that hang --------------------------------------------------------------------------------------

static void expect_refused(const char *text, const char *message) {
    Schedule s;
    Status status = schedule_parse(&s, text);
    EXPECT(status == ERR_DATA && !strcmp(fail_message(), message), "%s\n%s\n%s", text,
           status ? fail_message() : "OK", message);
    schedule_destroy(&s);
}

static void circular_waits_are_named(void) {
    expect_refused("0: F0 B0 F1 B1\n1: F0 F1 B0 B1\n",
                   "deadlock: rank 0 instr 3: B0 waits for rank 1 to send; "
                   "rank 1 instr 3: F1 waits for rank 0 to send");
    expect_refused("0: F0 F1 B1 B0\n1: F0 F1 B0 B1\n", "rank 0 instr 4: rb1 meets microbatch 0 of stage 1");
}

// Also when the first reduction is a rank's first instruction.
static void second_reductions_are_refused(void) {
    expect_refused("0: R F0 sf0 rb0 B0 R\n1: rf0 F0 B0 sb0 R\n",
                   "rank 0 instr 5: R out of order: it comes a second time");
    expect_refused("0: F0 sf0 rb0 B0 R R\n1: rf0 F0 B0 sb0 R\n",
                   "rank 0 instr 5: R out of order: it comes a second time");
}

static void messages_of_other_chunks_are_named(void) {
    expect_refused("0: F0.0 sf0.0 rf0.1 F0.1 sf0.1 rb0.1 B0.1 sb0.1 R.1 rb0.0 B0.0 R.0\n"
                   "1: rf0.1 rf0.0 F0.0 sf0.0 F0.1 B0.1 sb0.1 R.1 rb0.0 B0.0 sb0.0 R.0\n",
                   "rank 1 instr 0: rf0.1 meets microbatch 0 of stage 0");
}

// ---- V placements and split backwards ---------------------------------------------------------------------

// Two stages in a V: rank 0 holds the first and the last, the turn is handed over on rank 1 without a
// message.
static void stages_may_turn_around(void) {
    Schedule s;
    EXPECT_OK(schedule_parse(
        &s, "stages: 0.0 1.0 1.1 0.1\n"
            "0: F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0\n1: F0.0 F0.1 F1.0 F1.1 B0.1 B0.0 B1.1 B1.0\n"));
    EXPECT(schedule_stage(&s, 1, 1) == 2 && schedule_stage(&s, 0, 1) == 3, "stages");
    EXPECT(schedule_partner(&s, 1, 0, OP_SEND_FORWARD) == -1, "handed over");
    EXPECT(schedule_partner(&s, 1, 1, OP_SEND_FORWARD) == 0, "sent");
    schedule_destroy(&s);
    expect_refused("stages: 0.0 1.0 1.1 0.1\n0: F0.0 F0.1 B0.1 B0.0\n1: F0.1 F0.0 B0.1 B0.0\n",
                   "rank 1 instr 0: F0.1 out of order: F0.0 must come first");
}

// Zero-bubble lists split the backward; the slot lives until the weight gradient.
static void backwards_may_be_split(void) {
    Schedule s;
    Simulation sim;
    EXPECT_OK(schedule_parse(&s, "0: F0 F1 I0 W0 I1 W1\n1: F0 I0 F1 I1 W0 W1\n"));
    EXPECT(schedule_peak_stash(&s, 1) == 2, "%d", schedule_peak_stash(&s, 1));
    schedule_simulate(&s, (ScheduleCosts){.forward_us = 1, .backward_us = 4, .weight_fraction = 0.25}, &sim);
    EXPECT(sim.total_us == 1 + 4 + 4 + 3 + 1, "%g", sim.total_us);
    simulation_destroy(&sim, &s);
    schedule_destroy(&s);
    expect_refused("0: F0 W0 I0\n", "rank 0 instr 1: W0 out of order: I0 must come first");
    expect_refused("0: F0 I0\n", "rank 0: microbatch 0 of chunk 0 is not finished");
}

int main(int argc, char **argv) {
    static const Test tests[] = {
        {"one stream per channel never hangs", one_stream_per_channel_never_hangs},
        {"fewer streams hang", fewer_streams_hang},
        {"faults are named", faults_are_named},
        {"faults of split backwards are named", faults_of_split_backwards_are_named},
        {"nothing can be left out", nothing_can_be_left_out},
        {"second reductions are refused", second_reductions_are_refused},
        {"circular waits are named", circular_waits_are_named},
        {"messages of other chunks are named", messages_of_other_chunks_are_named},
        {"stages may turn around", stages_may_turn_around},
        {"backwards may be split", backwards_may_be_split},
        {0},
    };
    return harness_run(tests, argc, argv);
}
