// The text form of schedules: goldens, print -> parse -> print, and files from strangers.
#include "base/file.h"
#include "base/rng.h"
#include "layout/kinds.h"
#include "layout_fixture.h"
#include <stdlib.h>
#include <string.h>

static void expect_golden(const char *kind, int p, int v, int m, int receive_ahead, const char *name) {
    char path[512], *golden;
    size_t size;
    Schedule s;
    Text text = {0};
    snprintf(path, sizeof path, "%s/golden/%s", TEST_FOLDER, name);
    create(&s, kind, p, v, m, receive_ahead);
    schedule_print(&s, &text);
    Status read = file_read(path, 1 << 20, &golden, &size);
    EXPECT_OK(read);
    EXPECT(read == OK && !strcmp(text_string(&text), golden), "%s:\n%s", name, text_string(&text));
    if (read == OK) free(golden);
    text_free(&text);
    schedule_destroy(&s);
}

static void printed_forms(void) {
    expect_golden("gpipe", 2, 1, 3, 0, "schedule_gpipe_p2_m3.txt");
    expect_golden("1f1b", 3, 1, 4, 0, "schedule_1f1b_p3_m4.txt");
    expect_golden("1f1b", 3, 1, 4, 1, "schedule_1f1b_p3_m4_ahead1.txt");
    expect_golden("interleaved", 2, 2, 4, 0, "schedule_interleaved_p2_v2_m4.txt");
    expect_golden("zb-h1", 3, 1, 4, 0, "schedule_zb-h1_p3_m4.txt");
    expect_golden("zb-v", 2, 2, 3, 0, "schedule_zb-v_p2_m3.txt");
    expect_golden("paired", 2, 1, 4, 0, "schedule_paired_p2_m4.txt");
}

static bool same_instrs(const Program *a, const Program *b) {
    for (int i = 0; i < a->count; i++) {
        Instr x = a->instrs[i], y = b->instrs[i];
        if (x.op != y.op || x.chunk != y.chunk || x.peer != y.peer || x.microbatch != y.microbatch ||
            x.pairs != y.pairs)
            return false;
    }
    return true;
}

static bool same(const Schedule *a, const Schedule *b) {
    if (a->num_ranks != b->num_ranks || a->num_chunks != b->num_chunks ||
        a->num_microbatches != b->num_microbatches)
        return false;
    bool equal = !memcmp(a->stage, b->stage, (size_t)(a->num_ranks * a->num_chunks) * sizeof *a->stage);
    for (int r = 0; equal && r < a->num_ranks; r++)
        equal = a->programs[r].count == b->programs[r].count && same_instrs(&a->programs[r], &b->programs[r]);
    return equal;
}

static void expect_round_trip(const Schedule *schedule) {
    Schedule again;
    Text text = {0};
    schedule_print(schedule, &text);
    EXPECT_OK(schedule_parse(&again, text_string(&text)));
    EXPECT(same(schedule, &again), "%s", text_string(&text));
    schedule_destroy(&again);
    text_free(&text);
}

static void printed_schedules_read_back(void) {
    for (int i = 0; i < num_schedule_kinds * 8 * 4; i++) {
        const ScheduleKind *kind = schedule_kinds[i % num_schedule_kinds];
        int p = 1 + i / num_schedule_kinds % 8, v = 1 + i / num_schedule_kinds / 8;
        ScheduleSpec shape = {.kind = kind->name, .ranks = p, .chunks = v, .microbatches = 2 * p};
        char why[256];
        if (schedule_kind_refuse(kind, &shape, why, sizeof why)) continue;
        for (int ahead = 0; ahead < 3; ahead++) {
            Schedule s;
            create(&s, kind->name, p, v, 2 * p, ahead);
            expect_round_trip(&s);
            schedule_destroy(&s);
        }
    }
}

// A list of computes alone becomes what the generator makes of the same order.
static void computes_are_lowered(void) {
    Schedule written, made;
    EXPECT_OK(
        schedule_parse(&written, "# by hand\n\n0: F0 F1 B0 F2 B1 B2 # first\r\n  1:\tF0 B0 F1 B1 F2 B2"));
    create(&made, "1f1b", 2, 1, 3, 0);
    EXPECT(same(&written, &made), "not the same");
    schedule_destroy(&made);
    schedule_destroy(&written);
}

static void stage_maps_read_back(void) {
    Schedule s;
    EXPECT_OK(
        schedule_parse(&s, "stages: 0.0 1.0 1.1 0.1\n0: F0.0 F0.1 B0.1 B0.0\n1: F0.0 F0.1 B0.1 B0.0\n"));
    expect_round_trip(&s);
    schedule_destroy(&s);
    EXPECT_OK(schedule_parse(&s, "stages: 1 0\n0: F0 B0\n1: F0 B0\n"));
    EXPECT(schedule_stage(&s, 1, 0) == 0, "stage %d", schedule_stage(&s, 1, 0));
    expect_round_trip(&s);
    schedule_destroy(&s);
}

