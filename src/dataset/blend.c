// Reads the words of a blend, and computes the order in which it draws samples from its members.
#include "dataset/blend.h"
#include "base/file.h"
#include "dataset/gpt_index.h"
#include "formats/formats.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- Words ------------------------------------------------------------------------------------------------

static int num_numbers(const char *const *words, int num_words) {
    int count = 0;
    double weight;
    for (int i = 0; i < num_words; i += 2) count += parse_double(words[i], &weight);
    return count;
}

static int take_pairs(const char *const *words, int num_words, const char *named, const char **prefixes,
                      double *weights) {
    for (int i = 0; i < num_words; i += 2) {
        double *weight = &weights[i / 2];
        prefixes[i / 2] = words[i + 1];
        if (parse_double(words[i], weight) && *weight > 0) continue;
        fail(ERR_CONFIG, "%s: '%s' before %s is not a weight above 0: write WEIGHT PREFIX WEIGHT PREFIX ...",
             named, words[i], words[i + 1]);
        return -1;
    }
    return num_words / 2;
}

// The words are pairs when their number is even and every other word is a number, as in Megatron-LM. Where only
// some of these are numbers, Megatron-LM takes an odd number of words for prefixes and refuses an even number.
int blend_parse(const char *const *words, int num_words, const char *named, const char **prefixes,
                double *weights) {
    int numbers = num_numbers(words, num_words);
    if (num_words > MAX_MEMBERS) {
        fail(ERR_CONFIG, "%s has %d words, at most %d are possible", named, num_words, MAX_MEMBERS);
        return -1;
    }
    if (numbers && num_words % 2 == 0) return take_pairs(words, num_words, named, prefixes, weights);
    if (numbers > 1) {
        fail(ERR_CONFIG, "%s: %d words cannot be pairs of WEIGHT and PREFIX; the last one is '%s'", named,
             num_words, words[num_words - 1]);
        return -1;
    }
    for (int i = 0; i < num_words; i++) {
        prefixes[i] = words[i];
        weights[i] = 0;
    }
    return num_words;
}

// ---- Words in files ---------------------------------------------------------------------------------------

enum { MAX_WORDS_BYTES = 16 << 20 };

void blend_words_free(BlendWords *words) {
    free(words->text);
    free(words->words);
    *words = (BlendWords){0};
}

// Takes ownership of `text`. At most every other character begins a word.
static Status split_words(BlendWords *words, char *text, size_t size) {
    words->text = text;
    words->words = malloc((size / 2 + 1) * sizeof *words->words);
    if (!words->words) return fail(ERR_OS, "no memory for the words of a blend");
    char *rest = NULL;
    for (char *word = strtok_r(text, " \t\r\n\f\v", &rest); word; word = strtok_r(NULL, " \t\r\n\f\v", &rest))
        words->words[words->count++] = word;
    return OK;
}

Status blend_words_read(BlendWords *words, const char *file) {
    char *text;
    size_t size;
    TRY(file_read(file, MAX_WORDS_BYTES, &text, &size));
    return split_words(words, text, size);
}

// Prefixes in a list may contain blanks, those in a string cannot.
static Status take_list(BlendWords *words, const Json *list, const char *file) {
    Text all = {0};
    words->words = malloc((list->count + 1) * sizeof *words->words);
    if (!words->words) return fail(ERR_OS, "%s: no memory for its words", file);
    for (size_t i = 0; i < list->count; i++) {
        const Json *item = &list->items[i];
        bool is_word = json_string(item) || item->type == JSON_NUMBER;
        if (!is_word) {
            text_free(&all);
            return fail(ERR_DATA, "%s: byte %" PRId64 ": neither a weight nor the name of a data set", file,
                        item->offset);
        }
        text_add_bytes(&all, item->string, item->size);
        text_add_bytes(&all, "", 1);
    }
    words->text = all.data;
    words->count = (int)list->count;
    const char *at = all.data;
    for (int i = 0; i < words->count; i++, at += strlen(at) + 1) words->words[i] = at;
    return OK;
}

static Status take_split(BlendWords *words, const Json *root, const char *file, Split which) {
    const Json *value = json_member(root, split_name(which));
    if (root->type != JSON_OBJECT)
        return fail(ERR_DATA, "%s: byte 0: not an object with train, valid and test", file);
    if (!value || value->type == JSON_NULL) return OK;
    if (value->type == JSON_ARRAY) return take_list(words, value, file);
    if (!json_string(value))
        return fail(ERR_DATA, "%s: byte %" PRId64 ": %s is neither a list nor a string", file, value->offset,
                    split_name(which));
    char *copy = strdup(json_string(value));
    if (!copy) return fail(ERR_OS, "%s: no memory for its words", file);
    return split_words(words, copy, strlen(copy));
}

