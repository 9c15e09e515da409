// Starts `trireme train` as a process and reads the times of its steps.
#include "runs.h"
#include "base/file.h"
#include "formats/formats.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_METRICS_BYTES = 1 << 24, MAX_COMMAND = 4096 };

static Status read_metrics(const char *path, const Run *run, double *seconds) {
    char *text, *rest = NULL;
    size_t size;
    int count = 0;
    Status status = file_read(path, MAX_METRICS_BYTES, &text, &size);
    if (status != OK) return status;
    for (char *line = strtok_r(text, "\n", &rest); line && status == OK; line = strtok_r(NULL, "\n", &rest)) {
        Json *step;
        double ms;
        status = json_parse(&step, line, strlen(line), path);
        if (status != OK) break;
        if (json_double(json_member(step, "elapsed_ms"), &ms) && count++ > 0 && count <= run->steps + 1)
            seconds[count - 2] = ms / 1e3;
        json_free(step);
    }
    free(text);
    if (status == OK && count != run->steps + 1)
        return fail(ERR_DATA, "%s: %d steps of `%s`, not %d", path, count, run->words, run->steps + 1);
    return status;
}

Status run_steps(const Run *run, double *seconds) {
    char metrics[] = "/tmp/trireme-bench-XXXXXX", command[MAX_COMMAND];
    CHECK(run->steps > 0 && run->steps <= MAX_RUN_STEPS, "%d steps", run->steps);
    int fd = mkstemp(metrics);
    if (fd < 0) return fail(ERR_CREATE, "%s cannot be made", metrics);
    close(fd);
    unlink(metrics); // the program makes it; a line of an older run would be kept
    char length[64];
    snprintf(length, sizeof length, "--train-iters %d", run->steps + 1);
    int used =
        snprintf(command, sizeof command, "%s%s train " RUN_COMMON "%s --metrics %s %s >/dev/null </dev/null",
                 run->launcher, run->trireme, run->length ? run->length : length, metrics, run->words);
    CHECK(used < MAX_COMMAND, "too long: %s", command);
    Status status = system(command) == 0 ? OK : fail(ERR_OS, "failed: %s", command);
    if (status == OK) status = read_metrics(metrics, run, seconds);
    unlink(metrics);
    return status;
}

Status run_line(const char *command, char *line, size_t size) {
    FILE *out = popen(command, "r");
    if (!out) return fail(ERR_OS, "cannot be started: %s", command);
    bool told = fgets(line, (int)size, out) != NULL;
    while (told && fgetc(out) != EOF) continue;
    if (pclose(out) != 0 || !told) return fail(ERR_OS, "failed, or printed nothing: %s", command);
    line[strcspn(line, "\n")] = 0;
    return OK;
}

Status run_number(const char *command, const char *name, double *number) {
    char line[1024];
    Json *told;
    TRY(run_line(command, line, sizeof line));
    TRY(json_parse(&told, line, strlen(line), command));
    bool found = json_double(json_member(told, name), number);
    json_free(told);
    return found ? OK : fail(ERR_DATA, "no %s in what is printed by %s: %s", name, command, line);
}