static void errors_name_line_and_word(void) {
    static const char *const cases[][2] = {
        {"", "no instructions: expected lines such as \"0: F0 B0\""},
        {"# nothing\n", "no instructions: expected lines such as \"0: F0 B0\""},
        {"0:\n1:\n", "no instructions: expected lines such as \"0: F0 B0\""},
        {"0: F0 B0\n\n1: F0 X0\n", "line 3, \"X0\": expected an instruction: rf F sf rb B I W sb or R"},
        {"0: F0 B0\n2: F0 B0\n", "line 2, \"2:\": expected \"1:\" or \"stages:\""},
        {"0 F0 B0\n", "line 1, \"0\": expected \"0:\" or \"stages:\""},
        {"0: F B0\n", "line 1, \"F\": expected a microbatch from 0 to 999999 after the letters"},
        {"0: F-1\n", "line 1, \"F-1\": expected a microbatch from 0 to 999999 after the letters"},
        {"0: F1000000\n", "line 1, \"F1000000\": expected a microbatch from 0 to 999999 after the letters"},
        {"0: F0.64\n", "line 1, \"F0.64\": expected nothing more, or a chunk such as .1 (at most .63)"},
        {"0: F0,B0\n",
         "line 1, \"F0,B0\": expected nothing more, a chunk such as .1 (at most .63), or + for a pair"},
        {"0: F0000000000000000000000000000000\n",
         "line 1, \"F0000000000000000000...\": expected nothing more, or a chunk such as .1 (at most .63)"},
        {"0: \x01\xff\n", "line 1, \"\?\?\": expected an instruction: rf F sf rb B I W sb or R"},
        {"stages: 0 0\n0: F0 B0\n1: F0 B0\n", "stages: 0.0 holds two stages"},
        {"stages: 0 2\n0: F0 B0\n1: F0 B0\n", "stages: 2.0, but there are 2 ranks"},
        {"stages: 0\n0: F0 B0\n1: F0 B0\n", "stages: 1 places for 2 ranks of 1 chunks"},
        {"stages: 0 x\n", "line 1, \"x\": expected rank.chunk, the place of the next stage"},
        {"stages: 0\nstages: 0\n", "line 2, \"stages:\": expected one such line at most"},
        {"0: F999999.63\n", "rank 0: microbatch 0 of chunk 0 is not finished"},
        {"0: F0+ B0\n",
         "rank 0 instr 0: F0+: only a forward runs together with the next instruction, which must be a backward of "
         "another microbatch or chunk"},
        {"0: F0 F1 B0+ B1\n",
         "rank 0 instr 2: B0+: only a forward runs together with the next instruction, which must be a backward of "
         "another microbatch or chunk"},
        {"0: F0 F1+\n",
         "rank 0 instr 1: F1+: only a forward runs together with the next instruction, which must be a backward of "
         "another microbatch or chunk"},
        {"0: F0 B0 B0\n", "rank 0 instr 2: B0 out of order: it comes a second time"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Schedule s;
        Status status = schedule_parse(&s, cases[i][0]);
        EXPECT(status == ERR_DATA && !strcmp(fail_message(), cases[i][1]), "case %zu: %s", i, fail_message());
        schedule_destroy(&s);
    }
}

// Garbage made of the words of the language, and mutations of a good file: never a crash, never an unverified
// schedule.
static void garbage_is_refused_or_proved(void) {
    static const char *const words[] = {"0:", "1:",   "2:",   "\n",     "\n",      " ",    "F0",  "B0",
                                        "F1", "B1",   "rf0",  "sf0",    "rb0",     "sb0",  "R",   "I0",
                                        "W0", "F0.1", "B0.1", "R.1",    "stages:", "0.0",  "1.0", "0.1",
                                        "#",  ".",    "F",    "999999", "sf1.63",  "4095:"};
    RngKey key = rng_key(1, "garbage", 0);
    int accepted = 0;
    for (uint64_t i = 0; i < 20000; i++) {
        Text text = {0};
        Schedule s;
        int count = (int)(rng_word(key, i, 0) % 24);
        for (int j = 1; j <= count; j++)
            text_add(&text, " %s", words[rng_word(key, i, (uint64_t)j) % (sizeof words / sizeof *words)]);
        if (schedule_parse(&s, text_string(&text)) == OK) accepted++, expect_round_trip(&s);
        schedule_destroy(&s);
        text_free(&text);
    }
    EXPECT(accepted < 200, "%d of 20000", accepted);
}

static void damaged_files_are_refused_or_proved(void) {
    Schedule s;
    Text good = {0};
    create(&s, "interleaved", 2, 2, 4, 0);
    schedule_print(&s, &good);
    schedule_destroy(&s);
    RngKey key = rng_key(2, "damage", 0);
    for (uint64_t i = 0; i < 20000; i++) {
        size_t at = rng_word(key, i, 0) % good.size;
        char kept = good.data[at];
        good.data[at] = (char)(rng_word(key, i, 1) & 0xff);
        if (schedule_parse(&s, good.data) == OK) expect_round_trip(&s);
        schedule_destroy(&s);
        good.data[at] = kept;
    }
    text_free(&good);
}

int main(int argc, char **argv) {
    static const Test tests[] = {
        {"printed forms", printed_forms},
        {"printed schedules read back", printed_schedules_read_back},
        {"computes are lowered", computes_are_lowered},
        {"stage maps read back", stage_maps_read_back},
        {"errors name line and word", errors_name_line_and_word},
        {"garbage is refused or proved", garbage_is_refused_or_proved},
        {"damaged files are refused or proved", damaged_files_are_refused_or_proved},
        {0},
    };
    return harness_run(tests, argc, argv);
}
