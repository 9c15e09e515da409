// Reads machine files into Machine, and prints them.
#include "machine/files.h"
#include <stdlib.h>
#include <string.h>

// ---- tables -------------------------------------------------------------------------------------

static const YamlField MACHINE_FIELDS[] = {
    FIELD(Machine, TEXT, description, true, 0, 0, NULL),
    FIELD_ELSEWHERE("gpu"),
    FIELD_ELSEWHERE("cpu"),
    FIELD_ELSEWHERE("aliases"),
    FIELD(Machine, COUNT, devices_per_node, true, 1, 65536, NULL),
    FIELD_ELSEWHERE("peak_tflops"),
    FIELD(Machine, NUMBER, memory_gb, true, 0.1, 1e5, "GB"),
    FIELD(Machine, NUMBER, usable_gb, true, 0.1, 1e5, "GB"),
    FIELD(Machine, NUMBER, memory_gbs, true, 0.1, 1e6, "GB/s"),
    FIELD(Machine, COUNT, sms, false, 1, 65536, NULL),
    FIELD(Machine, NUMBER, link_gbs, false, 0.01, 1e5, "GB/s"),
    FIELD(Machine, NUMBER, host_link_gbs, false, 0.01, 1e5, "GB/s"),
    FIELD(Machine, NUMBER, host_memory_gbs, false, 0.1, 1e6, "GB/s"),
    FIELD(Machine, COUNT, nics, false, 0, 1024, NULL),
    FIELD(Machine, NUMBER, nic_gbs, false, 0.001, 1e5, "GB/s"),
    FIELD(Machine, NUMBER, price, false, 0.0001, 1e5, "dollars"),
    FIELD(Machine, NUMBER, device_watts, false, 0.1, 1e5, "W"),
    FIELD(Machine, NUMBER, node_watts, false, 0.1, 1e8, "W"),
    FIELD(Machine, TEXT, stack, false, 0, 0, NULL),
    FIELD_ELSEWHERE("tiles"),
    FIELD_ELSEWHERE("curves"),
    FIELD_ELSEWHERE("constants"),
    FIELD_ELSEWHERE("rates"),
};

#define PEAK(name, dtype)                                                                                    \
    {                                                                                                        \
        name, FIELD_NUMBER, false, offsetof(Machine, peak_tflops) + (dtype) * sizeof(double),                \
            sizeof(double), 1e-4, 1e6, "TFLOP/s"                                                             \
    }
#define FACTOR_PEAK(name, format)                                                                            \
    {                                                                                                        \
        name, FIELD_NUMBER, false, offsetof(Machine, factor_tflops) + (format) * sizeof(double),             \
            sizeof(double), 1e-4, 1e6, "TFLOP/s"                                                             \
    }
static const YamlField PEAK_FIELDS[] = {
    PEAK("f32", F32),
    PEAK("bf16", BF16),
    PEAK("f16", F16),
    FACTOR_PEAK("fp8", FACTORS_FP8),
    FACTOR_PEAK("mxfp8", FACTORS_MXFP8),
    FACTOR_PEAK("nvfp4", FACTORS_NVFP4),
};

// The numbers of one item in a list of lists, in this order.
static const YamlField TILE_FIELDS[] = {
    FIELD(Tile, COUNT, m, true, 1, 4096, NULL),
    FIELD(Tile, COUNT, n, true, 1, 4096, NULL),
    FIELD(Tile, NUMBER, rate, true, 0.01, 1, "of the best tile's"),
};
static const YamlField POINT_FIELDS[] = {
    FIELD(CurvePoint, NUMBER, bytes, true, 1, 1e13, "bytes"),
    FIELD(CurvePoint, NUMBER, gbs, true, 1e-6, 1e5, "GB/s"),
};

static const YamlField CURVE_FIELDS[] = {FIELD_ELSEWHERE("ranks"), FIELD_ELSEWHERE("nodes"),
                                         FIELD_ELSEWHERE("points")};

