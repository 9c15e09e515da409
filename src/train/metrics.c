// Writes the numbers of a run for other programs: JSON lines, TensorBoard's event files, a file for Prometheus.
#include "train/metrics.h"
#include "base/file.h"
#include "base/rank.h"
#include "base/version.h"
#include "formats/tfevents.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const struct {
    const char *json;
    double factor;
    const char *tag, *name, *help;
} numbers[NUM_NUMBERS] = {
#define X(number, json, factor, tag, name, help) {json, factor, tag, name, help},
    RUN_NUMBERS(X)
#undef X
};

void pair_numbers(const PairMeans *p, double values[NUM_PAIR_NUMBERS]) {
    const double all[NUM_PAIR_NUMBERS] = {
        p->reward[CHOSEN], p->reward[REJECTED],        p->reward[CHOSEN] - p->reward[REJECTED],
        p->accuracy,       p->log_probability[CHOSEN], p->log_probability[REJECTED]};
    memcpy(values, all, sizeof all);
}

void expert_numbers(const ExpertLoads *l, const Options *o, double values[NUM_NUMBERS]) {
    bool balances = o->moe_aux_loss_coeff > 0 && strcmp(o->moe_router_load_balancing_type, "none") != 0;
    if (!l) return;
    values[NUMBER_BALANCE_LOSS] = balances ? expert_loads_mean(l, LOAD_BALANCE_LOSS) : NAN;
    values[NUMBER_Z_LOSS] = o->moe_z_loss_coeff > 0 ? expert_loads_mean(l, LOAD_Z_LOSS) : NAN;
    values[NUMBER_LOAD_MAX] = 0, values[NUMBER_LOAD_ENTROPY] = 1;
    values[NUMBER_DROPPED] = isnan(o->moe_expert_capacity_factor) ? NAN : 0;
    for (int layer = 0; layer < l->layers; layer++) {
        if (!expert_loads_has(l, layer)) continue;
        LoadStatistics s = expert_load_statistics(l, layer);
        if (!isnan(values[NUMBER_DROPPED])) values[NUMBER_DROPPED] = fmax(values[NUMBER_DROPPED], s.dropped);
        values[NUMBER_LOAD_MAX] = fmax(values[NUMBER_LOAD_MAX], s.most);
        values[NUMBER_LOAD_ENTROPY] = fmin(values[NUMBER_LOAD_ENTROPY], s.entropy);
    }
}

static bool has_number(const StepNumbers *s, int i) {
    if (i < NUM_STEP_NUMBERS) return true;
    return i < NUMBER_BALANCE_LOSS ? s->pairs : s->experts && !isnan(s->value[i]);
}

static double seconds_since_1970(void) {
    struct timeval now;
    gettimeofday(&now, NULL);
    return (double)now.tv_sec + 1e-6 * (double)now.tv_usec;
}

// Keeps the first trouble.
static void note_trouble(Metrics *m, const char *option, const char *path, const char *why) {
    if (!m->trouble.size) text_add(&m->trouble, "%s %s: rows are lost from here on: %s", option, path, why);
}

// ---- JSON lines -----------------------------------------------------------------------------------

// A reader that leaves or pauses does not end a run.
static void flush_json(Metrics *m) {
    bool failed = fflush(m->json) != 0;
    if (!failed && !m->json_outlet.lost) return;
    note_trouble(m, "--metrics", m->options->metrics,
                 !failed                             ? "its reader paused"
                 : outlet_is_unread(&m->json_outlet) ? "its reader has left"
                                                     : strerror(errno));
}

