// The data of a run: finds tokenizer and datasets, and reads the batches of one rank.
#include "base/file.h"
#include "train/internal.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// ---- datasets ----------------------------------------------------------------------------

typedef struct {
    const char *const *words;
    int count;
    const char *named; // the option or file that gave them
    bool whole;        // each dataset belongs to one split as a whole
    BlendWords read;   // words read from a file
} DataWords;

static void free_words(DataWords *words) { blend_words_free(&words->read); }

static DataWords list_words(const StringList *list, const char *named, bool whole) {
    return (DataWords){.words = list->items, .count = list->count, .named = named, .whole = whole};
}

static Status read_words(const Options *o, Split which, DataWords *words) {
    bool whole = o->per_split_data_args_path != NULL;
    *words = (DataWords){.named = whole ? o->per_split_data_args_path : o->data_args_path, .whole = whole};
    Status status = whole ? blend_words_read_split(&words->read, words->named, which)
                          : blend_words_read(&words->read, words->named);
    words->words = words->read.words;
    words->count = words->read.count;
    static const char *const splits[NUM_SPLITS] = {"train", "valid", "test"};
    if (status == OK && words->count == 0)
        status = fail(ERR_DATA, "%s names no data set%s%s", words->named, whole ? " for " : "",
                      whole ? splits[which] : "");
    if (status != OK) free_words(words);
    return status;
}

// Finds the words that name the data of a split; none for --mock-data. The rules in config/ have checked that only one
// option names them.
static Status find_words(const Options *o, Split which, DataWords *words) {
    const StringList *lists[NUM_SPLITS] = {&o->train_data_path, &o->valid_data_path, &o->test_data_path};
    static const char *const names[NUM_SPLITS] = {"--train-data-path", "--valid-data-path",
                                                  "--test-data-path"};
    *words = (DataWords){.named = "--mock-data"};
    if (o->mock_data) return OK;
    if (o->data_args_path || o->per_split_data_args_path) return read_words(o, which, words);
    *words = o->data_path.count ? list_words(&o->data_path, "--data-path", false)
                                : list_words(lists[which], names[which], true);
    return OK;
}

// Calls `visit` for each dataset of a split, up to the first failure.
static Status visit_prefixes(const Options *o, Split which, Status (*visit)(const char *prefix, void *self),
                             void *self) {
    DataWords words;
    TRY(find_words(o, which, &words));
    size_t room = (size_t)words.count + 1;
    const char **prefixes = calloc(room, sizeof *prefixes);
    double *weights = calloc(room, sizeof *weights);
    Status status = prefixes && weights ? OK : fail(ERR_OS, "no memory for %d words", words.count);
    int count = status == OK ? blend_parse(words.words, words.count, words.named, prefixes, weights) : 0;
    if (count < 0) status = ERR_CONFIG;
    for (int i = 0; i < count && status == OK; i++) status = visit(prefixes[i], self);
    free(prefixes);
    free(weights);
    free_words(&words);
    return status;
}

// ---- tokenizer ----------------------------------------------------------------------------------

// True when the options name a tokenizer. Otherwise --vocab-size alone is enough.
bool batches_names_tokenizer(const Options *o) {
    return options_have_null_tokenizer(o) || o->vocab_file || o->merge_file || o->tokenizer_model;
}

// Opens the tokenizer of the first dataset.
static Status open_beside(const char *prefix, void *self) {
    Tokenizer **tokenizer = self;
    if (*tokenizer) return OK;
    Status status = tokenizer_open_beside(tokenizer, prefix);
    if (status != ERR_NO_INPUT) return status;
    char why[512];
    snprintf(why, sizeof why, "%s", fail_message());
    return fail(status,
                "no tokenizer beside the data set %s: %s. Give --tokenizer-model, --vocab-file with "
                "--merge-file, or --vocab-size",
                prefix, why);
}

static Status open_tokenizer(const Options *o, Tokenizer **tokenizer) {
    *tokenizer = NULL;
    if (options_have_null_tokenizer(o)) return tokenizer_open_null(tokenizer, o->vocab_size);
    if (o->vocab_file && o->merge_file) return tokenizer_open(tokenizer, o->vocab_file, o->merge_file);
    if (o->tokenizer_model) return tokenizer_open_path(tokenizer, o->tokenizer_model);
    return visit_prefixes(o, SPLIT_TRAIN, open_beside, tokenizer);
}

// True when the size comes from the model of --load. A tokenizer may have less tokens (see same_vocabulary).
static bool is_of_model(const Options *o) {
    Origin origin = options_origin(o, "vocab_size");
    return origin == FROM_CHECKPOINT || origin == DERIVED;
}

