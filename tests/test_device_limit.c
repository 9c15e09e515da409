// TRIREME_MAX_CPU_ISA: the kernels that it leaves, and values that are refused.
#include "base/libraries.h"
#include "device/cpu/cpu.h"
#include "harness.h"
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static Status open_cpu(void) {
    Device *device;
    Status status = device_open(&device, (DeviceOptions){.kind = "cpu", .threads = 1});
    device_close(device);
    return status;
}

// What kernels a process takes is found once, so each limit has a process of its own. `want` NULL: refused.
static bool holds(const char *limit, const char *want) {
    pid_t child = fork();
    CHECK(child >= 0, "no process");
    if (child == 0) {
        setenv("TRIREME_MAX_CPU_ISA", limit, 1);
        if (want) _exit(open_cpu() == OK && !strcmp(device_kernels("cpu"), want) ? 0 : 1);
        _exit(open_cpu() == ERR_CONFIG && strstr(fail_message(), limit) && strstr(fail_message(), "baseline")
                  ? 0
                  : 1);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child, "no child");
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// A variant that is named is taken where it runs; elsewhere the next one that runs and is not slow.
static void limit_law(void) {
    for (int i = 0; i < num_cpu_variants; i++) {
        const CpuVariant *v = &cpu_variants[i], *best = cpu_best_up_to(v->name);
        EXPECT(!v->runs_here() || best == v, "%s is not taken", v->name);
        EXPECT(best >= v && best->runs_here(), "%s does not run or is above %s", best->name, v->name);
        EXPECT(holds(v->name, best->name), "%s: not %s", v->name, best->name);
    }
}

static void slow_law(void) {
    const CpuVariant *best = cpu_best_up_to(NULL);
    EXPECT(best->runs_here() && !best->slow_here(), "%s is slow here", best->name);
    for (const CpuVariant *v = cpu_variants; v < best; v++)
        EXPECT(!v->runs_here() || v->slow_here(), "%s is left out", v->name);
}

static void refusal_law(void) {
    EXPECT(holds("AVX9", NULL), "not refused");
    EXPECT(holds("", NULL), "not refused");
}

// A unit that a limit leaves out is not used for products either.
static void unit_law(void) {
    pid_t child = fork();
    CHECK(child >= 0, "no process");
    if (child == 0) {
        setenv("TRIREME_MAX_CPU_ISA", cpu_variants[num_cpu_variants - 1].name, 1);
        _exit(cpu_has_amx() || cpu_multiplies_bf16() || cpu_may_use_bf16());
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child, "no child");
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0, "units for bf16 are used");
}

// oneDNN's own variable, by either name, wins over ours: products follow it, and the name of the kernels says so.
static void products_law(void) {
    if (!library_present(LIBRARY_ONEDNN)) return;
    static const char *const variables[] = {"DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA"};
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        CHECK(child >= 0, "no process");
        if (child == 0) {
            setenv(variables[i], "AVX2", 1);
            setenv("TRIREME_MAX_CPU_ISA", "baseline", 1);
            Text used = {0};
            device_arithmetic("cpu", &used);
            size_t end = used.size; // of dnnl_cpu_isa_sse41, to which ours would hold it
            bool baseline = end > 4 && !strcmp(text_string(&used) + end - 4, " 0x1");
            text_free(&used);
            _exit(baseline || !strstr(device_kernels("cpu"), variables[i]));
        }
        int status = 1;
        CHECK(waitpid(child, &status, 0) == child, "no child");
        EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s does not win", variables[i]);
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"limits", limit_law},
                                      {"slow", slow_law},
                                      {"refusals", refusal_law},
                                      {"units", unit_law},
                                      {"products", products_law},
                                      {0}},
                       argc, argv);
}
