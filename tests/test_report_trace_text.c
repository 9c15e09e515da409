// Files of --trace that were written by hand: what the report reads of them, and what it refuses.
#include "base/file.h"
#include "harness.h"
#include "report/report.h"
#include <math.h>
#include <string.h>

#define HEAD(data) "{\"otherData\":{" data "},\"traceEvents\":[\n"
#define SIZES      "\"grid\":{\"tp\":1,\"dp\":1,\"pp\":1},"
#define GOOD       HEAD("\"version\":1," SIZES "\"schedule_kind\":\"1f1b\",\"schedule\":\"0: F0 B0 R\\n\"")

static void add_span(Text *out, const char *name, const char *row, int start_us, int us,
                     const char *arguments) {
    text_add(out,
             "{\"ph\":\"X\",\"name\":\"%s\",\"cat\":\"%s\",\"pid\":0,\"ts\":%d,\"dur\":%d,\"args\":{%s}},\n",
             name, row, start_us, us, arguments);
}

// A file of an older version, whose grid names three axes: waits of every kind of group, each twice as long as the one
// before, so that a sum names its parts.
static void waits_of_every_group(void) {
    static const struct {
        const char *group;
        WaitKind kind;
    } waits[] = {
        {"pp", WAIT_STAGES},     {"tp", WAIT_TP},
        {"etp", WAIT_TP},        {"cp", WAIT_CP},
        {"ep", WAIT_EP},         {"dp", WAIT_DP},
        {"dp-cp", WAIT_DP},      {"edp", WAIT_DP},
        {"shards", WAIT_DP},     {"copies", WAIT_DP},
        {"edp-shards", WAIT_DP}, {"edp-copies", WAIT_DP},
        {"model", WAIT_OTHERS},  {"embedding", WAIT_OTHERS},
        {"world", WAIT_OTHERS},  {"no such", WAIT_OTHERS},
    };
    Text file = {0}, out = {0};
    double expected[NUM_WAITS] = {0};
    int at = 300;
    text_add(&file, "%s", GOOD);
    add_span(&file, "step", "step", 0, 200000, "\"iteration\":1");
    add_span(&file, "F", "pipeline", 0, 100, "\"chunk\":0,\"microbatch\":0");
    add_span(&file, "B", "pipeline", 100, 200, "\"chunk\":0,\"microbatch\":0");
    for (size_t i = 0; i < sizeof waits / sizeof waits[0]; i++) {
        char arguments[64];
        snprintf(arguments, sizeof arguments, "\"group\":\"%s\"", waits[i].group);
        add_span(&file, "wait", "waits", at, 1 << i, arguments);
        at += 1 << i;
        expected[waits[i].kind] += 1 << i;
    }
    text_add(&file, "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":0,\"args\":{\"lost\":0}}\n]}\n");
    EXPECT_OK(file_write(harness_path("groups.json"), text_string(&file), file.size));
    MeasuredStep step;
    EXPECT_OK(measured_step_read(&step, harness_path("groups.json")));
    for (WaitKind kind = 0; kind < NUM_WAITS; kind++)
        EXPECT(fabs(step.ranks[0].waits_us[kind] - expected[kind]) < 1e-6, "kind %d: %g us, not %g",
               (int)kind, step.ranks[0].waits_us[kind], expected[kind]);
    measured_step_print(&step, &out);
    EXPECT(strstr(text_string(&out), "in waits for tp, cp, ep and dp, mean over ranks; ") &&
               strstr(text_string(&out), " more in waits for other groups\n"),
           "%s", text_string(&out));
    measured_step_destroy(&step);
    text_free(&out);
    text_free(&file);
}