static bool agrees(const Options *o, const Tokenizer *tokenizer) {
    return options_have_null_tokenizer(o) || o->vocab_size == INT_UNSET || is_of_model(o) ||
           o->vocab_size == tokenizer_vocab_size(tokenizer);
}

Status batches_tokenizer(const Options *o, Tokenizer **tokenizer) {
    Status status = open_tokenizer(o, tokenizer);
    if (batches_names_tokenizer(o)) return status;
    if (status == ERR_NO_INPUT) return OK;
    if (status != OK || !*tokenizer || agrees(o, *tokenizer)) return status;
    tokenizer_close(*tokenizer); // --vocab-size is that of another tokenizer
    *tokenizer = NULL;
    return OK;
}

static Status find_turn_end(const char *prefix, void *self) {
    ModelTokens *tokens = self;
    Text path = {0};
    text_add(&path, "%s.generation_config.json", prefix);
    bool reads = !tokens->num_ends && file_exists(path.data);
    Status status = reads ? generation_config_read(path.data, tokens) : OK;
    text_free(&path);
    return status;
}

Status batches_turn_end(const Options *o, int *end) {
    ModelTokens tokens = {0};
    *end = NO_TOKEN;
    if (!options_have_conversations(o)) return OK;
    TRY(visit_prefixes(o, SPLIT_TRAIN, find_turn_end, &tokens));
    if (tokens.num_ends) *end = tokens.ends[0];
    return OK;
}

// Opens the tokenizer beside the model of --load and sets `folder` to where it is; NULL: none can be opened.
static Tokenizer *model_tokenizer(const Options *o, Text *folder) {
    ModelSource *source = NULL;
    Tokenizer *tokenizer = NULL;
    if (!o->load || model_source_open(&source, o->load, o->ckpt_step == INT_UNSET ? -1 : o->ckpt_step) != OK)
        return NULL;
    if (model_source_tokenizer(source, &tokenizer) != OK) tokenizer = NULL;
    text_add(folder, "%s", model_source_files_path(source));
    model_source_close(source);
    return tokenizer;
}

// A model may have more entries than its own tokenizer has tokens. With another tokenizer the numbers must be equal.
static Status same_size(const Options *o, const Tokenizer *own, int *vocabulary) {
    int tokens = *vocabulary;
    if (!is_of_model(o) || tokens == o->vocab_size) return OK;
    *vocabulary = o->vocab_size;
    if (tokens < o->vocab_size && own && tokens == tokenizer_vocab_size(own)) return OK;
    return fail(
        ERR_CONFIG,
        "the tokenizer of the data has %d tokens, but the model of --load %s has a vocabulary of %d: use "
        "data that were made with the model's own tokenizer",
        tokens, o->load, o->vocab_size);
}

// The first token that two tokenizers of the same kind spell differently; -1: there is none.
static int first_difference(const Tokenizer *a, const Tokenizer *b) {
    int count = tokenizer_vocab_size(a), other = tokenizer_vocab_size(b);
    if (other < count) count = other;
    for (int id = 0; id < count; id++)
        if (strcmp(tokenizer_spelling(a, id), tokenizer_spelling(b, id)) != 0) return id;
    return -1;
}

// To a model the numbers of tokens mean what its own tokenizer says, also where another one has as many.
static Status same_tokens(const Options *o, const Tokenizer *data, const Tokenizer *own, const char *folder) {
    if (!own || tokenizer_kind(own) == TOKENIZER_NULL || tokenizer_hash(data) == tokenizer_hash(own))
        return OK;
    Text how = {0};
    int id = first_difference(data, own);
    if (id < 0)
        text_add(&how, "it has %d tokens, the model's %d", tokenizer_vocab_size(data),
                 tokenizer_vocab_size(own));
    else
        text_add(&how, "its token %d is \"%.40s\", the model's \"%.40s\"", id, tokenizer_spelling(data, id),
                 tokenizer_spelling(own, id));
    Status status = fail(ERR_CONFIG,
                         "the tokenizer of the data is another one than that of the model of --load %s: %s. "
                         "Prepare the data with the model's: --tokenizer-model %s",
                         o->load, text_string(&how), folder);
    text_free(&how);
    return status;
}

static Status same_vocabulary(const Options *o, const Tokenizer *data, int *vocabulary) {
    if (options_have_null_tokenizer(o)) return OK;
    Text folder = {0};
    Tokenizer *own = model_tokenizer(o, &folder);
    Status status = same_size(o, own, vocabulary);
    if (status == OK) status = same_tokens(o, data, own, text_string(&folder));
    tokenizer_close(own);
    text_free(&folder);
    return status;
}

