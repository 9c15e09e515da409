// The results of a machine: one JSON file of what the parts of ./run bench wrote and of what the machine is.
//
//   bench_report join COMMIT OUT.json PART.json...   together, with this machine's description
//   bench_report compare KEPT.json NEW.json          what got faster or slower by more than 10 %
//   bench_report tables FILE.json PART               the tables of a part, in Markdown
//   bench_report machine FILE.json                   its description, in Markdown
//   bench_report name                                of this machine's file
//
// With --device cuda (or cuda-sim) before the verb the machine is its GPU: name and join tell of that.
#include "base/file.h"
#include "device/cpu/cpu.h"
#include "device/survey.h"
#include "formats/formats.h"
#include <ctype.h>
#include <dnnl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

enum { MAX_BYTES = 1 << 26, MAX_LINE = 256 };
static const double NOTED_CHANGE = 0.10;

// ---- this machine -----------------------------------------------------------------------------------------

// The value of the first line "KEY : VALUE" of a file, or "unknown".
static void find_line(const char *path, const char *key, char value[MAX_LINE]) {
    char line[MAX_LINE];
    snprintf(value, MAX_LINE, "unknown");
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (!colon || strncmp(line, key, strlen(key)) != 0) continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(value, MAX_LINE, "%s", colon + 1 + strspn(colon + 1, " \t"));
        break;
    }
    if (file) fclose(file);
}

static void add_fact(Text *out, const char *name, const char *value) {
    text_add(out, ",\n  \"%s\": ", name);
    json_add_string(out, value, strlen(value));
}

// The first GPU of a kind of device.
static Status find_gpu(const char *kind, DeviceSurvey *survey) {
    Text module = {0};
    *survey = (DeviceSurvey){0};
    Status status = device_survey(kind, false, survey, &module);
    text_free(&module);
    return status || survey->num_gpus ? status : fail(ERR_UNAVAILABLE, "--device %s has no GPU", kind);
}

static void describe_gpu(Text *out, const DeviceSurvey *survey) {
    const GpuSurvey *gpu = &survey->gpus[0];
    char text[MAX_LINE];
    add_fact(out, "gpu", gpu->name);
    snprintf(text, sizeof text, "%d.%d, %d multiprocessors", gpu->major, gpu->minor, gpu->multiprocessors);
    add_fact(out, "compute_capability", text);
    snprintf(text, sizeof text, "%.1f GB", (double)gpu->memory_bytes / 1e9);
    add_fact(out, "gpu_memory", text);
    add_fact(out, "cuda", survey->runtime);
    for (int i = 0; i < survey->num_libraries; i++)
        if (survey->libraries[i].found)
            add_fact(out, survey->libraries[i].name, survey->libraries[i].version);
}