static const YamlField RATE_FIELDS[] = {
    FIELD(Rate, TEXT, op, true, 0, 0, NULL),         FIELD_ELSEWHERE("dtype"),
    FIELD(Rate, COUNT, ranks, true, 1, 65536, NULL), FIELD_ELSEWHERE("seconds"),
    FIELD(Rate, NUMBER, error, false, 0, 100, NULL),
};

// ---- reading ------------------------------------------------------------------------------------

static Status read_device(const char *file, const Json *root, Machine *machine) {
    static const YamlField NAME = FIELD(Machine, TEXT, gpu, true, 0, 0, NULL);
    const Json *gpu = json_member(root, "gpu"), *cpu = json_member(root, "cpu");
    if (gpu && cpu) return value_wrong(file, cpu, "either gpu or cpu");
    machine->is_cpu = cpu != NULL;
    if (!gpu && !cpu) return field_require(file, root, "gpu");
    return field_read(file, gpu ? gpu : cpu, &NAME, machine);
}

static Status read_peaks(const char *file, const Json *root, Machine *machine) {
    const Json *peaks = json_member(root, "peak_tflops");
    TRY(field_require(file, root, "peak_tflops"));
    TRY(fields_read(file, peaks, PEAK_FIELDS, FIELD_COUNT_OF(PEAK_FIELDS), machine));
    return field_require(file, peaks, "f32");
}

// Reads a list that has one number for each field.
static Status read_list(const char *file, const Json *list, const YamlField *fields, int count, void *out) {
    char expected[64];
    snprintf(expected, sizeof expected, "a list of %d numbers, the first %s,", count, fields[0].key);
    if (list->type != JSON_ARRAY || list->count != (size_t)count) return value_wrong(file, list, expected);
    for (int i = 0; i < count; i++) {
        Json named = list->items[i];
        named.key = fields[i].key;
        TRY(field_read(file, &named, &fields[i], out));
    }
    return OK;
}

static Status check_list(const char *file, const Json *list, size_t least, size_t most) {
    char expected[64];
    snprintf(expected, sizeof expected, "a list of %zu to %zu items", least, most);
    if (list->type == JSON_ARRAY && list->count >= least && list->count <= most) return OK;
    return value_wrong(file, list, expected);
}

static Status read_tiles(const char *file, const Json *list, Machine *machine) {
    if (!list) return OK;
    TRY(check_list(file, list, 1, MAX_TILES));
    for (size_t i = 0; i < list->count; i++)
        TRY(read_list(file, &list->items[i], TILE_FIELDS, FIELD_COUNT_OF(TILE_FIELDS), &machine->tiles[i]));
    machine->num_tiles = (int)list->count;
    return OK;
}

static Status read_points(const char *file, const Json *list, Curve *curve) {
    TRY(check_list(file, list, 1, MAX_POINTS));
    for (size_t i = 0; i < list->count; i++) {
        TRY(read_list(file, &list->items[i], POINT_FIELDS, FIELD_COUNT_OF(POINT_FIELDS), &curve->points[i]));
        if (i && curve->points[i].bytes <= curve->points[i - 1].bytes) {
            Json named = list->items[i].items[0];
            named.key = "bytes";
            return value_wrong(file, &named, "more than at the point before");
        }
    }
    curve->count = (int)list->count;
    return OK;
}