static Status read_tokenizer(const Options *o, int *vocabulary, int *eod, Text *found) {
    Tokenizer *tokenizer;
    TRY(open_tokenizer(o, &tokenizer));
    if (!tokenizer && is_of_model(o)) return OK; // `trireme memory` has no data
    CHECK(tokenizer, "no option names a tokenizer or a size");
    tokenizer_print_note(tokenizer);
    bool fits = agrees(o, tokenizer);
    *vocabulary = tokenizer_vocab_size(tokenizer);
    *eod = tokenizer_eod(tokenizer);
    if (found)
        text_add(found, "the tokenizer\t%d tokens, end of document %d, hash %016" PRIx64 "\n", *vocabulary,
                 *eod, tokenizer_hash(tokenizer));
    Status status = fits ? same_vocabulary(o, tokenizer, vocabulary) : OK;
    tokenizer_close(tokenizer);
    if (fits) return status;
    return fail(ERR_CONFIG, "--vocab-size %d differs from the tokenizer's %d: leave it out", o->vocab_size,
                *vocabulary);
}

// Without a tokenizer synthetic text ends with the last token.
static Status find_vocabulary(const Options *o, int *vocabulary, int *eod, Text *found) {
    bool is_mock = o->mock_data && !batches_names_tokenizer(o);
    *vocabulary = o->vocab_size;
    *eod = is_mock ? *vocabulary - 1 : -1;
    bool needed =
        !is_mock && (o->vocab_size == INT_UNSET || needs_end_token(o) || batches_names_tokenizer(o));
    bool useful = !is_mock && is_of_model(o); // it is used where there is one
    Status status = needed || useful ? read_tokenizer(o, vocabulary, eod, found) : OK;
    return status == ERR_NO_INPUT && !needed ? OK : status;
}

Status batches_vocabulary(const Options *o, int *vocabulary, int *eod) {
    return find_vocabulary(o, vocabulary, eod, NULL);
}

static Status look_at(const char *prefix, void *self) {
    Text *found = self;
    IndexedDataset *data;
    TRY(indexed_dataset_open(&data, prefix, 0));
    text_add(found, "the data set %s\t%" PRId64 " documents, %" PRId64 " tokens, hash %016" PRIx64 "\n",
             prefix, indexed_dataset_num_documents(data), indexed_dataset_num_tokens(data),
             indexed_dataset_hash(data));
    indexed_dataset_close(data);
    return OK;
}

static Status look_beside(const char *prefix, const char *ending, void *self) {
    Text mask = {0};
    text_add(&mask, "%s%s", prefix, ending);
    Status status = look_at(mask.data, self);
    text_free(&mask);
    return status == ERR_NO_INPUT ? OK : status; // opening the data says what is missing
}

static Status look_at_mask(const char *prefix, void *self) { return look_beside(prefix, LOSS_MASK, self); }
static Status look_at_pair_mask(const char *prefix, void *self) {
    return look_beside(prefix, PREFERENCE_MASK, self);
}

static Status look_at_split(const Options *o, Split which, Text *found) {
    DataWords words;
    TRY(find_words(o, which, &words));
    text_add(found, "the data sets of %s\t", words.named);
    for (int i = 0; i < words.count; i++) text_add(found, "%s%s", i ? " " : "", words.words[i]);
    text_add(found, "\n");
    free_words(&words);
    TRY(visit_prefixes(o, which, look_at, found));
    return options_have_conversations(o)
               ? visit_prefixes(o, which, o->dpo ? look_at_pair_mask : look_at_mask, found)
               : OK;
}

static Status look(Batches *b, const Options *o, Text *found) {
    TRY(look_at_split(o, SPLIT_TRAIN, found));
    if (o->shape.eval_iters > 0) TRY(look_at_split(o, SPLIT_VALID, found));
    return find_vocabulary(o, &b->vocabulary, &b->eod, found);
}

// Ranks that read different files under the same name must not train together.
Status batches_look(Batches *b, const Options *o, Comm *world) {
    Text found = {0};
    Status status = comm_agree(world, look(b, o, &found));
    if (status == OK) status = comm_compare(world, text_string(&found));
    text_free(&found);
    return status;
}

// ---- number of samples (Megatron-LM's rule) ------------------------------------------------------

int64_t batches_validation_samples(const Options *o) {
    return (o->shape.train_iters / o->eval_interval + 1) * o->shape.eval_iters * o->shape.global_batch;
}