// `survey`: of the GPU that was measured, or NULL.
static void describe_machine(Text *out, const char *commit, const DeviceSurvey *survey) {
    char value[MAX_LINE], family[MAX_LINE], model[MAX_LINE], text[4 * MAX_LINE], date[32];
    struct utsname kernel;
    time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
    text_add(out, "{\n  \"date\": \"%s\"", date);
    add_fact(out, "commit", commit);
    find_line("/proc/cpuinfo", "model name", value);
    find_line("/proc/cpuinfo", "cpu family", family);
    find_line("/proc/cpuinfo", "model\t", model);
    snprintf(text, sizeof text, "%s, family %s, model %s", value, family, model);
    add_fact(out, "cpu", text);
    snprintf(text, sizeof text, "%ld", sysconf(_SC_NPROCESSORS_ONLN));
    add_fact(out, "cores", text);
    add_fact(out, "isa", cpu_best()->isa);
    snprintf(text, sizeof text, "%.1f GB",
             (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / 1e9);
    add_fact(out, "memory", text);
    uname(&kernel);
    snprintf(text, sizeof text, "%s %s", kernel.sysname, kernel.release);
    add_fact(out, "kernel", text);
    add_fact(out, "compiler", __VERSION__);
    const dnnl_version_t *dnnl = dnnl_version();
    snprintf(text, sizeof text, "%d.%d.%d", dnnl->major, dnnl->minor, dnnl->patch);
    add_fact(out, "onednn", text);
    if (survey) describe_gpu(out, survey);
    text_add(out, "}");
}

// Words of letters and digits, joined by one dash each.
static void print_words(const char *text) {
    bool dash = true; // none at the start, never two
    for (const char *c = text; *c; c++) {
        bool word = isalnum((unsigned char)*c);
        if (word || !dash) putchar(word ? tolower((unsigned char)*c) : '-');
        dash = !word;
    }
    putchar('\n');
}

// "amd-epyc-25-17-2-cores", or of a GPU "nvidia-h200".
static Status print_name(const char *kind) {
    char model[MAX_LINE], family[MAX_LINE], number[MAX_LINE], name[4 * MAX_LINE];
    if (kind) {
        DeviceSurvey survey;
        TRY(find_gpu(kind, &survey));
        print_words(survey.gpus[0].name);
        return OK;
    }
    find_line("/proc/cpuinfo", "model name", model);
    find_line("/proc/cpuinfo", "cpu family", family);
    find_line("/proc/cpuinfo", "model\t", number);
    snprintf(name, sizeof name, "%s-%s-%s-%ld-cores", model, family, number, sysconf(_SC_NPROCESSORS_ONLN));
    print_words(name);
    return OK;
}

// ---- files ------------------------------------------------------------------------------------------------

static Status read_json(const char *path, Json **root) {
    char *text;
    size_t size;
    TRY(file_read(path, MAX_BYTES, &text, &size));
    Status status = json_parse(root, text, size, path);
    free(text);
    return status;
}

static Status add_part(Text *out, const char *path, bool first) {
    char *text;
    size_t size;
    Json *part;
    TRY(file_read(path, MAX_BYTES, &text, &size));
    Status status = json_parse(&part, text, size, path);
    if (status == OK) {
        text_add(out, "%s\n", first ? "" : ",");
        text_add_bytes(out, text, size);
        json_free(part);
    }
    free(text);
    return status;
}

static Status join(const char *kind, const char *commit, const char *path, char **parts, int count) {
    Text out = {0};
    DeviceSurvey survey;
    if (kind) TRY(find_gpu(kind, &survey));
    text_add(&out, "{\"machine\": ");
    describe_machine(&out, commit, kind ? &survey : NULL);
    text_add(&out, ",\n\"parts\": [");
    Status status = OK;
    for (int i = 0; i < count && status == OK; i++) status = add_part(&out, parts[i], i == 0);
    text_add(&out, "]}\n");
    if (status == OK) status = file_write(path, out.data, out.size);
    text_free(&out);
    return status;
}

// ---- tables -----------------------------------------------------------------------------------------------

static const char *string_of(const Json *value) {
    const char *string = json_string(value);
    return string ? string : "";
}

static const Json *find_named(const Json *list, const char *member, const char *name) {
    for (size_t i = 0; list && i < list->count; i++)
        if (!strcmp(string_of(json_member(&list->items[i], member)), name)) return &list->items[i];
    return NULL;
}

static const char *part_name(const Json *part) { return string_of(json_member(part, "part")); }
static const char *title_of(const Json *table) { return string_of(json_member(table, "title")); }

// Of a part that was measured in pieces there are several, and beside them perhaps an older one of all: the
// first table with a title counts, as pieces come first (result_of in tools/bench.sh).
static const Json *find_table(const Json *root, const char *part, const char *title) {
    const Json *parts = json_member(root, "parts"), *found = NULL;
    for (size_t i = 0; parts && i < parts->count && !found; i++)
        if (!strcmp(part_name(&parts->items[i]), part))
            found = find_named(json_member(&parts->items[i], "tables"), "title", title);
    return found;
}

// Row and column are arrays that begin with their name.
static const char *first_of(const Json *array) { return array->count ? string_of(&array->items[0]) : ""; }

static const Json *find_row(const Json *table, const char *name) {
    const Json *rows = json_member(table, "rows");
    for (size_t i = 0; rows && i < rows->count; i++)
        if (!strcmp(first_of(&rows->items[i]), name)) return &rows->items[i];
    return NULL;
}

static void print_row(const Json *columns, const Json *row) {
    printf("| %s |", first_of(row));
    for (size_t i = 1; i < row->count; i++) {
        double value;
        int64_t digits = 0;
        const Json *column = i <= columns->count ? &columns->items[i - 1] : NULL;
        if (column && column->count > 1) json_int(&column->items[1], &digits);
        if (json_double(&row->items[i], &value))
            printf(" %.*f |", (int)digits, value);
        else
            printf(" |");
    }
    printf("\n");
}

static void print_table(const Json *table) {
    const Json *columns = json_member(table, "columns"), *rows = json_member(table, "rows");
    const Json *notes = json_member(table, "notes");
    if (!columns || !rows) return;
    printf("| %s |", title_of(table));
    for (size_t i = 0; i < columns->count; i++) printf(" %s |", first_of(&columns->items[i]));
    printf("\n|---|");
    for (size_t i = 0; i < columns->count; i++) printf("---:|");
    printf("\n");
    for (size_t i = 0; i < rows->count; i++) print_row(columns, &rows->items[i]);
    printf("\n");
    for (size_t i = 0; notes && i < notes->count; i++)
        printf("%s%s\n", string_of(&notes->items[i]), i + 1 < notes->count ? "; " : ".\n");
}

static Status print_tables(const char *path, const char *name) {
    Json *root;
    TRY(read_json(path, &root));
    const Json *parts = json_member(root, "parts");
    int printed = 0;
    for (size_t i = 0; parts && i < parts->count; i++) {
        const Json *tables = json_member(&parts->items[i], "tables");
        if (strcmp(part_name(&parts->items[i]), name) != 0) continue;
        for (size_t k = 0; tables && k < tables->count; k++)
            if (find_table(root, name, title_of(&tables->items[k])) == &tables->items[k])
                print_table(&tables->items[k]), printed++;
    }
    if (!printed) printf("Not measured yet: `./run bench %s`.\n\n", name);
    json_free(root);
    return OK;
}

static Status print_machine(const char *path) {
    Json *root;
    TRY(read_json(path, &root));
    const Json *machine = json_member(root, "machine");
    for (size_t i = 0; machine && i < machine->count; i++)
        printf("%s%s %s", i ? "; " : "", machine->items[i].key, string_of(&machine->items[i]));
    printf(".\n");
    json_free(root);
    return OK;
}

// ---- what changed -----------------------------------------------------------------------------------------

typedef struct {
    int compared, better, worse;
} Changes;

static void compare_value(const Json *column, const Json *old_value, const Json *new_value, const char *title,
                          const char *row, Changes *changes) {
    double before, after;
    const char *better = column->count > 2 ? string_of(&column->items[2]) : "";
    if (!*better || !json_double(old_value, &before) || !json_double(new_value, &after) || before <= 0)
        return;
    double change = after / before - 1;
    changes->compared++;
    if (fabs(change) <= NOTED_CHANGE) return;
    bool gained = (change > 0) == !strcmp(better, "higher");
    *(gained ? &changes->better : &changes->worse) += 1;
    printf("  %-6s %+6.1f %%  %10.4g -> %-10.4g %-12s %s: %s\n", gained ? "better" : "WORSE", 100 * change,
           before, after, first_of(column), title, row);
}

static const Json *find_value(const Json *table, const char *row_name, const char *column_name) {
    const Json *columns = json_member(table, "columns"), *row = find_row(table, row_name);
    for (size_t i = 0; columns && row && i < columns->count && i + 1 < row->count; i++)
        if (!strcmp(first_of(&columns->items[i]), column_name)) return &row->items[i + 1];
    return NULL;
}

static void compare_row(const Json *old_table, const Json *new_table, const Json *row, Changes *changes) {
    const Json *columns = json_member(new_table, "columns");
    for (size_t i = 0; columns && i < columns->count && i + 1 < row->count; i++) {
        const Json *column = &columns->items[i];
        compare_value(column, find_value(old_table, first_of(row), first_of(column)), &row->items[i + 1],
                      title_of(new_table), first_of(row), changes);
    }
}

// Of all tables that both have.
static void compare_roots(const Json *kept, const Json *found, Changes *changes) {
    const Json *parts = json_member(found, "parts");
    for (size_t i = 0; parts && i < parts->count; i++) {
        const char *part = part_name(&parts->items[i]);
        const Json *tables = json_member(&parts->items[i], "tables");
        for (size_t k = 0; tables && k < tables->count; k++) {
            const Json *table = &tables->items[k], *rows = json_member(table, "rows");
            const Json *old_table = find_table(kept, part, title_of(table));
            if (!old_table || find_table(found, part, title_of(table)) != table) continue;
            for (size_t r = 0; rows && r < rows->count; r++)
                compare_row(old_table, table, &rows->items[r], changes);
        }
    }
}

static Status compare(const char *kept_path, const char *found_path) {
    Json *kept, *found;
    TRY(read_json(kept_path, &kept));
    Status status = read_json(found_path, &found);
    if (status != OK) return json_free(kept), status;
    Changes changes = {0};
    compare_roots(kept, found, &changes);
    const Json *machine = json_member(kept, "machine");
    printf("%d values beside those of %s (%s, %s): %d better, %d worse by more than %.0f %%\n",
           changes.compared, kept_path, string_of(json_member(machine, "date")),
           string_of(json_member(machine, "commit")), changes.better, changes.worse, 100 * NOTED_CHANGE);
    json_free(kept);
    json_free(found);
    return OK;
}

static Status bench_report(int argc, char **argv) {
    const char *kind = argc > 2 && !strcmp(argv[1], "--device") ? argv[2] : NULL;
    if (kind) argc -= 2, argv += 2;
    const char *verb = argc > 1 ? argv[1] : "";
    if (!strcmp(verb, "join") && argc > 4) return join(kind, argv[2], argv[3], argv + 4, argc - 4);
    if (!strcmp(verb, "compare") && argc == 4) return compare(argv[2], argv[3]);
    if (!strcmp(verb, "tables") && argc == 4) return print_tables(argv[2], argv[3]);
    if (!strcmp(verb, "machine") && argc == 3) return print_machine(argv[2]);
    if (!strcmp(verb, "name") && argc == 2) return print_name(kind);
    return fail(ERR_USAGE, "usage: bench_report join|compare|tables|machine|name ...; see bench_report.c");
}

int main(int argc, char **argv) {
    Status status = bench_report(argc, argv);
    if (status) fprintf(stderr, "bench_report: %s\n", fail_message());
    return (int)status;
}