// JSON has neither NaN nor infinity, so they are written as the strings "NaN", "Infinity" and "-Infinity".
static void json_number(FILE *file, const char *name, double value) {
    if (isfinite(value))
        fprintf(file, ", \"%s\": %.9g", name, value);
    else
        fprintf(file, ", \"%s\": \"%s\"", name, isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity");
}

static void json_begin(FILE *file, int64_t iteration, int64_t consumed) {
    fprintf(file, "{\"iteration\": %" PRId64 ", \"consumed_samples\": %" PRId64, iteration, consumed);
}

static void json_layers(FILE *file, const ExpertLoads *l) {
    bool first = true;
    if (!l) return;
    fprintf(file, ", \"experts\": [");
    for (int layer = 0; layer < l->layers; layer++) {
        if (!expert_loads_has(l, layer)) continue;
        LoadStatistics s = expert_load_statistics(l, layer);
        fprintf(file, "%s{\"layer\": %d", first ? "" : ", ", layer);
        json_number(file, "load_max", s.most);
        json_number(file, "load_entropy", s.entropy);
        json_number(file, "dropped", s.dropped);
        fprintf(file, "}");
        first = false;
    }
    fprintf(file, "]");
}

static void json_step(Metrics *m, const StepNumbers *s) {
    if (!m->json) return;
    json_begin(m->json, s->iteration, s->consumed);
    for (int i = 0; i < NUM_NUMBERS; i++)
        if (has_number(s, i)) json_number(m->json, numbers[i].json, numbers[i].factor * s->value[i]);
    json_layers(m->json, s->loads);
    if (m->went_on_from >= 0)
        fprintf(m->json, ", \"from_checkpoint\": %" PRId64, m->went_on_from);
    else
        fprintf(m->json, ", \"from_checkpoint\": null");
    if (s->summed) fprintf(m->json, ", \"parameters_checksum\": \"%016" PRIx64 "\"", s->checksum);
    fprintf(m->json, "}\n");
    flush_json(m);
}

static void json_validation(Metrics *m, int64_t iteration, int64_t consumed, double loss,
                            const PairMeans *pairs) {
    double values[NUM_PAIR_NUMBERS];
    if (!m->json) return;
    json_begin(m->json, iteration, consumed);
    json_number(m->json, "validation_loss", loss);
    if (pairs) pair_numbers(pairs, values);
    for (int i = 0; pairs && i < NUM_PAIR_NUMBERS; i++)
        json_number(m->json, numbers[NUM_STEP_NUMBERS + i].json, values[i]);
    fprintf(m->json, "}\n");
    flush_json(m);
}

void metrics_event(Metrics *m, const char *json) {
    if (!m->json) return;
    fprintf(m->json, "%s\n", json);
    flush_json(m);
}

// ---- TensorBoard ------------------------------------------------------------------------------------

static Status open_events(Metrics *m) {
    char host[256] = "host";
    const char *folder = m->options->tensorboard_dir;
    double now = seconds_since_1970();
    TRY(folder_make(folder));
    gethostname(host, sizeof host - 1);
    // A name that is there belongs to a start in the same second, by a process whose number was used again.
    for (int number = 0; !m->events; number++) {
        int size = snprintf(m->events_path, sizeof m->events_path, "%s/events.out.tfevents.%.0f.%s.%d.%d",
                            folder, now, host, (int)getpid(), number);
        if (size >= (int)sizeof m->events_path) return fail(ERR_CREATE, "%s: the name is too long", folder);
        m->events = fopen(m->events_path, "wbxe");
        if (!m->events && errno != EEXIST)
            return fail(create_status(), "%s: cannot be made: %s", m->events_path, strerror(errno));
    }
    Text record = {0};
    tfevents_add_version(&record, now);
    fwrite(record.data, 1, record.size, m->events);
    text_free(&record);
    return fflush(m->events) == 0 ? OK : fail(ERR_IO, "%s: %s", m->events_path, strerror(errno));
}

static void write_events(Metrics *m, Text *record) {
    bool written = fwrite(record->data, 1, record->size, m->events) == record->size;
    if (!written || fflush(m->events) != 0) {
        note_trouble(m, "--tensorboard-dir", m->events_path, strerror(errno));
        m->failed = true;
        fclose(m->events); // what comes after a record that was cut is not read
        m->events = NULL;
    }
    text_free(record);
}

static void events_layers(const StepNumbers *s, Text *record) {
    for (int layer = 0; s->loads && layer < s->loads->layers; layer++) {
        char most[64], entropy[64], dropped[64];
        if (!expert_loads_has(s->loads, layer)) continue;
        LoadStatistics of = expert_load_statistics(s->loads, layer);
        snprintf(most, sizeof most, "experts/layer_%d/load_max", layer);
        snprintf(entropy, sizeof entropy, "experts/layer_%d/load_entropy", layer);
        snprintf(dropped, sizeof dropped, "experts/layer_%d/dropped", layer);
        EventScalar scalars[] = {{most, of.most}, {entropy, of.entropy}, {dropped, of.dropped}};
        tfevents_add_scalars(record, seconds_since_1970(), s->iteration, scalars, 3);
    }
}

static void events_step(Metrics *m, const StepNumbers *s) {
    EventScalar scalars[NUM_NUMBERS];
    Text record = {0};
    int count = 0;
    if (!m->events || s->iteration % m->options->tensorboard_log_interval) return;
    for (int i = 0; i < NUM_NUMBERS; i++)
        if (has_number(s, i)) scalars[count++] = (EventScalar){numbers[i].tag, s->value[i]};
    tfevents_add_scalars(&record, seconds_since_1970(), s->iteration, scalars, count);
    events_layers(s, &record);
    write_events(m, &record);
}

static void events_validation(Metrics *m, int64_t iteration, double loss, const PairMeans *pairs) {
    Text record = {0};
    if (!m->events) return;
    EventScalar scalars[] = {{"lm loss validation", loss}, {"lm loss validation ppl", exp(loss)}};
    tfevents_add_scalars(&record, seconds_since_1970(), iteration, scalars, pairs ? 1 : 2);
    write_events(m, &record);
}

void metrics_go_on(Metrics *m, int64_t iteration, const char *json) {
    Text record = {0};
    metrics_event(m, json);
    if (!m->events) return;
    tfevents_add_start(&record, seconds_since_1970(), iteration + 1);
    write_events(m, &record);
}

// ---- Prometheus ---------------------------------------------------------------------------------------

// `{run="` and the name of the file without its ending: several runs may write to one folder.
static void add_run(const char *path, Text *out) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dot = strrchr(name, '.');
    size_t size = dot && dot != name ? (size_t)(dot - name) : strlen(name);
    text_add(out, "{run=\"");
    for (size_t i = 0; i < size; i++) {
        if (name[i] == '\\' || name[i] == '"') text_add(out, "\\");
        if (name[i] == '\n')
            text_add(out, "\\n");
        else
            text_add_bytes(out, &name[i], 1);
    }
    text_add(out, "\"");
}

