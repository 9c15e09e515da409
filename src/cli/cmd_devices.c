// `trireme devices`: says what can compute on this machine, and what is missing for a GPU.
#include "base/rank.h"
#include "cli/cli.h"
#include "device/survey.h"
#include "formats/formats.h"
#include <string.h>

typedef struct {
    const char *kind;
    Status status;
    char problem[sizeof rank_current()->message]; // why there is no such device; "": there is one
    DeviceSurvey survey;
    Text module, arithmetic;
} Found;

static const struct {
    const char *kind, *about;
} ABOUT[] = {{"cpu", NULL},
             {"reference", "plain loops with sums in fp64, slow: the definition of every operation"},
             {"check", "the CPU as a GPU would be, to find mistakes in the program"},
             {"cuda", "NVIDIA GPUs"},
             {"cuda-sim", "the code for GPUs on a simulated one, slow: for tests"}};
enum { NUM_ABOUT = sizeof ABOUT / sizeof *ABOUT };

static void find(Found *found, const char *kind) {
    *found = (Found){.kind = kind};
    found->status = device_survey(kind, true, &found->survey, &found->module);
    if (found->status != OK) snprintf(found->problem, sizeof found->problem, "%s", fail_message());
    if (found->status == OK) device_arithmetic(kind, &found->arithmetic);
}

static void forget(Found *found) {
    text_free(&found->module);
    text_free(&found->arithmetic);
}

// ---- text -------------------------------------------------------------------------------------------------

enum { INDENT = 12, WIDTH = 110 };

// Adds a text in lines, broken at blanks.
static void add_lines(Text *out, const char *label, const char *text) {
    for (const char *first = label; *text || *first; first = "") {
        size_t length = strlen(text);
        if (length > WIDTH - INDENT) {
            length = WIDTH - INDENT;
            while (length && text[length] != ' ') length--;
            if (!length) length = strcspn(text, " ");
        }
        text_add(out, "%-*s%.*s\n", INDENT, first, (int)length, text);
        text += length;
        text += *text == ' ';
    }
}

static void add_gpu(Text *out, const GpuSurvey *gpu) {
    char label[INDENT];
    Text line = {0};
    snprintf(label, sizeof label, "  GPU %d", gpu->number % 1000);
    text_add(&line, "%s", gpu->name);
    if (gpu->major)
        text_add(&line, ", compute capability %d.%d, %d multiprocessors", gpu->major, gpu->minor,
                 gpu->multiprocessors);
    if (*gpu->problem)
        text_add(&line, ": %s", gpu->problem);
    else
        text_add(&line, ", %.1f of %.1f GiB of memory free, kernels for %s", (double)gpu->free_bytes / 0x1p30,
                 (double)gpu->memory_bytes / 0x1p30, gpu->kernels);
    if (*gpu->cores) text_add(&line, "; NUMA node %d, cores %s", gpu->node, gpu->cores);
    if (*gpu->network)
        text_add(&line, "; nearest network %s (%s)", gpu->network, pci_nearness(gpu->network_near));
    add_lines(out, label, text_string(&line));
    text_free(&line);
}

static void add_library(Text *out, const LibrarySurvey *library) {
    Text line = {0};
    text_add(&line, "%s (%s), for %s: ", library->name, library->file, library->needed_for);
    if (library->found)
        text_add(&line, "found%s%s", *library->version ? ", " : "", library->version);
    else
        text_add(&line, "missing; %s", library->install);
    add_lines(out, "  library", text_string(&line));
    text_free(&line);
}

static void add_survey(Text *out, const Found *found) {
    const DeviceSurvey *survey = &found->survey;
    if (found->module.size) {
        Text line = {0};
        text_add(&line, "%s%s%s", text_string(&found->module), *survey->runtime ? ", built with " : "",
                 survey->runtime);
        add_lines(out, "  module", text_string(&line));
        text_free(&line);
    }
    for (int i = 0; i < survey->num_libraries; i++) add_library(out, &survey->libraries[i]);
    for (int i = 0; i < survey->num_gpus; i++) add_gpu(out, &survey->gpus[i]);
}