static Status read_curve(const char *file, const Json *json, const Machine *machine, Curve *curve) {
    const YamlField ranks = {
        "ranks",    FIELD_COUNT, false, offsetof(Curve, ranks), sizeof(int), 2, machine->devices_per_node,
        "of a node"};
    const YamlField nodes = {"nodes", FIELD_COUNT, false, offsetof(Curve, nodes), sizeof(int), 2, 1e6, NULL};
    TRY(fields_read(file, json, CURVE_FIELDS, FIELD_COUNT_OF(CURVE_FIELDS), curve));
    const Json *n = json_member(json, "ranks"), *many = json_member(json, "nodes");
    if (n && many) return value_wrong(file, many, "either ranks, inside a node, or nodes");
    if (!many) TRY(field_require(file, json, "ranks"));
    *curve = (Curve){.ranks = machine->devices_per_node, .nodes = 1};
    TRY(field_read(file, n ? n : many, n ? &ranks : &nodes, curve));
    TRY(field_require(file, json, "points"));
    return read_points(file, json_member(json, "points"), curve);
}

static Status read_curves(const char *file, const Json *list, Machine *machine) {
    if (!list) return OK;
    TRY(check_list(file, list, 0, MAX_CURVES));
    for (size_t i = 0; i < list->count; i++) {
        Curve *curve = &machine->curves[i];
        TRY(read_curve(file, &list->items[i], machine, curve));
        for (size_t k = 0; k < i; k++)
            if (machine->curves[k].ranks == curve->ranks && machine->curves[k].nodes == curve->nodes)
                return value_wrong(file, &list->items[i], "another number of ranks or nodes than before");
    }
    machine->num_curves = (int)list->count;
    return OK;
}

static Status read_dtype(const char *file, const Json *value, DType *dtype) {
    const char *name = json_string(value);
    for (int i = 0; i < NUM_DTYPES; i++) {
        *dtype = (DType)i;
        if (name && dtype_is_element(*dtype) && !strcmp(name, dtype_name(*dtype))) return OK;
    }
    return value_wrong(file, value, "f32, bf16 or f16");
}

static Status read_rate(const char *file, const Json *json, Rate *rate) {
    static const YamlField SECONDS = {"seconds", FIELD_NUMBER, true, 0, sizeof(double), 0, 1e6, "seconds"};
    TRY(fields_read(file, json, RATE_FIELDS, FIELD_COUNT_OF(RATE_FIELDS), rate));
    TRY(field_require(file, json, "dtype"));
    TRY(read_dtype(file, json_member(json, "dtype"), &rate->dtype));
    TRY(field_require(file, json, "seconds"));
    const Json *list = json_member(json, "seconds");
    TRY(check_list(file, list, 1, MAX_TERMS));
    for (size_t i = 0; i < list->count; i++)
        TRY(field_read(file, &list->items[i], &SECONDS, &rate->seconds[i]));
    rate->count = (int)list->count;
    return OK;
}

static Status read_rates(const char *file, const Json *list, Machine *machine) {
    enum { MAX_RATES = 10000 };
    if (!list) return OK;
    TRY(check_list(file, list, 0, MAX_RATES));
    machine->rates = calloc(list->count + 1, sizeof *machine->rates);
    if (!machine->rates) return fail(ERR_OS, "%s: no memory for %zu rates", file, list->count);
    for (size_t i = 0; i < list->count; i++) TRY(read_rate(file, &list->items[i], &machine->rates[i]));
    machine->num_rates = (int)list->count;
    return OK;
}

// Checks values against each other.
static Status check_machine(const char *file, const Json *root, const Machine *machine) {
    if (machine->usable_gb > machine->memory_gb)
        return value_wrong(file, json_member(root, "usable_gb"), "at most memory_gb");
    if (machine->nics) TRY(field_require(file, root, "nic_gbs"));
    if (machine->node_watts > 0 && machine->node_watts < machine->device_watts * machine->devices_per_node)
        return value_wrong(file, json_member(root, "node_watts"), "at least those of all its devices");
    if (machine->is_cpu) return OK;
    TRY(field_require(file, root, "sms"));
    TRY(field_require(file, root, "tiles"));
    return field_require(file, root, "link_gbs");
}