static void damaged_files(void) {
#define RANKS(sizes) HEAD("\"version\":1,\"grid\":{\"tp\":1,\"dp\":1,\"pp\":1," sizes "}")
    static const char *const cases[][2] = {
        {"", "it is empty"},
        {"[]\n", "line 1: it opens no trace"},
        {"{\"traceEvents\":[\n]}\n", "line 1: it opens no trace of version 1"},
        {HEAD("\"version\":2"), "line 1: it opens no trace of version 1"},
        {HEAD("\"version\":1"), "no \"grid\""},
        {HEAD("\"version\":1,\"grid\":{\"tp\":1048576,\"dp\":1048576,\"pp\":1}"), "no \"grid\""},
        {HEAD("\"version\":1,\"grid\":{\"tp\":1,\"dp\":1}"), "no \"grid\""},
        {RANKS("\"cp\":0"), "no \"grid\""},
        {RANKS("\"cp\":\"2\""), "no \"grid\""},
        {RANKS("\"cp\":1048577"), "no \"grid\""},
        {RANKS("\"ep\":2"), "no \"grid\""},
        {RANKS("\"etp\":1048576,\"ep\":1048576"), "no \"grid\""},
        {HEAD("\"version\":1," SIZES "\"schedule_kind\":\"x\""), "no \"schedule\""},
        {HEAD("\"version\":1," SIZES "\"schedule_kind\":\"x\",\"schedule\":\"0: Z\""),
         "its schedule: line 1"},
        {HEAD("\"version\":1," SIZES "\"schedule_kind\":\"x\",\"schedule\":\"0: F0 B0\\n1: F0 B0\\n\""),
         "another number of ranks"},
        {GOOD, "line 2: it ends too early"},
        {GOOD "{\"ph\":\"M\",\n", "line 2: no event"},
        {GOOD
         "{\"ph\":\"X\",\"name\":\"F\",\"cat\":\"pipeline\",\"pid\":1,\"ts\":0,\"dur\":1,\"args\":{}}\n]}\n",
         "line 2: an event of rank 1, but the \"grid\" of line 1 has 1 rank:"},
        {GOOD "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":1,\"args\":{\"lost\":0}}\n]}\n",
         "line 2: an event of rank 1, but the \"grid\" of line 1 has 1 rank:"},
        {GOOD "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":-1,\"args\":{\"lost\":0}}\n]}\n",
         "line 2: an event without \"pid\""},
        {GOOD "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":0,\"args\":{}}\n]}\n",
         "line 2: a rank without \"lost\""},
        {GOOD
         "{\"ph\":\"X\",\"name\":\"F\",\"cat\":\"pipeline\",\"pid\":0,\"ts\":-1,\"dur\":1,\"args\":{}}\n]}\n",
         "line 2: a span without time"},
        {GOOD "{\"ph\":\"X\",\"name\":\"F\",\"cat\":\"pipeline\",\"pid\":0,\"ts\":0,\"dur\":1,"
              "\"args\":{\"chunk\":0,\"microbatch\":1}}\n]}\n",
         "line 2: a compute that the schedule does not have"},
        {GOOD
         "{\"ph\":\"X\",\"name\":\"step\",\"cat\":\"step\",\"pid\":0,\"ts\":0,\"dur\":1,\"args\":{}}\n]}\n",
         "line 2: a step without a number"},
        {GOOD "{\"ph\":\"X\",\"name\":\"step\",\"cat\":\"step\",\"pid\":0,\"ts\":0,\"dur\":1,"
              "\"args\":{\"iteration\":1}}\n]}\n",
         "no step is complete"},
        {GOOD "]}\n", "no step is complete"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        MeasuredStep step;
        EXPECT_OK(file_write(harness_path("bad.json"), cases[i][0], strlen(cases[i][0])));
        Status status = measured_step_read(&step, harness_path("bad.json"));
        EXPECT(status == ERR_DATA && strstr(fail_message(), cases[i][1]), "case %zu: %d: %s", i, (int)status,
               fail_message());
        measured_step_destroy(&step);
    }
    MeasuredStep step;
    EXPECT(measured_step_read(&step, harness_path("absent.json")) == ERR_NO_INPUT, "%s", fail_message());
    EXPECT(measured_step_read(&step, harness_folder()) == ERR_NO_INPUT, "%s", fail_message());
}

int main(int argc, char **argv) {
    static const Test tests[] = {
        {"waits of every group", waits_of_every_group},
        {"damaged files", damaged_files},
        {0},
    };
    return harness_run(tests, argc, argv);
}
