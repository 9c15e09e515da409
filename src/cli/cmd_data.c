// `trireme data`: shows and verifies data sets, and prints samples as training reads them.
#include "cli/cli.h"
#include "dataset/dataset.h"
#include "formats/formats.h"
#include "tokenizer/tokenizer.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

// ---- what is asked for ------------------------------------------------------------------------------------

// Finds the words after the verb, or those of --data-path or --data-args-path.
typedef struct {
    const char *const *words;
    int count;
    const char *named;
    BlendWords read;
} Words;

static Status find_words(const Options *o, Words *words) {
    *words = (Words){o->positional.items + 1, o->positional.count - 1, "the words", {0}};
    if (words->count && (o->data_path.count || o->data_args_path || o->mock_data))
        return fail(ERR_USAGE, "the data set is named by the word '%s' and by an option: keep one of them",
                    words->words[0]);
    if (o->data_path.count) *words = (Words){o->data_path.items, o->data_path.count, "--data-path", {0}};
    if (o->data_args_path) {
        TRY(blend_words_read(&words->read, o->data_args_path));
        words->words = words->read.words;
        words->count = words->read.count;
        words->named = o->data_args_path;
    }
    if (words->count || o->mock_data) return OK;
    return fail(ERR_USAGE, "data %s needs a data set: the PREFIX of PREFIX.bin and PREFIX.idx",
                o->positional.items[0]);
}

// Opens the tokenizer of --tokenizer-model, or the one beside the data; NULL: there is none.
static Status find_tokenizer(const Options *o, const char *prefix, Tokenizer **tokenizer) {
    *tokenizer = NULL;
    if (o->tokenizer_model) return tokenizer_open_path(tokenizer, o->tokenizer_model);
    if (!prefix) return OK;
    Status status = tokenizer_open_beside(tokenizer, prefix);
    return status == ERR_NO_INPUT ? OK : status;
}

// ---- inspect ----------------------------------------------------------------------------------------------