static void add_text(Text *out, const Found *found, const char *about) {
    Text line = {0};
    text_add(&line, "%s%s", about ? about : text_string(&found->arithmetic),
             found->status == OK ? "" : " (not available)");
    add_lines(out, found->kind, text_string(&line));
    text_free(&line);
    if (found->status != OK) add_lines(out, "  problem", found->problem);
    add_survey(out, found);
}

// ---- JSON -------------------------------------------------------------------------------------------------

static void json_text(Text *out, const char *name, const char *value) {
    text_add(out, ", \"%s\": ", name);
    if (*value)
        json_add_string(out, value, strlen(value));
    else
        text_add(out, "null");
}

static void json_gpu(Text *out, const GpuSurvey *gpu) {
    text_add(out, "{\"number\": %d", gpu->number);
    json_text(out, "name", gpu->name);
    json_text(out, "uuid", gpu->uuid);
    text_add(out, ", \"compute_capability\": \"%d.%d\", \"multiprocessors\": %d", gpu->major, gpu->minor,
             gpu->multiprocessors);
    text_add(out, ", \"memory_bytes\": %zu, \"free_bytes\": %zu", gpu->memory_bytes, gpu->free_bytes);
    json_text(out, "pci", gpu->pci);
    json_text(out, "cores", gpu->cores);
    json_text(out, "network", gpu->network);
    json_text(out, "network_near", *gpu->network ? pci_nearness(gpu->network_near) : "");
    text_add(out, gpu->node < 0 ? ", \"numa_node\": null" : ", \"numa_node\": %d", gpu->node);
    json_text(out, "kernels", gpu->kernels);
    json_text(out, "problem", gpu->problem);
    text_add(out, "}");
}

static void json_library(Text *out, const LibrarySurvey *library) {
    text_add(out, "{\"found\": %s", library->found ? "true" : "false");
    json_text(out, "name", library->name);
    json_text(out, "file", library->file);
    json_text(out, "version", library->version);
    json_text(out, "needed_for", library->needed_for);
    json_text(out, "install", library->install);
    text_add(out, "}");
}

static void json_found(Text *out, const Found *found) {
    const DeviceSurvey *survey = &found->survey;
    text_add(out, "{\"available\": %s", found->status == OK ? "true" : "false");
    json_text(out, "kind", found->kind);
    json_text(out, "problem", found->problem);
    json_text(out, "arithmetic", text_string(&found->arithmetic));
    json_text(out, "module", text_string(&found->module));
    json_text(out, "runtime", survey->runtime);
    text_add(out, ", \"libraries\": [");
    for (int i = 0; i < survey->num_libraries; i++) {
        text_add(out, i ? ", " : "");
        json_library(out, &survey->libraries[i]);
    }
    text_add(out, "], \"gpus\": [");
    for (int i = 0; i < survey->num_gpus; i++) {
        text_add(out, i ? ", " : "");
        json_gpu(out, &survey->gpus[i]);
    }
    text_add(out, "]}");
}

// ---- the verb ---------------------------------------------------------------------------------------------

Status cmd_devices(Options *options) {
    if (options->positional.count)
        return fail(ERR_USAGE, "devices takes no words such as %s; it tells of all kinds of --device",
                    options->positional.items[0]);
    Text out = {0};
    if (options->json) text_add(&out, "{\"devices\": [\n");
    for (int i = 0; i < NUM_ABOUT; i++) {
        Found found;
        find(&found, ABOUT[i].kind);
        if (options->json) {
            json_found(&out, &found);
            text_add(&out, i + 1 < NUM_ABOUT ? ",\n" : "\n]}\n");
        } else {
            add_text(&out, &found, ABOUT[i].about);
        }
        forget(&found);
    }
    fputs(text_string(&out), stdout);
    text_free(&out);
    return OK;
}