static void add_number(Text *out, double value) {
    if (isfinite(value))
        text_add(out, " %.17g\n", value);
    else
        text_add(out, " %s\n", isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf");
}

// `kind`: "gauge", or "counter", whose sample has another name. A unit is the end of a name.
static void add_family(const Text *label, const char *kind, const char *name, const char *help, double value,
                       Text *out) {
    static const char *const units[] = {"seconds", "bytes"};
    bool counts = !strcmp(kind, "counter");
    text_add(out, "# TYPE trireme_%s %s\n", name, kind);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        size_t size = strlen(name), unit = strlen(units[i]);
        if (size > unit && !strcmp(name + size - unit, units[i]))
            text_add(out, "# UNIT trireme_%s %s\n", name, units[i]);
    }
    text_add(out, "# HELP trireme_%s %s.\n", name, help);
    text_add(out, "trireme_%s%s%s", name, counts ? "_total" : "", text_string(label));
    add_number(out, value);
}

static void print_families(const Metrics *m, Text *out) {
    const StepNumbers *s = &m->last;
    Text label = {0};
    add_run(m->options->metrics_prom, &label);
    text_add(&label, "}");
    add_family(&label, "gauge", "iteration", "Steps that are done", (double)s->iteration, out);
    add_family(&label, "gauge", "train_iterations", "Steps of the whole run", (double)s->end, out);
    add_family(&label, "counter", "consumed_samples", "Samples that were read", (double)s->consumed, out);
    for (int i = 0; i < NUM_NUMBERS; i++)
        if (has_number(s, i)) add_family(&label, "gauge", numbers[i].name, numbers[i].help, s->value[i], out);
    if (!isnan(m->validation))
        add_family(&label, "gauge", "validation_loss", "Loss of the last evaluation", m->validation, out);
    add_family(&label, "gauge", "updated_seconds", "When this was written, since 1970", seconds_since_1970(),
               out);
    text_free(&label);
    add_run(m->options->metrics_prom, &label);
    text_add(&label, ",version=\"%s\"}", TRIREME_VERSION);
    // Prometheus has no type "info" as OpenMetrics does.
    add_family(&label, "gauge", "build_info", "The program", 1, out);
    text_add(out, "# EOF\n");
    text_free(&label);
}

