// Hugging Face folders whose experts are in MXFP4, as GPT-OSS has them: the numbers that are read, whole and in parts,
// what is written of them, and files that are damaged.
#include "base/file.h"
#include "base/half.h"
#include "checkpoint_models.h"

// What the codes stand for, written down once more. Source: OCP Microscaling Formats (MX) 1.0, table 5.
static const float numbers[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

enum { EXPERTS = 2, WIDTH = 64, HIDDEN = 32, BLOCK = 32 };

static ModelShape shape_of_experts(void) {
    ModelShape s = granite_moe();
    s.experts = EXPERTS, s.experts_topk = 1, s.expert_ffn = s.ffn = WIDTH;
    return s;
}

// The tensors of experts, and the weights of ours that they are.
static const struct {
    const char *name, *ours;
    int64_t rows, cols; // of an expert
} packed[] = {
    {"model.layers.%d.block_sparse_moe.input_linear.weight",
     "decoder.layers.%d.mlp.experts.linear_fc1.weight", 2 * WIDTH, HIDDEN},
    {"model.layers.%d.block_sparse_moe.output_linear.weight",
     "decoder.layers.%d.mlp.experts.linear_fc2.weight", HIDDEN, WIDTH},
};
enum { NUM_PACKED = sizeof packed / sizeof *packed, LAYERS = 2 };

// The first block: the low half of a byte is the first of two, and scale 128 is 2.
static const uint8_t golden[BLOCK / 2] = {0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe,
                                          0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef};

// Byte i of a tensor of blocks, and the scale of a block: all codes, and scales from 2^-127 to 2^7.
static uint8_t codes_at(int kind, int layer, int64_t i) {
    if (i < BLOCK / 2 && !kind && !layer) return golden[i];
    return (uint8_t)(i * 73 + i * i / 7 + 19 * kind + 5 * layer);
}
static uint8_t scale_at(int kind, int layer, int64_t block) {
    if (block < 1) return 128;
    return block == 3 ? 0 : block == 4 ? 1 : (uint8_t)(134 - (block * 5 + kind + layer) % 40);
}

static float number_at(int kind, int layer, int64_t element) {
    int byte = codes_at(kind, layer, element / 2);
    int code = element % 2 ? byte >> 4 : byte & 15;
    return ldexpf(numbers[code], scale_at(kind, layer, element / BLOCK) - 127);
}

// ---- folders ------------------------------------------------------------------------------------------------

typedef struct {
    const char *drop;      // an ending of tensors that are left out
    const char *as_floats; // one of tensors that become F32
    const char *longer;    // one of tensors whose rows have a block too many
    bool plain_too;        // the tensors in 32 bits are there, too
    int nan_block;         // the scale of this block is NaN; 0: none
} Damage;

typedef struct {
    SafeTensor tensors[64];
    int count;
    char names[64][96];
    Text bytes;
} Content;

static void add(Content *content, const char *name, SafeTensor tensor, const void *bytes, size_t size) {
    snprintf(content->names[content->count], sizeof content->names[0], "%s", name);
    tensor.name = content->names[content->count];
    content->tensors[content->count++] = tensor;
    text_add_bytes(&content->bytes, bytes, size);
}

static void add_bytes(Content *content, const char *name, const char *ending, SafeTensor tensor,
                      const uint8_t *bytes, const Damage *damage) {
    static float floats[EXPERTS * 2 * WIDTH * HIDDEN];
    char whole[96];
    if (damage->drop && !strcmp(damage->drop, ending)) return;
    if (damage->longer && !strcmp(damage->longer, ending)) tensor.shape[0]--, tensor.shape[1] *= EXPERTS;
    int64_t size = 1;
    for (int i = 0; i < tensor.ndim; i++) size *= tensor.shape[i];
    bool is_float = damage->as_floats && !strcmp(damage->as_floats, ending);
    tensor.type = is_float ? FILE_F32 : FILE_U8;
    snprintf(whole, sizeof whole, "%s%s", name, ending);
    if (is_float)
        add(content, whole, tensor, floats, (size_t)size * sizeof *floats);
    else
        add(content, whole, tensor, bytes, (size_t)size);
}

static void add_packed(Content *content, int kind, int layer, const char *name, const Damage *damage) {
    static uint8_t codes[EXPERTS * 2 * WIDTH * HIDDEN], scales[EXPERTS * 2 * WIDTH * HIDDEN];
    int64_t rows = packed[kind].rows, blocks = packed[kind].cols / BLOCK, all = EXPERTS * rows * blocks;
    for (int64_t i = 0; i < all * BLOCK / 2; i++) codes[i] = codes_at(kind, layer, i);
    for (int64_t i = 0; i < all; i++) scales[i] = scale_at(kind, layer, i);
    if (damage->nan_block) scales[damage->nan_block] = 255;
    add_bytes(content, name, "_blocks", (SafeTensor){.ndim = 4, .shape = {EXPERTS, rows, blocks, BLOCK / 2}},
              codes, damage);
    add_bytes(content, name, "_scales", (SafeTensor){.ndim = 3, .shape = {EXPERTS, rows, blocks}}, scales,
              damage);
}

// Whether a tensor is one of experts.
static bool is_packed(const char *name, int *kind, int *layer) {
    char wanted[96];
    for (*kind = 0; *kind < NUM_PACKED; ++*kind)
        for (*layer = 0; *layer < LAYERS; ++*layer) {
            snprintf(wanted, sizeof wanted, packed[*kind].name, *layer);
            if (!strcmp(name, wanted)) return true;
        }
    return false;
}

static void pack_tensors(const char *from, Content *content, const Damage *damage) {
    static float values[MAX_ELEMENTS];
    Safetensors *file;
    EXPECT_OK(safetensors_open(&file, from));
    CHECK(file, "no file %s", from);
    for (int i = 0; i < file->count; i++) {
        const SafeTensor *t = &file->tensors[i];
        int kind, layer;
        bool expert = is_packed(t->name, &kind, &layer);
        if (expert) add_packed(content, kind, layer, t->name, damage);
        if (expert && !damage->plain_too) continue;
        EXPECT_OK(safetensors_read(file, t, 0, t->bytes / 4, values));
        add(content, t->name, *t, values, (size_t)t->bytes);
    }
    safetensors_close(file);
}

static void write_content(const Content *content, const char *path, int part, int parts) {
    SafeTensor chosen[64];
    Text bytes = {0};
    int count = 0;
    size_t at = 0;
    for (int i = 0; i < content->count; i++) {
        const SafeTensor *t = &content->tensors[i];
        size_t size = file_type_bytes(t->type);
        for (int d = 0; d < t->ndim; d++) size *= (size_t)t->shape[d];
        if (i % parts == part) chosen[count++] = *t, text_add_bytes(&bytes, content->bytes.data + at, size);
        at += size;
    }
    SafetensorsWriter writer;
    EXPECT_OK(safetensors_create(&writer, path, chosen, count, NULL, 0));
    EXPECT_OK(safetensors_add(&writer, bytes.data, bytes.size));
    EXPECT_OK(safetensors_finish(&writer));
    text_free(&bytes);
}

static void write_index(const char *folder, const Content *content) {
    Text index = {0};
    text_add(&index, "{\"weight_map\": {");
    for (int i = 0; i < content->count; i++)
        text_add(&index, "%s\"%s\": \"part%d.safetensors\"", i ? ", " : "", content->names[i], i % 2);
    text_add(&index, "}}");
    EXPECT_OK(file_write(inside(folder, "model.safetensors.index.json").text, index.data, index.size));
    text_free(&index);
}

// The type of the tensors is not said.
static void write_config(const char *from, const char *to, const char *method) {
    static const char type[] = "\"torch_dtype\": \"float32\"";
    char *text;
    size_t size;
    Text changed = {0};
    EXPECT_OK(file_read(inside(from, "config.json").text, 1 << 20, &text, &size));
    char *at = strstr(text, type);
    CHECK(at, "no %s in %s", type, text);
    text_add(&changed,
             "%.*s\"quantization_config\": {\"quant_method\": \"%s\", \"modules_to_not_convert\": [\"x\"]}%s",
             (int)(at - text), text, method, at + sizeof type - 1);
    EXPECT_OK(folder_make(to));
    EXPECT_OK(file_write(inside(to, "config.json").text, changed.data, changed.size));
    text_free(&changed);
    free(text);
}

// A folder in MXFP4, in one file or, with its blocks and scales apart, in two.
static Path packed_folder(const char *name, Damage damage, bool two_files) {
    static Content content;
    ModelShape shape = shape_of_experts();
    Path save = path_of(name), plain = inside(save.text, "plain"), folder = inside(save.text, "packed");
    make_checkpoint(save.text, &shape, 7, 5);
    export_to(save.text, plain.text, FILE_F32);
    content = (Content){0};
    pack_tensors(inside(plain.text, "model.safetensors").text, &content, &damage);
    write_config(plain.text, folder.text, "mxfp4");
    if (two_files) {
        write_content(&content, inside(folder.text, "part0.safetensors").text, 0, 2);
        write_content(&content, inside(folder.text, "part1.safetensors").text, 1, 2);
        write_index(folder.text, &content);
    } else {
        write_content(&content, inside(folder.text, "model.safetensors").text, 0, 1);
    }
    text_free(&content.bytes);
    return folder;
}

// ---- what is read -------------------------------------------------------------------------------------------

static void expect_rect(ModelSource *source, int kind, int layer, Rect rect) {
    static float found[MAX_ELEMENTS];
    char name[96];
    snprintf(name, sizeof name, packed[kind].ours, layer);
    EXPECT_OK(model_source_read(source, name, rect, found, rect.cols));
    for (int64_t i = 0; i < rect.rows * rect.cols; i++) {
        int64_t row = rect.row + i / rect.cols, col = rect.col + i % rect.cols;
        float wanted = number_at(kind, layer, row * packed[kind].cols + col);
        EXPECT(found[i] == wanted, "%s [%" PRId64 ", %" PRId64 "]: %a, not %a", name, row, col,
               (double)found[i], (double)wanted);
    }
}

static void expect_numbers(const char *path) {
    ModelSource *source;
    EXPECT_OK(model_source_open(&source, path, -1));
    for (int kind = 0; source && kind < NUM_PACKED; kind++)
        for (int layer = 0; layer < LAYERS; layer++) {
            int64_t rows = EXPERTS * packed[kind].rows, cols = packed[kind].cols;
            expect_rect(source, kind, layer, (Rect){0, 0, rows, cols});
            expect_rect(source, kind, layer, (Rect){rows / 3, 5, rows / 2, cols - 12});
            expect_rect(source, kind, layer, (Rect){rows - 1, cols - 1, 1, 1});
        }
    model_source_close(source);
}

// The first block of all, whose numbers are written down.
static void golden_block(void) {
    static const float wanted[BLOCK] = {0, 1, 2, 3, 4, 6, 8,  12, -0.f, -1, -2, -3, -4, -6, -8,  -12,
                                        1, 0, 3, 2, 6, 4, 12, 8,  -1,   0,  -3, -2, -6, -4, -12, -8};
    float found[BLOCK];
    ModelSource *source;
    EXPECT_OK(model_source_open(&source, packed_folder("golden", (Damage){0}, false).text, -1));
    if (!source) return;
    EXPECT_OK(model_source_read(source, "decoder.layers.0.mlp.experts.linear_fc1.weight",
                                (Rect){0, 0, 1, BLOCK}, found, BLOCK));
    for (int i = 0; i < BLOCK; i++)
        EXPECT(found[i] == wanted[i], "element %d: %g, not %g", i, (double)found[i], (double)wanted[i]);
    model_source_close(source);
}

static void numbers_are_read(void) {
    Path folder = packed_folder("numbers", (Damage){0}, false);
    ModelSource *source;
    expect_numbers(folder.text);
    expect_numbers(packed_folder("apart", (Damage){0}, true).text);
    EXPECT_OK(model_source_open(&source, folder.text, -1));
    EXPECT(source && !strcmp(model_source_info(source)->dtype, "bf16"), "another type");
    model_source_close(source);
}

// bf16 holds them exactly, and the folder that is written does not say MXFP4 any more.
static void written_in_bf16(void) {
    Path folder = packed_folder("written", (Damage){0}, false), save = inside(folder.text, "imported"),
         back = inside(folder.text, "back");
    char *text;
    size_t size;
    import_to(folder.text, save.text);
    export_to(save.text, back.text, FILE_BF16);
    expect_numbers(save.text);
    expect_numbers(back.text);
    EXPECT_OK(file_read(inside(back.text, "config.json").text, 1 << 20, &text, &size));
    EXPECT(!strstr(text, "quantization") && strstr(text, "bfloat16"), "%s", text);
    free(text);
}

// ---- what is refused ----------------------------------------------------------------------------------------

static void damaged(void) {
    static const struct {
        Damage damage;
        Status status;
        const char *told;
    } cases[] = {
        {{.drop = "_scales"}, ERR_DATA, "input_linear.weight_scales is missing: MXFP4 needs both"},
        {{.drop = "_blocks"}, ERR_DATA, "input_linear.weight_blocks is missing: MXFP4 needs both"},
        {{.as_floats = "_scales"},
         ERR_DATA,
         "input_linear.weight_scales is of type F32; MXFP4 is read from bytes"},
        {{.as_floats = "_blocks"},
         ERR_DATA,
         "input_linear.weight_blocks is of type F32; MXFP4 is read from bytes"},
        {{.longer = "_blocks"}, ERR_DATA, "input_linear.weight_blocks is not [2, 128, 1, 16]"},
        {{.longer = "_scales"}, ERR_DATA, "input_linear.weight_scales is not [2, 128, 1]"},
        {{.plain_too = true}, ERR_DATA, "is not a weight of the model"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[32];
        snprintf(name, sizeof name, "damaged%zu", i);
        expect_source_refused(packed_folder(name, cases[i].damage, false).text, cases[i].status,
                              cases[i].told);
    }
    Path folder = packed_folder("method", (Damage){0}, false);
    write_config(path_of("method/plain").text, folder.text, "awq");
    expect_source_refused(folder.text, ERR_UNAVAILABLE, "weights quantised by awq are not read");
}

static void not_a_number(void) {
    Path folder = packed_folder("nan", (Damage){.nan_block = 7}, false);
    static float found[MAX_ELEMENTS];
    ModelSource *source;
    EXPECT_OK(model_source_open(&source, folder.text, -1));
    if (!source) return;
    EXPECT(model_source_read(source, "decoder.layers.0.mlp.experts.linear_fc1.weight", (Rect){0, 0, 128, 32},
                             found, 32) == ERR_DATA &&
               strstr(fail_message(),
                      "tensor model.layers.0.block_sparse_moe.input_linear.weight is NaN in row 7, "
                      "column 0 of trireme's decoder.layers.0.mlp.experts.linear_fc1.weight"),
           "%s", fail_message());
    model_source_close(source);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"golden_block", golden_block},
                                      {"numbers_are_read", numbers_are_read},
                                      {"written_in_bf16", written_in_bf16},
                                      {"damaged", damaged},
                                      {"not_a_number", not_a_number},
                                      {0}},
                       argc, argv);
}