Status blend_words_read_split(BlendWords *words, const char *file, Split which) {
    char *text;
    size_t size;
    Json *root = NULL;
    TRY(file_read(file, MAX_WORDS_BYTES, &text, &size));
    Status status = json_parse(&root, text, size, file);
    if (status == OK) status = take_split(words, root, file, which);
    json_free(root);
    free(text);
    return status;
}

// ---- Order ------------------------------------------------------------------------------------------------

// Adds as NumPy does, since the order decides the last bit: eight sums side by side for up to 128 numbers, halves
// above that.
static double pairwise_sum(const double *x, int count) {
    if (count > 128) {
        int half = count / 2 - count / 2 % 8;
        return pairwise_sum(x, half) + pairwise_sum(x + half, count - half);
    }
    double sum = 0, part[8];
    int i = 0;
    if (count >= 8) {
        for (; i < 8; i++) part[i] = x[i];
        for (; i < count - count % 8; i++) part[i % 8] += x[i];
        sum = ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
    }
    for (; i < count; i++) sum += x[i];
    return sum;
}

void blend_normalize(double *weights, int count) {
    double sum = pairwise_sum(weights, count);
    for (int i = 0; i < count; i++) weights[i] /= sum;
}

int64_t blend_target(int64_t samples, double share) { return (int64_t)ceil((double)samples * share); }

typedef struct {
    const double *shares;
    const int64_t *sizes;
    int count;
} Job;

static int most_lacking(const Job *job, const int64_t *drawn, double position) {
    int best = -1;
    double most = 0;
    for (int k = 0; k < job->count; k++) {
        double lack = job->shares[k] * position - (double)drawn[k];
        if (job->sizes && drawn[k] >= job->sizes[k]) continue;
        if (best >= 0 && lack <= most) continue;
        best = k;
        most = lack;
    }
    CHECK(best >= 0, "a blend of %d members has no more samples", job->count);
    return best;
}

static void fill(const void *self, IndexArrays *arrays) {
    const Job *job = self;
    int16_t *member = arrays->items[0].data;
    int64_t *sample = arrays->items[1].data;
    int64_t *drawn = calloc((size_t)job->count, sizeof *drawn);
    CHECK(drawn, "no memory to count the samples of %d data sets", job->count);
    for (int64_t i = 0; i < arrays->items[0].rows; i++) {
        int k = most_lacking(job, drawn, i ? (double)i : 1);
        member[i] = (int16_t)k;
        sample[i] = drawn[k]++;
    }
    free(drawn);
}

// Members have as many samples as the order needs, so the order must agree with the sizes.
static bool is_sound(const void *self, const IndexArrays *arrays) {
    const Job *job = self;
    const int16_t *member = arrays->items[0].data;
    const int64_t *sample = arrays->items[1].data;
    int64_t *drawn = calloc((size_t)job->count, sizeof *drawn);
    bool sound = drawn != NULL;
    for (int64_t i = 0; i < arrays->items[0].rows && sound; i++)
        sound = member[i] >= 0 && member[i] < job->count && sample[i] == drawn[member[i]]++;
    free(drawn);
    return sound;
}

static void add_description(Text *out, const Job *job, int64_t samples) {
    text_add(out, "trireme, order of a blend, version 1\nsamples %" PRId64 "\n", samples);
    for (int k = 0; k < job->count; k++) {
        text_add(out, "share %a", job->shares[k]);
        if (job->sizes) text_add(out, " of at most %" PRId64, job->sizes[k]);
        text_add(out, "\n");
    }
}

Status blend_order_open(BlendOrder *order, const double *shares, const int64_t *sizes, int count,
                        int64_t samples, Split split, const char *cache) {
    CHECK(count > 0 && count <= MAX_MEMBERS && samples >= 0, "%d members, %" PRId64 " samples", count,
          samples);
    *order = (BlendOrder){
        .size = samples,
        .arrays = {
            .items = {{.name = "dataset_index", .type = "<i2", .item_bytes = 2, .rows = samples},
                      {.name = "dataset_sample_index", .type = "<i8", .item_bytes = 8, .rows = samples}},
            .count = 2}};
    Job job = {shares, sizes, count};
    Text description = {0};
    char kind[32];
    snprintf(kind, sizeof kind, "BlendedDataset-%s", split_name(split));
    if (cache) add_description(&description, &job, samples);
    IndexRecipe recipe = {cache, kind, text_string(&description), fill, is_sound, &job};
    Status status = index_arrays_open(&order->arrays, &recipe);
    text_free(&description);
    order->member = order->arrays.items[0].data;
    order->sample = order->arrays.items[1].data;
    return status;
}

void blend_order_close(BlendOrder *order) {
    index_arrays_close(&order->arrays);
    *order = (BlendOrder){0};
}