// Replaces the file by a rename, so that readers see it whole. It need not survive the machine.
static Status replace_file(const char *path, const Text *text) {
    char temporary[4096];
    FileWriter writer = {0};
    TRY(file_temporary_name(path, temporary));
    unlink(temporary);
    TRY(file_writer_open(&writer, temporary));
    writer.in_memory = true;
    Status status = file_writer_add(&writer, text_string(text), text->size);
    if (status == OK) status = file_writer_finish(&writer);
    if (status == OK && rename(temporary, path) != 0)
        status = fail(ERR_IO, "cannot be replaced: %s", strerror(errno));
    if (status != OK) unlink(temporary);
    file_writer_abandon(&writer);
    return status;
}

// At most once a second, and at the end.
static void write_prom(Metrics *m, bool last) {
    double now = clock_s();
    Text text = {0};
    if (!m->options->metrics_prom || m->failed || !m->last.iteration) return;
    if (!last && m->prom_written > 0 && now < m->prom_written + 1) return;
    m->prom_written = now;
    print_families(m, &text);
    if (replace_file(m->options->metrics_prom, &text) != OK) {
        note_trouble(m, "--metrics-prom", m->options->metrics_prom, fail_message());
        m->failed = true;
    }
    text_free(&text);
}

// ---- all of them ----------------------------------------------------------------------------------------

Status metrics_open(Metrics *m, const Options *options, const atomic_int *stopped) {
    *m = (Metrics){.options = options, .validation = NAN, .went_on_from = -1};
    if (options->dry_run) return OK;
    if (options->tensorboard_dir) {
        Status status = open_events(m);
        if (status != OK) return fail(status, "--tensorboard-dir %s", fail_message());
    }
    if (!options->metrics) return OK;
    Status status = outlet_create(&m->json_outlet, options->metrics, options->load, stopped, &m->json);
    return status == OK ? OK : fail(status, "--metrics %s", fail_message());
}

static bool close_json(Metrics *m) {
    bool failed = ferror(m->json) != 0;
    failed |= fclose(m->json) != 0;
    failed |= !outlet_close(&m->json_outlet);
    m->json = NULL;
    return !failed;
}

Status metrics_close(Metrics *m) {
    if (!m->options) return OK;
    write_prom(m, true);
    bool json = !m->json || close_json(m);
    if (m->events && fclose(m->events) != 0) m->failed = true;
    m->events = NULL;
    Status status = OK;
    if (!json)
        status = fail(ERR_IO, "--metrics %s: not everything could be written", m->options->metrics);
    else if (m->failed)
        status =
            fail(ERR_IO, "%s", m->trouble.size ? m->trouble.data : "--tensorboard-dir: not all was written");
    text_free(&m->trouble);
    return status;
}

void metrics_step(Metrics *m, const StepNumbers *s) {
    if (!m->options) return;
    m->last = *s;
    m->last.loads = NULL; // they are of the call
    json_step(m, s);
    events_step(m, s);
    write_prom(m, false);
}

void metrics_validation(Metrics *m, int64_t iteration, int64_t consumed, double loss,
                        const PairMeans *pairs) {
    m->validation = loss;
    json_validation(m, iteration, consumed, loss, pairs);
    events_validation(m, iteration, loss, pairs);
    write_prom(m, false);
}
