// Known answers: every family is what it must be on every core; one flipped bit is found, with its core, its family and the
// bit, from the first round on and later, in turn and at once.
#include "harness.h"
#include "machine/verify_machine.h"
#include <stdlib.h>
#include <string.h>

static void a_sound_machine_is_told(void) {
    for (int at_once = 0; at_once < 2; at_once++) {
        MachineReport report;
        EXPECT_OK(verify_machine(&(VerifyPlan){.seconds = 0.2, .at_once = at_once}, &report));
        EXPECT(report.rounds >= 1 && report.wrong == 0, "%lld rounds, %lld wrong", (long long)report.rounds,
               (long long)report.wrong);
        EXPECT(report.checked >= report.rounds * report.cores.count * NUM_ANSWERS, "%lld results",
               (long long)report.checked);
    }
}

static void exact_answers_are_exact(void) {
    AnswerBench bench, reference;
    KnownAnswer *got = calloc(2, sizeof *got), *want = got + 1;
    EXPECT_OK(answer_bench_open(&bench, "cpu"));
    EXPECT_OK(answer_bench_open(&reference, "reference"));
    for (AnswerFamily f = 0; f < NUM_ANSWERS; f++) {
        answer_compute(&bench, f, got);
        if (answer_is_exact(f))
            answer_exact(f, want);
        else
            answer_compute(&reference, f, want);
        EXPECT(got->bytes == want->bytes && got->bytes > 0, "%s: %zu bytes", answer_name(f), got->bytes);
        EXPECT(answer_is_exact(f) ? !memcmp(got->data, want->data, want->bytes) : answer_is_near(got, want),
               "%s is wrong", answer_name(f));
        if (f == ANSWER_checksums || f == ANSWER_random_words)
            for (size_t i = 0; i < got->bytes / 8; i++)
                EXPECT(!memcmp(got->data + 8 * i, want->data + 8 * i, 8), "%s: 0x%016llx", answer_name(f),
                       ((unsigned long long *)(void *)got->data)[i]);
        if (answer_is_exact(f)) continue;
        ((float *)(void *)got->data)[3] *= 1.5f; // a value that is far
        EXPECT(!answer_is_near(got, want) || f == ANSWER_attention, "%s is near though a value is far",
               answer_name(f));
    }
    answer_bench_close(&reference);
    answer_bench_close(&bench);
    free(got);
}

static void expect_found(const PlantedFault *planted, bool at_once) {
    MachineReport report;
    char core[32];
    Status status =
        verify_machine(&(VerifyPlan){.least_rounds = 3, .at_once = at_once, .planted = planted}, &report);
    snprintf(core, sizeof core, "core %d computes", planted->core);
    EXPECT(status == ERR_REPLICAS, "%s: status %d", answer_name(planted->family), (int)status);
    EXPECT(strstr(fail_message(), core) && strstr(fail_message(), answer_name(planted->family)), "%s",
           fail_message());
    const MachineFault *fault = &report.faults[0];
    EXPECT(report.wrong >= 1 && fault->core == planted->core && fault->family == planted->family &&
               fault->differ == 1,
           "%lld wrong, %lld bytes", (long long)report.wrong, (long long)fault->differ);
    EXPECT(fault->byte == planted->bit / 8 && (fault->got ^ fault->want) == 1u << planted->bit % 32,
           "byte %lld, bits %08x", (long long)fault->byte, fault->got ^ fault->want);
    EXPECT(fault->round == planted->from_round, "round %lld", (long long)fault->round);
    for (int i = 0; i < report.cores.count; i++)
        EXPECT((report.wrong_of[i] > 0) == (report.cores.ids[i] == planted->core), "core %d has %lld",
               report.cores.ids[i], (long long)report.wrong_of[i]);
}

// On one core alone most runs would be wrong, too, of the families without an exact answer, in round 0.
static void a_flipped_bit_is_found(void) {
    Cores cores;
    cores_allowed(&cores);
    for (AnswerFamily f = 0; f < NUM_ANSWERS; f++)
        for (int at_once = 0; at_once < 2; at_once++) {
            bool votes = cores.count < 3 && !answer_is_exact(f);
            PlantedFault planted = {cores.ids[cores.count - 1], f, votes || at_once, 3 + 5 * (int)f};
            expect_found(&planted, at_once);
        }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"exact_answers_are_exact", exact_answers_are_exact},
                                      {"a_sound_machine_is_told", a_sound_machine_is_told},
                                      {"a_flipped_bit_is_found", a_flipped_bit_is_found},
                                      {0}},
                       argc, argv);
}