static Status open_split(const Batches *b, const Options *o, Split which, int64_t samples, GptDataset **set) {
    DataWords words;
    TRY(find_words(o, which, &words));
    GptSource source = {.words = words.words,
                        .num_words = words.count,
                        .named = words.named,
                        .split = words.whole ? NULL : o->split,
                        .which = which,
                        .num_samples = samples,
                        .seq_length = o->seq_length,
                        .seed = (int)o->seed,
                        .vocab_size = b->vocabulary,
                        .eod = b->eod,
                        .cache = o->data_cache_path,
                        .conversations = options_have_conversations(o),
                        .preferences = o->dpo};
    Status status = gpt_dataset_open_source(set, &source);
    free_words(&words);
    return status;
}

// In the default split a small dataset has nothing for validation; then there is no evaluation.
static Status open_validation(Batches *b, const Options *o) {
    if (o->shape.eval_iters == 0 || !(o->shape.split[SPLIT_VALID] > 0)) return OK;
    Status status = open_split(b, o, SPLIT_VALID, batches_validation_samples(o), &b->valid);
    return status == ERR_CONFIG && options_origin(o, "split") == FROM_DEFAULT ? OK : status;
}

Status batches_open(Batches *b, const Options *o, const Topology *topology) {
    b->tokens = topology_is_first(topology);
    b->labels = topology_is_last(topology);
    b->masked = o->eod_mask_loss;
    b->conversations = options_have_conversations(o);
    b->first_keys = o->reset_attention_mask || b->conversations;
    b->positions = o->reset_position_ids || b->conversations;
    b->micro_batch = o->micro_batch_size;
    b->sequence = o->seq_length;
    b->leaves = leaves_of(topology, o->shape.virtual_data);
    if (!b->tokens && !b->labels && !b->first_keys && !b->positions) return OK;
    TRY(open_split(b, o, SPLIT_TRAIN, o->shape.train_samples, &b->train));
    TRY(open_validation(b, o));
    b->num_microbatches = o->shape.num_microbatches;
    size_t count = (size_t)b->num_microbatches * (size_t)b->micro_batch * (size_t)b->sequence;
    if (o->audit_interval > 0) count *= 2; // the second half is for batches_load_audited
    b->reference_buffer = calloc(count / (size_t)b->sequence, sizeof *b->reference_buffer);
    b->token_buffer = malloc(count * sizeof *b->token_buffer);
    b->label_buffer = malloc(count * sizeof *b->label_buffer);
    b->mask_buffer = malloc(count * sizeof *b->mask_buffer);
    b->first_key_buffer = malloc(count * sizeof *b->first_key_buffer);
    b->position_buffer = malloc(count * sizeof *b->position_buffer);
    if (!b->token_buffer || !b->label_buffer || !b->mask_buffer || !b->first_key_buffer ||
        !b->position_buffer || !b->reference_buffer)
        return fail(ERR_OS, "no memory for a step's batches");
    return OK;
}

static void warn_of_split(const GptDataset *set, const Options *o, Split which) {
    if (!set || gpt_dataset_num_distinct(set) == gpt_dataset_num_samples(set)) return;
    DataWords words;
    if (find_words(o, which, &words)) return;
    printf("%s: %d data sets without weights hold %" PRId64 " %s samples, and the run reads %" PRId64
           ": it reads them again in the same order (with weights every pass is shuffled anew)\n",
           words.named, words.count, gpt_dataset_num_distinct(set), split_name(which),
           gpt_dataset_num_samples(set));
    free_words(&words);
}

void batches_warn(const Batches *b, const Options *o) {
    warn_of_split(b->train, o, SPLIT_TRAIN);
    warn_of_split(b->valid, o, SPLIT_VALID);
}

void batches_close(Batches *b) {
    gpt_dataset_close(b->train);
    gpt_dataset_close(b->valid);
    free(b->token_buffer);
    free(b->label_buffer);
    free(b->mask_buffer);
    free(b->first_key_buffer);
    free(b->position_buffer);
    free(b->reference_buffer);
    *b = (Batches){0};
}

Status batches_suffice(const Batches *b, int64_t samples) {
    if (!b->train || samples <= gpt_dataset_num_samples(b->train)) return OK;
    return fail(
        ERR_CONFIG,
        "the run will have read %" PRId64 " samples in the end, with those before the checkpoint; the "
        "data are laid out for %" PRId64
        ": the batches before it were larger. Say how long the run is with --train-samples in place of "
        "--train-iters",
        samples, gpt_dataset_num_samples(b->train));
}