static int compare_lengths(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static Status print_lengths(const IndexedDataset *data) {
    int64_t count = indexed_dataset_num_sequences(data);
    if (!count) return OK;
    int32_t *lengths = malloc((size_t)count * sizeof *lengths);
    if (!lengths) return fail(ERR_OS, "no memory for %" PRId64 " lengths", count);
    for (int64_t i = 0; i < count; i++) lengths[i] = indexed_dataset_length(data, i);
    qsort(lengths, (size_t)count, sizeof *lengths, compare_lengths);
    printf("  tokens of a sequence: mean %.1f, shortest %d, median %d, nine tenths up to %d, 99 %% up to %d, "
           "longest %d\n",
           (double)indexed_dataset_num_tokens(data) / (double)count, lengths[0], lengths[(count - 1) / 2],
           lengths[(count - 1) * 9 / 10], lengths[(count - 1) * 99 / 100], lengths[count - 1]);
    free(lengths);
    return OK;
}

// Prints the samples of an epoch, as if the whole data set were the training split.
static Status print_samples(const Options *o, const IndexedDataset *data) {
    if (o->seq_length == INT_UNSET) return OK;
    int64_t tokens = indexed_dataset_num_tokens(data), s = o->seq_length;
    printf("  samples of %" PRId64 " + 1 tokens: %" PRId64 " an epoch\n", s, tokens ? (tokens - 1) / s : 0);
    int64_t wanted = o->samples != INT_UNSET ? o->samples : o->train_samples, need;
    if (wanted == INT_UNSET || !tokens) return OK;
    if (__builtin_mul_overflow(wanted, s, &need) || need > INT64_MAX - tokens)
        return fail(ERR_UNAVAILABLE, "%" PRId64 " samples are more than can be counted", wanted);
    printf("  %" PRId64 " samples: %" PRId64 " epochs\n", wanted, need / tokens + 1);
    return OK;
}

static int64_t file_bytes(const char *prefix, const char *ending) {
    Text path = {0};
    struct stat st;
    text_add(&path, "%s%s", prefix, ending);
    int64_t bytes = stat(path.data, &st) ? 0 : st.st_size;
    text_free(&path);
    return bytes;
}

static Status inspect_one(const Options *o, const char *prefix) {
    IndexedDataset *data;
    TRY(indexed_dataset_open(&data, prefix, 0));
    int64_t documents = indexed_dataset_num_documents(data), sequences = indexed_dataset_num_sequences(data);
    printf("%s: %" PRId64 " documents, %" PRId64 " tokens of %d bits\n", prefix, documents,
           indexed_dataset_num_tokens(data), 8 * indexed_dataset_token_bytes(data));
    printf("  %" PRId64 " sequences; %" PRId64 " bytes of tokens, %" PRId64 " of index\n", sequences,
           file_bytes(prefix, ".bin"), file_bytes(prefix, ".idx"));
    Status status = print_lengths(data);
    if (status == OK) status = print_samples(o, data);
    indexed_dataset_close(data);
    return status;
}

// ---- verify -----------------------------------------------------------------------------------------------

static Status read_all(const IndexedDataset *data, int32_t *largest) {
    enum { BLOCK = 65536 };
    int32_t *tokens = malloc(BLOCK * sizeof *tokens);
    if (!tokens) return fail(ERR_OS, "no memory to read tokens");
    Status status = OK;
    for (int64_t i = 0; i < indexed_dataset_num_sequences(data) && status == OK; i++) {
        int64_t length = indexed_dataset_length(data, i);
        for (int64_t at = 0; at < length && status == OK; at += BLOCK) {
            int64_t count = length - at < BLOCK ? length - at : BLOCK;
            status = indexed_dataset_read(data, i, at, count, tokens, 1);
            for (int64_t k = 0; k < count && status == OK; k++)
                if (tokens[k] > *largest) *largest = tokens[k];
        }
    }
    free(tokens);
    return status;
}

// Reads every token and compares it with the vocabulary. Reading finds all other damage.
static Status verify_one(const Options *o, const char *prefix) {
    Tokenizer *tokenizer;
    IndexedDataset *data;
    TRY(find_tokenizer(o, prefix, &tokenizer));
    int vocabulary = o->vocab_size != INT_UNSET ? o->vocab_size
                     : tokenizer                ? tokenizer_vocab_size(tokenizer)
                                                : 0;
    tokenizer_close(tokenizer);
    TRY(indexed_dataset_open(&data, prefix, vocabulary ? vocabulary : INT32_MAX));
    int32_t largest = -1;
    Status status = read_all(data, &largest);
    if (status == OK)
        printf("%s: sound: %" PRId64 " documents, %" PRId64 " tokens, the largest %d%s\n", prefix,
               indexed_dataset_num_documents(data), indexed_dataset_num_tokens(data), largest,
               vocabulary ? "" : "; no tokenizer beside it says whether that is in its vocabulary");
    if (status == OK && vocabulary) printf("  all in the vocabulary of %d\n", vocabulary);
    indexed_dataset_close(data);
    return status;
}

// ---- sample -----------------------------------------------------------------------------------------------

typedef struct {
    const GptDataset *set;
    const Tokenizer *tokenizer; // NULL: ids are shown
    const char *const *prefixes;
    int seq_length;
    int32_t *tokens;     // [seq_length + 1]
    SamplePiece *pieces; // [seq_length + 1]
} Show;

// Prints tokens as quoted text, which shows line ends and the ends of documents, or as numbers.
static Status add_piece(const Show *show, const int32_t *ids, int64_t count, Text *out) {
    if (!show->tokenizer) {
        for (int64_t i = 0; i < count; i++) text_add(out, " %d", ids[i]);
        return OK;
    }
    Text decoded = {0};
    Status status = tokenizer_decode(show->tokenizer, ids, (size_t)count, &decoded);
    text_add(out, " ");
    json_add_string(out, text_string(&decoded), decoded.size);
    text_free(&decoded);
    return status;
}

static Status show_sample(const Show *show, int64_t index) {
    TRY(gpt_dataset_sample(show->set, index, show->tokens));
    int count = gpt_dataset_pieces(show->set, index, show->pieces, show->seq_length + 1);
    Text out = {0};
    Status status = OK;
    int64_t at = 0;
    text_add(&out, "sample %" PRId64 ": %d tokens of %d sequences\n", index, show->seq_length + 1, count);
    for (int p = 0; p < count && status == OK; at += show->pieces[p++].count) {
        SamplePiece piece = show->pieces[p];
        text_add(&out, "  %s, sequence %" PRId64 ", tokens %" PRId64 " to %" PRId64 ":",
                 show->prefixes[piece.member], piece.sequence, piece.offset, piece.offset + piece.count - 1);
        status = add_piece(show, show->tokens + at, piece.count, &out);
        text_add(&out, "\n");
    }
    if (status == OK) fputs(text_string(&out), stdout);
    text_free(&out);
    return status;
}

static Status show_samples(const Options *o, Show *show) {
    int64_t size = gpt_dataset_num_samples(show->set), count = o->samples == INT_UNSET ? 1 : o->samples;
    if (o->first_sample > size || count > size - o->first_sample)
        return fail(
            ERR_CONFIG,
            "--first-sample %" PRId64 " and --samples %" PRId64 " go past the end of %" PRId64
            " samples: use --train-samples N, the samples of the whole run, to see more than one epoch",
            o->first_sample, count, size);
    size_t room = (size_t)o->seq_length + 1;
    show->tokens = malloc(room * sizeof *show->tokens);
    show->pieces = malloc(room * sizeof *show->pieces);
    Status status = show->tokens && show->pieces ? OK : fail(ERR_OS, "no memory for a sample");
    for (int64_t i = 0; i < count && status == OK; i++) status = show_sample(show, o->first_sample + i);
    free(show->tokens);
    free(show->pieces);
    return status;
}

static Status open_and_show(const Options *o, const Words *words, const char **prefixes, int num_prefixes) {
    Tokenizer *tokenizer;
    GptDataset *set = NULL;
    TRY(find_tokenizer(o, num_prefixes ? prefixes[0] : NULL, &tokenizer));
    if (!num_prefixes) prefixes[0] = "synthetic";
    int size = tokenizer ? tokenizer_vocab_size(tokenizer) : o->vocab_size == INT_UNSET ? 0 : o->vocab_size;
    GptSource source = {.words = words->words,
                        .num_words = words->count,
                        .named = words->named,
                        .split =
                            o->mock_data && options_origin(o, "split") == FROM_DEFAULT ? "1,1,1" : o->split,
                        .num_samples = o->train_samples == INT_UNSET ? 0 : o->train_samples,
                        .seq_length = o->seq_length,
                        .seed = (int)o->seed,
                        .vocab_size = size,
                        .eod = tokenizer ? tokenizer_eod(tokenizer) : size - 1,
                        .cache = o->data_cache_path};
    Status status = gpt_dataset_open_source(&set, &source);
    Show show = {.set = set, .tokenizer = tokenizer, .prefixes = prefixes, .seq_length = o->seq_length};
    if (status == OK) status = show_samples(o, &show);
    gpt_dataset_close(set);
    tokenizer_close(tokenizer);
    return status;
}

static Status sample(const Options *o, const Words *words) {
    if (o->seq_length == INT_UNSET) return fail(ERR_CONFIG, "data sample needs --seq-length, such as 1024");
    if (o->mock_data && o->vocab_size == INT_UNSET && !o->tokenizer_model)
        return fail(ERR_CONFIG, "--mock-data needs --vocab-size, such as --vocab-size 50257");
    size_t room = (size_t)words->count + 1;
    const char **prefixes = calloc(room, sizeof *prefixes);
    double *weights = calloc(room, sizeof *weights);
    if (!prefixes || !weights) {
        free(prefixes);
        free(weights);
        return fail(ERR_OS, "no memory for %d words", words->count);
    }
    int count = blend_parse(words->words, words->count, words->named, prefixes, weights);
    Status status = count < 0 ? ERR_CONFIG : open_and_show(o, words, prefixes, count);
    free(prefixes);
    free(weights);
    return status;
}

// ---- the verb ---------------------------------------------------------------------------------------------

static Status each(const Options *o, const Words *words, Status (*act)(const Options *, const char *)) {
    const char **prefixes = calloc((size_t)words->count, sizeof *prefixes);
    double *weights = calloc((size_t)words->count, sizeof *weights);
    Status status = prefixes && weights ? OK : fail(ERR_OS, "no memory for %d words", words->count);
    int count = status == OK ? blend_parse(words->words, words->count, words->named, prefixes, weights) : 0;
    if (count < 0) status = ERR_CONFIG;
    for (int i = 0; i < count && status == OK; i++) status = act(o, prefixes[i]);
    free(prefixes);
    free(weights);
    return status;
}

// Refuses an option that has no effect here.
static Status check_options(const Options *o, const char *what) {
    static const char *const of_samples[] = {"split",     "seed",       "first_sample",  "data_cache_path",
                                             "mock_data", "seq_length", "train_samples", "samples"};
    enum { NONE_OF_INSPECT = 5, ALL = 8 };
    int count = !strcmp(what, "sample") ? 0 : !strcmp(what, "inspect") ? NONE_OF_INSPECT : ALL;
    for (int i = 0; i < count; i++) {
        if (options_origin(o, of_samples[i]) == FROM_DEFAULT) continue;
        Text flag = {0};
        text_add(&flag, "%s", of_samples[i]);
        for (char *c = flag.data; *c; c++)
            if (*c == '_') *c = '-';
        fail(ERR_USAGE, "--%s is not for data %s: leave it out", flag.data, what);
        text_free(&flag);
        return ERR_USAGE;
    }
    return OK;
}

Status cmd_data(Options *o) {
    tell_notes(o);
    static const struct {
        const char *name;
        Status (*act)(const Options *, const char *); // on each prefix; NULL: on all together
    } actions[] = {{"inspect", inspect_one}, {"verify", verify_one}, {"sample", NULL}};
    enum { NUM_ACTIONS = sizeof actions / sizeof *actions };
    const char *what = o->positional.count ? o->positional.items[0] : NULL;
    int which = 0;
    while (what && which < NUM_ACTIONS && strcmp(what, actions[which].name) != 0) which++;
    if (!what || which == NUM_ACTIONS) return options_no_word(FOR_DATA, what);
    Words words;
    TRY(check_options(o, what));
    TRY(find_words(o, &words));
    Status status = actions[which].act ? each(o, &words, actions[which].act) : sample(o, &words);
    blend_words_free(&words.read);
    return status;
}
