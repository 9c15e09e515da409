// `trireme verify-machine`: known answers for every family of kernels on every core, for a time.
#include "cli/cli.h"
#include "device/device.h"
#include "machine/verify_machine.h"
#include <inttypes.h>
#include <stdio.h>

static void print_faults(const MachineReport *report) {
    int64_t shown = report->wrong < FAULTS_KEPT ? report->wrong : FAULTS_KEPT;
    for (int64_t i = 0; i < shown; i++) {
        const MachineFault *f = &report->faults[i];
        printf("core %d, %s, round %" PRId64 ": byte %" PRId64 ": 0x%08" PRIx32 ", not 0x%08" PRIx32
               ", bits 0x%08" PRIx32 "\n",
               f->core, answer_name(f->family), f->round, f->byte, f->got, f->want, f->got ^ f->want);
    }
    for (int i = 0; i < report->cores.count; i++)
        if (report->wrong_of[i])
            printf("core %d: %" PRId64 " wrong results\n", report->cores.ids[i], report->wrong_of[i]);
}

Status cmd_verify_machine(Options *o) {
    MachineReport report;
    Text cores = {0};
    VerifyPlan plan = {.seconds = 60 * o->minutes, .at_once = o->all_cores};
    if (o->positional.count)
        return fail(ERR_USAGE, "verify-machine takes no words such as %s", o->positional.items[0]);
    plan.stopped = stop_on_signals();
    Status status = verify_machine(&plan, &report);
    do_not_stop_on_signals();
    cores_print(&report.cores, &cores);
    if (report.checked)
        printf("cores %s%s, kernels for %s: %" PRId64 " rounds, %" PRId64 " results of %d families\n",
               text_string(&cores), o->all_cores ? " at once" : " in turn", device_kernels("cpu"),
               report.rounds, report.checked, NUM_ANSWERS);
    print_faults(&report);
    if (status == OK) puts("every core gave every known answer");
    text_free(&cores);
    return status;
}