// Finds the documents of a microbatch whose tokens begin at `at`: a token after one that ends a document begins the
// next. Source: Megatron-LM, _get_ltor_masks_and_position_ids.
static void find_documents(Batches *b, size_t at) {
    size_t samples = (size_t)b->micro_batch;
    for (size_t sample = 0; sample < samples; sample++) {
        int32_t start = 0;
        for (int32_t s = 0; s < b->sequence; s++) {
            size_t i = at + (size_t)s * samples + sample;
            b->first_key_buffer[i] = start;
            b->position_buffer[i] = s - start;
            if (b->token_buffer[i] == b->eod) start = s + 1;
        }
    }
}

// Fills in the mask of a microbatch of conversations, and where each of its tokens' conversation begins.
static Status read_conversations(Batches *b, const GptDataset *set, BatchPlace place, size_t at) {
    size_t samples = (size_t)b->micro_batch, count = samples * (size_t)b->sequence;
    batch_fill_starts(set, place, b->first_key_buffer + at);
    for (size_t i = 0; i < count; i++)
        b->position_buffer[at + i] = (int32_t)(i / samples) - b->first_key_buffer[at + i];
    if (!b->labels) return OK;
    if (b->references)
        references_fill(b->references, set, set == b->valid ? SPLIT_VALID : SPLIT_TRAIN, place,
                        b->reference_buffer + at / (size_t)b->sequence);
    return batch_fill_mask(set, place, b->mask_buffer + at);
}

// Reads one microbatch into row `row` of the buffers.
static Status read_row(Batches *b, const GptDataset *set, BatchPlace place, int row) {
    size_t count = (size_t)b->micro_batch * (size_t)b->sequence, at = (size_t)row * count;
    bool documents = !b->conversations && (b->first_keys || b->positions);
    bool tokens = b->tokens || b->masked || documents;
    TRY(batch_fill(set, place, tokens ? b->token_buffer + at : NULL,
                   b->labels ? b->label_buffer + at : NULL));
    for (size_t i = at; i < at + count && b->masked; i++)
        b->mask_buffer[i] = b->token_buffer[i] == b->eod ? 0.0f : 1.0f;
    if (b->conversations) return read_conversations(b, set, place, at);
    if (documents) find_documents(b, at);
    return OK;
}

static const double (*batch_references(const Batches *b, int row))[NUM_ANSWERS] {
    return (const double(*)[NUM_ANSWERS])(b->reference_buffer + (size_t)row * (size_t)b->micro_batch);
}

// The rows of the buffers from `row` on.
static Batch batch_at(const Batches *b, int row, int num_microbatches, int64_t consumed) {
    size_t at = (size_t)row * (size_t)b->micro_batch * (size_t)b->sequence;
    if (!b->train) return (Batch){.num_microbatches = num_microbatches, .consumed = consumed};
    return (Batch){.num_microbatches = num_microbatches,
                   .consumed = consumed,
                   .tokens = b->token_buffer + at,
                   .labels = b->label_buffer + at,
                   .mask = b->masked || b->conversations ? b->mask_buffer + at : NULL,
                   .references = b->references ? batch_references(b, row) : NULL,
                   .first_keys = b->first_key_buffer + at,
                   .positions = b->position_buffer + at};
}

Status batches_load(Batches *b, const GptDataset *set, int64_t consumed, int num_microbatches, Batch *batch) {
    *batch = batch_at(b, 0, num_microbatches, consumed);
    if (!b->train) return OK;
    int data_ranks = b->leaves.total / b->leaves.count;
    int64_t starts =
        gpt_dataset_num_samples(set) - (int64_t)num_microbatches * b->micro_batch * data_ranks + 1;
    if (set == b->valid && starts > 0) consumed %= starts;
    for (int k = 0; k < num_microbatches; k++) {
        LeafPlace leaf = leaves_place(&b->leaves, num_microbatches, k);
        BatchPlace place = {consumed, b->micro_batch, b->leaves.total, b->leaves.first + leaf.leaf,
                            leaf.index};
        TRY(read_row(b, set, place, k));
    }
    return OK;
}

Status batches_load_audited(Batches *b, int64_t consumed, AuditPart part, int data_rank, Batch *batch) {
    int first = b->num_microbatches;
    *batch = batch_at(b, first, part.computed, consumed);
    for (int k = 0; k < part.computed && b->train; k++) {
        int leaf = data_rank * b->leaves.count + part.leaf;
        BatchPlace place = {consumed, b->micro_batch, b->leaves.total, leaf, k % part.count};
        TRY(read_row(b, b->train, place, first + k));
    }
    return OK;
}