static Status machine_read(const char *file, const Json *root, Machine *machine) {
    TRY(fields_read(file, root, MACHINE_FIELDS, FIELD_COUNT_OF(MACHINE_FIELDS), machine));
    TRY(read_device(file, root, machine));
    TRY(aliases_read(file, json_member(root, "aliases"), &machine->aliases));
    TRY(read_peaks(file, root, machine));
    TRY(read_tiles(file, json_member(root, "tiles"), machine));
    TRY(read_curves(file, json_member(root, "curves"), machine));
    TRY(constants_read(file, json_member(root, "constants"), &machine->constants, machine->set));
    TRY(read_rates(file, json_member(root, "rates"), machine));
    return check_machine(file, root, machine);
}

Status machine_open(Machine *machine, const char *name) {
    YamlDocument document;
    Library library = {"machine", "machines", shipped_machines, num_shipped_machines};
    memset(machine, 0, sizeof *machine);
    TRY(document_open(&document, &library, name));
    memcpy(machine->name, document.name, sizeof machine->name);
    Status status = machine_read(document.file, document.root, machine);
    document_close(&document);
    if (status != OK) machine_close(machine);
    return status;
}

void machine_close(Machine *machine) {
    free(machine->rates);
    machine->rates = NULL;
    machine->num_rates = 0;
}

double machine_watts(const Machine *machine) {
    bool whole = machine->node_watts > 0;
    return whole ? machine->node_watts / machine->devices_per_node : machine->device_watts;
}

// ---- writing ------------------------------------------------------------------------------------

static void print_tiles(const Machine *machine, Text *out) {
    for (int i = 0; i < machine->num_tiles; i++) {
        const Tile *tile = &machine->tiles[i];
        text_add(out, "%s[%d, %d, ", i ? ", " : "tiles: [", tile->m, tile->n);
        json_add_double(out, tile->rate);
        text_add(out, "]");
    }
    if (machine->num_tiles) text_add(out, "]\n");
}

static void print_curve(const Curve *curve, Text *out) {
    bool inside = curve->nodes == 1;
    text_add(out, "  - %s: %d\n    points:\n", inside ? "ranks" : "nodes",
             inside ? curve->ranks : curve->nodes);
    for (int i = 0; i < curve->count; i++) {
        text_add(out, "      - [");
        json_add_double(out, curve->points[i].bytes);
        text_add(out, ", ");
        json_add_double(out, curve->points[i].gbs);
        text_add(out, "]\n");
    }
}

static void print_rate(const Rate *rate, Text *out) {
    text_add(out, "  - {");
    fields_print_inline(RATE_FIELDS, FIELD_COUNT_OF(RATE_FIELDS), rate, out);
    text_add(out, ", dtype: \"%s\", seconds: ", dtype_name(rate->dtype));
    for (int i = 0; i < rate->count; i++) {
        text_add(out, i ? ", " : "[");
        json_add_double(out, rate->seconds[i]);
    }
    text_add(out, "]}\n");
}

void machine_print(const Machine *machine, Text *out) {
    text_add(out, "%s: ", machine->is_cpu ? "cpu" : "gpu");
    json_add_string(out, machine->gpu, strlen(machine->gpu));
    text_add(out, "\n");
    aliases_print(&machine->aliases, out);
    fields_print(MACHINE_FIELDS, FIELD_COUNT_OF(MACHINE_FIELDS), machine, "", out);
    text_add(out, "peak_tflops: {");
    fields_print_inline(PEAK_FIELDS, FIELD_COUNT_OF(PEAK_FIELDS), machine, out);
    text_add(out, "}\n");
    print_tiles(machine, out);
    if (machine->num_curves) text_add(out, "curves:\n");
    for (int i = 0; i < machine->num_curves; i++) print_curve(&machine->curves[i], out);
    constants_print("constants", &machine->constants, machine->set, out);
    if (machine->num_rates) text_add(out, "rates:\n");
    for (int i = 0; i < machine->num_rates; i++) print_rate(&machine->rates[i], out);
}
